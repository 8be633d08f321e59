"""Driver: a thread beside the query: what operators say in `controls`, and what becomes of the topics at the source.

It never touches the copy: micro-batches neither wait for it nor fail with it. What it finds is in the log and in `status`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.missing_topics import missing_topics
from shallow_mirror.checkpoints.backends.best_effort_table import RepeatedWarnings
from shallow_mirror.checkpoints.controls import Controls
from shallow_mirror.checkpoints.problems import Problem, ProblemKind
from shallow_mirror.checkpoints.storage import is_read_by_spark
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics
from shallow_mirror.sinks.kafka.targets.topic_config_sync import TopicConfigSync
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.runner.cycle_detection import Loops

_log = logging.getLogger(__name__)

CONTROLS_EVERY_S = 3.0
CONTROLS_OF_A_CATALOG_EVERY_S = 15.0
"""There each look is a Spark job."""
_LEAST_S = 1.0
_LOOK_MS = 20_000.0
_JOIN_S = 5.0
"""The end of a mirror does not wait for a cluster that is away; the thread ends with its deadline, or the process."""

_GONE = "is gone: what was copied of it stays on the target"
_HIDDEN = "is not shown to our user any more, so nothing new of it is copied"
_REMEDY_OF_HIDDEN = "Grant it, or exclude the topic (topics.exclude)"
_REMEDY_OF_GONE = "Exclude it (topics.exclude), and delete its target topic if nobody reads it"
_REMEDY = "Set it on the target topic by hand, or set topics.configs: create"


class TopicWatch:
    """`mirrored`: source topics that the map knows. The paused topics are in `paused_path` when the block begins, and from then
    on seconds after the operator's command."""

    def __init__(
        self,
        config: MirrorConfig,
        targets: TargetTopics,
        mirrored: Collection[str],
        controls: Controls,
        paused_path: Path,
        *,
        loops: Loops,
        tell: Callable[[Problem], None],
    ) -> None:
        self._config, self._targets, self._mirrored = config, targets, frozenset(mirrored)
        self._controls, self._paused_path, self._loops = controls, paused_path, loops
        self._tell_problem = tell
        self._repeated = RepeatedWarnings()
        self._paused: frozenset[str] | None = None
        self._told: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topic-watch", daemon=True)

    def __enter__(self) -> Self:
        """Raises OutcomeUnknownError, OffsetMapConflictError: a mirror that does not know what is paused copies nothing."""
        self._take_in(frozenset(self._controls.paused()))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        every_s, look_at = max(_LEAST_S, self._config.topics.discovery_s), 0.0
        controls_s = CONTROLS_OF_A_CATALOG_EVERY_S if is_read_by_spark(self._config.table_storage) else CONTROLS_EVERY_S
        with closing(Cluster(self._config.source.client)) as source, closing(Cluster(self._config.target.client)) as target:
            follower = TopicConfigSync(source, target, self._targets) if self._config.topics.configs == "sync" else None
            while not self._stop.wait(controls_s):
                self._read_controls()
                self._loops.keep_note(self._targets.names())
                if time.monotonic() >= look_at:
                    self._look(source, follower)
                    look_at = time.monotonic() + every_s

    def _read_controls(self) -> None:
        try:
            self._take_in(frozenset(self._controls.paused()))
        except MirrorError as error:
            self._repeated.warn("controls", f"the table controls cannot be read, what was paused stays so: {error}")

    def _take_in(self, paused: frozenset[str]) -> None:
        if paused == self._paused:
            return
        planner_state.write_paused(self._paused_path, paused)
        before, self._paused = self._paused or frozenset(), paused
        for topic in sorted(paused - before):
            _log.warning("topic %s is paused: nothing of it is planned from now on", topic)
        for topic in sorted(before - paused):
            _log.info("topic %s goes on", topic)

    def _look(self, source: Cluster, follower: TopicConfigSync | None) -> None:
        deadline = Deadline.after_ms(_LOOK_MS, lambda: math.inf if self._stop.is_set() else time.monotonic())
        gone: tuple[str, ...] = ()
        problems: dict[str, str] = {}
        try:
            names = sorted(name for name in self._mirrored | self._targets.known.keys() if self._config.topics.is_included(name))
            missing = missing_topics(source, names, deadline)
            gone = missing.gone
            problems = {f"source topic {one} {_HIDDEN}: {what}": _REMEDY_OF_HIDDEN for one, what in missing.hidden.items()}
            if follower is not None:
                problems |= dict.fromkeys(follower.look({*gone, *missing.hidden}, deadline), _REMEDY)
        except RetriableError as error:
            _log.info("topics were not looked at: %s", error)  # the copy waits for that cluster as well, and says so
            return
        except MirrorError as error:
            problems[f"topics cannot be looked at: {error}"] = _REMEDY
        if not self._stop.is_set():
            self._tell(gone, problems)

    def _tell(self, gone: Sequence[str], problems: Mapping[str, str]) -> None:
        """What is new becomes a problem of the run, all of it is in the note. `problems`: what to do, by sentence.

        Topics that stamp are in the note only: they became problems when a Produce answer, or their settings, said so.
        """
        said = {f"source topic {name} {_GONE}": _REMEDY_OF_GONE for name in gone} | {**problems}
        for sentence in sorted(said.keys() - self._told):
            self._tell_problem(Problem(kind=ProblemKind.CONFIG, text=sentence, remedy=said[sentence]))
        self._told = frozenset(said)
        stamping = [f"{sentence} (remedy: {remedy})" for sentence, remedy in self._targets.stamping.sentences().items()]
        try:
            note = planner_state.TopicsNote(at_ms=int(time.time() * 1000), gone=tuple(gone), problems=(*problems, *stamping))
            planner_state.write_topics(planner_state.topics_path(self._config.checkpoint), note)
        except OSError as error:
            _log.warning("the note about topics was not written: %s", error)
