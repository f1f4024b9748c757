"""`sf.kafka` as a source, on a real broker: topics as rows, bounds, what is gone, and what is refused before anything is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stateflow.config.options import cache_folder
from stateflow.spark.session.jars import bundle_of, local_jars
from tests.spark.kafka_broker import Broker

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]

# A process of its own: the library brings the connector's jars when it starts Spark, and not later.
SCRIPT = """
import json, logging, os, signal, sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import stateflow as sf
from stateflow.config.options import load
from stateflow.errors import StateflowError
from stateflow.spark.runner import RunRequest, run
from stateflow.spark.internals import kafka_admin
from stateflow.spark.session.build import running_session
from stateflow.spark.sources import kafka_topics

# A user waits longer for a broker that is down than this test needs.
kafka_admin.PATIENCE = kafka_topics.PATIENCE = 4
server, folder, broker_pid = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
told = {}


@dataclass
class Order:
    user: int
    amount: float
    kafka_topic: str
    kafka_offset: int
    kafka_key: str | None = None


@dataclass
class Misspelt:
    user: int
    amout: float


@dataclass
class Parts:
    user: int
    headers: dict[str, str] | None = None
    timestamp: datetime | None = None
    note: str | None = None


@dataclass
class Kept(Order):
    user: int | None
    amount: float | None
    broken: str | None = None


@dataclass
class Member:
    offset: int
    topic: str


def pipeline(name, rows, *topics, **given):
    @sf.pipeline(name)
    def made(flow):
        source = flow.source("events", sf.kafka(*topics, **{"bootstrap": server, **given}), rows)
        source.append("out", sf.delta(str(folder / name)))

    return made


class Balance(sf.KeyedProcess):
    total = sf.ValueState(float, default=0.0)

    def process(self, key, rows, ctx):
        self.total.value += sum(row.amount for row in rows)
        yield {"user": key, "total": self.total.value}


@sf.pipeline("wallet")
def wallet(flow):
    rows = flow.source("pays", sf.kafka("pays", bootstrap=server), Order)
    paid = rows.key_by("user", order_by="kafka_offset").process("balance", Balance, output="user long, total double")
    paid.append("paid", sf.delta(str(folder / "paid")))


def report(made, retained=3, **given):
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2", "spark.databricks.delta.snapshotPartitions": "1"}
    options = load(code={"checkpoint_dir": str(folder / "root"), "heartbeat_interval": "1 s", "retained_checkpoints": retained}, folder=folder)
    return run(RunRequest(made, options, master="local[2]", conf=conf, **given))


def ran(made, **given):
    return report(made, **given).rows


def refused(made, **given):
    try:
        return f"ran: {ran(made, **given)}"
    except StateflowError as error:
        return f"{type(error).__name__}: {error}"


told["no topic"] = refused(pipeline("none", Order, "orders"))
spark = running_session()
jvm = spark._jvm
admin_names = jvm.org.apache.kafka.clients.admin


def settings(**more):
    made = jvm.java.util.Properties()
    for name, value in {"bootstrap.servers": server, **more}.items():
        made.setProperty(name, value)
    return made


admin = admin_names.AdminClient.create(settings())
one = jvm.java.util.Collections.singletonList
kind = "org.apache.kafka.common.serialization.ByteArraySerializer"
producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(
    settings(**{"key.serializer": kind, "value.serializer": kind, "acks": "all"})
)


def make_topic(name, partitions):
    admin.createTopics(one(admin_names.NewTopic(name, partitions, 1))).all().get()


def grow(topic, partitions):
    more = jvm.java.util.Collections.singletonMap(topic, admin_names.NewPartitions.increaseTo(partitions))
    admin.createPartitions(more).all().get()


def cut_off(topic, partition, offset):
    # Py4J does not see a static method beside one of the same name.
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    kind = jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete", True, loader)
    static = next(m for m in kind.getMethods() if m.getName() == "beforeOffset" and m.getParameterCount() == 1)
    arguments = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 1)
    arguments[0] = jvm.java.lang.Long.valueOf(offset)
    gone = jvm.java.util.HashMap()
    gone.put(jvm.org.apache.kafka.common.TopicPartition(topic, partition), static.invoke(None, arguments))
    admin.deleteRecords(gone).all().get()


def produce(topic, numbers, partition=None, value=None):
    for n in numbers:
        at = int((BEGIN + timedelta(seconds=n)).timestamp() * 1000)
        text = value or json.dumps({"user": n % 7, "amount": n / 2}).encode()
        where = n % 2 if partition is None else partition
        producer.send(jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, where, at, str(n).encode(), text))
    producer.flush()


def written(name):
    frame = spark.read.format("delta").load(str(folder / name))
    return sorted([r["kafka_topic"], int(r["kafka_key"]), r["kafka_offset"], r["user"], r["amount"]] for r in frame.collect())


make_topic("orders", 2)
make_topic("returns", 2)
produce("orders", range(0, 40))
produce("returns", range(0, 10))
# The broker asks for no login, and the library does not know.
os.environ["ORDERS"] = f"bootstrap.servers={server}\\nsasl.username=me\\nsasl.password=hunter2"
both = pipeline("both", Order, "orders", "returns", per_batch=30, bootstrap="", connection="env:ORDERS")
half = BEGIN + timedelta(seconds=19, milliseconds=500)
told["rows"] = [ran(both, until=half), ran(both, until=half), ran(both)]
told["misspelt"] = refused(pipeline("misspelt", Misspelt, "orders"))

told["parts"] = report(pipeline("parts", Parts, "orders")).warnings
told["latest"] = ran(pipeline("latest", Order, "orders", since="latest"))
told["since"] = ran(pipeline("since", Order, "orders", since=BEGIN + timedelta(seconds=30)))
told["later"] = ran(pipeline("later", Order, "orders", since=BEGIN + timedelta(days=300)))
told["warned of since"] = [
    report(pipeline("late", Order, "orders", since=BEGIN + timedelta(days=300))).warnings,
    report(pipeline("since", Order, "orders", since=BEGIN + timedelta(seconds=30))).warnings,
    report(pipeline("since", Order, "orders", since=BEGIN)).warnings,
    report(pipeline("since", Order, "orders")).warnings,
]

grow("orders", 3)
produce("orders", range(100, 105), partition=2)
told["new partition"] = ran(both)
told["written"] = written("both")
job = sf.Job(str(folder / "root"), "both")
told["positions"] = [source.position for source in job.status().sources]
again = job.replay(both, "latest", master="local[2]")
told["replay"] = [again.rows, again.is_same]
plan = both.build().sources[0].factory.streaming(spark)._jdf.queryExecution().toString()
stored = [str(file) for file in (folder / "root").rglob("*") if file.is_file() and b"hunter2" in file.read_bytes()]
told["secret"] = ["hunter2" in plan, stored]

make_topic("transactions", 1)
careful = jvm.org.apache.kafka.clients.producer.KafkaProducer(
    settings(**{"key.serializer": kind, "value.serializer": kind, "transactional.id": "careful"})
)
careful.initTransactions()
for keys, end in ((("1", "2"), careful.abortTransaction), (("1",), careful.commitTransaction), (("3",), None)):
    careful.beginTransaction()
    for key in keys:
        text = json.dumps({"user": 1, "amount": 1.0}).encode()
        careful.send(jvm.org.apache.kafka.clients.producer.ProducerRecord("transactions", 0, 0, key.encode(), text)).get()
    if end is not None:
        end()
committed = pipeline("committed", Order, "transactions")
all_of_them = pipeline("all", Order, "transactions", options={"kafka.isolation.level": "read_uncommitted"})
told["transactions"] = [ran(committed), ran(all_of_them)]
careful.commitTransaction()
careful.close()
told["transactions"] += [ran(committed), ran(committed), ran(all_of_them)]
told["of transactions"] = [row[1] for row in written("committed")]

make_topic("bad", 2)
produce("bad", [1], partition=0)
produce("bad", [2], partition=0, value=b"no json")
told["bad"] = refused(pipeline("bad", Order, "bad"))
aside = pipeline("aside", Kept, "bad", options={"columnNameOfCorruptRecord": "broken"})
told["aside"] = ran(aside)
told["kept"] = sorted([r["kafka_offset"], r["broken"]] for r in spark.read.format("delta").load(str(folder / "aside")).collect())

produce("bad", [3], partition=0)
cut_off("bad", 0, 3)
told["retention"] = refused(aside)

make_topic("pays", 2)
produce("pays", [1, 8], partition=0)
produce("pays", [3], partition=1)
ran(wallet, retained=9)
for n in (15, 22):
    produce("pays", [n], partition=0)
    ran(wallet, retained=9)
produce("pays", [2], partition=1)
paid = sf.Job(str(folder / "root"), "wallet")
batches = [record.slot for record in paid.checkpoints() if record.statistics.get("processed_rows")]


def rows_of_1():
    found = paid.history_of("balance", "total", "1", rows=wallet, master="local[2]").rows
    return [rows.why or [row["kafka_offset"] for row in rows.inputs[0]] for _, rows in sorted(found.items())]


def replayed(first):
    try:
        return paid.replay(wallet, first, batches[-1], master="local[2]").is_same
    except StateflowError as error:
        return f"{type(error).__name__}: {error}"


def back(job, made, slot):
    warned = []
    logs = logging.Handler()
    logs.emit = lambda record: warned.append(record.getMessage())
    logging.getLogger("stateflow.restore.ahead").addHandler(logs)
    try:
        job.restore(f"checkpoint:{slot}", made, rewind_sinks=True).apply()
        return warned
    except StateflowError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        logging.getLogger("stateflow.restore.ahead").removeHandler(logs)


told["past"] = [rows_of_1(), replayed(batches[0])]
told["debugged"] = paid.debug(wallet, "balance", "1", batches[-1], master="local[2]").is_same
# Of these batches only the first one has read from partition 1.
cut_off("pays", 1, 1)
told["past of one partition"] = [rows_of_1(), replayed(batches[1])]
cut_off("pays", 0, 2)
told["past that is gone"] = [rows_of_1(), replayed(batches[0]), replayed(batches[1])]
cut_off("pays", 0, 3)
told["back"] = back(paid, wallet, batches[0])
admin.deleteTopics(one("pays")).all().get()
told["past without its topic"] = [rows_of_1(), replayed(batches[-1])]

told["wrong"] = refused(pipeline("nobody", Order, "order", "returns"))
admin.deleteTopics(one("returns")).all().get()
told["deleted"] = refused(both)
make_topic("returns", 2)
told["recreated"] = refused(both)
produce("returns", range(200, 220))
told["as long"] = refused(both)
accepting = pipeline("both", Order, "orders", "returns", per_batch=30, options={"failOnDataLoss": "false"})
accepted = report(accepting)
told["accepted"] = [accepted.rows, ran(both)]
produce("returns", range(220, 240))
cut_off("returns", 0, 15)
lossy = report(accepting)
told["lost"] = [lossy.rows, ran(both)]
told["told of losses"] = [[each for each in ended.warnings if "failOnDataLoss" in each] for ended in (accepted, lossy)]

make_topic("grown", 1)
produce("grown", range(3), partition=0)
told["before it grew"] = ran(pipeline("grown", Order, "grown"))
grow("grown", 2)
produce("grown", range(10, 15), partition=1)
cut_off("grown", 1, 2)
told["added and cut"] = refused(pipeline("grown", Order, "grown", since="latest"))
told["first run on it"] = ran(pipeline("first", Order, "grown"))
careless = pipeline("grown", Order, "grown", options={"failOnDataLoss": "false"})
added = report(careless)
told["added and lost"] = [added.rows, [each for each in added.warnings if "failOnDataLoss" in each], report(careless).warnings]


def family(spark):
    options = {"kafka.bootstrap.servers": server, "subscribePattern": "family-.*", "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**options).load().selectExpr("offset", "topic")


@sf.pipeline("family")
def by_pattern(flow):
    rows = flow.source("members", family, Member)
    rows.append("out", sf.delta(str(folder / "family")))


make_topic("family-a", 1)
produce("family-a", range(3), partition=0)
told["family"] = [refused(by_pattern)]
make_topic("family-b", 1)
produce("family-b", range(5), partition=0)
cut_off("family-b", 0, 2)
told["family"] += [refused(by_pattern), refused(by_pattern)]
of_family = sf.Job(str(folder / "root"), "family")
told["family again"] = of_family.replay(by_pattern, "latest", master="local[2]").is_same
told["family was"] = sorted(of_family.status().sources[0].position.split(", "))
told["another topic"] = [ran(pipeline("grown", Order, "grown", "family-b")), ran(pipeline("grown", Order, "grown", "family-b"))]

os.kill(broker_pid, signal.SIGKILL)
told["down"] = refused(pipeline("down", Order, "orders"))
told["back while it is down"] = back(job, accepting, job.checkpoints()[-2].slot)
tables = [str(folder / name) for name in ("none", "down", "bad", "misspelt") if (folder / name / "_delta_log").exists()]
told["rows of these"] = [spark.read.format("delta").load(table).count() for table in tables]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What each run of the script said."""
    folder = tmp_path_factory.mktemp("kafka")
    local_jars(cache_folder(), bundle_of("kafka"))
    script = folder / "script.py"
    script.write_text(SCRIPT)
    broker = Broker(folder / "kafka", 120)
    broker.format()
    broker.start()
    try:
        assert broker.process is not None
        done = subprocess.run(
            [sys.executable, script, broker.address, folder, str(broker.process.pid)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    finally:
        broker.end()
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def expected(topic: str, numbers: range, partition: int | None = None) -> list[list[object]]:
    """Key, offset and value of what was produced."""
    return [[topic, n, n // 2 if partition is None else k, n % 7, n / 2] for k, n in enumerate(numbers)]


def test_several_topics_are_read_once_up_to_a_bound_and_with_new_partitions(told: dict[str, object]) -> None:
    # Number n bears second n: of orders 20 are within the bound, of returns all 10.
    assert told["rows"] == [30, 0, 20]
    assert told["new partition"] == 5
    rows = (
        expected("orders", range(40))
        + expected("orders", range(100, 105), 2)
        + expected("returns", range(10))
    )
    assert told["written"] == sorted(rows)
    assert told["positions"] == ["orders[0]@20, orders[1]@20, orders[2]@5, returns[0]@5, returns[1]@5"]


def test_what_a_writer_has_taken_back_is_not_read_and_what_is_open_waits(told: dict[str, object]) -> None:
    assert told["of transactions"] == [1, 3]
    assert told["transactions"] == [1, 4, 1, 0, 0]


def test_its_last_batch_is_read_again_for_a_replay(told: dict[str, object]) -> None:
    assert told["replay"] == [5, True]


def test_rows_of_a_key_are_read_again_and_what_retention_deleted_is_said(told: dict[str, Any]) -> None:
    lost = "the input of checkpoint 3 cannot be read again: source 'pays' has to go on at offset 0 of topic 'pays' partition"
    gone = "but the topic's retention has removed everything before offset"
    assert (told["past"], told["debugged"]) == ([[[0, 1], [2], [3]], True], True)
    (first, *others), same = told["past of one partition"]
    assert (others, same) == ([[2], [3]], True)
    assert first.startswith(f"{lost} 1, {gone} 1")
    (first, *others), refused, same = told["past that is gone"]
    assert (others, same) == ([[2], [3]], True)
    assert first.startswith(f"{lost} 0, {gone} 2")
    assert refused.startswith(
        f"DisagreementError: {lost} 0, {gone} 2; the input from checkpoint 5 on is still there"
    )
    rows, refused = told["past without its topic"]
    assert len(rows) == 3, "the values are still shown"
    assert all("there is no Kafka topic 'pays'" in why for why in (*rows, refused))


def test_outputs_are_not_taken_back_to_messages_that_retention_deleted(told: dict[str, Any]) -> None:
    assert told["back"].startswith("DisagreementError: source 'pays' has to go on at offset 2")
    assert "retention has removed everything before offset 3" in told["back"]
    [warning] = told["back while it is down"]
    assert warning.startswith("source 'events' cannot be asked")


def test_a_password_of_the_connection_is_in_no_record_and_no_plan(told: dict[str, object]) -> None:
    assert told["secret"] == [False, []]


def test_a_source_begins_where_since_says(told: dict[str, object]) -> None:
    assert (told["latest"], told["since"], told["later"]) == (0, 10, 0)


def test_parts_of_a_message_under_the_names_of_spark_are_told(told: dict[str, Any]) -> None:
    assert [said[: said.index(";", said.index("the message"))] for said in told["parts"]] == [
        f"source 'events': 40 rows have no {name!r} at all, a field of Parts: no message names it; the message's own is in the field 'kafka_{name}'"
        for name in ("headers", "timestamp")
    ]


def test_a_since_that_is_too_late_or_does_not_count_any_more_is_told(told: dict[str, Any]) -> None:
    late, same, other, none = told["warned of since"]
    assert same == []
    assert late[0].startswith(
        "source 'events': no message of Kafka topic orders is as late as since=2026-10-28T00:00:00+00:00"
    )
    assert other[0].startswith("source 'events': since=2026-01-01T00:00:00+00:00 does not count any more")
    assert none[0].startswith("source 'events': the default does not count any more as where it begins")
    assert [len(late), len(other), len(none)] == [1, 1, 1]


def test_a_message_that_does_not_fit_names_its_place_or_comes_in_a_column(told: dict[str, object]) -> None:
    assert "IncompatibleError: the message at offset 1 of topic bad, partition 0," in str(told["bad"])
    assert "it is no object of JSON: no json" in str(told["bad"])
    assert (told["aside"], told["kept"]) == (2, [[0, None], [1, "no json"]])


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("no topic", "NotFoundError: source 'events': there is no Kafka topic 'orders' at {}: make it, or correct its name"),
        ("wrong", "NotFoundError: source 'events': there is no Kafka topic 'order' at {}: did you mean orders?"),
        ("misspelt", "IncompatibleError: source 'events': no row of the batch has the field 'amout' of Misspelt, and Kafka topic orders has 'amount'"),
        ("retention", "DisagreementError: source 'events' has to go on at offset 2 of topic 'bad' partition 0, but the topic's retention"),
        ("deleted", "NotFoundError: source 'events': there is no Kafka topic 'returns'"),
        ("recreated", "DisagreementError: source 'events' has read a topic 'returns' that is gone: the one of this name was made anew"),
        ("as long", "DisagreementError: source 'events' has read a topic 'returns' that is gone: the one of this name was made anew"),
        ("added and cut", "DisagreementError: source 'events' has to go on at offset 0 of topic 'grown' partition 1, but the topic's retention"),
        ("down", "UnavailableError: source 'events': no Kafka broker answers at {} within 4 s"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_sentence(
    told: dict[str, object], case: str, sentence: str
) -> None:
    said = str(told[case])
    for part in sentence.split("{}"):
        assert part in said, said


def test_a_run_that_accepts_a_topic_made_anew_goes_on_with_it(told: dict[str, object]) -> None:
    # Twenty records are in the new topic, of which ten lie behind the recorded offsets.
    assert told["accepted"] == [10, 0]


def test_a_run_that_accepts_what_retention_took_reads_the_rest(told: dict[str, object]) -> None:
    assert told["lost"] == [15, 0]


def test_a_loss_that_is_accepted_is_counted_in_a_warning(told: dict[str, object]) -> None:
    warned = told["told of losses"]
    assert isinstance(warned, list)
    anew, lossy = warned
    assert ["5 offsets before it are not read" in each for each in anew] == [True, True]
    assert len(lossy) == 1
    for named in ("'events'", "'returns' partition 0", "5 offsets are lost"):
        assert named in lossy[0], lossy


def test_a_partition_that_a_topic_got_later_without_its_first_messages_is_a_loss(
    told: dict[str, Any],
) -> None:
    """What is refused is among the sentences above."""
    assert (told["before it grew"], told["first run on it"]) == (3, 6)
    rows, [warning], later = told["added and lost"]
    assert (rows, later) == (3, [])
    for named in ("'events'", "'grown' partition 1", "2 offsets are lost"):
        assert named in warning, warning


def test_a_topic_that_is_new_to_a_source_begins_where_it_begins_now(told: dict[str, Any]) -> None:
    assert told["family"] == ["ran: 3", "ran: 3", "ran: 0"]
    assert told["family was"] == ["family-a[0]@3", "family-b[0]@5"]
    assert told["family again"] is True
    assert told["another topic"] == [3, 0]


def test_nothing_was_written_by_what_was_refused(told: dict[str, object]) -> None:
    rows = told["rows of these"]
    assert isinstance(rows, list)
    assert set(rows) <= {0}
