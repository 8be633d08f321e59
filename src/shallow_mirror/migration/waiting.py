"""Waits of a conductor: their reason and begin are reported, logged, and in the table for `status`."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from shallow_mirror.errors import OutcomeUnknownError, RetriableError
from shallow_mirror.migration.conductor_ports import Clock, Outside, Owner, Waits, WaitsForOutsideError
from shallow_mirror.migration.state import WAITING
from shallow_mirror.migration.steps import Step

_log = logging.getLogger(__name__)

SAY_AGAIN_S = 10.0
"""A wait for the mirror or a cluster is reported after this time, and each wait again after it."""
RETRY_S = 1.0
_ANSWERS = "clusters and tables to answer"

T = TypeVar("T")


@dataclass(slots=True)
class _Wait:
    """`said_at_s` None: not reported yet. `is_noted`: in the table."""

    since_s: float
    since_ms: int
    said_at_s: float | None = None
    is_noted: bool = False


class Waiting:
    """Of one wave. A step may wait for several things in turn: each is reported by itself."""

    def __init__(self, wave: str, owner: Owner, reports: Waits, clock: Clock, *, waits: bool) -> None:
        """Without `waits`, WaitsForOutsideError is raised where somebody outside has to act."""
        self._wave, self._owner, self._reports, self._clock, self._waits = wave, owner, reports, clock, waits
        self._step: enum.StrEnum = Step.CHECK
        self._open: dict[str, _Wait] = {}

    def begin(self, step: enum.StrEnum) -> None:
        self._step = step
        self._open.clear()

    def for_somebody(self, request: str, seen: str, pause_s: float) -> None:
        """Wait for `pause_s` for somebody outside who has to act."""
        if not self._waits:
            with suppress(RetriableError, OutcomeUnknownError):
                self._owner.rows()
            raise WaitsForOutsideError(Outside(wave=self._wave, step=self._step, request=request, seen=seen))
        self.tell(request, seen)
        self._clock.sleep(pause_s)

    def tell(self, request: str, seen: str) -> None:
        """Report what somebody outside has to do, unless it was reported a moment ago."""
        if self._is_due(request, 0.0):
            waited_s = self._note(request, seen)
            self._reports.waits(Outside(wave=self._wave, step=self._step, request=request, seen=seen, waited_s=waited_s))

    def for_progress(self, awaited: str, seen: str, pause_s: float) -> None:
        """Wait for `pause_s` for what comes by itself; reported once it takes long."""
        if self._is_due(awaited, SAY_AGAIN_S):
            waited_s = self._note(awaited, seen)
            self._reports.says(f"{self._wave}: {self._step}: waits for {awaited}, for {waited_s:.0f} s ({seen})")
        self._clock.sleep(pause_s)

    def retried(self, effect: Callable[[], T]) -> T:
        """Call `effect` until clusters and tables answer: it may be called again. Raises FencedError."""
        has_failed = False
        while True:
            try:
                result = effect()
            except (RetriableError, OutcomeUnknownError) as error:
                if not has_failed:
                    _log.warning("waiting: %s", error)
                has_failed = True
                self.for_progress(_ANSWERS, str(error), RETRY_S)
                with suppress(RetriableError, OutcomeUnknownError):
                    self._owner.rows()  # another conductor may have taken over, and aborted what the effect is part of
                continue
            if has_failed:
                del self._open[_ANSWERS]
                for wait in self._open.values():  # the table names the outage as what is waited for: name the step's wait again
                    wait.said_at_s, wait.is_noted = None, False
            return result

    def owned(self, effect: Callable[[], T]) -> T:
        """As `retried`, each time right behind a look at the table: what another conductor has done since must not be undone."""

        def performed() -> T:
            self._owner.rows()
            return effect()

        return self.retried(performed)

    def _is_due(self, request: str, after_s: float) -> bool:
        now_s = self._clock.monotonic()
        wait = self._open.setdefault(request, _Wait(now_s, self._clock.now_ms()))
        return now_s - wait.since_s >= after_s if wait.said_at_s is None else now_s - wait.said_at_s >= SAY_AGAIN_S

    def _note(self, request: str, seen: str) -> float:
        """Write a wait into the table once, and log it. Return for how long it has lasted.

        Raises FencedError if another conductor has taken over meanwhile.
        """
        wait = self._open[request]
        wait.said_at_s = self._clock.monotonic()
        # Before anything is said: what was seen before another one took over asks for the wrong thing.
        with suppress(RetriableError, OutcomeUnknownError):  # the table itself may be what does not answer
            if wait.is_noted:
                self._owner.rows()
            else:
                detail = {"for": request, "seen": seen, "since_ms": wait.since_ms}
                self._owner.append(event=WAITING, wave=self._wave, step=self._step.value, detail=detail)
                wait.is_noted = True
        _log.info("%s: %s waits for: %s (%s)", self._wave, self._step, request, seen)
        return wait.said_at_s - wait.since_s
