from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from tests.faults.document import COLUMNS, PAGE, ROWS, csv_rows, kind_of, published_results, summary_table, write_document
from tests.faults.results import BEGIN, END, NO_FAULT
from tests.faults.starts import Start, starts_table
from tests.support.fault_results import KILLED

CUT = replace(
    KILLED, campaign="network", fault="network: cut before it is applied", step="EndTxn to the target", ending="went on"
)
LOST = replace(CUT, ending="did not recover", records=34, differences=("lost: orders-0", "lost: orders-1"))
LATER = replace(CUT, fault="network: cut after it was applied", step="Produce to the target", left_behind=("process 7",))
FINISHED = replace(CUT, fault=NO_FAULT, step="end", ending="clean stop; all compared again", records=9)


def test_a_row_of_the_file_is_a_campaign_engine_fault_and_step_and_hides_no_difference() -> None:
    assert csv_rows([LOST, CUT, CUT, LATER]).splitlines() == [
        ",".join(COLUMNS),
        "network,Spark,network: cut after it was applied,Produce to the target,went on,1,1200,0,1",
        "network,Spark,network: cut before it is applied,EndTxn to the target,went on (2); did not recover (1),3,2434,2,0",
    ]


def test_the_summary_has_a_row_per_campaign_and_kind_of_fault_and_sums_of_rounds_alone() -> None:
    assert summary_table([CUT, LOST, LATER, FINISHED]).splitlines()[2:] == [
        "| network | network: cut | 2 | went on (2); did not recover (1) | 3 | 2,434 | 2 | 1 |",
        "| network | none | 1 | clean stop; all compared again | 1 | 9 | 0 | 0 |",
        "| **all rounds** |  |  |  | 3 | 2,434 | 2 | 1 |",
    ]


def test_kinds_of_faults_without_a_moment_are_themselves() -> None:
    assert kind_of("SIGKILL of the driver") == "SIGKILL of the driver"


def test_page_and_file_are_written_together(tmp_path: Path) -> None:
    page, rows = tmp_path / "faults.md", tmp_path / "rows.csv"
    page.write_text(f"before {BEGIN} old {END} after", encoding="utf-8")
    write_document(page, rows, [CUT], "| starts |\n")
    written = page.read_text(encoding="utf-8")
    assert '```bash\nmake faults FAULTS="network --rounds 1"\n```' in written
    assert written.index("| network |") < written.index("| starts |") < written.index(END)
    assert rows.read_text(encoding="utf-8") == csv_rows([CUT])


def test_a_page_keeps_its_table_of_starts_when_none_was_measured(tmp_path: Path) -> None:
    page, rows = tmp_path / "faults.md", tmp_path / "rows.csv"
    page.write_text(f"{BEGIN}\n{END}", encoding="utf-8")
    write_document(page, rows, [CUT], starts_table([Start(engine="Spark", after="clean stop", seconds=2.0)]))
    before = page.read_text(encoding="utf-8")
    write_document(page, rows, [CUT], None)
    assert page.read_text(encoding="utf-8") == before
    assert "| Spark | clean stop | 1 |" in before


def test_rounds_that_were_published_make_the_same_file_and_page(tmp_path: Path) -> None:
    results = published_results(ROWS)
    assert csv_rows(results) == ROWS.read_text(encoding="utf-8")
    assert summary_table(results) in PAGE.read_text(encoding="utf-8")
    rows = tmp_path / "rows.csv"
    rows.write_text(csv_rows([LOST, CUT, CUT, LATER]), encoding="utf-8")
    assert csv_rows(published_results(rows)) == csv_rows([LOST, CUT, CUT, LATER])


def test_the_sums_of_the_published_page_are_those_of_the_published_file() -> None:
    with ROWS.open(encoding="utf-8", newline="") as file:
        rounds = [row for row in csv.DictReader(file) if row["fault"] != NO_FAULT]
    sums = [sum(int(row[name]) for row in rounds) for name in ("rounds", "records", "differences", "left_behind")]
    shown = " | ".join((str(sums[0]), f"{sums[1]:,}", str(sums[2]), str(sums[3])))
    assert f"| **all rounds** |  |  |  | {shown} |" in PAGE.read_text(encoding="utf-8")
