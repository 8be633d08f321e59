"""Pure: what a consumer read of a topic with fillers, compared with what it has to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

CORRECT = "correct"


class ReadRecord(NamedTuple):
    """A record as the programs print it: `record`, offset and value, separated by tabs."""

    offset: int
    value: str


def parse_records(output: str) -> list[ReadRecord]:
    """Return the records among the lines of a program. An unfinished last line is left out. Raises ValueError."""
    lines = output[: output.rfind("\n") + 1].splitlines()
    cells = [line.split("\t") for line in lines if line.startswith("record\t")]
    return [ReadRecord(int(offset), value) for _, offset, value in cells]


def parse_version(output: str) -> str | None:
    """Return the version that a program printed; None: it has not come that far."""
    return next((line.split("\t")[1] for line in output.splitlines() if line.startswith("version\t")), None)


def judge(expected: Sequence[ReadRecord], read: Sequence[ReadRecord], failure: str | None) -> str:
    """Return `correct`, `fillers visible: …`, `fails: …`, or the last two together.

    `failure`: how the program ended; None: by itself and without an error.
    """
    offsets = {record.offset for record in expected}
    foreign = [record.offset for record in read if record.offset not in offsets]
    own = [record for record in read if record.offset in offsets]
    verdicts = []
    if foreign:
        verdicts.append(f"fillers visible: {len(foreign)} records without an original, the first at offset {foreign[0]}")
    problems = [problem for problem in (failure, _difference(expected, own)) if problem is not None]
    if problems:
        verdicts.append(f"fails: {', '.join(problems)}")
    return "; ".join(verdicts) or CORRECT


def _difference(expected: Sequence[ReadRecord], own: Sequence[ReadRecord]) -> str | None:
    """Return the first difference; None: there is none. `own`: records at offsets of `expected`."""
    values = dict(expected)
    changed = next((record for record in own if record.value != values[record.offset]), None)
    if changed is not None:
        return f"the record at offset {changed.offset} has the value {changed.value}, not {values[changed.offset]}"
    missing = [record.offset for record in expected if record not in set(own)]
    if missing:
        return f"{len(missing)} of {len(expected)} records are missing, the first at offset {missing[0]}"
    if len(own) > len(expected):
        return f"{len(own) - len(expected)} records were returned more than once"
    return None if list(own) == list(expected) else "records are out of order"
