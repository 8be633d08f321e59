"""The page docs/reference/faults.md and the file of all rows beside it, from the results of rounds."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.faults.results import NO_FAULT, Result, commands, replace_generated

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "faults.md"
ROWS = PAGE.with_name("fault-results.csv")
COLUMNS = ("campaign", "engine", "fault", "step", "outcome", "rounds", "records", "differences", "left_behind")


def write_document(page: Path, rows: Path, results: Sequence[Result], starts: str) -> None:
    """Write every row into `rows` and replace the generated part of `page`, with `starts` as its last table."""
    generated = "\n".join((f"```bash\n{_plain(commands(results))}```\n", summary_table(results), starts))
    page.write_text(replace_generated(page.read_text(encoding="utf-8"), generated), encoding="utf-8")
    rows.write_text(csv_rows(results), encoding="utf-8")


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


def outcomes(results: Iterable[Result]) -> str:
    """Return how the rounds ended; with counts where they did not all end alike, the most frequent first."""
    endings = Counter(result.ending for result in results)
    if len(endings) == 1:
        return next(iter(endings))
    return "; ".join(f"{ending} ({count})" for ending, count in endings.most_common())


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
