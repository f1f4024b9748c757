"""What a restore plan shows, which parameters it takes, and what its digest binds; none of this needs Spark."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from markdown_it import MarkdownIt

import stateflow as sf
from stateflow.checkpoint.log import read_epoch_claim, read_epochs
from stateflow.errors import BusyError, CorruptError, DisagreementError, IncompatibleError, UsageError
from stateflow.format.records import Owner, Record, Savepoint, encode
from stateflow.format.references import references, with_references
from stateflow.pipelines.loading import load_pipeline
from stateflow.pipelines.parameters import as_texts
from stateflow.pipelines.pipeline import Pipeline
from stateflow.restore.digest import bound, differences, require_same
from stateflow.restore.planned import RestorePlan
from stateflow.restore.visible import code, prose, quoted, visible
from stateflow.savepoints.format import read_savepoint
from tests.jobs.made import ORDERS, PARAMETERS, MadeJob, orders_pipeline
from tests.memory_store import named_store
from tests.refusals.refusal import refused
from tests.restore.test_restoring import Scene, made_scene, when_it_claims

ORIGINAL = orders_pipeline()


@sf.pipeline("orders")
def wider(
    flow: sf.Flow, *, input: str, output: str, users: list[str] | None = None, limit: int = 5, token: str = ""
) -> None:
    """The orders example with parameters that may be left out."""
    ORIGINAL.function(flow, input=input, output=output)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return made_scene(tmp_path)


def totals_of(flow: sf.Flow, source: Any) -> Any:
    """The orders example up to its sink."""
    from examples.orders import Balance, Order

    return flow.source("events", source, Order).key_by("user", order_by="ts").process("balance", Balance)


@sf.pipeline("orders")
def upserted(flow: sf.Flow, *, input: str, output: str) -> None:
    """The orders example with a table that has a row per user."""
    totals_of(flow, sf.delta(input)).upsert("latest", sf.delta(output), keys=["user"])


@sf.pipeline("orders")
def of_files(flow: sf.Flow, *, input: str, output: str) -> None:
    """The orders example with files where it reads a table."""
    totals_of(flow, sf.files(input, "json")).append("totals", sf.delta(output))


@sf.pipeline("orders")
def of_catalog(flow: sf.Flow, *, input: str, output: str) -> None:
    """The orders example with a table that a catalog names."""
    totals_of(flow, sf.delta(input)).append("totals", sf.table("shop.totals"))


def planned(
    scene: Scene,
    origin: str,
    given: dict[str, Any] | None = None,
    *,
    into: str = "orders",
    pipeline: Pipeline = wider,
    **request: Any,
) -> RestorePlan:
    return scene.job(into).restore(origin, pipeline, given, options=scene.options, **request)


def forged(scene: Scene, change: Callable[[Savepoint], Savepoint], name: str = "one") -> str:
    """A savepoint of the job that somebody has changed."""
    url, place = scene.savepoint(name)
    place.put("_metadata", encode(change(read_savepoint(place))))
    return url


def with_record(**fields: Any) -> Callable[[Savepoint], Savepoint]:
    def change(savepoint: Savepoint) -> Savepoint:
        return msgspec.structs.replace(savepoint, record=msgspec.structs.replace(savepoint.record, **fields))

    return change


def of(plan: RestorePlan, name: str) -> tuple[str | None, str]:
    found = next(p for p in plan.parameters if p.name == name)
    return found.value, found.origin


THEIRS = {"input": "/data/orders", "output": "/evil", "limit": "9"}


class TestParameters:
    def test_a_savepoint_s_parameters_never_override_those_of_a_job_that_exists(self, scene: Scene) -> None:
        url = forged(scene, with_record(parameters=THEIRS))
        plan = planned(scene, url)
        assert (of(plan, "output"), of(plan, "limit")) == (("/data/totals", "job"), ("5", "default"))
        assert (
            "output = /data/totals (the job's own; the snapshot was made with /evil, the job keeps its own)"
            in str(plan)
        )
        assert "limit = 5 (the pipeline's default; the snapshot was made with 9)" in str(plan)
        assert [sink.target for sink in plan.sinks] == ["/data/totals"]
        plan.apply()
        assert scene.head().parameters == PARAMETERS

    def test_another_job_s_parameters_do_not_either(self, scene: Scene) -> None:
        copy = planned(scene, "latest", {"output": "/data/copy", "limit": 3}, into="copy", from_job="orders")
        copy.apply()
        plan = planned(scene, "latest", into="copy", from_job="orders")
        assert (of(plan, "output"), of(plan, "limit")) == (("/data/copy", "job"), ("3", "job"))

    def test_what_is_given_comes_before_everything(self, scene: Scene) -> None:
        plan = planned(scene, "checkpoint:2", {"output": "/data/given"})
        assert of(plan, "output") == ("/data/given", "given")
        assert (
            "output = /data/given (given; the snapshot was made with /data/totals; the job's newest"
            in str(plan)
        )

    def test_a_new_job_takes_the_savepoint_s_and_the_plan_calls_out_its_output(self, scene: Scene) -> None:
        url = forged(scene, with_record(parameters=THEIRS))
        plan = planned(scene, url, into="copy")
        assert (of(plan, "output"), of(plan, "limit")) == (("/evil", "savepoint"), ("9", "savepoint"))
        assert plan.warnings == (
            (
                "sink totals will write to /evil, which parameter output of the snapshot says: give -p output=... if that is "
                "not meant"
            ),
        )
        plan.apply()
        assert scene.head("copy").parameters == THEIRS
        # The savepoint's limit is 9, which is no part of a name of the output.
        for output in ("/data/copy", "/data9/of19/copy"):
            assert planned(scene, url, {"output": output}, into="other").warnings == ()

    def test_going_back_to_an_own_checkpoint_takes_its_parameters_and_shows_what_the_newest_had(
        self, scene: Scene
    ) -> None:
        planned(scene, "latest", {"output": "/data/moved", "limit": 7}).apply()
        plan = planned(scene, "checkpoint:2")
        assert (of(plan, "output"), of(plan, "limit")) == (("/data/totals", "checkpoint"), ("5", "default"))
        assert "output = /data/totals (the checkpoint's; the job's newest record has /data/moved)" in str(
            plan
        )
        assert "limit = 5 (the pipeline's default; the job's newest record has 7)" in str(plan)

    def test_one_that_the_checkpoint_did_not_need_yet_is_the_job_s(self, scene: Scene) -> None:
        @sf.pipeline("orders")
        def newer(flow: sf.Flow, *, input: str, output: str, limit: int) -> None:
            ORIGINAL.function(flow, input=input, output=output)

        planned(scene, "latest", {"limit": 7}).apply()
        assert of(planned(scene, "checkpoint:2", pipeline=newer), "limit") == ("7", "job")

    def test_a_list_is_recorded_as_a_run_records_it(self, scene: Scene) -> None:
        given = {**PARAMETERS, "users": ["ann", "bob"]}
        planned(scene, "latest", given).apply()
        assert scene.head().parameters == as_texts(given)
        assert wider.arguments(scene.head().parameters)["users"] == ["ann", "bob"]

    def test_a_secret_is_bound_and_not_shown(self, scene: Scene) -> None:
        plan = planned(scene, "latest", {"token": "hush"})
        assert plan.digest != planned(scene, "latest", {"token": "other"}).digest
        for text in (str(plan), plan.markdown(), str(plan.document())):
            assert "hush" not in text
            assert "***" in text


class TestWhatThePlanLists:
    def test_every_source_every_output_and_who_made_the_snapshot(self, scene: Scene) -> None:
        url, place = scene.savepoint()
        savepoint = read_savepoint(place)
        plan = planned(scene, url, {"output": "/data/moved"})
        text = str(plan)
        assert f"savepoint   {savepoint.id}" in text
        assert f"record      {savepoint.record.writer} of job {savepoint.record.job}" in text
        assert "source      events (delta /data/orders): resumes at" in text
        assert "sink        totals (append /data/moved; so far it wrote to /data/totals)" in text
        assert text.endswith(f"digest      {plan.digest}")
        shown = plan.markdown()
        assert f"| identity | `{savepoint.id}`, record `{savepoint.record.writer}` of job" in shown
        assert "| `output` | `/data/moved` | given | `/data/totals` | `/data/totals` |" in shown
        assert f"| digest | `{plan.digest}` |" in shown
        document = plan.document()
        assert (document["digest"], document["savepoint"]) == (plan.digest, savepoint.id)
        assert [p["name"] for p in document["parameters"]] == ["input", "output", "users", "limit", "token"]
        assert document["sources"][0]["kind"] == "delta"
        assert (document["sinks"][0]["kind"], document["sinks"][0]["before"]) == ("append", "/data/totals")


HOSTILE = (
    "a` | `b",
    "``x`` ` `",
    "x\\",
    "x\\|y\\`z",
    "one\n\n**Approved** by ann\n\n| a | b |\n| --- | --- |\n",
    "<b>bold</b> &#124; [click](https://evil)",
    "\x1b[2K\rRestore job \u202egood",
    " lead and trail ",
    "`",
)


def shape(text: str) -> list[str]:
    """How a renderer sees it, whatever the words are."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        found.append(token.type)
        found += [child.type for child in token.children or () if child.type != "text"]
    return found


class TestHostileText:
    @pytest.mark.parametrize("value", HOSTILE)
    def test_a_value_cannot_leave_its_cell(self, scene: Scene, value: str) -> None:
        def plan(text: str, to: str) -> RestorePlan:
            def change(savepoint: Savepoint) -> Savepoint:
                record = savepoint.record
                node = record.operators["balance"]
                # What may be in a name at all.
                name = text.replace("/", "").replace("\\", "")
                lost = msgspec.structs.replace(node, states={name: next(iter(node.states.values()))})
                operators = {**record.operators, f"lost {name}": lost}
                parameters = {**PARAMETERS, "output": f"/data/{text}/totals"}
                changed = msgspec.structs.replace(
                    record, parameters=parameters, operators=operators, writer=text
                )
                return msgspec.structs.replace(savepoint, record=changed, id=text, job=text)

            url = forged(scene, change, to)
            return planned(
                scene, url, into="copy", allow_non_restored_state=True, owner=Owner(run="x", note=text)
            )

        hostile, harmless = plan(value, "hostile"), plan("harmless", "harmless")
        assert shape(hostile.markdown()) == shape(harmless.markdown())
        assert "html_inline" not in shape(hostile.markdown())
        columns = [line.count("|") - line.count("\\|") for line in hostile.markdown().splitlines()]
        assert columns == [line.count("|") for line in harmless.markdown().splitlines()]
        assert len(str(hostile).splitlines()) == len(str(harmless).splitlines())
        assert "\x1b" not in str(hostile)

    def test_a_value_is_shown_so_that_no_two_look_alike(self) -> None:
        assert code("a|b") == r"`a\x7cb`"
        assert code(r"a\x7cb") == r"`a\x5cx7cb`"
        assert code("a\nb") == r"`a\nb`"
        assert code(" a ") == "``  a  ``"
        assert visible("a\u202eb\x1b") == r"a\u202eb\x1b"
        assert prose("a*b") == "a&#42;b"

    def test_an_address_in_a_note_is_no_link(self) -> None:
        """Renderers make links of bare addresses after they have decoded the entities."""
        text = (
            "see https://evil.example/x, HTTP://evil.example, www.evil.example, ann@evil.example; s3://lake/a"
        )
        shown = html.unescape(prose(text))
        assert not re.search(r"(?i)https?://|www\.|\w@\w", shown)
        assert shown == (
            r"see https:\x2f/evil.example/x, HTTP:\x2f/evil.example, www\x2eevil.example, ann\x40evil.example; s3://lake/a"
        )

    @pytest.mark.parametrize(
        "c",
        "\u3164\u115f\u1160\uffa0\u2800\ufe0f\u034f\u17b4\u17b5\u0338\u20dd\u200b\u00ad\xa0\u2003\U000e0041",
    )
    def test_a_character_that_nobody_sees_is_an_escape(self, c: str) -> None:
        assert visible(f"a{c}b") == f"a{ascii(c)[1:-1]}b"
        assert code(f"/data/tot{c}als") != code("/data/totals")
        assert quoted(f"a{c}b") == f"'a{ascii(c)[1:-1]}b'"
        assert prose(f"a{c}b") == prose(f"a{ascii(c)[1:-1]}b")

    def test_a_word_is_quoted_if_it_could_be_taken_for_more(self) -> None:
        for plain in ("/data/totals", "s3://lake/a=1?x&y", "größe", "a-b_c.d", "postgres://ann:***@db", "["):
            assert quoted(plain) == plain
        assert quoted("") == "''"
        assert quoted("unset") == "'unset'"
        assert quoted("a b") == "'a b'"
        assert quoted("a' (given)") == r"'a\' (given)'"
        assert quoted("a\\' (given)") == r"'a\\\' (given)'"
        assert quoted(r"a\x1b") != quoted("a\x1b")

    def test_no_value_poses_as_the_plan_s_own_words(self, scene: Scene) -> None:
        value = "/data/totals (given)" + " " * 300 + "\u3164"
        url = forged(scene, with_record(parameters={**PARAMETERS, "output": value}))
        text = str(planned(scene, url, into="copy"))
        shown = f"'/data/totals (given){' ' * 300}\\u3164'"
        assert f"  parameter   output = {shown} (the savepoint's)" in text.splitlines()
        assert f"  sink        totals (append {shown}): " in text
        assert f"sink totals will write to {shown}, which parameter" in text
        assert f"the snapshot was made with {shown}, the job keeps its own" in str(planned(scene, url))

    def test_no_name_poses_as_the_savepoint_or_job_that_the_plan_is_about(self, scene: Scene) -> None:
        url = forged(
            scene,
            lambda savepoint: msgspec.structs.replace(
                savepoint,
                id="x (checked)",
                job="orders, taken now",
                record=msgspec.structs.replace(savepoint.record, writer="ann of job y"),
            ),
        )
        text = str(planned(scene, url, {"output": "/data/copy"}, into="copy"))
        assert "  savepoint   'x (checked)'" in text.splitlines()
        assert "of job 'orders, taken now', taken" in text
        assert "  record      'ann of job y' of job " in text

    def test_a_refusal_names_what_changed_without_obeying_it(self, scene: Scene) -> None:
        approved = {"operators": {"balance": 1}, "x\x1b": 1, "timeline": 1}
        now = {"operators": {"\x1b[2J\nApproved by ann": "\x1b"}, "x\x1b": 2, "timeline": 1}
        assert differences(approved, now) == [
            r"operator '\x1b[2J\nApproved by ann' was not there and is " + '"\\u001b"',
            "operator balance was 1 and is not there",
            r"the 'x\x1b' was 1 and is 2",
        ]


class TestTheDigest:
    def test_it_is_the_same_each_time_whoever_asks_and_when(self, scene: Scene) -> None:
        first = planned(scene, "checkpoint:2").digest
        assert len(first) == 64
        assert planned(scene, "checkpoint:2", takeover=True, owner=Owner(run="x", note="why")).digest == first
        later = MadeJob(scene.root, run="later")
        later.batch()
        assert planned(scene, "checkpoint:2").digest == first

    @pytest.mark.parametrize(
        "request_",
        [
            {"origin": "checkpoint:3"},
            {"origin": "latest"},
            {"given": {"output": "/data/other"}},
            {"given": PARAMETERS},
            {"rewind_sinks": True},
            {"reset_watermark": True},
            {"parallelism": 2},
            {"allow_non_restored_state": True},
            {"into": "copy", "from_job": "orders", "given": {"output": "/data/copy"}},
        ],
    )
    def test_it_is_another_one_for_whatever_does_something_else(
        self, scene: Scene, request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stateflow.restore.planning.rewindable", lambda prepared: True)
        plan = planned(scene, "checkpoint:2")
        other = planned(scene, **{"origin": "checkpoint:2", **request_})
        assert other.digest != plan.digest
        assert differences(bound(plan, masked=True), bound(other, masked=True))

    def test_it_is_another_one_for_a_backend_that_writes_otherwise(self, scene: Scene) -> None:
        plan = planned(scene, "checkpoint:2")
        options = dataclasses.replace(scene.options, backend="memory")
        other = scene.job("orders").restore("checkpoint:2", wider, None, options=options)
        (said,) = differences(bound(plan, masked=True), bound(other, masked=True))
        assert said.startswith("option backend was ")

    def test_it_tells_a_text_from_what_it_looks_like(self, scene: Scene) -> None:
        @sf.pipeline("orders")
        def untyped(flow: sf.Flow, *, input: str, output: str, loud=False, quiet: bool = False) -> None:  # type: ignore[no-untyped-def]
            ORIGINAL.function(flow, input=input, output=output)

        def digest(given: dict[str, Any]) -> str:
            return planned(scene, "checkpoint:2", given, pipeline=untyped).digest

        # The text "false" is true for code that asks `if loud:`.
        assert digest({"loud": False}) != digest({"loud": "false"})
        assert digest({"quiet": False}) == digest({"quiet": "false"}), "the pipeline gets the same"

    def test_it_is_another_one_for_a_savepoint_that_says_it_is_the_same(self, scene: Scene) -> None:
        url, place = scene.savepoint()
        before = planned(scene, url)
        savepoint = read_savepoint(place)
        operators = dict(savepoint.record.operators)
        operators["balance"] = msgspec.structs.replace(operators["balance"], next_state_id=99)
        place.put("_metadata", encode(with_record(operators=operators)(savepoint)))
        assert differences(bound(before, masked=True), bound(planned(scene, url), masked=True))[0].startswith(
            "the snapshot's content was"
        )
        assert before.digest != planned(scene, url).digest


class TestApproval:
    def test_the_plan_that_was_approved_is_carried_out(self, scene: Scene) -> None:
        approved = planned(scene, "checkpoint:2").digest
        planned(scene, "checkpoint:2", approved=approved, takeover=True).apply()
        assert scene.head().based_on == 2

    def test_a_new_job_is_made_as_it_was_approved(self, scene: Scene) -> None:
        given = {"output": "/data/copy"}
        for origin in ("latest", scene.savepoint()[0]):
            into = f"copy-{len(origin)}"
            request: dict[str, Any] = (
                {"into": into, "from_job": "orders"} if origin == "latest" else {"into": into}
            )
            approved = planned(scene, origin, given, **request).digest
            planned(scene, origin, given, approved=approved, **request).apply()
            assert scene.head(into).parameters["output"] == "/data/copy"

    def test_another_plan_is_refused_before_anything_is_claimed(self, scene: Scene) -> None:
        approved = planned(scene, "checkpoint:2").digest
        epochs = read_epochs(scene.store, scene.job().layout)
        with refused(UsageError, "not the one that was approved", f"{approved[:12]}", "plan again"):
            planned(scene, "checkpoint:2", {"output": "/evil"}, approved=approved).apply()
        assert read_epochs(scene.store, scene.job().layout) == epochs

    def test_a_run_that_lived_until_the_claim_takes_the_approval_with_it(self, scene: Scene) -> None:
        def go_on() -> None:
            MadeJob(scene.root, run="later").batch()

        approved = planned(scene, "checkpoint:4").digest
        when_it_claims(scene, go_on)
        with refused(UsageError, "sink totals was", '"again": false', "and is", '"again": true'):
            planned(scene, "checkpoint:4", approved=approved, takeover=True).apply()
        assert "restore" not in [line.kind for line in scene.job().history()]
        assert [f for f in scene.job().verify(deep=True) if f.severity == "error"] == []

    def test_one_whose_batches_change_nothing_of_the_plan_does_not(self, scene: Scene) -> None:
        def go_on() -> None:
            MadeJob(scene.root, run="later").batch()

        approved = planned(scene, "checkpoint:2").digest
        when_it_claims(scene, go_on)
        planned(scene, "checkpoint:2", approved=approved, takeover=True).apply()
        assert scene.head().based_on == 2

    def test_a_savepoint_that_is_exchanged_at_the_last_moment_is_refused(self, scene: Scene) -> None:
        url, place = scene.savepoint()
        body = encode(with_record(watermark=1)(read_savepoint(place)))
        approved = planned(scene, url).digest
        when_it_claims(
            scene, lambda: named_store(url.removeprefix("memory://").strip("/")).put("_metadata", body)
        )
        with pytest.raises(UsageError, match="the snapshot's content was"):
            planned(scene, url, approved=approved).apply()
        assert scene.head().kind == "checkpoint"

    def test_another_try_of_the_same_deed_that_was_faster_stands(self, scene: Scene) -> None:
        task = Owner(run="the task")
        approved = planned(scene, "checkpoint:2").digest
        first = planned(scene, "checkpoint:2", approved=approved, owner=task).apply()
        again = planned(scene, "checkpoint:2", approved=approved, owner=task).apply()
        assert again.checkpoint == first.checkpoint
        assert [line.kind for line in scene.job().history()].count("restore") == 1

    @pytest.mark.parametrize("approved", ["", "abc", "x" * 64])
    def test_what_is_no_digest_approves_nothing(self, scene: Scene, approved: str) -> None:
        with refused(UsageError, "is no digest of a restore plan"):
            planned(scene, "checkpoint:2", approved=approved)


class TestWithoutApproval:
    """The plan was printed, or logged, before the restore had the job."""

    def test_a_run_that_came_and_went_until_the_claim_is_not_delivered_again(self, scene: Scene) -> None:
        plan = planned(scene, "checkpoint:4")
        MadeJob(scene.root, run="later").batch()
        with refused(
            BusyError, "'orders' has gone on", "has nothing newer than the snapshot", "plan the restore again"
        ):
            plan.apply()
        assert "restore" not in [line.kind for line in scene.job().history()]
        planned(scene, "checkpoint:4").apply()
        assert scene.head().based_on == 4, "the next plan says what is delivered again, and holds"

    def test_another_restore_that_was_faster_is_named(self, scene: Scene) -> None:
        plan = planned(scene, "checkpoint:2")
        planned(scene, "checkpoint:3").apply()
        with refused(BusyError, "somebody has restored the job meanwhile", "plan the restore again"):
            plan.apply()

    def test_batches_that_change_nothing_of_the_plan_do_not_stand_in_the_way(self, scene: Scene) -> None:
        plan = planned(scene, "checkpoint:2", takeover=True)
        MadeJob(scene.root, run="later").batch()
        plan.apply()
        assert scene.head().based_on == 2

    def test_a_function_that_names_another_output_at_each_call_does_not_either(self, scene: Scene) -> None:
        calls = iter(range(100))

        @sf.pipeline("orders")
        def elsewhere(flow: sf.Flow, *, input: str, output: str) -> None:
            ORIGINAL.function(flow, input=input, output=f"{output}-{next(calls)}")

        planned(scene, "checkpoint:2", pipeline=elsewhere).apply()
        assert scene.head().based_on == 2


class TestLookingAtSources:
    """It may start Spark, which takes long: a run must not deliver meanwhile what the restore makes the next one deliver again."""

    @pytest.fixture
    def newest(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[Owner]:
        """Fills with whoever has the job when its sources are looked at; what they lack then ends the restore."""
        seen: list[Owner] = []

        def lacking(*_: object, **named: object) -> None:
            job = scene.job()
            newest = max(read_epochs(job.store, job.layout))
            seen.append(read_epoch_claim(job.store, job.layout, newest).owner)
            raise DisagreementError("its source has lost rows")

        monkeypatch.setattr("stateflow.restore.apply.check_ahead", lacking)
        return seen

    @pytest.mark.parametrize("takeover", [False, True])
    def test_the_restore_has_the_job_by_then(self, scene: Scene, newest: list[Owner], takeover: bool) -> None:
        owner, request = Owner(run="the restore"), {"rewind_sinks": True, "takeover": takeover}
        with refused(DisagreementError, "lost rows"):
            planned(scene, "checkpoint:2", owner=owner, **request).apply()
        assert newest == [owner]
        assert scene.head().slot == 4

    def test_a_live_run_goes_on_when_the_restore_that_would_end_it_is_refused(
        self, scene: Scene, newest: list[Owner]
    ) -> None:
        live = MadeJob(scene.root, run="live")
        live.beat()
        epochs = read_epochs(scene.store, scene.job().layout)
        with refused(DisagreementError, "lost rows"):
            planned(scene, "checkpoint:2", rewind_sinks=True, takeover=True).apply()
        assert newest == [live.writer.owner]
        assert read_epochs(scene.store, scene.job().layout) == epochs


def test_records_of_a_restore_hold_text_alone(scene: Scene) -> None:
    planned(scene, "latest", {"limit": 3, "users": None}).apply()
    head: Record = scene.head()
    assert head.parameters == {**PARAMETERS, "limit": "3"}


class TestOutputsOfOthers:
    def test_a_snapshot_of_another_job_of_the_same_name_is_said_to_write_to_the_same_place(
        self, scene: Scene
    ) -> None:
        url = forged(scene, with_record(job="another-uuid"))
        (said,) = [w for w in planned(scene, url).warnings if "another one of this name" in w]
        assert said.startswith(
            "sink totals writes to /data/totals, and so does the job another-uuid that the snapshot is of"
        )
        own = planned(scene, scene.savepoint("own")[0])
        assert not [w for w in own.warnings if "another one of this name" in w]

    def test_its_name_lets_no_fork_write_where_the_job_of_the_snapshot_does(self, scene: Scene) -> None:
        url = forged(scene, lambda savepoint: msgspec.structs.replace(savepoint, job="fork"))
        with pytest.raises(UsageError, match="two jobs would mix their output there"):
            planned(scene, url, into="copy")

    def test_a_job_that_was_deleted_goes_on_under_another_name_where_it_wrote(self, scene: Scene) -> None:
        url, _ = scene.savepoint("own")
        of_a_stranger = forged(scene, with_record(job="another-uuid"))
        scene.job().delete()
        [said] = [w for w in planned(scene, url, into="renamed").warnings if "which is deleted" in w]
        assert said.startswith("sink totals writes to /data/totals, where job orders wrote")
        with refused(UsageError, "two jobs"):
            planned(scene, of_a_stranger, into="renamed")

    @pytest.mark.parametrize(
        "spelled",
        ["/data/totals/", "/data/x/../totals", "file:/data/totals", "file:///data/totals", "//data/totals"],
    )
    def test_no_spelling_of_the_table_lets_a_fork_write_there(self, scene: Scene, spelled: str) -> None:
        url, _ = scene.savepoint("own")
        with refused(UsageError, "two jobs", "give the fork an output"):
            planned(scene, url, {"output": spelled}, into="copy")
        assert planned(scene, url, {"output": "/data/mine"}, into="copy").sinks[0].target == "/data/mine"

    def test_another_spelling_of_the_table_is_no_other_table(self, scene: Scene) -> None:
        url, _ = scene.savepoint("own")
        assert "so far it wrote to" not in str(planned(scene, url, {"output": "file:///data/totals/"}))

    def test_the_name_in_a_catalog_guards_a_table_as_its_path_does(self, scene: Scene) -> None:
        scene.made.batch(target="/warehouse/totals", name="spark_catalog.shop.totals")
        scene.made.beat(ended=True)
        url, _ = scene.savepoint("own")
        for origin, request in (("latest", {"from_job": "orders"}), (url, {})):
            with refused(UsageError, "two jobs", "shop.totals"):
                planned(scene, origin, into="copy", pipeline=of_catalog, **request)
        of_another = forged(scene, with_record(job="another-uuid"))
        [said] = [w for w in planned(scene, of_another, pipeline=of_catalog).warnings if "writes to" in w]
        assert "another one of this name" in said
        assert "shop.totals" in said
        scene.job().delete()
        plan = planned(scene, url, into="renamed", pipeline=of_catalog)
        [said] = [w for w in plan.warnings if "which is deleted" in w]
        assert "shop.totals" in said

    def test_files_that_somebody_could_exchange_are_counted(self, scene: Scene) -> None:
        url, place = scene.savepoint("old")
        savepoint = read_savepoint(place)
        refs = [ref for ref in references(savepoint.record) if ref.path]
        old = with_references(savepoint.record, lambda ref: msgspec.structs.replace(ref, sha256=b""))
        place.put("_metadata", encode(msgspec.structs.replace(savepoint, record=old)))
        text = f"the snapshot's record names {len(refs)} files without a SHA-256"
        assert any(w.startswith(text) for w in planned(scene, url).warnings)


class Narrow(sf.KeyedProcess[int, Any, Any]):
    total = sf.ValueState(float | None)
    orders = sf.ValueState(int)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None: ...


def test_a_plan_says_how_types_of_states_change(scene: Scene) -> None:
    @sf.pipeline("orders")
    def changed(flow: sf.Flow, *, input: str, output: str) -> None:
        rows = flow.source("events", sf.delta(input), "user long, amount double")
        rows.key_by("user").process("balance", Narrow, output="user long, total double").append(
            "totals", sf.delta(output)
        )

    plan = planned(scene, "checkpoint:2", pipeline=changed)
    assert plan.document()["operators"][0]["states"]["total"] == "kept, evolves by rules: may be None now"
    assert "evolves by rules: may be None now" in str(plan)


def of_file(folder: Path, text: str, revision: str) -> Pipeline:
    folder.mkdir(exist_ok=True)
    (folder / "orders.py").write_text(text)
    return load_pipeline(f"{folder / 'orders.py'}:orders", folder, revision).pipeline


def test_a_source_that_became_another_kind_is_refused_before_anything_is_claimed(scene: Scene) -> None:
    before = read_epochs(scene.store, scene.job().layout)
    with refused(IncompatibleError, "'events' is now a file source", "a delta offset", "give it a new uid"):
        planned(scene, "checkpoint:2", pipeline=of_files)
    assert read_epochs(scene.store, scene.job().layout) == before


def test_a_plan_says_which_code_made_the_snapshot_and_which_goes_on(scene: Scene, tmp_path: Path) -> None:
    text = ORDERS.read_text(encoding="utf-8")
    old, new = (
        of_file(tmp_path / "a", text, "team@1a2b"),
        of_file(tmp_path / "b", text + "# mended\n", "team@3c4d"),
    )
    writer = MadeJob(scene.root, "orders", run="again")
    writer.code = old.versions
    slot = writer.batch()
    same = planned(scene, f"checkpoint:{slot}", pipeline=old, takeover=True)
    assert not [warning for warning in same.warnings if "was made by" in warning]
    other = planned(scene, f"checkpoint:{slot}", pipeline=new, takeover=True)
    [warning] = [warning for warning in other.warnings if "was made by" in warning]
    assert re.search(
        r"was made by .*orders\.py [0-9a-f]{12} of team@1a2b.* goes on with .*of team@3c4d", warning
    )
    assert same.digest != other.digest, "an approval is for the code that was looked at"
    changes = differences(bound(same, masked=True), bound(other, masked=True))
    assert any('the code\'s revision was "team@1a2b" and is "team@3c4d"' in change for change in changes)


def test_a_changed_module_beside_the_pipeline_is_another_plan_and_is_named(
    scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "bound_amounts.py").write_text("FACTOR = 1\n")
    (tmp_path / "own" / "orders.py").write_text(ORDERS.read_text() + "\nimport bound_amounts\n")

    def plan() -> RestorePlan:
        pipeline = load_pipeline("orders.py", tmp_path / "own").pipeline
        return planned(scene, "checkpoint:2", dict(PARAMETERS), pipeline=pipeline)

    first = plan()
    assert "  code        bound by the digest: bound_amounts.py, orders.py\n" in str(first)
    assert "not bound: " in str(first)
    assert "stateflow" in str(first).partition("not bound: ")[2].partition("\n")[0]
    assert "bound by the digest: bound_amounts.py, orders.py" in html.unescape(first.markdown())
    assert list(first.document()["code"]["bound"]) == ["bound_amounts.py", "orders.py"]
    (tmp_path / "own" / "bound_amounts.py").write_text("FACTOR = 1000\n")
    second = plan()
    assert second.digest != first.digest
    changed = differences(bound(first, masked=True), bound(second, masked=True))
    assert any(change.startswith("the file bound_amounts.py was ") for change in changed), changed
    with refused(UsageError, "not the one that was approved", "the file bound_amounts.py was"):
        require_same(first.digest, second, first)


def test_a_pipeline_that_no_file_holds_says_that_its_code_is_not_bound(scene: Scene) -> None:
    assert "  code        not bound by the digest: the pipeline was not loaded from a file\n" in str(
        planned(scene, "checkpoint:2")
    )


@pytest.mark.parametrize(
    ("pipeline", "words"),
    [
        (
            upserted,
            "has nothing of this job yet, and gets only the keys that change after the snapshot: the others never arrive",
        ),
        (wider, "has nothing of this job yet, and gets only rows that follow the snapshot"),
    ],
    ids=["upsert", "append"],
)
def test_the_plan_of_a_fork_says_that_its_tables_begin_empty(
    scene: Scene, pipeline: Pipeline, words: str
) -> None:
    plan = planned(
        scene, "latest", {"output": "/elsewhere"}, into="copy", from_job="orders", pipeline=pipeline
    )
    [sink] = plan.sinks
    assert sink.action == "starts"
    assert sink.note.startswith(words)
    assert words in str(plan)
    assert html.escape(words) in html.unescape(plan.markdown())
    assert plan.document()["sinks"][0]["note"] == sink.note


@sf.pipeline("orders")
def elsewhere(flow: sf.Flow, *, input: str, output: str) -> None:
    """The orders example of a release whose sink had another name, and wrote elsewhere."""
    totals_of(flow, sf.delta(input)).append("before", sf.delta(f"{output}/before"))


@pytest.mark.parametrize("rewind", [False, True])
def test_a_plan_names_what_newer_code_has_written_and_this_code_does_not_have(
    scene: Scene, rewind: bool
) -> None:
    plan = planned(scene, "checkpoint:2", pipeline=elsewhere, rewind_sinks=rewind)
    told = {sink.uid: sink for sink in plan.sinks}
    assert (told["before"].action, told["totals"].action) == ("starts", "keeps")
    assert told["totals"].note.startswith("is not in this code, keeps its output up to slot ")
    assert (
        "delivers again what followed the snapshot: give it a new target and a new uid there"
        in told["totals"].note
    )
    assert told["totals"].note in str(plan)
    assert [sink.uid for sink in planned(scene, "latest", pipeline=elsewhere).sinks] == ["before"]


def test_what_the_claim_would_refuse_is_refused_before_anybody_reads_a_plan(scene: Scene) -> None:
    job = scene.job("orders")
    top = job.log().chain[-1].slot
    url, _ = scene.savepoint("before")
    job.store.put(job.layout.metadata(top), b"rubbish")
    for origin in ("latest", url):
        with refused(CorruptError, job.layout.metadata(top), "stateflow verify orders"):
            planned(scene, origin)
    # Another job does not need what is damaged.
    assert planned(scene, url, {"output": "/data/other"}, into="other").new_job
    job.store.delete([job.layout.identity])
    with refused(CorruptError, job.layout.identity, "put it back"):
        planned(scene, url)
