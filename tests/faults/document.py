"""The page docs/reference/faults.md and the file of all rows beside it, from the results of rounds."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.faults.results import END, NO_FAULT, Result, commands, outcomes, replace_generated
from tests.faults.starts import STARTS_HEAD

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "faults.md"
ROWS = PAGE.with_name("fault-results.csv")
COLUMNS = ("campaign", "engine", "fault", "step", "outcome", "rounds", "records", "differences", "left_behind")


def write_document(page: Path, rows: Path, results: Sequence[Result], starts: str | None) -> None:
    """Write every row into `rows` and replace the generated part of `page`, with `starts` as its last table.

    None: no start was measured, and the page keeps the table that it has.
    """
    before = page.read_text(encoding="utf-8")
    last_table = published_starts(before) if starts is None else starts
    generated = "\n".join((f"```bash\n{_plain(commands(results))}```\n", summary_table(results), last_table))
    page.write_text(replace_generated(before, generated), encoding="utf-8")
    rows.write_text(csv_rows(results), encoding="utf-8")


def published_starts(page: str) -> str:
    """Pure: return the table of starts of a page that was written before."""
    return page[page.index(STARTS_HEAD) : page.index(f"\n{END}")]


def published_results(rows: Path) -> list[Result]:
    """Return a result for each round of a file of rows. The first one of a row has its records, differences and files left."""
    with rows.open(encoding="utf-8", newline="") as file:
        return [result for row in csv.DictReader(file) for result in _results_of(row)]


def _results_of(row: Mapping[str, str]) -> list[Result]:
    nothing = Result(
        campaign=row["campaign"],
        engine=row["engine"],
        fault=row["fault"],
        step=row["step"],
        ending="",
        records=0,
        acknowledged=0,
        unknown=0,
        differences=(),
        left_behind=(),
        seconds=0.0,
    )
    results = [replace(nothing, ending=ending) for ending in _endings(row["outcome"], int(row["rounds"]))]
    results[0] = replace(
        results[0],
        records=int(row["records"]),
        differences=("published",) * int(row["differences"]),
        left_behind=("published",) * int(row["left_behind"]),
    )
    return results


def _endings(outcome: str, rounds: int) -> list[str]:
    """Return the ending of each round from what `outcomes` made of them."""
    counted = [re.fullmatch(r"(.*) \((\d+)\)", part) for part in outcome.split("; ")]
    if sum(int(part[2]) for part in counted if part) != rounds:
        return [outcome] * rounds
    return [part[1] for part in counted if part for _ in range(int(part[2]))]


def csv_rows(results: Iterable[Result]) -> str:
    """Return one CSV row per campaign, engine, fault and step, in their order."""
    groups: defaultdict[tuple[str, str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.campaign, result.engine, result.fault, result.step].append(result)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for key, group in sorted(groups.items()):
        writer.writerow((*key, outcomes(group), *sums(group)))
    return text.getvalue()


def summary_table(results: Sequence[Result]) -> str:
    """Return a Markdown table with a row per campaign and kind of fault, and one of sums over all rounds."""
    groups: defaultdict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.campaign, kind_of(result.fault)].append(result)
    head = ("campaign", "fault", "steps", "outcome", "rounds", "records", "differences", "left")
    rows: list[tuple[object, ...]] = []
    for (campaign, kind), group in sorted(groups.items()):
        rows.append((campaign, kind, len({result.step for result in group}), outcomes(group), *_row_of(group)))
    rounds = [result for result in results if result.fault != NO_FAULT]
    rows.append(("**all rounds**", "", "", "", *_row_of(rounds)))
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in (head, ("---",) * len(head), *rows))


def kind_of(fault: str) -> str:
    """Return the fault without when it strikes: the kinds of a network fault differ in that alone."""
    return fault.removesuffix(" before it is applied").removesuffix(" after it was applied")


def sums(results: Sequence[Result]) -> tuple[int, int, int, int]:
    """Return rounds, records that were compared, differences, and what was left behind."""
    return (
        len(results),
        sum(result.records for result in results),
        sum(len(result.differences) for result in results),
        sum(len(result.left_behind) for result in results),
    )


def _row_of(results: Sequence[Result]) -> tuple[int, str, int, int]:
    rounds, records, differences, left_behind = sums(results)
    return rounds, f"{records:,}", differences, left_behind


def _plain(indented: str) -> str:
    return "".join(f"{line.strip()}\n" for line in indented.splitlines())
