"""Pure: findings of a preflight besides the batches themselves."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import listed


class Level(enum.StrEnum):
    STOPS = "stops"
    """The mirror would stop, or never begin."""
    DOUBT = "doubt"
    """It would run; the copy would be another one, cost more, or stop later."""
    UNKNOWN = "unknown"
    """Nobody may say."""


_LEFT_OUT = "on_error is isolate: `run` leaves it out and copies the others; with --available-now it ends with exit code 1"


@dataclass(frozen=True, slots=True)
class Finding:
    """`subject` is the cluster, broker, topic or topic-partition that `what` is about."""

    level: Level
    subject: str
    what: str

    def document(self) -> dict[str, Any]:
        return asdict(self)


def left_out_or_stops(subject: str, what: str, *, is_left_out: bool) -> Finding:
    """Return the finding of what a run leaves out with `on_error: isolate`, and otherwise ends with."""
    return Finding(Level.DOUBT, subject, f"{what}. {_LEFT_OUT}") if is_left_out else Finding(Level.STOPS, subject, what)


def of_problems(subject: str, error: ConfigError) -> list[Finding]:
    """Return a finding for each problem of the error, without the subject in front of it."""
    return [Finding(Level.STOPS, subject, problem.removeprefix(f"{subject}: ")) for problem in error.problems]


def sentences(findings: Iterable[Finding]) -> list[str]:
    """Return one finding for all subjects with the same sentence, in the order in which they were found."""
    subjects: dict[str, list[str]] = {}
    for finding in findings:
        subjects.setdefault(finding.what, []).append(finding.subject)
    return [f"{listed(of_it)}: {what}" for what, of_it in subjects.items()]
