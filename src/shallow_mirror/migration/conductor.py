"""Performs the steps of a wave, one after the other, until nothing is left to do or somebody outside has to act.

Before every action the table says that this conductor still owns the migration; what a step found is written when it is done. So
a conductor that is killed anywhere is continued by the next one, which performs the open step again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from shallow_mirror.config.migration_config import MigrationConfig, WaveSettings
from shallow_mirror.errors import ConfigError, CopiesDifferError
from shallow_mirror.groups.report import GroupsReport
from shallow_mirror.migration.conductor_ports import Clock, Detail, Effects, Owner, Reports
from shallow_mirror.migration.copying import Copying
from shallow_mirror.migration.evidence import changed_topics
from shallow_mirror.migration.group_blockers import commit_problems, is_pending, loses_copies
from shallow_mirror.migration.hooks.hook_call import Call, call_hook
from shallow_mirror.migration.hooks.wave_hooks import WaveHooks
from shallow_mirror.migration.observations import (
    Compared,
    MappedEnd,
    from_document,
    mapped_document,
    mapped_of,
    named,
    not_before,
    open_partitions,
    open_sentence,
    to_document,
)
from shallow_mirror.migration.point_of_no_return import PointOfNoReturn
from shallow_mirror.migration.sentences import abort_problem, late_writes_error, release_sentences, shown
from shallow_mirror.migration.state import ABORTED, ADMITTED, BEGUN, DENYING, DONE, REOPENED, Phase, WaveState, state_of
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.migration.topic_ids import created_again
from shallow_mirror.migration.waiting import Waiting
from shallow_mirror.migration.writer_denies import acl_document, acl_of
from shallow_mirror.migration.writers_at_rest import await_rest
from shallow_mirror.migration.writing_producers import holders_sentence
from shallow_mirror.types import TopicPartition

POLL_S = 0.2
"""Pause between two looks while writers are stopped; each is a few requests."""
SLOW_POLL_S = 1.0


class WaveConductor:
    """Performs the steps of one wave in one direction."""

    def __init__(
        self,
        config: MigrationConfig,
        wave: WaveSettings,
        owner: Owner,
        effects: Effects,
        reports: Reports,
        clock: Clock,
        *,
        waits: bool = True,
        skipped_hooks: Collection[str] = (),
        command: str | None = None,
        call: Call = call_hook,
    ) -> None:
        """Perform nothing yet. Without `waits`, WaitsForOutsideError is raised where somebody outside has to act.

        `command`: the one that continues, where it is none of `migrate`.
        """
        self._config = config
        self._wave = wave
        self._owner = owner
        self._effects = effects
        self._reports = reports
        self._clock = clock
        self._command = command
        self._waiting = Waiting(wave.name, owner, reports, clock, waits=waits)
        self._retried, self._owned = self._waiting.retried, self._waiting.owned
        self._copying = Copying(effects, reports, self._waiting, clock)
        self._point_of_no_return = PointOfNoReturn(config, effects, reports, self._waiting, clock)
        self._hooks = WaveHooks(
            config=config,
            wave=wave,
            effects=effects,
            reports=reports,
            waiting=self._waiting,
            clock=clock,
            append=lambda event, *, step, detail: self._append(event, step=Step(step), detail=detail),
            skipped=skipped_hooks,
            command=command,
            call=call,
        )

    def begin(self, direction: Direction) -> None:
        """Begin an attempt, unless one is under way or the wave is where it should be."""
        # An attempt that a crash interrupted is under way: `run` continues it.
        if self.state().phase is (Phase.AT_SOURCE if direction is Direction.MOVE else Phase.MOVED):
            self._append(BEGUN, detail={"direction": direction.value})

    def run(self) -> None:
        """Perform every step that is not done. Raises WaitsForOutsideError, ConfigError, HookFailedError, FencedError."""
        state = self._with_hooks(self.state())
        self._release(state)
        while (info := state.next_step) is not None:
            self._waiting.begin(info.step)
            self._reports.begun(self._wave.name, info.step)
            began_s = self._clock.monotonic()
            reopened = self._perform(info.step, state)
            if isinstance(reopened, Step):
                self._append(REOPENED, step=reopened)
            else:
                if info.step is Step.REPORT:  # once it is recorded, the wave is nowhere on its way, and no call continues it
                    self._hooks.call_last(state)
                detail = {**reopened, "seconds": round(self._clock.monotonic() - began_s, 3)}
                self._append(DONE, step=info.step, detail=detail)
                self._reports.done(self._wave.name, info.step, detail)
            state = self._with_hooks(self.state())
            if info.step is Step.ADMIT_WRITERS:
                self._release(state)

    def _with_hooks(self, state: WaveState) -> WaveState:
        """Call the hooks between the last step that is done and the next one. Return the state behind them."""
        # A topic that appeared since the check does not join the wave without another check.
        topics = state.done.get(Step.CHECK, {}).get("topics")
        if topics is not None:
            self._effects.use_topics(topics)
        return self.state() if self._hooks.call_due(state) else state

    def abort(self, *, is_replaced: bool = False) -> None:
        """Undo the attempt. Raises ConfigError behind the point of no return, and where the tables of the mirror are older.

        `is_replaced`: another mirror copies from now on. What the former one has handed over stays, so that it copies no more.
        """
        state = self.state()
        if not state.can_abort:
            raise ConfigError(abort_problem(state))
        topics = state.done.get(Step.CHECK, {}).get("topics")
        if topics is not None:
            self._effects.use_topics(topics)
        denied = state.denied.get(state.direction, ())
        if denied:
            self._owned(lambda: self._effects.delete_denies([acl_of(acl) for acl in denied]))
            # Behind the effect: a crash in between deletes them once more, which finds nothing to do.
            self._append(ADMITTED, detail={"direction": state.direction.value})
        if not is_replaced:
            # Tables that lack the hand-over have nothing to take back, and the topics would stay handed over in the newest ones.
            if topics is not None and (older := self._retried(self._effects.older_tables)) is not None:
                raise ConfigError(f"not aborted, because of mirror {self._effects.mirror_id}: {older}. Then abort again")
            self._owned(self._effects.resume)
        if state.next_step is not None and state.next_step.step is Step.COMMIT_GROUPS:
            self._retried(self._effects.end_commits)  # that a conductor may have prepared which was killed
        # Behind the rest: whatever they let through can be written and is copied.
        self._hooks.undo(state)
        self._append(ABORTED)

    def state(self) -> WaveState:
        names = [wave.name for wave in self._config.waves]
        return state_of(self._retried(self._owner.rows), names).waves[self._wave.name]

    def _release(self, state: WaveState) -> None:
        """Say who starts where, as soon as they may, and again after a crash."""
        # Deny ACLs would still refuse the writers before ADMIT_WRITERS.
        if Step.ADMIT_WRITERS in state.done and state.is_under_way:
            topics = self._effects.topics() if self._retried(self._effects.left_topics) else None
            for sentence in release_sentences(self._wave, self._effects.other_alias, topics):
                self._reports.says(f"{self._wave.name}: NOW: {sentence}")

    def _perform(self, step: Step, state: WaveState) -> Detail | Step:
        """Return the findings of the step; or an earlier step that has to be done again."""
        match step:
            case Step.CHECK:
                return self._check()
            case Step.CATCH_UP:
                return self._copying.catch_up()
            case Step.VERIFY:
                return self._verify(state)
            case Step.STOP_WRITERS:
                return self._stop_writers(state)
            case Step.STOP_GROUPS:
                return self._stop_groups()
            case Step.COPY_REST:
                return self._copying.copy_rest(from_document(state.done[Step.STOP_WRITERS]["ends"]))
            case Step.HAND_OVER:
                self._owned(self._effects.hand_over)
                return {}
            case Step.VERIFY_REST:
                return self._verify_rest(state)
            case Step.COMMIT_GROUPS:
                return self._commit_groups(state)
            case Step.POINT_OF_NO_RETURN:
                return self._pass_point_of_no_return(state)
            case Step.PREPARE_REVERSE:
                return self._prepare_reverse(state)
            case Step.START_REVERSE:
                return self._start_reverse()
            case Step.ADMIT_WRITERS:
                return self._admit_writers(state)
            case Step.REPORT:
                return self._report(state)

    def _check(self) -> Detail:
        # Listed anew: `topics` keeps the answer of an earlier check.
        self._effects.use_topics(self._retried(self._effects.listed_topics))
        problems = self._retried(self._effects.problems)
        if problems:
            raise ConfigError(problems)
        if left := sorted(self._retried(self._effects.left_topics)):
            here = self._effects.origin_alias
            self._reports.says(f"{named(left)}: deleted at {here} or excluded from the mirror, and left out of the rollback")
        return {"topics": list(self._retried(self._effects.topics))}

    def _verify(self, state: WaveState) -> Detail | Step:
        ends = self._retried(self._effects.log_ends)
        ids = self._retried(self._effects.topic_ids)
        # Before the comparison: what it covers is behind these positions, so nothing in between is left out.
        mapped = self._retried(self._effects.mapped_ends)
        if lacking := sorted(ends.keys() - mapped.keys()):
            self._reports.says(f"{named(lacking)}: not in the offset map: new, or the mirror has older tables than before")
            return Step.CATCH_UP
        after = self._first_positions(state)
        compared = self._compare(state, after)
        return {
            **_compared(compared),
            "until": mapped_document(not_before(mapped, after)),
            "topic_ids": {name: ids[name] for name in self._effects.topics() if name in ids},
        }

    def _verify_rest(self, state: WaveState) -> Detail | Step:
        other, mirror = self._effects.other_alias, self._effects.mirror_id
        # Records above the last stable offset cannot be compared.
        while is_open := open_partitions(other_ends := self._retried(self._effects.other_log_ends)):
            seen = open_sentence(other_ends, is_open)
            seen += holders_sentence(self._effects, is_open, at_origin=False)
            # Until it has confirmed, one may be that of a mirror that was killed: its next start ends it, and no client may.
            if set(self._effects.topics()) <= self._retried(self._effects.controls).handed_over.keys():
                request = f"end the transactions that are open at {other}: the mirror has none"
            else:
                request = f"keep the mirror {mirror} running, and end the transactions of others that are open at {other}"
            self._waiting.for_somebody(request, seen, SLOW_POLL_S)
        after = self._verified_positions(state)
        # Before and behind the comparison: one that reads older tables covers less than all.
        if self._copying.is_something_left():
            return Step.STOP_WRITERS
        compared = self._compare(state, after)
        if self._copying.is_something_left():
            return Step.STOP_WRITERS
        # Listed before the comparison: whatever is written behind these ends, the point of no return sees.
        return {**_compared(compared), "other_ends": to_document(other_ends)}

    def _compare(self, state: WaveState, after: Mapping[TopicPartition, MappedEnd]) -> Compared:
        """Raise CopiesDifferError; of a rollback LateWritesError if a client wrote to the cluster that was left."""
        effects = self._effects
        if state.direction is Direction.ROLLBACK:
            # First: to the comparison these writes are differences, and theirs is another remedy.
            late = self._retried(lambda: effects.late_writes(state))
            if late:
                raise late_writes_error(self._config, state.name, effects.other_alias, effects.origin_alias, late)
        compared: Compared = self._retried(lambda: effects.compare(after))
        if not compared.is_equal:
            raise CopiesDifferError(
                compared.sentences,
                effects.origin_alias,
                effects.other_alias,
                effects.mirror_file,
                self._config.path if self._command is None else "",
            )
        return compared

    def _verified_positions(self, state: WaveState) -> dict[TopicPartition, MappedEnd]:
        """Return the positions up to which VERIFY has compared; of a topic that was created again since, the first ones."""
        verified = state.done[Step.VERIFY]
        known = {name: (topic_id,) for name, topic_id in verified.get("topic_ids", {}).items()}
        again = created_again(self._retried(self._effects.topic_ids), known)
        until, first = mapped_of(verified["until"]), self._first_positions(state)
        return {name: end for name, end in until.items() if name.topic not in again} | {
            name: end for name, end in first.items() if name.topic in again
        }

    def _first_positions(self, state: WaveState) -> dict[TopicPartition, MappedEnd]:
        """Return the positions from which a rollback compares: the reverse mirror only copies records from after the move."""
        moved = state.move.get(Step.POINT_OF_NO_RETURN)
        if state.direction is Direction.MOVE or moved is None:
            return {}
        origin, other = from_document(moved["other_ends"]), from_document(moved["origin_ends"])
        replaced = self._retried(self._effects.replaced_topics)
        return {name: MappedEnd(0 if name.topic in replaced else end, other.get(name, 0)) for name, end in origin.items()}

    def _stop_writers(self, state: WaveState) -> Detail:
        self._owned(self._effects.resume)  # of a hand-over that came too early: what is still written is copied first
        if self._config.writers.is_denied:
            self._deny(state)
        origin = self._effects.origin_alias
        groups = f" and the consumers of groups {shown(self._wave.groups)}" if self._wave.groups else ""
        request = f"stop the writers of {named(self._effects.topics())}{groups} at {origin}"
        return await_rest(self._config.writers, self._effects, self._waiting, self._clock, request)

    def _deny(self, state: WaveState) -> None:
        """Create the Deny ACLs that are missing. Those of this attempt are in the table before, so that `abort` finds them."""
        missing = self._retried(self._effects.missing_denies)
        own = [acl_of(acl) for acl in state.denied.get(state.direction, ())]
        if new := [acl for acl in missing if acl not in own]:
            self._append(DENYING, detail={"acls": [acl_document(acl) for acl in new]})
        if missing:
            self._owned(lambda: self._effects.create_denies(missing))

    def _stop_groups(self) -> Detail:
        request = f"stop the consumers of groups {shown(self._wave.groups)} at {self._effects.origin_alias}"
        while True:
            active = self._retried(self._effects.active_groups)
            if not active:
                return {}
            self._waiting.for_somebody(request, f"still with members: {named(active)}", POLL_S)

    def _commit_groups(self, state: WaveState) -> Detail | Step:
        while True:
            report = self._retried(self._committed_groups)
            if report is None:
                return {"groups": 0, "offsets": 0}
            # Its members commit further offsets at the origin: those translated now would be out of date.
            if any(group.is_active_at_origin for group in report.groups):
                self._reports.says("a group has members again")
                return Step.STOP_GROUPS
            problems = commit_problems(report)
            if not problems:
                return {"groups": len(report.groups), "offsets": sum(len(group.partitions) for group in report.groups)}
            # Groups may read a topic that the mirror copies by now, and that does not move with the wave yet.
            if list(listed := self._retried(self._effects.listed_topics)) != list(self._effects.topics()):
                self._reports.says(changed_topics(listed, self._effects.topics()))
                return Step.CHECK
            # An offset behind records that came since waits for a mirror that copies nothing any more.
            ends = self._retried(self._effects.log_ends)
            if {name: log.end for name, log in ends.items()} != from_document(state.done[Step.STOP_WRITERS]["ends"]):
                self._reports.says("the writers are not stopped: log ends have moved since")
                return Step.STOP_WRITERS
            if loses_copies(report):
                self._reports.says("offsets of groups lead to no copy any more: the wave is checked again")
                self._owned(self._effects.resume)  # a check finds no topic that is handed over
                return Step.CHECK
            # Pending offsets wait for others to end; all others need an operator.
            if is_pending(report):
                self._waiting.for_progress(
                    "transactions of groups and decisions of the mirror to end", "; ".join(problems), POLL_S
                )
            else:
                request = f"make these offsets committable at {report.other}"
                self._waiting.for_somebody(request, "; ".join(problems), SLOW_POLL_S)

    def _committed_groups(self) -> GroupsReport | None:
        """Raise FencedError where another conductor has taken over: it may commit, and its transaction is not to be ended."""
        self._owner.rows()
        return self._effects.move_groups(is_applied=True)

    def _pass_point_of_no_return(self, state: WaveState) -> Detail | Step:
        passed = self._point_of_no_return.passed(state.done)
        if isinstance(passed, Step):
            return passed
        since_ms = state.done[Step.STOP_WRITERS]["since_ms"]
        return {**passed, "writers_stopped_s": round((self._clock.now_ms() - since_ms) / 1000, 3)}

    def _prepare_reverse(self, state: WaveState) -> Detail:
        if self._effects.reverse_file is None:
            return {"skipped": "no reverse mirror is named: there is no rollback"}
        passed = state.done[Step.POINT_OF_NO_RETURN]
        gone = sorted(self._retried(lambda: self._effects.prepare_reverse(from_document(passed["other_ends"]))))
        if gone:
            were, them = ("was", "it") if len(gone) == 1 else ("were", "them")
            self._reports.says(
                f"{self._wave.name}: {named(gone)} {were} deleted at {self._effects.other_alias} since the point of no return: "
                f"the reverse mirror copies nothing of {them} back, and a rollback leaves {them} out. A topic that is created "
                "again with such a name is copied from its first record"
            )
        return {"gone": gone} if gone else {}

    def _start_reverse(self) -> Detail:
        file = self._effects.reverse_file
        if file is None:
            return {"skipped": "no reverse mirror is named: there is no rollback"}
        started = None
        while True:
            run = self._retried(self._effects.reverse_run)
            if run is not None and not run.is_over:
                return {"run": run.description}
            seen = "it does not run yet" if run is None else f"{run.description} has ended: its log says why"
            if self._config.reverse.start == "conductor":
                # Once in a process. One that a crashed conductor started is fenced by this one.
                if started is None:
                    started = self._retried(self._effects.start_reverse)
                    self._reports.says(f"started the reverse mirror: {started}")
                if started.is_alive():
                    self._waiting.for_progress("the reverse mirror to take over its tables", f"{started}; {seen}", SLOW_POLL_S)
                    continue
                words = started.last_words
                seen = f"it was started ({started}), and has ended" + (f": {words}" if words else "")
            self._waiting.for_somebody(f"run `shallow-mirror run {file}` as a service", seen, SLOW_POLL_S)

    def _admit_writers(self, state: WaveState) -> Detail:
        # Those that a move creates are at the cluster that it leaves: its rollback deletes them.
        denied = state.denied.get(Direction.MOVE, ()) if state.direction is Direction.ROLLBACK else ()
        if denied:
            self._owned(lambda: self._effects.delete_denies([acl_of(acl) for acl in denied], at_origin=False))
            self._append(ADMITTED, detail={"direction": Direction.MOVE.value})
        opened = self._retried(self._effects.open_topics)
        return {"acls": len(denied) + opened}

    def _report(self, state: WaveState) -> Detail:
        # Once more: a mirror that was suspended before the hand-over may have created ACLs since.
        self._retried(self._effects.open_topics)
        passed = state.done[Step.POINT_OF_NO_RETURN]
        late = self._retried(lambda: self._effects.late_writes(state))
        if late and self._command is None:  # otherwise whoever continues says what can be done
            left, other = self._effects.origin_alias, self._effects.other_alias
            self._reports.says(str(late_writes_error(self._config, state.name, left, other, late)))
        return {
            "topics": list(self._effects.topics()),
            "partitions": sum(len(partitions) for partitions in passed["origin_ends"].values()),
            "groups": state.done[Step.COMMIT_GROUPS]["groups"],
            "records_verified": state.done[Step.VERIFY]["records"] + state.done[Step.VERIFY_REST]["records"],
            "writers_stopped_s": passed["writers_stopped_s"],
            "late_writes": [write.document() for write in late],
        }

    def _append(self, event: str, *, step: Step | None = None, detail: Detail | None = None) -> None:
        text = "" if step is None else step.value
        self._owner.append(event=event, wave=self._wave.name, step=text, detail=detail)


def _compared(compared: Compared) -> dict[str, Any]:
    return {"records": compared.record_count, "size_bytes": compared.size_bytes, "verify_s": round(compared.seconds, 3)}
