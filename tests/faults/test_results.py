from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.faults.results import (
    BEGIN,
    END,
    NO_FAULT,
    Result,
    commands,
    mean_rate,
    read_results,
    replace_generated,
    table,
    too_slow,
)
from tests.faults.starts import CLEAN, Start, starts_table
from tests.support.fault_results import KILLED

LOST = replace(KILLED, ending="did not recover", records=34, differences=("lost: orders-0", "lost: orders-1"))


def test_results_survive_their_file(tmp_path: Path) -> None:
    file = tmp_path / "faults.jsonl"
    assert read_results(file) == []
    file.write_text(KILLED.line() + LOST.line(), encoding="utf-8")
    assert read_results(file) == [KILLED, LOST]


def test_lines_without_a_rate_are_still_read() -> None:
    line = json.loads(KILLED.line())
    del line["written_bytes_per_s"]
    assert Result.of_line(json.dumps(line)) == KILLED


def test_a_round_whose_writers_were_too_slow_is_reported() -> None:
    slow = replace(KILLED, campaign="three-brokers", written_bytes_per_s=4_940_000)
    assert too_slow(slow, 5_000_000) == (
        "SIGKILL at 6 decided: writers reached 4.9 MB/s, less than the 5.0 MB/s that three-brokers needs"
    )
    assert too_slow(replace(slow, written_bytes_per_s=5_000_000), 5_000_000) is None
    assert too_slow(KILLED, 5_000_000) is None


def test_the_mean_rate_weighs_rounds_by_their_time_and_leaves_out_what_measured_none() -> None:
    fast = replace(KILLED, written_bytes_per_s=8_000_000, seconds=10.0)
    assert mean_rate([fast, replace(fast, written_bytes_per_s=2_000_000, seconds=20.0), KILLED]) == 4_000_000
    assert mean_rate([KILLED]) == 0


def test_the_table_has_a_row_per_fault_step_and_engine_and_hides_no_difference() -> None:
    lines = table([KILLED, LOST, KILLED, replace(KILLED, step="8", left_behind=("process 7",))]).splitlines()
    assert lines[2:] == [
        "| SIGKILL | 6 decided | Spark | started again (2); did not recover (1) | 3 | 2,434 | 2 | 0 |",
        "| SIGKILL | 8 | Spark | started again | 1 | 1,200 | 0 | 1 |",
        "| **all rounds** |  |  |  | 4 | 3,634 | 2 | 1 |",
    ]


def test_the_commands_make_as_many_rounds_again() -> None:
    end = replace(KILLED, fault=NO_FAULT)
    assert commands([KILLED, KILLED, end, replace(KILLED, campaign="clocks")]).split("    ")[1:] == [
        'make faults FAULTS="kills --rounds 2"\n',
        'make faults FAULTS="clocks --rounds 1"\n',
    ]


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    assert replace_generated(f"a {BEGIN} old {END} b", "new") == f"a {BEGIN}\nnew\n{END} b"
    with pytest.raises(ValueError, match="generated: begin"):
        replace_generated("no markers", "new")


def test_starts_are_compared_with_those_after_a_clean_stop() -> None:
    clean = [Start(engine="Spark", after=CLEAN, seconds=seconds) for seconds in (10.0, 8.0, 12.0)]
    others = [Start(engine="Spark", after="SIGKILL", seconds=11.0), Start(engine="none", after="SIGKILL", seconds=2.0)]
    assert starts_table([*clean, *others]).splitlines()[2:] == [
        "| Spark | clean stop | 3 | 10.0 (8.0 to 12.0) | 1.00 |",
        "| Spark | SIGKILL | 1 | 11.0 (11.0 to 11.0) | 1.10 |",
        "| none | SIGKILL | 1 | 2.0 (2.0 to 2.0) |  |",
    ]
