"""For the cli: plans, progress and states of fail-overs as text or JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.config.failover_config import FailoverFiles
from shallow_mirror.migration import view
from shallow_mirror.migration.conductor_ports import Detail
from shallow_mirror.migration.failover.conductor import moved_sentence
from shallow_mirror.migration.failover.session import FailoverPlan
from shallow_mirror.migration.failover.state import FailoverState
from shallow_mirror.migration.failover.steps import Step, Way, steps_of
from shallow_mirror.migration.late_writes import LateWrite
from shallow_mirror.plurals import counted


class Printed(view.Printed):
    """`Reports` of a fail-over, and of the migration that ends its way back, as lines on standard error."""

    def __init__(self, awaited: str, files: FailoverFiles) -> None:
        super().__init__(awaited)
        self._files = files

    def step_begun(self, way: Way, step: Step) -> None:
        self.says(f"{way}: {step} ...")

    def step_done(self, way: Way, step: Step, detail: Detail) -> None:
        self.says(f"{way}: {step}: done in {detail['seconds']:.1f} s{_found(step, detail)}")
        if step is Step.MOVE_GROUPS:
            for sentence in release_sentences(self._files):
                self.says(f"{way}: NOW: {sentence}")


def release_sentences(files: FailoverFiles) -> list[str]:
    target = files.mirror.target.alias
    return [
        f"start the consumers at {target}, with isolation.level=read_committed",
        f"point the writers to {target}",
    ]


def _found(step: Step, detail: Mapping[str, Any]) -> str:
    match step:
        case Step.FENCE:
            is_open = f"; transactions of others are open: {', '.join(detail['open'])}" if detail["open"] else ""
            return f": {counted(len(detail['partitions']), 'partition')}{is_open}"
        case Step.MOVE_GROUPS:
            left = f"; not moved: {'; '.join(detail['left'])}" if detail["left"] else ""
            return f": {moved_sentence(detail)}{left}"
        case Step.KEEP:
            gone = sum(lost["end"] - lost["start"] for kept in detail["kept"] for lost in kept.get("gone", ()))
            deleted = f", {counted(gone, 'offset')} {'was' if gone == 1 else 'were'} deleted before" if gone else ""
            return f": {counted(sum(not _is_gone(kept) for kept in detail['kept']), 'range')} kept{deleted}"
        case Step.HAND_BACK:
            return f": the writers were stopped for {detail['writers_stopped_s']:.1f} s"
    return ""


def plan_text(plan: FailoverPlan, files: FailoverFiles) -> str:
    answers = "answers" if plan.source_answers else "does not answer"
    lines = [f"{plan.way} {files.config.failover}: {plan.source} {answers}"]
    lines += [f"  in the way: {problem}" for problem in plan.problems]
    for number, info in enumerate(plan.steps, 1):
        lines.append(f"  {number}. {info.step}: {info.does}; result: {info.leaves}")
        if info.outside is not None:
            lines.append(f"     outside: {info.outside}")
        hooks = [hook for hook in files.config.hooks if hook.place[1] == info.step]
        lines += [f"     hook {view.hook_sentence(hook)}" for hook in hooks]
        if info.step is Step.HAND_BACK:
            lines += [f"     hook at {hook.place[1]}: {view.hook_sentence(hook)}" for hook in files.config.back.hooks]
    if plan.way is Way.OUT and not plan.problems:
        lines += _planned_groups(plan)
        if plan.source_answers:
            lines.append(f"  {plan.source} answers: as long as it does, `shallow-mirror migrate` moves without loss")
    if plan.way is Way.BACK:
        lines += [f"  only at {plan.source}: {write}" for write in plan.diverged]
        lines += [
            f"  a transaction is open at {plan.source} in {name}: what lies behind it is not counted, and `failover back` waits "
            "for its end"
            for name in plan.open
        ]
        if plan.source_answers and not plan.diverged and not plan.open and not plan.problems:
            lines.append(f"  {plan.source} has no record that {plan.target} lacks")
    return "\n".join(lines)


def _planned_groups(plan: FailoverPlan) -> list[str]:
    if plan.groups is None or plan.groups.as_of is None:
        return ["  no offset of a group is recorded (groups.sync is off, or there are no groups): consumers find their own"]
    observed = plan.groups.as_of.observed_at.isoformat(timespec="seconds")
    lines = [f"  offsets of {counted(len(plan.groups.groups), 'group')}, recorded at {observed}:"]
    return lines + [
        f"    {view_sentence}"
        for group in plan.groups.groups
        for view_sentence in [f"{group.name}: " + ", ".join(f"{n:,} {what}" for what, n in sorted(group.outcomes().items()))]
    ]


def state_text(state: FailoverState, files: FailoverFiles) -> str:
    conductor = (
        "no conductor yet"
        if state.conductor is None
        else str(state.conductor) + (", ended" if state.conductor.has_ended else ", running or killed")
    )
    lines = [f"fail-over {files.config.failover}: {state.phase}; {conductor}"]
    if state.is_aborting:
        lines.append("  an abort has begun: finish it with `failover abort`")
    if state.aborted_at is not None:
        lines.append(f"  an earlier fail-over was aborted at {state.aborted_at.isoformat(timespec='seconds')}")
    for way in Way:
        if way in state.begun_at:
            lines += _step_lines(state, way)
    lines += _loss_lines(state, files)
    lines += [_kept_line(kept, files) for kept in state.done.get(Step.KEEP, {}).get("kept", ())]
    lines += _left_lines(state.done.get(Step.HAND_BACK, {}), files)
    return "\n".join(lines)


def _left_lines(handed_back: Mapping[str, Any], files: FailoverFiles) -> Iterator[str]:
    """Yield what was left at the target when the topics came back, and what can be done. Rows of earlier releases do not say."""
    source, target, back = files.mirror.source.alias, files.mirror.target.alias, files.config.back.mirror or "MIRROR"
    for write in map(LateWrite.of, handed_back.get("late_writes", ())):
        topic, partition = write.topic_partition
        place = f"{topic} {partition} {write.start} {write.end} --to late-writes.{topic}"
        yield (
            f"late writes: {write}: a client wrote to {target} after the point of no return, and no mirror copies that: stop it; "
            f"`shallow-mirror redo {shlex.quote(back)} {place}` copies them to a topic of their own at {source}"
        )
    for group in handed_back.get("left_groups", ()):
        yield (
            f"group {group} has committed its first offsets of these topics at {target} while they came back, and did not move: "
            f"stop its consumers, set the same offsets at {source} (kafka-consumer-groups.sh --reset-offsets), and start them "
            "there"
        )
    for topic in handed_back.get("left_topics", ()):
        yield (
            f"topic {topic} did not come back: {source} did not have it when the way back began. Its writers and consumers are "
            f"still at {target}, and the mirror of {shlex.quote(back)} copies it to {source} as long as it runs: `shallow-mirror "
            "migrate` with that mirror moves it"
        )
    if denied := handed_back.get("denied", ()):
        topics, principals = (", ".join(sorted({acl[field] for acl in denied})) for field in ("topic", "principal"))
        yield (
            f"Deny ACLs created at {target}: WRITE of {topics} by {principals}: no command deletes them, "
            "`kafka-acls.sh --remove` does: delete them before the next fail-over"
        )


def _kept_line(kept: Mapping[str, Any], files: FailoverFiles) -> str:
    write, source, target = LateWrite.of(kept), files.mirror.source.alias, files.mirror.target.alias
    if _is_gone(kept):
        return f"not kept, deleted at {source} before: {write}"
    lost = [LateWrite(topic_partition=write.topic_partition, **gone) for gone in kept.get("gone", ())]
    without = f"; not kept, deleted at {source} before: {', '.join(map(str, lost))}" if lost else ""
    what, place = f"{'what was left of ' if lost else ''}{write}", f"{kept['kept_topic']}-{kept['partition']}"
    return f"kept: {what} of {source} in {place} at {target}{without}"


def _is_gone(kept: Mapping[str, Any]) -> bool:
    """Return whether nothing of a range was left to keep. Rows of earlier releases do not say."""
    return bool(sum(gone["end"] - gone["start"] for gone in kept.get("gone", ())) == kept["end"] - kept["start"])


def _step_lines(state: FailoverState, way: Way) -> list[str]:
    lines = []
    for info in steps_of(way):
        if info.step in state.done:
            at = state.done_at[info.step].isoformat(timespec="seconds")
            lines.append(f"  {info.step}: done at {at}{_found(info.step, state.done[info.step])}")
    following = state.next_step(way)
    if following is not None:
        lines.append(f"  {following.step}: next")
        if state.waiting is not None:
            since = datetime.fromtimestamp(state.waiting["since_ms"] / 1000, UTC).isoformat(timespec="seconds")
            lines.append(f"    waits since {since}: {state.waiting['for']} ({state.waiting['seen']})")
    return lines


def _loss_lines(state: FailoverState, files: FailoverFiles) -> list[str]:
    if Step.REPORT not in state.done:
        return []
    seen_at_ms = state.done[Step.FENCE]["seen_at_ms"]
    observed_at = state.done[Step.MOVE_GROUPS]["observed_at"]
    source = files.mirror.source.alias
    lines = []
    if observed_at is None:
        return ["no offset of a group was recorded (groups.sync): consumers continue with the offsets that they have"]
    lines.append(f"groups as recorded at {observed_at}; what they have read since then is read again:")
    for name, losses in sorted(state.done[Step.REPORT]["groups"].items()):
        lines.append(f"  {name}: {loss_sentence(losses)}")
    if seen_at_ms is None:
        lines.append(f"how far the logs of {source} were ahead of the mirror is not known")
    else:
        at = datetime.fromtimestamp(seen_at_ms / 1000, UTC).isoformat(timespec="seconds")
        lines.append(f"log ends of {source} as seen at {at}; of records that came later nothing is known")
    return lines


def loss_sentence(losses: Sequence[Mapping[str, Any]]) -> str:
    """Return what a group repeats and lacks, over all partitions."""
    repeated = sum(loss["repeated_records"] or 0 for loss in losses)
    unknown = sum(loss["repeated_records"] is None for loss in losses)
    parts = [f"repeats at most {counted(repeated, 'record')}"]
    if unknown:
        parts.append(f"unknown in {counted(unknown, 'partition')}")
    if all(loss["missing_offsets"] is not None for loss in losses):
        parts.append(f"lacks {counted(sum(loss['missing_offsets'] for loss in losses), 'offset')} that were seen, not mirrored")
    if ahead := sum(loss["read_ahead_offsets"] for loss in losses):
        parts.append(f"had read {counted(ahead, 'offset')} that are not mirrored")
    return "; ".join(parts)


def state_document(state: FailoverState, files: FailoverFiles) -> dict[str, Any]:
    conductor = state.conductor
    following = state.next_step(Way.BACK if Way.BACK in state.begun_at else Way.OUT)
    return {
        "failover": files.config.failover,
        "phase": state.phase,
        "conductor": None
        if conductor is None
        else {"epoch": conductor.epoch, "host": conductor.host, "pid": conductor.pid, "has_ended": conductor.has_ended},
        "is_aborting": state.is_aborting,
        "aborted_at": None if state.aborted_at is None else state.aborted_at.isoformat(),
        "next_step": None if following is None else following.step.value,
        "waiting": None if state.waiting is None else dict(state.waiting),
        "done": [{"step": step.value, "at": state.done_at[step].isoformat(), **detail} for step, detail in state.done.items()],
    }


def show_state(state: FailoverState, files: FailoverFiles, *, as_json: bool) -> bool:
    """Print the state. Return whether an offset of a group could not be moved; of the way back, also whether a record was not."""
    print(json.dumps(state_document(state, files)) if as_json else state_text(state, files))
    if (handed_back := state.done.get(Step.HAND_BACK)) is not None:
        return any(handed_back.get(what) for what in ("late_writes", "left_groups"))
    return bool(state.done.get(Step.MOVE_GROUPS, {}).get("left"))
