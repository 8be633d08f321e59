"""What a run met is counted, not repeated, and its table stays small whatever happens and for however long."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shallow_mirror.checkpoints.logs.runs import CountedProblem, Problem, ProblemKind, problem_log as module
from shallow_mirror.checkpoints.logs.runs.problem_log import ProblemLog, merged, read_problems
from shallow_mirror.checkpoints.rows.codec import row_codec
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.types import TopicPartition

HOUR_MS = 3_600_000


class Rows:
    """A store in memory."""

    def __init__(self) -> None:
        self.rows: list[CountedProblem] = []

    def append(self, table: str, rows: pa.Table) -> bool:
        assert table == "problems"
        self.rows += row_codec(CountedProblem).rows(rows.to_pylist())
        return True

    def append_in_order(self, pieces: Any) -> bool:
        raise NotImplementedError

    def lost_rows(self, table: str) -> int:
        return 0

    def tidy(self, table: str) -> None: ...
    def delete(self, table: str, condition: Any) -> None:
        raise NotImplementedError

    def flush(self) -> None: ...
    def read(self, table: str, condition: Any) -> list[dict[str, Any]]:
        raise NotImplementedError


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def away(detail: str = "10.0.0.1:9092 after 17 tries") -> Problem:
    return Problem(kind=ProblemKind.RETRIABLE, text=f"query: {detail}", remedy="look", error_name="NETWORK_EXCEPTION")


def log_of() -> tuple[ProblemLog, Rows, Clock]:
    clock, rows = Clock(), Rows()
    log = ProblemLog(clock)
    log.begin(rows, 3)
    return log, rows, clock


def texts_and_counts(actual: Sequence[CountedProblem]) -> list[tuple[str, int]]:
    return [(counted_problem.problem.text, counted_problem.occurrences) for counted_problem in actual]


def test_equal_problems_are_one_whatever_their_numbers_and_the_newest_text_holds() -> None:
    log, rows, clock = log_of()
    log.record(away("node 1"))
    clock.ms += 1000
    log.record(away("node 2"))
    assert len(rows.rows) == 1
    log.write_due(all_of_them=True)
    (merged_problem,) = merged(rows.rows)
    assert (merged_problem.problem, merged_problem.occurrences, merged_problem.run_epoch) == (away("node 2"), 2, 3)
    assert (merged_problem.first_at_ms, merged_problem.last_at_ms) == (1_000_000, 1_001_000)
    log.write_due(all_of_them=True)
    assert len(rows.rows) == 2


@pytest.mark.parametrize(
    "other",
    [
        Problem(kind=ProblemKind.WAIT, text="a 1", remedy="r"),
        Problem(kind=ProblemKind.RETRIABLE, text="a 1", remedy="r", error_name="X"),
        Problem(kind=ProblemKind.RETRIABLE, text="b 1", remedy="r"),
        Problem(kind=ProblemKind.RETRIABLE, text="a 1", remedy="r", place=TopicPartition("t", 0), topic="t"),
        Problem(kind=ProblemKind.RETRIABLE, text="a 1", remedy="r", topic="t"),
    ],
)
def test_problems_of_another_kind_error_text_or_place_are_others(other: Problem) -> None:
    log, rows, _ = log_of()
    for problem in (Problem(kind=ProblemKind.RETRIABLE, text="a 1", remedy="r"), other):
        log.record(problem)
    assert [counted_problem.problem for counted_problem in merged(rows.rows)][1] == other
    assert len(rows.rows) == 2


@pytest.mark.thorough
def test_a_cluster_that_is_unreachable_for_a_month_makes_a_thousand_rows_at_most_and_they_are_almost_up_to_date() -> None:
    log, rows, clock = log_of()
    for _ in range(30 * 24 * 120):
        log.record(away())
        clock.ms += 30_000
    assert len(rows.rows) < 1_000
    (merged_problem,) = merged(rows.rows)
    assert clock.ms - merged_problem.last_at_ms <= HOUR_MS + 60_000
    clock.ms += 2 * HOUR_MS
    log.write_due()
    (merged_problem,) = merged(rows.rows)
    assert merged_problem.occurrences == 30 * 24 * 120


def test_what_was_met_before_the_take_over_is_written_after_it() -> None:
    log, rows = ProblemLog(Clock()), Rows()
    log.record(away())
    log.record(away())
    log.begin(rows, 7)
    assert texts_and_counts(merged(rows.rows)) == [(away().text, 2)]
    assert rows.rows[0].run_epoch == 7


def test_too_many_different_problems_are_combined_by_kind_but_not_the_one_that_ended_the_run() -> None:
    log, rows, _ = log_of()
    for partition in range(module.MOST_PROBLEMS + 50):
        log.record(Problem(kind=ProblemKind.EXPIRED, text="gone", remedy="r", place=TopicPartition("t", partition)))
    end = Problem(kind=ProblemKind.ENDED, text="the end", remedy="r")
    log.record(end)
    log.write_due(all_of_them=True)
    actual = merged(rows.rows)
    assert len(actual) == module.MOST_PROBLEMS + 2
    (too_many,) = [counted_problem for counted_problem in actual if "further problems" in counted_problem.problem.text]
    assert (too_many.problem.kind, too_many.occurrences, actual[-1].problem) == (ProblemKind.EXPIRED, 50, end)


def test_problems_of_topics_whose_names_differ_in_numbers_are_told_apart() -> None:
    log, rows, _ = log_of()
    for topic in ("orders-1", "orders-2", "orders-1"):
        log.record(Problem(kind=ProblemKind.CONFIG, text=f"source topic {topic} was deleted", remedy="r", topic=topic))
    log.write_due(all_of_them=True)
    assert [(row.problem.topic, row.occurrences) for row in merged(rows.rows)] == [("orders-1", 2), ("orders-2", 1)]


def test_the_table_reads_back_what_was_met_and_long_texts_are_cut(tmp_path: Path) -> None:
    log, store = ProblemLog(Clock()), TableStorage(str(tmp_path)).background_tables()
    log.begin(store, 3)
    placed = Problem(kind=ProblemKind.QUARANTINED, text="x" * 5_000, remedy="retry", place=TopicPartition("<b>", 4))
    threads = [threading.Thread(target=log.record, args=(placed,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.write_due(all_of_them=True)
    store.flush()
    (counted_problem,) = read_problems(store, 3)
    assert (counted_problem.problem.place, len(counted_problem.problem.text), counted_problem.occurrences) == (
        placed.place,
        module.LONGEST_TEXT,
        5,
    )
    assert counted_problem.document() == {
        "run_epoch": 3, "kind": "quarantined", "error_name": None, "topic": "<b>", "partition": 4, "problem": "x" * 2_000,
        "remedy": "retry", "occurrences": 5, "first_at_ms": 1_000_000, "last_at_ms": 1_000_000,
    }  # fmt: skip
    assert read_problems(store, 50) == ()


def test_a_table_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "problems").write_text("a file where the table should be")
    log, store = ProblemLog(), TableStorage(str(tmp_path)).background_tables()
    log.begin(store, 1)
    log.record(away())
    store.flush()
    assert "could not write an observation to problems" in caplog.text
