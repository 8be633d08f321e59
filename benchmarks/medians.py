"""Pure: what several runs of a peer on a corpus over a link come to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.results import Failed, Measured, Result


@dataclass(frozen=True, slots=True)
class Standing:
    """All runs of one peer under one title; `measured` may be empty."""

    peer: str
    measured: tuple[Measured, ...]
    failed: tuple[Failed, ...]

    def median(self, figure: Callable[[Measured], float]) -> float | None:
        return statistics.median(map(figure, self.measured)) if self.measured else None

    @property
    def is_equal(self) -> bool:
        """In every run that ended."""
        return all(result.equal for result in self.measured)

    @property
    def remarks(self) -> list[str]:
        """What must be said beside its figures, each once; of an error its first line, the rest is in the JSON."""
        output = [f"failed: {result.failed.splitlines()[0]}" for result in self.failed]
        output += [f"not equal: {result.difference}" for result in self.measured if not result.equal]
        output += [note for result in self.measured for note in result.notes]
        return list(dict.fromkeys(output))


def standings(results: Sequence[Result], title: str) -> list[Standing]:
    """Peers in the order in which they came."""
    chosen = [result for result in results if result.title == title]
    return [
        Standing(
            peer,
            tuple(result for result in chosen if result.peer == peer and isinstance(result, Measured)),
            tuple(result for result in chosen if result.peer == peer and isinstance(result, Failed)),
        )
        for peer in dict.fromkeys(result.peer for result in chosen)
    ]


def titles_of(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.title for result in results))
