"""What came out of rounds: a line of JSON each, and the table of all of them."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.rounds import Round

BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One round. `differences` and what was `left_behind` are sentences.

    `written_bytes_per_s`: what the source acknowledged to writers; None in a line that is no round, or older than this field.
    """

    campaign: str
    engine: str
    fault: str
    step: str
    ending: str
    records: int
    acknowledged: int
    unknown: int
    differences: tuple[str, ...]
    left_behind: tuple[str, ...]
    seconds: float
    written_bytes_per_s: int | None = None

    @classmethod
    def of(cls, campaign: str, engine: str, done: Round) -> Result:
        """Wait for the round's check and return its result."""
        checked = done.checked.result()
        return cls(
            campaign=campaign,
            engine=engine,
            fault=done.fault,
            step=done.step,
            ending=done.ending,
            records=checked.records,
            acknowledged=checked.acknowledged,
            unknown=checked.unknown,
            differences=checked.differences,
            left_behind=done.left_behind,
            seconds=round(done.seconds, 2),
            written_bytes_per_s=int(done.written_bytes / done.seconds),
        )

    @classmethod
    def of_line(cls, line: str) -> Result:
        read = json.loads(line)
        return cls(**{**read, "differences": tuple(read["differences"]), "left_behind": tuple(read["left_behind"])})

    def line(self) -> str:
        return json.dumps(dataclasses.asdict(self)) + "\n"


def read_results(path: Path) -> list[Result]:
    if not path.exists():
        return []
    return [Result.of_line(line) for line in path.read_text(encoding="utf-8").splitlines()]


NO_FAULT = "none"
"""The fault of a line that is no round: the comparison at the end of a campaign."""


def too_slow(result: Result, least_bytes_per_s: float) -> str | None:
    """Pure: return the warning about a round whose writers wrote less than `least_bytes_per_s`; None where they did not."""
    rate = result.written_bytes_per_s
    if rate is None or rate >= least_bytes_per_s:
        return None
    return (
        f"{result.fault} at {result.step}: writers reached {rate / 1e6:.1f} MB/s, less than the {least_bytes_per_s / 1e6:.1f} MB/s "
        f"that {result.campaign} needs"
    )


def mean_rate(results: Iterable[Result]) -> int:
    """Pure: return the bytes per second that writers reached in rounds that measured them, over their whole time."""
    measured = [(result.written_bytes_per_s, result.seconds) for result in results if result.written_bytes_per_s is not None]
    seconds = sum(of_round for _, of_round in measured)
    return int(sum(rate * of_round for rate, of_round in measured) / seconds) if seconds else 0


def commands(results: Iterable[Result]) -> str:
    """Pure: what makes as many rounds again."""
    rounds = Counter(result.campaign for result in results if result.fault != NO_FAULT)
    return "".join(f'    make faults FAULTS="{campaign} --rounds {count}"\n' for campaign, count in rounds.items())


def table(results: Sequence[Result]) -> str:
    """Pure: one row per fault, step and engine, in their order, and a row of sums."""
    groups: defaultdict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.fault, result.step, result.engine].append(result)
    head = ("fault", "step", "runs on", "outcome", "runs", "records checked", "differences", "left behind")
    rows = [(*key, outcomes(group), *_sums(group)) for key, group in sorted(groups.items())]
    rows.append(("**all rounds**", "", "", "", *_sums([result for result in results if result.fault != NO_FAULT])))
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def outcomes(results: Iterable[Result]) -> str:
    """Return how the rounds ended; with counts where they did not all end alike, the most frequent first."""
    endings = Counter(result.ending for result in results)
    if len(endings) == 1:
        return next(iter(endings))
    return "; ".join(f"{ending} ({count})" for ending, count in endings.most_common())


def _sums(results: Sequence[Result]) -> tuple[int, str, int, int]:
    records = sum(result.records for result in results)
    return (
        len(results),
        f"{records:,}",
        sum(len(result.differences) for result in results),
        sum(len(result.left_behind) for result in results),
    )


def replace_generated(document: str, generated: str) -> str:
    """Pure: `document` with what stands between its two markers replaced. Raises ValueError when they are not there."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{generated}\n{END}{after}"
