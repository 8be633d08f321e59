"""The wait until the writers of a wave have stopped: no log moves for longer than they pause, and no transaction is open."""

from __future__ import annotations

from shallow_mirror.config.conductor_config import WriterSettings
from shallow_mirror.migration.conductor_ports import Clock, Detail, Effects
from shallow_mirror.migration.observations import Standstill, moved_partitions, open_partitions, to_document
from shallow_mirror.migration.quiet_time import QuietTime
from shallow_mirror.migration.waiting import Waiting
from shallow_mirror.migration.writing_producers import WritingProducers
from shallow_mirror.plurals import counted

POLL_S = 0.2


def await_rest(writers: WriterSettings, effects: Effects, waiting: Waiting, clock: Clock, request: str) -> Detail:
    """Return the ends of the logs at the origin, and since when they rest. `request`: what somebody has to do."""
    standstill, before = Standstill(), waiting.retried(effects.log_ends)
    shortest_s, bound_s = writers.quiet_s, writers.longest_quiet_s
    measured_s = 0.0 if bound_s is None else waiting.retried(effects.longest_pause_s)
    needed = QuietTime.of(shortest_s, bound_s, measured_s)
    writing = WritingProducers(effects, clock, before)
    # Said in any case: a log at rest may be that of a writer that pauses.
    waiting.tell(request, f"{counted(len(before), 'log')} watched; {needed.sentence()}")
    while True:
        ends = waiting.retried(effects.log_ends)
        quiet_s = standstill.look(ends, clock.monotonic())
        needed = QuietTime.of(shortest_s, bound_s, max(measured_s, standstill.longest_pause_s))
        if quiet_s >= needed.seconds:
            since_ms = clock.now_ms() - int(quiet_s * 1000)
            quiet = {"quiet_s": round(quiet_s, 3), "longest_pause_s": round(needed.longest_pause_s, 3)}
            return {"ends": to_document(ends), **quiet, "since_ms": since_ms}
        if moved_partitions(before, ends) or open_partitions(ends):
            seen = Standstill.sentence(before, ends) + writing.seen(ends)
            waiting.for_somebody(request, seen, POLL_S)
        else:
            seen = f"at rest for {quiet_s:.0f} s; {needed.sentence()}"
            waiting.for_progress("the logs to be at rest for long enough", seen, POLL_S)
        before = ends
