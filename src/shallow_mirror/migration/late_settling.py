"""Driver: the two ways on for late writes: copied to the topics where the writers are now, or to topics of their own beside them.

Each range is copied exactly once, as `redo` does it. What is to be copied is in the table before: a command that is killed is
continued by the next one with the same ranges. What the cluster that was left has deleted by then is lost: it is recorded, and
does not hold up the rest.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shallow_mirror import routing
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import absent_topics
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import MigrationFiles
from shallow_mirror.deadline import request_deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.migration.conductor_ports import Reports
from shallow_mirror.migration.late_writes import LateWrite, Passed, copying_mirror, find_late_writes, parted
from shallow_mirror.migration.observations import named
from shallow_mirror.migration.sentences import lost_sentence
from shallow_mirror.migration.session import Options, owned, read_newest_state, require_sole, require_wave
from shallow_mirror.migration.state import SETTLED_LATE, SETTLING_LATE, MigrationState, WaveState, state_of
from shallow_mirror.migration.steps import Direction
from shallow_mirror.migration.topic_ids import source_ids
from shallow_mirror.operations.recover import require_newest_tables
from shallow_mirror.operations.redo import RedoRequest, RedoResult, mirrored_clusters, redo, redo_config
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel

QUARANTINE_PREFIX = f"{routing.INTERNAL_PREFIX}late-writes."
"""No mirror copies topics with such names, whatever patterns it has: a copy of them in the other direction would be a ring."""


class Choice(enum.StrEnum):
    CARRY = "carry"
    QUARANTINE = "quarantine"


Copy = Callable[[MirrorConfig, RedoRequest], RedoResult]


def copy_range(config: MirrorConfig, request: RedoRequest) -> RedoResult:
    known_ids = source_ids(config).get(request.topic_partition.topic, ())
    return redo(
        redo_config(config, request, is_handed_over=True),
        request,
        clusters=mirrored_clusters(config),
        leaves_out_gone=True,
        known_ids=known_ids,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Late writes that were copied, and into which topics at the cluster `other`.

    `lost`: those that `left`, the cluster that was left, had deleted before they were copied.
    """

    wave: str
    left: str
    other: str
    topics: Sequence[str]
    writes: Sequence[LateWrite]
    lost: Sequence[LateWrite]


def settle_late_writes(
    files: MigrationFiles,
    reports: Reports,
    choice: Choice,
    wave: str | None = None,
    options: Options = Options(),  # noqa: B008
    copy: Copy = copy_range,
) -> list[Settled]:
    """Copy the late writes of all waves, or of `wave`. Safe to call again after any error.

    Raises ConfigError and OlderTablesError before anything is done, and as `redo`.
    """
    state = read_newest_state(files)
    require_wave(files, state, wave)
    chosen = [each.name for each in files.config.waves if wave in (None, each.name)]
    settled = _settle(files, state, reports, choice, chosen, options, copy)
    # What came since a command began that was killed is not among its ranges.
    if any(state.waves[name].settling for name in chosen):
        settled += _settle(files, read_newest_state(files), reports, choice, chosen, options, copy)
    return settled


def _settle(
    files: MigrationFiles,
    state: MigrationState,
    reports: Reports,
    choice: Choice,
    chosen: Sequence[str],
    options: Options,
    copy: Copy,
) -> list[Settled]:
    """Finish what was begun of the waves `chosen`, and settle what is found of the others."""
    require_sole(state.conductor, options)
    unfinished = {name: state.waves[name].settling for name in chosen if state.waves[name].settling}
    found = {name: _late_writes(files, state.waves[name]) for name in chosen if name not in unfinished}
    if not unfinished and not any(found.values()):
        return []
    for name, writes in found.items():
        if writes and (passed := Passed.of(state.waves[name])) is not None:
            mirror = copying_mirror(files, files.wave(name), passed.direction)
            if choice is Choice.CARRY:
                _require_moved(mirror, passed, writes)
                _require_topics(mirror, {_target(mirror, write.topic_partition.topic, choice) for write in writes})
            _require_newest_tables(mirror)
    for name, settlings in unfinished.items():
        for each in settlings:
            _require_newest_tables(copying_mirror(files, files.wave(name), Direction(each["direction"])))
    settled = []
    with owned(files, state, options) as owner:
        now = state_of(owner.rows(), [each.name for each in files.config.waves])
        # What was found was late by the former state: another command may have copied it since, in other ranges.
        if changed := [name for name in chosen if now.waves[name] != state.waves[name]]:
            raise ConfigError(
                f"another command has changed {named(f'wave {name}' for name in changed)} since this one began, and nothing was "
                "copied: the same command looks again"
            )
        for name, writes in found.items():
            passed = Passed.of(state.waves[name])
            if writes and passed is not None:
                documents = [write.document() for write in writes]
                detail: dict[str, Any] = {"direction": passed.direction.value, "choice": choice.value, "writes": documents}
                owner.append(event=SETTLING_LATE, wave=name, detail=detail)
        for name in chosen:
            wave = state_of(owner.rows(), [each.name for each in files.config.waves]).waves[name]
            for begun in wave.settling:
                mirror = copying_mirror(files, files.wave(name), Direction(begun["direction"]))
                choices = _choices_now(mirror, begun, choice)
                done = _copy(files, wave, begun, choices, reports, copy)
                parts = {"copied": [each.document() for each in done.writes], "lost": [each.document() for each in done.lost]}
                owner.append(event=SETTLED_LATE, wave=name, detail={**begun, **_choices_document(choices), **parts})
                settled.append(done)
    return settled


def _late_writes(files: MigrationFiles, wave: WaveState) -> list[LateWrite]:
    """Return the late writes by tables of the reverse mirror that are the newest before and after. Raises OlderTablesError."""
    settings = files.wave(wave.name)
    # Older tables may be put back in place at any time: what they had shown must not be copied.
    return find_late_writes(files, settings, wave) and find_late_writes(files, settings, wave)


def _require_newest_tables(mirror: MirrorConfig) -> None:
    """Raise OlderTablesError where the mirror that copies has older tables: they have the maps of what was copied before."""
    if TableStorage(mirror.table_location).offset_map.snapshot() is not None:
        require_newest_tables(mirror)


def _target(mirror: MirrorConfig, topic: str, choice: Choice) -> str:
    target = routing.target_topic_name(mirror.topics.target_name, mirror.source.alias, topic)
    return _quarantine_of(target) if choice is Choice.QUARANTINE else target


def _quarantine_of(topic: str) -> str:
    """Return the name of the topic of its own: of a long one the begin, and a hash of it."""
    name = QUARANTINE_PREFIX + topic
    if len(name) <= routing.MAX_TOPIC_NAME_LENGTH:
        return name
    end = f"-{hashlib.sha256(topic.encode()).hexdigest()[:8]}"
    return name[: routing.MAX_TOPIC_NAME_LENGTH - len(end)] + end


def _require_moved(mirror: MirrorConfig, passed: Passed, writes: Sequence[LateWrite]) -> None:
    """Raise ConfigError for topics that appeared after a rollback."""
    if appeared := sorted({write.topic_partition.topic for write in writes if passed.appeared(write)}):
        them, where = "it" if len(appeared) == 1 else "them", mirror.source.alias
        raise ConfigError(
            f"{named(appeared)} appeared at {where} after the rollback, and nothing was copied: give --quarantine, or exclude "
            f"{them} in the file of mirror {mirror.mirror} (topics.exclude) to leave {them} at {where}"
        )


def _require_topics(mirror: MirrorConfig, targets: Collection[str]) -> None:
    """Raise ConfigError for a topic that does not exist any more: it was deleted since the move, and would be created again."""
    with closing(Cluster(mirror.target.client)) as cluster:
        gone = absent_topics(cluster, targets, request_deadline())
    if gone:
        raise ConfigError(
            f"{named(sorted(gone))} {'was' if len(gone) == 1 else 'were'} deleted at {mirror.target.alias} since the move, and "
            "nothing was copied: give --quarantine, which copies to topics of their own"
        )


def _choices_now(mirror: MirrorConfig, begun: Any, choice: Choice) -> dict[str, Choice]:
    """Return how to continue, by topic: as it was begun, unless the topic was deleted with what was carried to it."""
    chosen, topics = Choice(begun["choice"]), {write["topic"] for write in begun["writes"]}
    gone: Collection[str] = ()
    if chosen is Choice.CARRY:
        targets = {_target(mirror, topic, chosen) for topic in topics}
        if choice is Choice.CARRY:
            _require_topics(mirror, targets)
        else:
            with closing(Cluster(mirror.target.client)) as cluster:
                gone = absent_topics(cluster, targets, request_deadline())
    return {topic: choice if _target(mirror, topic, chosen) in gone else chosen for topic in topics}


def _choices_document(choices: Mapping[str, Choice]) -> dict[str, Any]:
    """Return the choice for the table, and with `carry` the topics that went into quarantine all the same."""
    if len(chosen := set(choices.values())) == 1:
        return {"choice": chosen.pop().value}
    kept = sorted(topic for topic, choice in choices.items() if choice is Choice.QUARANTINE)
    return {"choice": Choice.CARRY.value, "quarantined": kept}


def choice_of(settled: Mapping[str, Any], write: LateWrite) -> Choice:
    """Return what became of a late write that was copied, of an event of settled late writes."""
    is_kept = write.topic_partition.topic in settled.get("quarantined", ())
    return Choice.QUARANTINE if is_kept else Choice(settled["choice"])


def _is_gone(mirror: MirrorConfig, write: LateWrite) -> bool:
    """Return whether the cluster that was left has none of the records any more: expired, deleted, or with their topic."""
    name = write.topic_partition
    with closing(Cluster(mirror.source.client)) as cluster:
        if absent_topics(cluster, [name.topic], request_deadline()):
            return True
        listed = cluster.metadata([name.topic], request_deadline()).topics[name.topic]
        expected = [write.topic_id] if write.topic_id else source_ids(mirror).get(name.topic, [listed.topic_id])
        if listed.topic_id not in expected:
            return True
        starts = cluster.list_offsets({name: EARLIEST_TIMESTAMP}, IsolationLevel.READ_UNCOMMITTED, request_deadline())
    return starts[name].offset >= write.end


def _copy(
    files: MigrationFiles, wave: WaveState, detail: Any, choices: Mapping[str, Choice], reports: Reports, copy: Copy
) -> Settled:
    mirror = copying_mirror(files, files.wave(wave.name), Direction(detail["direction"]))
    left, other = mirror.source.alias, mirror.target.alias
    topics: list[str] = []
    all_copied: list[LateWrite] = []
    all_lost: list[LateWrite] = []
    for write in map(LateWrite.of, detail["writes"]):
        target = _target(mirror, write.topic_partition.topic, choices[write.topic_partition.topic])
        request = RedoRequest(write.topic_partition, write.start, write.end, target, write.topic_id)
        if _is_gone(mirror, write):
            reports.says(f"{wave.name}: {write} is not at {left} any more: nothing of it is left to copy")
        else:
            reports.says(f"{wave.name}: copying {write} to {target} at {other} ...")
        result = copy(mirror, request)
        copied, lost = parted(write, result.gone, _record_count(mirror, write, result))
        for each in copied:
            reports.says(f"{wave.name}: {each} copied to {target} at {other}")
            topics.append(target)
        for each in lost:
            reports.says(f"{wave.name}: {lost_sentence(each, left)}")
        all_copied += copied
        all_lost += lost
    names = tuple(dict.fromkeys(topics))
    return Settled(wave=wave.name, left=left, other=other, topics=names, writes=tuple(all_copied), lost=tuple(all_lost))


def _record_count(mirror: MirrorConfig, write: LateWrite, result: RedoResult) -> int | None:
    """Return the number of records of the late write that were copied; None where the copy may hold others as well."""
    is_within = write.start <= result.start and result.end <= write.end
    return result.record_count if is_within and mirror.read.isolation_level is IsolationLevel.READ_COMMITTED else None
