"""Reports of a fail-over that keep nothing, or the sentences only."""

from __future__ import annotations

from shallow_mirror.migration.failover import Step, Way


class SilentReports:
    def waits(self, outside: object) -> None: ...
    def says(self, sentence: str) -> None: ...
    def begun(self, wave: str, step: object) -> None: ...
    def done(self, wave: str, step: object, detail: object) -> None: ...
    def step_begun(self, way: Way, step: Step) -> None: ...
    def step_done(self, way: Way, step: Step, detail: object) -> None: ...


class Said(SilentReports):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def says(self, sentence: str) -> None:
        self.sentences.append(sentence)
