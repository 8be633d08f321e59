"""`pause` and `resume` of topics, without a restart of the mirror."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.commands.options import Conf
from shallow_mirror.commands.sessions import session_for
from shallow_mirror.errors import ConfigError, RetriableError

if TYPE_CHECKING:
    from shallow_mirror.checkpoints.logs.topics import Controls
    from shallow_mirror.checkpoints.tables import TableStorage
    from shallow_mirror.config import MirrorConfig

_log = logging.getLogger(__name__)

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of source topics.")]


def pause(conf: Conf, topics: Topics) -> None:
    """Pause the copy of topics until `resume`, also across restarts.

    A running mirror applies it within seconds and finishes what it is copying. What retention deletes at the source meanwhile is
    lost.
    """
    with _controls(conf, "pause", topics) as controls:
        state = controls.read()
        controls.add("pause", topics)
    for topic in topics:
        handed = "; a migration has handed it over, so it was not copied any more" if topic in state.moving else ""
        print(f"{topic}: {'was paused already' if topic in state.paused else 'paused'}{handed}")


def resume(conf: Conf, topics: Topics) -> None:
    """Resume paused topics from their positions."""
    with _controls(conf, "resume", topics) as controls:
        state = controls.read()
        before = state.paused
        moved = [topic for topic in topics if topic in state.moving - before.keys()]
        if moved:
            raise ConfigError(
                [
                    f"{topic}: a migration has handed it over, so the mirror in the other direction may write to it: resuming "
                    "would copy records twice. `shallow-mirror migrate abort FILE` resumes it before the point of no return"
                    for topic in moved
                ]
            )
        # No row for the others: of a topic that a migration hands over in this moment it would count as one that takes it back.
        if resumed := [topic for topic in dict.fromkeys(topics) if topic in before]:
            controls.add("resume", resumed)
    for topic in topics:
        handed = "; a migration has handed it over, so it is not copied" if topic in state.moving else ""
        print(f"{topic}: {'resumed' if topic in before else 'was not paused'}{handed}")


@contextmanager
def _controls(conf: Path, command: str, topics: Sequence[str]) -> Iterator[Controls]:
    """Yield the table of controls, and note its newest row on the target behind the block.

    Raises ConfigError with every topic that the file does not include, or that does not exist; OlderTablesError.
    """
    from shallow_mirror.checkpoints.logs.topics import Controls
    from shallow_mirror.checkpoints.tables import TableStorage
    from shallow_mirror.operations.noted_controls import note_added
    from shallow_mirror.operations.recover import require_newest_tables

    config = load_mirror(conf, command)
    unknown = [topic for topic in topics if not config.topics.is_included(topic)]
    if unknown:
        raise ConfigError(
            [
                f"{topic}: this mirror has no such topic (topics.include and topics.exclude of {conf}): give whole names"
                for topic in unknown
            ]
        )
    with session_for(config, is_writing=True) as spark:
        storage = TableStorage.to_write(config.table_location, config.tables_writer, spark)
        storage.require_access()  # before clusters are asked: the write comes last, and tables may not be there yet
        controls = Controls.open(storage)
        state = controls.read()
        _require_topics(config, storage, [topic for topic in topics if topic not in state.not_copied])
        is_noted = _has_map_and_target(config, storage)
        if is_noted:
            require_newest_tables(config, spark)
        yield controls
        if is_noted:
            note_added(config, controls, spark)


def _has_map_and_target(config: MirrorConfig, storage: TableStorage) -> bool:
    """Return whether there is something to note, and where; that the target does not answer is logged.

    Raises ConfigError if there is no map, but the target knows the mirror: the tables are elsewhere.
    """
    from shallow_mirror.broker import Cluster
    from shallow_mirror.broker.cluster import REACH_MS, reach
    from shallow_mirror.deadline import Deadline
    from shallow_mirror.sinks.kafka import transactional_id
    from shallow_mirror.sinks.kafka.protocol import refuse_used_ids

    has_map = storage.offset_map.snapshot() is not None
    with closing(Cluster(config.target.client)) as target:
        try:
            deadline = Deadline.after_ms(min(REACH_MS, config.target.client.request_timeout_ms), time.monotonic)
            reach(target, config.target_cluster_name, deadline)
            if not has_map:
                refuse_used_ids(target, [transactional_id(config.mirror, 0)], deadline)
        except RetriableError as error:
            _log.warning("tables that lack this command are not noticed until the mirror runs: %s", error)
            return False
    return has_map


def _require_topics(config: MirrorConfig, storage: TableStorage, topics: Sequence[str]) -> None:
    """Raise ConfigError with the topics that were never mirrored and that the source does not have; RetriableError.

    The source is asked only about topics that the offset map does not have, so that the others can be paused while it is down.
    """
    from shallow_mirror.broker import Cluster
    from shallow_mirror.broker.cluster import REACH_MS, gone_topics, missing_topics, reach
    from shallow_mirror.checkpoints import OffsetMap
    from shallow_mirror.deadline import Deadline

    mirrored = set[str]()
    if storage.offset_map.snapshot() is not None:
        mirrored = {source.topic for source in OffsetMap.open(storage, mirror=config.mirror).positions()}
    new = sorted(set(topics) - mirrored)
    if not new:
        return
    with closing(Cluster(config.source.client)) as source:
        reach(source, config.source_cluster_name, Deadline.after_ms(REACH_MS, time.monotonic))
        missing = missing_topics(source, new, Deadline.after_ms(REACH_MS, time.monotonic))
        # A broker that has just started does not list topics for a moment.
        now = gone_topics(source, dict.fromkeys(missing.gone, ""), Deadline.after_ms(REACH_MS, time.monotonic))
    absent = [topic for topic in missing.gone if now.get(topic) == ""]
    problems = [f"{topic}: the {config.source_cluster_name} has no such topic: check the name" for topic in absent]
    problems += [f"{topic}: the {config.source_cluster_name} hides it: {grant}" for topic, grant in missing.hidden.items()]
    if problems:
        raise ConfigError(problems)
