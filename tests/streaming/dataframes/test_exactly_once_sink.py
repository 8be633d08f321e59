"""DataFrames to a strict cluster, with crashes at every step, replays, lost checkpoints and parts that were not committed."""

from __future__ import annotations

import pickle
import re
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.fakes.partition_log import PartitionLog
from tests.fakes.raw_client import RawClient
from tests.fakes.strict_broker import StrictCluster
from tests.support.inline_frames import InlineFrame, QuerySession, Row, committed, rows_of, sink_to, texts

from shallow_mirror import (
    ConfigError,
    ExactlyOnceKafkaSink,
    FencedError,
    MicroBatchInDoubtError,
    RecordRefusedError,
    RetriableError,
    WrittenRecords,
)
from shallow_mirror.broker import Cluster
from shallow_mirror.local_kafka.ports import free_ports


class KilledError(BaseException):
    """The end of the process: nothing is cleaned up."""


class KillAt:
    """Observer."""

    def __init__(self, point: str) -> None:
        self._point = point

    def __call__(self, point: str) -> None:
        if point == self._point:
            raise KilledError(point)


OFFSETS = {0: "[0]", 1: "[1]", 2: "[2]"}
QUERY = QuerySession("query-1", OFFSETS)

STEPS = [
    "TakeDecision",
    "task.initialised",
    "task.added",
    "task.produced",
    "task.receipt",
    "RunSlots",
    "RefuseHangingTxns",
    "Decide",
    "EndTxn",
    "AwaitVisible",
    "Settled",
]


def frame(*slots: list[Row], session: QuerySession = QUERY, **options: Any) -> InlineFrame:
    return InlineFrame(*slots, session=session, **options)


ONE = (rows_of("a", "b", "c"), rows_of("d", "e"))
TWO = (rows_of("f"), rows_of("g", "h", "i"))
SORTED = list("abcdefghi")


@pytest.mark.thorough
@pytest.mark.parametrize("point", STEPS)
def test_a_crash_at_any_step_loses_nothing_and_repeats_nothing(target: StrictCluster, tmp_path: Path, point: str) -> None:
    with sink_to(target, tmp_path) as sink:
        sink(frame(*ONE), 0)
    with sink_to(target, tmp_path, KillAt(point)) as sink, pytest.raises(KilledError):
        sink(frame(*TWO), 1)
    with sink_to(target, tmp_path) as sink:
        replay = frame(*TWO)
        sink(replay, 1)
        sink(frame(rows_of("z")), 2)
    assert sorted(texts(target)) == [*SORTED, "z"]
    is_decided = STEPS.index(point) >= STEPS.index("Decide")
    assert replay.evaluations == (0 if is_decided else 1)


@pytest.mark.slow
def test_a_micro_batch_that_was_decided_is_not_even_evaluated_again(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path) as sink:
        sink(frame(*ONE), 0)
        QUERY.runs += 1
        replay = frame(rows_of("other rows"))
        sink(replay, 0)
    assert (replay.evaluations, sorted(texts(target))) == (0, list("abcde"))


@pytest.mark.slow
def test_rows_keep_their_order_in_a_partition_and_their_fields(target: StrictCluster, tmp_path: Path) -> None:
    rows: list[Row] = [{"value": b"%d" % i, "partition": 1, "headers": [{"key": "h", "value": None}]} for i in range(9)]
    with sink_to(target, tmp_path, batch_bytes=1024, window_bytes=1 << 16) as sink:
        sink(frame(rows, columns=("value", "headers", "partition")), 0)
    first, second = committed(target)
    assert first == []
    assert [bytes(record.value or b"") for record in second] == [b"%d" % i for i in range(9)]
    assert all([(bytes(name), value) for name, value in record.headers] == [(b"h", None)] for record in second)


@pytest.mark.slow
def test_rows_may_name_a_partition_that_was_added_a_moment_ago(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path) as sink:
        sink(frame([{"value": b"a", "partition": 1}], columns=("value", "partition")), 0)
        with target.lock:
            target.logs["out", 2] = PartitionLog(target.log("out").leader, target.log("out").configs)
        sink(frame([{"value": b"b", "partition": 2}], columns=("value", "partition")), 1)
    assert texts(target) == ["a", "b"]


@pytest.mark.slow
def test_rows_that_name_partitions_cost_one_metadata_request_for_each_topic(
    target: StrictCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["out", "second", "third"]
    for name in names[1:]:
        target.create_topic(name)
    asked: list[list[str]] = []
    refresh = Cluster.metadata

    def metadata(self: Cluster, topics: Any, deadline: Any) -> Any:
        asked.append(list(topics))
        return refresh(self, topics, deadline)

    def forget_metadata(_self: Cluster) -> None:
        asked.append([])

    rows: list[Row] = [{"topic": name, "value": name.encode(), "partition": 0} for name in names]
    with sink_to(target, tmp_path, topic=None) as sink:
        sink.write(frame(rows[:1], columns=("topic", "value", "partition")), job_id="1")
        monkeypatch.setattr(Cluster, "metadata", metadata)
        monkeypatch.setattr(Cluster, "forget_metadata", forget_metadata)
        sink.write(frame(rows, columns=("topic", "value", "partition")), job_id="2")
    assert asked == [["out"], ["second"], ["third"], names]


@pytest.mark.slow
def test_a_topic_that_was_created_again_since_the_last_metadata_is_not_one_that_has_lost_records(
    target: StrictCluster, tmp_path: Path
) -> None:
    with sink_to(target, tmp_path) as sink:
        sink(frame(rows_of(*"abcdefghij")), 0)
        target.delete_topic("out")
        target.create_topic("out", 2)
        sink(frame(*TWO), 1)
    assert sorted(texts(target)) == list("fghi")


@pytest.mark.slow
def test_a_job_is_written_once(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path) as sink:
        assert sink.write(InlineFrame(*ONE), job_id="2026-11-27")
    with sink_to(target, tmp_path) as sink:
        assert not sink.write(InlineFrame(*ONE), job_id="2026-11-27")
        assert sink.write(InlineFrame(*TWO), job_id="2026-11-28")
    assert sorted(texts(target)) == SORTED


@pytest.mark.slow
def test_a_job_that_is_found_decided_when_it_is_tried_again_was_written_by_this_call(
    target: StrictCluster, tmp_path: Path
) -> None:
    failures = ["EndTxn"]

    def observer(point: str) -> None:
        if point in failures:
            failures.remove(point)
            raise RetriableError("REQUEST_TIMED_OUT", "the coordinator does not answer")

    with sink_to(target, tmp_path, observer) as sink:
        assert sink.write(InlineFrame(*ONE), job_id="2026-11-27")
        assert not sink.write(InlineFrame(*ONE), job_id="2026-11-27")
    assert sorted(texts(target)) == list("abcde")


@pytest.mark.slow
def test_an_empty_micro_batch_decides_nothing(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path) as sink:
        sink(frame([], []), 0)
        assert sink.last is None
        sink(frame(*ONE), 1)
    assert sorted(texts(target)) == list("abcde")


@pytest.mark.slow
def test_a_second_dataframe_of_one_micro_batch_is_no_replay(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path) as sink:
        sink(frame(*ONE), 0)
        with pytest.raises(ConfigError, match="called twice with batch 0"):
            sink(frame(*TWO), 0)


# --- who is older ---


@pytest.mark.slow
def test_of_two_runs_of_one_name_the_older_one_is_fenced(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path) as older, sink_to(target, tmp_path) as newer:
        older(frame(*ONE), 0)
        newer(frame(*TWO), 1)
        with pytest.raises(FencedError):
            older(frame(*TWO), 1)
    assert sorted(texts(target)) == SORTED


@pytest.mark.slow
def test_a_run_that_is_fenced_while_its_tasks_run_decides_nothing(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path) as older, sink_to(target, tmp_path) as newer:

        def take_over(slot: int) -> None:
            if slot == 1:
                newer(frame(*TWO), 0)

        with pytest.raises(FencedError):
            older(frame(*ONE, before_slot=take_over), 0)
    assert sorted(texts(target)) == list("fghi")


@pytest.mark.slow
def test_two_queries_with_names_of_their_own_do_not_disturb_each_other(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path / "1", name="one") as one, sink_to(target, tmp_path / "2", name="two") as two:
        one(frame(*ONE), 0)
        two(frame(*TWO, session=QuerySession("query-2", OFFSETS)), 0)
        one(frame(rows_of("z")), 1)
    assert sorted(texts(target)) == [*SORTED, "z"]


@pytest.mark.slow
def test_a_query_with_a_new_checkpoint_is_refused_until_it_says_what_it_follows(target: StrictCluster, tmp_path: Path) -> None:
    new = QuerySession("query-2", OFFSETS)
    with sink_to(target, tmp_path) as sink:
        sink(frame(*ONE), 1)
    with sink_to(target, tmp_path) as sink:
        with pytest.raises(ConfigError, match=r"batch 1 of query query-1 \(\[1\]\), and give the sink follows='query-1'"):
            sink(frame(*TWO, session=new), 0)
    with sink_to(target, tmp_path, follows="query-1") as sink:
        sink(frame(*TWO, session=new), 0)
        with pytest.raises(
            ConfigError, match="batch 2 of query query-1: the newest one that was written is batch 0 of query query-2"
        ):
            sink(frame(*ONE), 2)
    with sink_to(target, tmp_path) as sink:
        sink(frame(rows_of("z"), session=new), 1)
    assert sorted(texts(target)) == [*SORTED, "z"]


@pytest.mark.slow
@pytest.mark.parametrize("offsets", [{0: "[7]"}, {}], ids=["other offsets", "unknown offsets"])
def test_a_checkpoint_that_is_older_than_the_tables_is_refused(
    target: StrictCluster, tmp_path: Path, offsets: dict[int, str]
) -> None:
    with sink_to(target, tmp_path) as sink:
        sink(frame(*ONE), 0)
        sink(frame(*TWO), 1)
        older = QuerySession("query-1", {-1: "", **offsets} if offsets else {0: None})  # type: ignore[dict-item]
        with pytest.raises(ConfigError, match="its checkpoint is older than the tables"):
            sink(frame(rows_of("z"), session=older), 0)
    assert sorted(texts(target)) == SORTED


# --- committed in part ---


def lost_in_part(target: StrictCluster, tables: Path) -> None:
    """Decide a micro-batch of which the second transaction times out before it is committed."""
    with sink_to(target, tables, KillAt("Decide")) as sink, pytest.raises(KilledError):
        sink(frame(*ONE), 0)
    target.time_out("sink-1")


@pytest.mark.slow
def test_only_what_was_not_committed_is_written_again(target: StrictCluster, tmp_path: Path) -> None:
    lost_in_part(target, tmp_path)
    with sink_to(target, tmp_path) as sink:
        sink(frame(*ONE), 0)
        QUERY.runs += 1
        again = frame(*ONE)
        sink(again, 0)
        sink(frame(*TWO), 1)
    assert (again.evaluations, sorted(texts(target))) == (0, SORTED)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "replay",
    [
        (rows_of("a", "b", "x"), rows_of("d", "e")),
        (rows_of("a", "b"), rows_of("c", "d", "e")),
        (rows_of("b", "a", "c"), rows_of("d", "e")),
        (rows_of("a", "b", "c"), rows_of("d")),
        ([], rows_of("d", "e")),
    ],
    ids=["another row", "other slots", "another order", "fewer rows elsewhere", "no rows"],
)
def test_a_replay_with_other_rows_writes_nothing(target: StrictCluster, tmp_path: Path, replay: tuple[list[Row], ...]) -> None:
    lost_in_part(target, tmp_path)
    with sink_to(target, tmp_path) as sink, pytest.raises(MicroBatchInDoubtError, match="committed in part"):
        sink(frame(*replay), 0)
    assert sorted(texts(target)) == list("abc")


@pytest.mark.thorough
@pytest.mark.parametrize(("on_doubt", "expected"), [("skip", "abc"), ("repeat", "aabbccde")])
def test_the_operator_may_choose(target: StrictCluster, tmp_path: Path, on_doubt: str, expected: str) -> None:
    lost_in_part(target, tmp_path)
    with sink_to(target, tmp_path, on_doubt=on_doubt) as sink:
        sink(frame(*ONE), 0)
    with sink_to(target, tmp_path, on_doubt=on_doubt) as sink:
        sink(frame(*ONE), 0)
    assert sorted(texts(target)) == list(expected)


@pytest.mark.slow
def test_a_query_that_follows_a_micro_batch_committed_in_part_leaves_none_of_it_out(
    target: StrictCluster, tmp_path: Path
) -> None:
    lost_in_part(target, tmp_path)
    other = QuerySession("query-2", {0: "[1]"})
    other.runs = -1
    with sink_to(target, tmp_path, follows="query-1") as sink:
        with pytest.raises(MicroBatchInDoubtError, match="committed in part, 3 of 5 records"):
            sink(frame(*TWO, session=other), 0)
        sink(frame(*ONE), 0)
        sink(frame(*TWO, session=other), 0)
    assert sorted(texts(target)) == SORTED


@pytest.mark.thorough
def test_a_repeated_micro_batch_that_is_committed_in_part_again_is_not_taken_as_whole(
    target: StrictCluster, tmp_path: Path
) -> None:
    lost_in_part(target, tmp_path)
    with sink_to(target, tmp_path, KillAt("Decide"), on_doubt="repeat") as sink, pytest.raises(KilledError):
        sink(frame(*ONE), 0)
    target.time_out("sink-1")
    with sink_to(target, tmp_path, on_doubt="repeat") as sink:
        sink(frame(*ONE), 0)
    with sink_to(target, tmp_path, on_doubt="repeat") as sink:
        QUERY.runs += 1
        sink(frame(*ONE), 0)
    assert sorted(texts(target)) == list("aaabbbcccde")


@pytest.mark.slow
def test_a_slot_that_was_committed_in_some_partitions_only_needs_the_operator(target: StrictCluster, tmp_path: Path) -> None:
    rows: list[Row] = [{"value": b"a", "partition": 0}, {"value": b"b", "partition": 1}]
    with sink_to(target, tmp_path, KillAt("Decide")) as sink, pytest.raises(KilledError):
        sink(frame(rows, columns=("value", "partition")), 0)
    ((producer_id, entry),) = target.log("out", 1).producers.items()
    with RawClient(target.bootstrap) as operator:  # as kafka-transactions.sh abort
        assert operator.write_marker("out", producer_id, entry.epoch, coordinator_epoch=0, partition=1) == 0
    with sink_to(target, tmp_path) as sink, pytest.raises(MicroBatchInDoubtError, match="of a slot only in some partitions"):
        sink(frame(rows, columns=("value", "partition")), 0)
    assert texts(target) == ["a"]


# --- rows that cannot be written ---


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"topic": None}, "row 2 of partition 1 of the DataFrame: its topic is null"),
        ({"topic": "none"}, "row 2 of partition 1 of the DataFrame: the target has no topic none"),
        ({"partition": 2}, "row 2 of partition 1 of the DataFrame: partition 2 of topic out, which has partitions 0 to 1"),
        ({"partition": -1}, "row 2 of partition 1 of the DataFrame: partition -1 of topic out"),
        ({"timestamp": -1000}, "row 2 of partition 1 of the DataFrame: its timestamp is before 1970"),
        ({"headers": [{"key": None, "value": b""}]}, "row 2 of partition 1 of the DataFrame: a header without a key"),
        ({"value": b"v" * (2 << 20)}, "row 2 of partition 1 of the DataFrame: its record has 20.* bytes, more than 1048588"),
    ],
    ids=["null topic", "unknown topic", "missing partition", "negative partition", "early timestamp", "header", "large"],
)
def test_a_row_that_cannot_be_a_record_is_named_and_nothing_is_decided(
    target: StrictCluster, tmp_path: Path, row: Row, message: str
) -> None:
    good = {"topic": "out", "key": b"k", "value": b"v", "timestamp": 5_000_000}
    bad = frame([good], [good, good, {**good, **row}], columns=("topic", "key", "value", "headers", "partition", "timestamp"))
    with sink_to(target, tmp_path, topic=None, codec="none") as sink:
        with pytest.raises(RecordRefusedError, match=message):
            sink(bad, 0)
        assert texts(target) == []
    with sink_to(target, tmp_path) as sink:
        sink(frame(*ONE), 0)
    assert sorted(texts(target)) == list("abcde")


def test_the_sink_is_told_which_micro_batch_it_writes(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path) as sink, pytest.raises(ConfigError, match="not called by foreachBatch"):
        sink(InlineFrame(*ONE), 0)


@pytest.mark.slow
def test_a_pickled_sink_has_the_settings_only(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path) as sink:
        sink(frame(*ONE), 0)
        copy: ExactlyOnceKafkaSink = pickle.loads(pickle.dumps(sink))
    with copy:
        copy(frame(*TWO), 1)
    assert (copy.config, sorted(texts(target))) == (sink.config, SORTED)


# --- the table ---


@pytest.mark.slow
def test_the_table_says_where_a_micro_batch_and_a_job_are(target: StrictCluster, tmp_path: Path) -> None:
    with sink_to(target, tmp_path) as sink:
        sink(frame(*ONE), 0)
        sink(frame(*TWO), 1)
        sink.write(InlineFrame(rows_of("z")), job_id="a job")
    table = WrittenRecords.open(str(tmp_path), name="sink")
    logs = committed(target)
    for rows, expected in ((table.of_batch("query-1", 0), "abcde"), (table.newest(), "fghi"), (table.of_job("a job"), "z")):
        got = [
            bytes(record.value or b"").decode()
            for row in rows.to_pylist()
            for record in logs[row["target_partition"]]
            if row["target_start"] <= record.offset < row["target_end"]
        ]
        assert sorted(set(got)) == list(expected)
    assert set(table.newest()["source_offsets"].to_pylist()) == {"[1]"}
    assert table.of_batch("query-1", 2).num_rows == 0
    with pytest.raises(ConfigError, match=r"created with shallow_mirror\.mirror = 'sink'"):
        WrittenRecords.open(str(tmp_path), name="another")


@pytest.mark.slow
def test_a_limit_of_bytes_per_second_slows_the_tasks(target: StrictCluster, tmp_path: Path) -> None:
    pauses: list[float] = []
    with pytest.MonkeyPatch.context() as patch, sink_to(target, tmp_path, bytes_per_second=2048, codec="none") as sink:
        patch.setattr("shallow_mirror.sinks.records.record_task.time.sleep", pauses.append)
        sink(frame([{"value": b"v" * 10_000}], columns=("value",)), 0)
    assert [round(pause) for pause in pauses] == [10], "of 1024 for each of two tasks"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"codec": "lzma"}, "codec: .*'lz4' or 'zstd', not 'lzma'"),
        ({"codec": "snappy", "level": 3}, "level: 3 for codec snappy, which has to be left out"),
        ({"codec": "zstd", "level": 30}, "level: 30 for codec zstd, which has to be from -7 to 22"),
        ({"batch_byte": 1}, "batch_byte: unknown key; did you mean batch_bytes?"),
        ({"client": {"bootstrap.servers": "nowhere"}}, "client.bootstrap.servers: 'nowhere' is not host:port"),
        ({"name": "a b"}, "name: String should match pattern"),
    ],
)
def test_an_argument_that_has_no_meaning_is_named(settings: dict[str, Any], problem: str) -> None:
    arguments: dict[str, Any] = {"name": "sink", "client": {"bootstrap.servers": "127.0.0.1:1"}, "tables": "tables"}
    with pytest.raises(ConfigError, match=problem):
        ExactlyOnceKafkaSink(**arguments | settings)


def scraped(port: int) -> dict[str, float]:
    """Return the series of the sink `sink`, without buckets, by name."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    found = re.findall(r'^shallow_mirror_sink_(\w+)\{sink="sink"\} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found if not name.endswith("_created")}


@pytest.mark.slow
def test_metrics_tell_of_written_and_replayed_micro_batches_until_the_sink_is_closed(
    target: StrictCluster, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    with sink_to(target, tmp_path, metrics={"port": port}) as sink:
        sink(frame(*ONE), 0)
        began_s = time.time()
        sink(frame(*TWO), 1)
        QUERY.runs += 1
        sink(frame(*TWO), 1)
        series = scraped(port)
        assert began_s <= series.pop("last_decision_timestamp_seconds") <= time.time()
        assert series.pop("micro_batch_seconds_sum") > 0
        assert series.pop("written_bytes_total") > 0
        assert series == {
            "run_epoch": 1,
            "batch_id": 1,
            "micro_batches_total": 2,
            "records_total": 9,
            "replays_total": 1,
            "retries_total": 0,
            "micro_batch_seconds_count": 2,
        }
        other = sink_to(target, tmp_path, name="other", metrics={"port": port, "host": "localhost"})
        with other, pytest.raises(ConfigError, match=r"metrics\.port: localhost:\d+ cannot be listened on"):
            other(frame(*ONE), 0)
    with pytest.raises(URLError):
        scraped(port)
    with sink_to(target, tmp_path, metrics={"port": port}) as again:
        again(frame(rows_of("z")), 2)
        assert scraped(port)["run_epoch"] == 2
