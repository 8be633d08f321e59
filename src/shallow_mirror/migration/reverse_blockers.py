"""Driver: everything that would keep the reverse mirror of a wave from starting behind the point of no return."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import WaveSettings
from shallow_mirror.deadline import request_deadline
from shallow_mirror.migration.observations import named
from shallow_mirror.migration.permissions import TO_WRITE, UserView, missing_on_topics
from shallow_mirror.migration.reverse_mirror import preserving_problem, reverse_positions
from shallow_mirror.migration.steps import Direction
from shallow_mirror.preflight import start_problems


class Passage(Protocol):
    """What is looked at: `passage.Passage`."""

    wave: WaveSettings
    direction: Direction

    @property
    def mirror(self) -> MirrorConfig: ...
    @property
    def reverse(self) -> MirrorConfig | None: ...
    @property
    def other(self) -> Cluster: ...
    def topics(self) -> tuple[str, ...]: ...
    def target_topic(self, topic: str, /) -> str: ...


def reverse_problems(passage: Passage) -> Iterator[str]:
    """Yield a sentence for each problem: of the files, and refusals of the start of the mirror itself.

    Nothing here can be mended once the writers are at the other cluster, except while they are stopped. Raises ConfigError,
    RetriableError, StoreUnreachableError.
    """
    config = passage.reverse
    if config is None or passage.direction is Direction.ROLLBACK:
        return
    where = f"waves: {passage.wave.name}: reverse"
    topics = passage.topics()
    preserved = [topic for topic in topics if passage.mirror.topics.is_preserved(topic)]
    if preserved:
        yield f"{where}: {named(preserved)} keep their offsets (topics.offsets: preserved) and have no way back: leave it out"
    listed = passage.other.metadata(None, request_deadline()).topics
    included = {name for name, topic in listed.items() if topic.error_code == 0 and config.topics.is_included(name)}
    wanted = {passage.target_topic(topic) for topic in topics}
    if included != wanted:
        differing = sorted(included ^ wanted)
        yield f"{where}: has to copy exactly the topics of the wave, and differs in {named(differing)} (topics.include)"
    preserving = preserving_problem(config, wanted)
    if preserving is not None:
        yield f"{where}: {preserving}"
    if reverse_positions(config):
        yield f"{where}: mirror {config.mirror} has run already: it needs another mirror id and tables to begin at the move"
        return
    yield from (f"{where}: {problem}" for problem in _table_problems(config))
    with closing(Cluster(config.target.client)) as target:
        view = UserView(target, f"{where}: {config.target_cluster_name}")
        yield from missing_on_topics(view, topics, TO_WRITE, "needed to copy back")
    yield from (f"{where}: {problem}" for problem in start_problems(config, wanted))


def _table_problems(config: MirrorConfig) -> Iterator[str]:
    """Yield why the tables of a mirror that has never run cannot be created.

    Writes a probe to an object store, and deletes it again.
    """
    TableStorage.to_write(config.table_location, config.tables_writer).require_conditional_writes()
    if config.table_location.is_object_store:
        return
    for setting, path in (("tables", Path(config.tables)), ("checkpoint", Path(config.checkpoint))):
        present = next(folder for folder in (path, *path.parents) if folder.exists())
        if not present.is_dir() or not os.access(present, os.W_OK | os.X_OK):
            yield f"{setting}: {path} cannot be created: the user of this command may not write to {present}"
