"""The record format is a promise: bytes that were written once are read for ever."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import CorruptError, IncompatibleError
from stateflow.format.instants import micros_since_epoch
from stateflow.format.records import (
    Base,
    DeadMark,
    EpochClaim,
    FileRef,
    JobIdentity,
    Link,
    OperatorListState,
    OperatorState,
    Outcome,
    Owner,
    Pin,
    Prepared,
    Record,
    Savepoint,
    Shard,
    SourceState,
    StateSchema,
    decode,
    encode,
)
from stateflow.quantities import time_text
from stateflow.storage.file_urls import file_folder
from stateflow.storage.files import inline
from tests.jobs.operators import one_shard
from tests.refusals.refusal import refused

OWNER = Owner(run="r1", host="h", pid=7, user="u", dag_run="d", task="t", note="n")
RECORD = Record(
    kind="checkpoint",
    job="0b1c",
    slot=42,
    epoch=7,
    writer="w42",
    previous=Link(41, "w41"),
    based_on=41,
    timeline=2,
    floor=39,
    owner=OWNER,
    at=1_700_000_000_000_001,
    now=1_700_000_000_000_000,
    seed=11,
    watermark=1_699_999_000_000_000,
    sources={
        "events": SourceState(
            lines=('{"reservoirVersion":3}',),
            files=(FileRef("0/3", 12, "aa", path="orders/shared/e7-c42-x.log"),),
            kind="delta",
            event_time=5,
            active=6,
        )
    },
    operators={
        "balance": OperatorState(
            key=(("user", "int"),),
            max_parallelism=128,
            assignment=((0, 63), (64, 127)),
            shards=(
                (
                    Shard(
                        0,
                        63,
                        "rocksdb",
                        files=(
                            FileRef("000008.sst", 10, "bb", path="orders/shared/e7-c42-y.sst"),
                            FileRef("CURRENT", 3, "cc", data=b"\x00\x01\xff"),
                        ),
                        next_event_timer=9,
                        entries=4,
                    ),
                ),
                (Shard(64, 127, "memory", physical_first=0, physical_last=127, next_processing_timer=8),),
            ),
            states={"total": StateSchema(1, "value", "float", queryable=True, aliases=("sum",), ttl=3)},
            next_state_id=2,
            operator_states={"seen": OperatorListState("list", "int", ((b"\x02",), ()))},
            hosts=("executor_h_1", "executor_h_0"),
        )
    },
    sinks={
        "totals": Prepared(
            "delta_append",
            "/out",
            41,
            payload={"actions": ["{}"]},
            files=(FileRef("p", 1, "dd", path="orders/staged/e7-c42-z.parquet"),),
            rows=5,
        )
    },
    statistics={"processed_rows": 5},
    versions={"stateflow": "0.1.0"},
    parameters={"input": "/in"},
)
FROZEN = (
    b"stateflow 1 92e66cf4dfaf1b3a 1471\n"
    b'{"kind":"checkpoint","job":"0b1c","slot":42,"epoch":7,"writer":"w42","previous":{"slot":41,"writ'
    b'er":"w41"},"based_on":41,"timeline":2,"floor":39,"owner":{"run":"r1","host":"h","pid":7,"user":"'
    b'u","dag_run":"d","task":"t","note":"n"},"at":1700000000000001,"now":1700000000000000,"seed":11,"'
    b'watermark":1699999000000000,"sources":{"events":{"lines":["{\\"reservoirVersion\\":3}"],"files":[{'
    b'"name":"0/3","size":12,"xxh3":"aa","path":"orders/shared/e7-c42-x.log"}],"kind":"delta","event_t'
    b'ime":5,"active":6}},"operators":{"balance":{"key":[["user","int"]],"max_parallelism":128,"assign'
    b'ment":[[0,63],[64,127]],"shards":[[{"first":0,"last":63,"backend":"rocksdb","files":[{"name":"00'
    b'0008.sst","size":10,"xxh3":"bb","path":"orders/shared/e7-c42-y.sst"},{"name":"CURRENT","size":3,'
    b'"xxh3":"cc","data":"AAH/"}],"next_event_timer":9,"entries":4}],[{"first":64,"last":127,"backend"'
    b':"memory","physical_first":0,"physical_last":127,"next_processing_timer":8}]],"states":{"total":'
    b'{"id":1,"kind":"value","value":"float","ttl":3,"queryable":true,"aliases":["sum"]}},"next_state_'
    b'id":2,"operator_states":{"seen":{"kind":"list","schema":"int","parts":[["Ag=="],[]]}},"hosts":["'
    b'executor_h_1","executor_h_0"]}},"sinks":{"totals":{"kind":"delta_append","target":"/out","prev":'
    b'41,"payload":{"actions":["{}"]},"files":[{"name":"p","size":1,"xxh3":"dd","path":"orders/staged/'
    b'e7-c42-z.parquet"}],"rows":5}},"statistics":{"processed_rows":5},"versions":{"stateflow":"0.1.0"'
    b'},"parameters":{"input":"/in"}}'
    b"\n"
)
WITH_SHA256 = Record(
    kind="checkpoint",
    job="0b1c",
    slot=2,
    epoch=1,
    writer="w2",
    owner=Owner(run="r"),
    sources={
        "events": SourceState(
            lines=(), files=(FileRef("0/3", 12, "aa", path="o/shared/x.log", sha256=bytes(range(32))),)
        )
    },
)
FROZEN_WITH_SHA256 = (
    b"stateflow 1 e7977651a6b4ab98 248\n"
    b'{"kind":"checkpoint","job":"0b1c","slot":2,"epoch":1,"writer":"w2","owner":{"run":"r"},"sources'
    b'":{"events":{"lines":[],"files":[{"name":"0/3","size":12,"xxh3":"aa","path":"o/shared/x.log","s'
    b'ha256":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}]}}}'
    b"\n"
)
SMALL = {
    "claim": (EpochClaim(epoch=7, writer="w", owner=Owner(run="r"), at=1), b'{"epoch":7,"writer":"w","owner":{"run":"r"},"at":1}'),
    "identity": (JobIdentity(uuid="u", name="orders", at=1), b'{"uuid":"u","name":"orders","at":1}'),
    "pin": (
        Pin(id="p", slot=42, kind="tag", name="v1", owner=Owner(run="r"), reason="why"),
        b'{"id":"p","slot":42,"kind":"tag","name":"v1","owner":{"run":"r"},"reason":"why"}',
    ),
    "mark": (DeadMark(slot=42, collector="c"), b'{"format":1,"slot":42,"collector":"c"}'),
    "outcome": (
        Outcome(slot=42, record="w42", writer="x", epoch=8, sinks={"totals": "already"}, last_commits={"totals": 42}),
        b'{"slot":42,"record":"w42","writer":"x","epoch":8,"sinks":{"totals":"already"},"last_commits":{"totals":42}}',
    ),
}  # fmt: skip


def test_a_record_has_the_bytes_it_always_had() -> None:
    assert encode(RECORD) == FROZEN


def test_a_frozen_record_reads_back_as_it_was() -> None:
    assert decode(FROZEN, Record, "chk-00000042/_pending") == RECORD


def test_a_record_with_sha256_has_the_bytes_it_always_had() -> None:
    assert encode(WITH_SHA256) == FROZEN_WITH_SHA256
    assert decode(FROZEN_WITH_SHA256, Record, "chk-00000002/_pending") == WITH_SHA256


class _Earlier(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    size: int
    xxh3: str
    path: str = ""


class _Source(msgspec.Struct, frozen=True):
    files: tuple[_Earlier, ...]


class _Before(msgspec.Struct, frozen=True):
    sources: dict[str, _Source]


def test_a_version_that_lacks_a_field_reads_the_rest_of_the_record() -> None:
    read = decode(FROZEN_WITH_SHA256, _Before, "chk-00000002/_pending")
    assert read.sources["events"].files == (_Earlier("0/3", 12, "aa", "o/shared/x.log"),)


def test_sha256_makes_a_reference_56_bytes_longer_and_one_with_its_bytes_no_longer() -> None:
    ref = FileRef("000008.sst", 10, "0" * 16, path="orders/shared/e7-c42-y.sst")
    longer = msgspec.structs.replace(ref, sha256=bytes(32))
    assert len(msgspec.json.encode(longer)) - len(msgspec.json.encode(ref)) == 56
    assert inline("CURRENT", b"x").sha256 == b""


@pytest.mark.parametrize("name", SMALL)
def test_the_other_bodies_have_the_bytes_they_always_had(name: str) -> None:
    body, text = SMALL[name]
    assert encode(body).split(b"\n")[1] == text
    assert decode(encode(body), type(body), name) == body


@pytest.mark.parametrize("at", range(0, len(FROZEN) - 1, 7))
def test_any_flipped_bit_is_found_and_the_record_named(at: int) -> None:
    damaged = bytearray(FROZEN)
    damaged[at] ^= 4
    with refused((CorruptError, IncompatibleError), "chk-00000042/_pending"):
        decode(bytes(damaged), Record, "orders/chk-00000042/_pending")


@pytest.mark.parametrize("length", [0, 1, 20, len(FROZEN) // 2, len(FROZEN) - 2])
def test_a_truncated_record_is_named(length: int) -> None:
    with refused(CorruptError, "_pending"):
        decode(FROZEN[:length], Record, "orders/chk-00000042/_pending")


@pytest.mark.parametrize(
    "text", [b'{"id": "\xff"}', b'{"id": ' + b"[" * 100_000, b"\xff", b'{"slot": 1e999}', b"[]", b""]
)
@pytest.mark.parametrize("kind", [Pin, Record])
def test_json_that_no_stateflow_has_written_is_an_error_that_names_the_file(
    text: bytes, kind: type[Any]
) -> None:
    header = b"stateflow 1 %s %d\n" % (xxhash.xxh3_64_hexdigest(text).encode(), len(text))
    with pytest.raises(CorruptError, match=r"^there/it "):
        decode(header + text, kind, "there/it")


@pytest.mark.parametrize(
    "header",
    [
        b"stateflow 1 a " + b"9" * 5000,
        b"stateflow " + b"9" * 5000 + b" a 1",
        b"stateflow \xb2 a 1",
        b"stateflow 1 \xff 3",
    ],
)
def test_a_first_line_that_no_stateflow_has_written_is_damage(header: bytes) -> None:
    with pytest.raises(CorruptError, match=r"^there/it "):
        decode(header + b"\nabc", Pin, "there/it")


@pytest.mark.parametrize("kind", [Savepoint, Outcome, Pin, Record])
def test_a_time_that_no_clock_shows_is_damage(kind: type[Any]) -> None:
    first, last = (micros_since_epoch(each.replace(tzinfo=UTC)) for each in (datetime.min, datetime.max))
    owner, common = Owner(run="r"), {"job": "j", "slot": 1, "epoch": 1, "writer": "w"}
    record = Record(kind="checkpoint", owner=owner, **common)
    made: Any = {
        Savepoint: lambda at: Savepoint(id="s", kind="native", job="j", record=record, owner=owner, at=at),
        Outcome: lambda at: Outcome(slot=1, record="w", writer="w", epoch=1, at=at),
        Pin: lambda at: Pin(id="p", slot=1, kind="tag", owner=owner, at=at),
        Record: lambda at: msgspec.structs.replace(record, at=at),
    }[kind]
    for at in (first, last):
        assert decode(encode(made(at)), kind, "x").at == at
    for at in (first - 1, last + 1):
        with refused(CorruptError, "x"):
            decode(encode(made(at)), kind, "x")


def test_a_watermark_may_lie_before_the_first_year() -> None:
    """An event of the year 1 is late by some hours, and the job must be able to read what it has written."""
    first = micros_since_epoch(datetime.min.replace(tzinfo=UTC))
    record = Record(
        kind="checkpoint",
        job="j",
        slot=1,
        epoch=1,
        writer="w",
        owner=Owner(run="r"),
        watermark=first - 3_600_000_000,
    )
    assert decode(encode(record), Record, "x") == record
    assert time_text(record.watermark) == "before the year 1"
    assert time_text(first).startswith("1-01-01") or time_text(first).startswith("0001-01-01")


def test_a_newer_format_is_refused_with_what_to_do() -> None:
    newer = FROZEN.replace(b"stateflow 1 ", b"stateflow 2 ", 1)
    with refused(IncompatibleError, "newer stateflow", "upgrade"):
        decode(newer, Record, "orders/chk-00000042/_pending")


def test_fields_that_a_later_version_adds_are_passed_over() -> None:
    class Later(EpochClaim, frozen=True, kw_only=True):
        colour: str = ""

    body = encode(Later(epoch=7, writer="w", owner=Owner(run="r"), colour="blue"))
    assert decode(body, EpochClaim, "epochs/7") == EpochClaim(epoch=7, writer="w", owner=Owner(run="r"))


def test_a_body_of_another_kind_is_not_taken_for_a_record() -> None:
    with refused(CorruptError, "fields of a Record"):
        decode(encode(DeadMark(slot=1, collector="c")), Record, "orders/chk-00000001/_pending")


def test_references_share_a_place_if_and_only_if_they_are_to_the_same_bytes() -> None:
    pack = [
        FileRef("a", size, "00", "state/p.pack", offset=at)
        for size, at in [(20, 0), (0, 20), (0, 320), (300, 20)]
    ]
    assert len({ref.place for ref in pack}) == 3  # the empty ones are one
    assert pack[1].place == pack[2].place != pack[3].place
    whole = FileRef("a", 20, "00", "state/p.pack")
    assert whole.place == pack[0].place != msgspec.structs.replace(whole, base="file:///sp").place


def test_a_record_is_readable_by_people() -> None:
    assert msgspec.json.decode(FROZEN.split(b"\n")[1])["operators"]["balance"]["key"] == [["user", "int"]]


TYPES = """
from __future__ import annotations
import msgspec

class Inner(msgspec.Struct):
    a: int = 0
    b: dict[str, int] = {}

class Middle(msgspec.Struct):
    inner: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] = {}

class Outer(msgspec.Struct):
    middle: Middle
    more: dict[str, Middle] = {}
"""
THREADS = """
import sys, threading, types
from stateflow.format.records import decode, encode

sys.setswitchinterval(1e-6)
kinds = []
for number in range(60):
    module = sys.modules[f"made{number}"] = types.ModuleType(f"made{number}")
    exec(TYPES, module.__dict__)
    kinds.append((module.Outer, encode(module.Outer(module.Middle((module.Inner(1),))))))
together = threading.Barrier(8)

def decodes():
    for kind, body in kinds:
        together.wait()
        assert decode(body, kind, "a path").middle.inner[0].a == 1

threads = [threading.Thread(target=decodes) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""


def test_threads_that_meet_a_type_for_the_first_time_together_do_not_crash_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"TYPES = {TYPES!r}\n{THREADS}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_record_that_is_printed_does_not_print_the_state_inside_it() -> None:
    small = FileRef(name="s.sst", size=100_000, xxh3="0" * 16, data=b"x" * 100_000)
    operator = one_shard(small, groups=16)
    printed = repr(msgspec.structs.replace(RECORD, operators={"balance": operator}))
    assert "data=<100000 bytes>" in printed
    assert len(printed) < 5_000


BASES = (
    *(
        "",
        "_savepoints/orders/one",
        "moved/here/",
        "..a/b..",
        "a%25b",
        "a%252e%252e",
        "%2e%2ea",
        "my savepoints/\u00fc",
    ),
    *(
        "file:///data/one",
        "s3://bucket/a%20b",
        "file:///data/..one/two..",
        "abfss://c@account/x",
        "file:///a%252e%252e/b",
    ),
)
LEADING_OUT = (
    *(
        "..",
        "../x",
        "a/../b",
        "a/..",
        ".",
        "a/./b",
        "%2e%2e",
        "%2E%2e/x",
        ".%2e/x",
        "%2e./x",
        "a/%2e%2e/%2e%2e/x",
        "%2e",
    ),
    *("a%2f..%2f..%2fx", "%2fetc", "a%5c..", "a%00b", "/etc", "a//b"),
    *(
        "file:///root/../x",
        "file:///root/%2e%2e/x",
        "file:///root/.%2E",
        "file:///root/a%2f..%2fb",
        "s3://b/../x",
    ),
)


@pytest.mark.parametrize("base", BASES)
def test_a_savepoint_s_folder_or_url_is_read(base: str) -> None:
    assert msgspec.convert(base, Base) == base


@pytest.mark.parametrize("base", LEADING_OUT)
def test_a_folder_or_url_that_leads_up_is_refused_however_it_is_written(base: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(base, Base)


@given(st.text("./%2eEfF\\a", max_size=14))
def test_no_folder_that_is_read_leads_out_of_its_root(base: str) -> None:
    with suppress(msgspec.ValidationError):
        folder = file_folder(f"file:///data/root/{msgspec.convert(base, Base)}")
        assert "://" in base or folder.is_relative_to("/data/root")
