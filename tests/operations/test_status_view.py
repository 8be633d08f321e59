"""A report as people and programs read it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from shallow_mirror.access import AccessPass
from shallow_mirror.checkpoints.logs import GroupSyncPass
from shallow_mirror.checkpoints.rows import TopicOffsets
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations import status_view
from shallow_mirror.operations.status import MicroBatchStatus, PausedTopic, RunStatus, StatusReport
from shallow_mirror.operations.status_selection import check_patterns, only_topics
from shallow_mirror.sinks import Side
from shallow_mirror.streaming.planning import LeftOutPartition
from shallow_mirror.streaming.watch import OpenTransaction, PartitionStatus
from shallow_mirror.types import SourcePartition

LONG_TOPIC = "orders." + "x" * 200
RUN = RunStatus(
    run_epoch=2,
    run_id="r",
    host="h",
    pid=7,
    version="0.1.0",
    started_at_ms=1_000,
    ended_at_ms=None,
    outcome=None,
    is_alive=True,
)
MICRO_BATCH = MicroBatchStatus(
    micro_batch=41,
    run_epoch=2,
    settled_at_ms=61_000,
    record_count=12_345,
    size_bytes=2_340_000,
    seconds=0.456,
    raw_batch_count=98,
    rebuilt_batch_count=7,
    dropped_batch_counts={"commit": 4, "aborted": 3},
    lag_offsets=5,
)


def partition(number: int, lag_offsets: int | None, lag_ms: int | None) -> PartitionStatus:
    end = None if lag_offsets is None else 1_000 + lag_offsets
    return PartitionStatus(
        source=SourcePartition(LONG_TOPIC, "id", number), position=1_000, end=end, lag_offsets=lag_offsets, lag_ms=lag_ms
    )


def report(**changes: Any) -> StatusReport:
    defaults: dict[str, Any] = {"mirror": "m", "at_ms": 62_000, "run": RUN, "source_problem": None, "waiting_for": None}
    defaults |= {"waiting_since_ms": None, "planned_at_ms": None, "micro_batches": (MICRO_BATCH,)}
    defaults |= {"partitions": (partition(0, 0, 0), partition(1, 20, 700))}
    return StatusReport(**(defaults | changes))


def rendered(report: StatusReport, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=10_000)
    status_view.show(report, console, **options)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│\n").split("│")] for line in text.splitlines() if line.startswith("│")]


def open_one(number: int, wrote_at_ms: int | None) -> OpenTransaction:
    source = SourcePartition("orders", "id", number)
    return OpenTransaction(source=source, first_offset=7, producer_id=4_000 + number, producer_epoch=0, wrote_at_ms=wrote_at_ms)


@pytest.mark.parametrize(
    ("done", "line"),
    [
        (
            AccessPass(at_ms=1_000, lacking=2, created=3, deleted=1, not_copied=4),
            "acls: the target lacks 2 at 1970-01-01T00:00:01+00:00, 3 created, 1 deleted, 4 not copied "
            "(`shallow-mirror acls CONF`)",
        ),
        (
            AccessPass(at_ms=1_000, is_compared=False, problem="no authorizer"),
            "acls: could not be compared at 1970-01-01T00:00:01+00:00: no authorizer",
        ),
        (
            AccessPass(at_ms=1_000, lacking=1, problem="refused"),
            "acls: the target lacks 1 at 1970-01-01T00:00:01+00:00, 0 not copied (`shallow-mirror acls CONF`): refused",
        ),
    ],
)
def test_the_last_comparison_of_acls_is_one_line(done: AccessPass, line: str) -> None:
    shown = report(acls=done)
    assert line in rendered(shown).splitlines()
    assert json.loads(rendered(shown, as_json=True))["acls"]["lacking"] == done.lacking


def test_transactions_that_are_open_at_the_source_are_named_with_their_age() -> None:
    lines = rendered(report(open_transactions=(open_one(3, 1_000), open_one(4, None)))).splitlines()
    at = lines.index("open transactions at the source that the mirror waits for:")
    assert lines[at + 1 : at + 3] == [
        "  orders-3 from offset 7: producer id 4003, last written 61 s ago",
        "  orders-4 from offset 7: producer id 4004",
    ]
    many = rendered(report(open_transactions=tuple(open_one(number, 1_000) for number in range(12))))
    assert "  and 2 more: --json has all" in many.splitlines()


def test_a_report_shows_run_lag_micro_batches_and_partitions() -> None:
    text = rendered(report())
    assert text.splitlines()[:3] == [
        "mirror m, 1970-01-01T00:01:02+00:00",
        "run 2 on h (pid 7), since 1970-01-01T00:00:01+00:00: running",
        "2 partitions, lag 20 offsets, 700 ms",
    ]
    assert rows(text) == [
        ["41", "1970-01-01T00:01:01+00:00", "12,345", "2.3", "0.46", "98", "7", "3 aborted, 4 commit", "5"],
        [LONG_TOPIC, "1", "1,000", "1,020", "20", "700"],
        [LONG_TOPIC, "0", "1,000", "1,000", "0", "0"],
    ]


def test_what_is_not_known_is_a_question_mark() -> None:
    text = rendered(
        report(source_problem="NETWORK_EXCEPTION: refused", partitions=(partition(0, 0, 0), partition(1, None, None)))
    )
    assert "2 partitions, lag ? offsets, ? ms" in text
    assert "the source does not answer: NETWORK_EXCEPTION: refused" in text
    assert rows(text)[-2] == [LONG_TOPIC, "1", "1,000", "?", "?", "?"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outcome": "FencedError", "ended_at_ms": 5_000, "is_alive": False}, "ended 1970-01-01T00:00:05+00:00: FencedError"),
        ({"is_alive": False}, "not running; no exit was recorded"),
        ({"is_alive": None}, "on another host"),
    ],
)
def test_a_run_that_is_not_here_says_why(changes: dict[str, Any], words: str) -> None:
    fields = {name: getattr(RUN, name) for name in RUN.__dataclass_fields__}
    assert words in rendered(report(run=RunStatus(**(fields | changes))))


def test_a_mirror_without_run_and_rows_is_described_in_words() -> None:
    assert rendered(report(run=None, micro_batches=(), partitions=())).splitlines()[1:] == [
        "no run yet",
        "0 partitions, lag 0 offsets, 0 ms",
    ]


def test_json_is_one_line_that_holds_everything() -> None:
    text = rendered(report(mirror=":x:[red]"), as_json=True)
    assert text.count("\n") == 1
    document = json.loads(text)
    assert document["mirror"] == ":x:[red]"
    assert document["micro_batches"][0]["dropped_batch_counts"] == {"commit": 4, "aborted": 3}
    assert document["run"]["outcome"] is None
    assert document["partitions"][1]["lag_ms"] == 700


def test_watching_on_a_terminal_draws_in_place_until_ctrl_c() -> None:
    console = Console(file=io.StringIO(), width=400, force_terminal=True)
    numbers, pauses = iter(range(1, 100)), []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    status_view.watch(lambda: report(mirror=f"m{next(numbers)}"), console, interval_s=7.0, sleep=sleep)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert [f"mirror m{number}," in text for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert pauses == [7.0, 7.0, 7.0]
    assert "\x1b[1A" in text
    assert text.endswith("\x1b[?25h")


def test_paused_and_gone_topics_and_settings_that_are_not_followed_have_a_line_each() -> None:
    text = rendered(
        report(
            paused_topics=(
                PausedTopic(topic="orders", since_ms=1_000),
                PausedTopic(topic="moved", since_ms=2_000, is_handed_over=True),
            ),
            gone_topics=("bills", "clicks"),
            followed_topics=("clicks",),
            topic_problems=("target topic logs: retention.ms=5 could not be set", "source topic clicks (id 1) was deleted: ..."),
        )
    )
    assert "paused since 1970-01-01T00:00:01+00:00: orders" in text
    assert "handed over since 1970-01-01T00:00:02+00:00: moved" in text
    assert "deleted at the source, its copies stay on the target: bills" in text
    assert "deleted at the source, its copies stay on the target: clicks" not in text
    assert "source topic clicks (id 1) was deleted: ..." in text
    assert "target topic logs: retention.ms=5 could not be set" in text


def test_partitions_that_are_left_out_have_a_line_each_and_are_in_the_document() -> None:
    source = SourcePartition("orders", "id", 3)
    left = LeftOutPartition(
        source=source, side=Side.TARGET, error_name="NOT_ENOUGH_REPLICAS", reason="1 in sync", since_ms=0, position=7
    )
    text = rendered(report(left_out=(left,) * 12))
    assert "orders-3 is left out since 1970-01-01T00:00:00+00:00 because of the target: 1 in sync" in text
    assert "and 2 more partitions: --json has all" in text
    (document,) = report(left_out=(left,)).document()["left_out"]
    assert (document["topic"], document["partition"], document["side"], document["position"]) == ("orders", 3, "target", 7)
    assert json.dumps(document)


def test_the_last_look_at_the_groups_is_a_line() -> None:
    at = datetime(2026, 5, 1, 14, 3, tzinfo=UTC)
    done = GroupSyncPass(observed_at=at, group_count=3, partition_count=36, in_place_count=30, committed_count=4, waiting_count=2)
    assert "groups: 3 at 2026-05-01T14:03:00+00:00: 34 of 36 offsets in place at the target, 2 wait, 0 are not moved" in rendered(
        report(groups=done)
    )
    followed = replace(done, is_followed=True, followed_count=1_234, oldest_s=0.31)
    assert (
        "; commits are followed: 1,234 since the synchronization before, the oldest that is not there is 0.3 s old"
        in rendered(report(groups=followed))
    )
    polled = replace(done, not_followed="grant Read on topic __consumer_offsets", repeated_count=1_500)
    assert (
        "groups: a fail-over without the source repeats about 1,500 records that groups read between two synchronizations, "
        "because their offsets are polled and not followed: grant Read on topic __consumer_offsets"
        in rendered(report(groups=polled))
    )
    failed = report(groups=GroupSyncPass(observed_at=at, problem="RetriableError: the source is unreachable"))
    assert (
        "groups: could not be synchronized at 2026-05-01T14:03:00+00:00: RetriableError: the source is unreachable"
        in rendered(failed)
    )
    assert json.loads(rendered(failed, as_json=True))["groups"]["problem"] == "RetriableError: the source is unreachable"


def test_topics_have_a_table_where_one_keeps_its_offsets_and_are_always_in_the_document() -> None:
    kept = TopicOffsets(topic="orders", offsets="preserved", filler_count=1_234)
    other = TopicOffsets(topic="logs", offsets="translated")
    assert ["orders", "preserved", "1,234"] in rows(rendered(report(topics=(kept, other))))
    assert ["logs", "translated", "0"] in rows(rendered(report(topics=(kept, other))))
    assert "translated" not in rendered(report(topics=(other,)))
    document = json.loads(rendered(report(topics=(other, kept)), as_json=True))
    assert document["topics"] == [
        {"topic": "logs", "offsets": "translated", "filler_count": 0},
        {"topic": "orders", "offsets": "preserved", "filler_count": 1_234},
    ]


def _many(count: int) -> StatusReport:
    """Topics t000, t001, … with a partition each; t250 is left out, t260 paused, and t270 and t280 are behind."""
    lags = {270: (5, 100), 280: (1, 900)}
    partitions = []
    for number in range(count):
        lag_offsets, lag_ms = lags.get(number, (0, 0))
        source = SourcePartition(f"t{number:03}", "id", 0)
        partitions.append(PartitionStatus(source=source, position=1, end=1 + lag_offsets, lag_offsets=lag_offsets, lag_ms=lag_ms))
    left = LeftOutPartition(
        source=SourcePartition("t250", "id", 0), side=Side.SOURCE, error_name="CORRUPT_MESSAGE", reason="broken", since_ms=1_000
    )
    paused = PausedTopic(topic="t260", since_ms=1_000)
    return report(partitions=tuple(partitions), left_out=(left,), paused_topics=(paused,), micro_batches=())


def test_of_three_hundred_topics_those_that_need_attention_come_first_and_the_rest_is_one_line() -> None:
    text = rendered(_many(300))
    topics = [row[0] for row in rows(text)]
    assert topics[:6] == ["t250", "t280", "t270", "t260", "t000", "t001"]
    assert len(topics) == status_view.PARTITIONS_SHOWN
    assert text.splitlines()[-1] == (
        "and 260 more partitions of 260 topics, none of them behind, left out or paused: --all shows them, "
        "--topic NAME those of a topic"
    )


@pytest.mark.slow
def test_all_shows_every_partition() -> None:
    text = rendered(_many(300), is_whole=True)
    assert len(rows(text)) == 300
    assert "--all" not in text


def test_the_line_of_the_rest_counts_those_that_need_attention() -> None:
    behind = tuple(partition(number, 1, 1) for number in range(status_view.PARTITIONS_SHOWN + 2))
    assert "and 2 more partitions of 1 topic, 2 of them behind, left out or paused" in rendered(report(partitions=behind))


def test_many_paused_topics_are_ten_lines_and_a_number() -> None:
    paused = tuple(PausedTopic(topic=f"p{number:02}", since_ms=1_000) for number in range(12))
    text = rendered(report(paused_topics=paused))
    assert text.count("paused since") == 10
    assert "and 2 more lines of this kind: --all shows them" in text.splitlines()
    assert rendered(report(paused_topics=paused), is_whole=True).count("paused since") == 12


@pytest.mark.parametrize(("patterns", "topics"), [(["t26."], 10), (["t250", "t260"], 2), ([], 300)])
def test_topics_are_selected_by_their_whole_name(patterns: list[str], topics: int) -> None:
    selected = only_topics(_many(300), patterns)
    assert len(selected.partitions) == topics
    assert [entry.topic for entry in selected.paused_topics] == ["t260"]


def test_a_topic_that_is_not_mirrored_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--topic: no topic of m matches t26: give the whole name"):
        only_topics(_many(300), ["t26"])


def test_every_pattern_that_is_no_regular_expression_is_listed() -> None:
    with pytest.raises(ConfigError) as raised:
        check_patterns(["(", "t.*", "["])
    assert len(raised.value.problems) == 2
