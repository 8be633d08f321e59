"""Driver: a thread beside the query that applies the operator's `controls` and watches the topics of the source.

It never affects the copy: micro-batches neither wait for it nor fail with it. Its results are in the log and in `status`, and the
query asks for those that end the run.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import gone_topics, missing_topics
from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.checkpoints.logs.topics import TopicControls
from shallow_mirror.checkpoints.tables import RepeatedWarnings
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import FencedError, MirrorError, OlderTablesError, RetriableError
from shallow_mirror.log_context import in_context
from shallow_mirror.sinks.kafka import NewestControl
from shallow_mirror.sinks.kafka.targets import TargetTopics, gone_problem
from shallow_mirror.sinks.kafka.targets.settings import IdleSettings, SourcePolicies, TopicConfigSync
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.runs.cycle_detection import CycleDetector
from shallow_mirror.streaming.runs.followed_deletions import FollowedDeletions
from shallow_mirror.streaming.runs.gone_topics import problems_of_new
from shallow_mirror.streaming.runs.held_settings import HeldSettings
from shallow_mirror.streaming.runs.idle_map import IdleMap
from shallow_mirror.streaming.runs.run_controls import RunControls
from shallow_mirror.streaming.watch.error_hints import REMEDY_OF_GONE
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

CONTROLS_EVERY_S = 3.0
CONTROLS_OF_A_CATALOG_EVERY_S = 15.0
"""There each read is a Spark job."""
_LEAST_S = 1.0
_CHECK_MS = 20_000.0
_JOIN_S = 5.0
"""The end of a mirror does not wait for an unreachable cluster; the thread ends with its deadline, or with the process."""

_DELETED = "was deleted: its copies stay on the target"
_HIDDEN = "may no longer be described by the mirror's user, so no new records are copied"
_REMEDY_OF_HIDDEN = "Grant it, or exclude the topic (topics.exclude)"
_REMEDY_OF_DELETED = "Exclude it (topics.exclude), and delete its target topic if it is not needed"
_REMEDY_OF_FOLLOWED = "Exclude it (topics.exclude); topics.deleted: keep leaves its target topic"
_REMEDY_OF_RING = "Exclude the topic in one of these mirrors. If it was removed, delete the consumer group <mirror>-origin"
_REMEDY_OF_HELD = "Grant AlterConfigs on it, or set it on the target topic manually"
_REMEDY_OF_POLICY = "Set cleanup.policy of the source topic back, or do what the message says before the next start"
_REMEDY = "Set it on the target topic manually, or set topics.configs: create"

_Follower = TopicConfigSync | SourcePolicies


class TopicMonitor:
    """`mirrored`: source topics of the offset map. `paused_path` holds the paused topics when the block begins, and from then on
    seconds after the operator's command.
    """

    def __init__(
        self,
        config: MirrorConfig,
        targets: TargetTopics,
        mirrored: Collection[str],
        controls: RunControls,
        paused_path: Path,
        *,
        idle_map: IdleMap,
        cycles: CycleDetector,
        newest: NewestControl,
        held: HeldSettings,
        positions: Callable[[], Mapping[SourcePartition, Position]],
        report: Callable[[Problem], None],
        deletions: FollowedDeletions | None = None,
        idle_settings: IdleSettings | None = None,
        source_cluster_id: str = "",
        target_cluster_id: str = "",
    ) -> None:
        """Start nothing yet.

        `positions`: returns the settled ones of the offset map; for any thread. `deletions`: None if target topics of
        deleted source topics are kept. `idle_settings`: None if no topic is preserved.
        """
        self._held, self._deletions, self._idle_settings = held, deletions, idle_settings
        self._positions = positions
        self._config = config
        self._cluster_ids = source_cluster_id, target_cluster_id
        self._targets = targets
        self._mirrored = frozenset(mirrored)
        self._controls, self._idle_map = controls, idle_map
        self._paused_path = paused_path
        self._cycles = cycles
        self._newest = newest
        self._report = report
        self._repeated = RepeatedWarnings()
        self._paused: frozenset[str] | None = None
        self._moved: frozenset[str] = frozenset()
        """Those of `_paused` to whose targets others write."""
        self._moving: frozenset[str] = frozenset()
        self._revision: str | None = None
        self._reported: frozenset[str] = frozenset()
        self._gone: frozenset[str] = frozenset()
        """Source topics whose target topics were gone at the last look."""
        self._missing: frozenset[str] = frozenset()
        """Source topics that one broker did not list, or that were hidden, at the last look."""
        self._deleted: tuple[str, ...] = ()
        """Source topics that were deleted, as far as was known at the last look."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=in_context(self._run), name="topic-monitor", daemon=True)

    def __enter__(self) -> Self:
        """Raise as `RunControls.read`: without the list of paused topics nothing may be copied."""
        controls = self._controls.read()
        self._moving = controls.moving
        self._keep_note(controls)
        self._apply_paused(controls)
        if self._config.topics.configs != "off":
            # A target that refuses what its source takes by now would end the query before the first look of the thread.
            with self._clusters() as (source, target):
                self._set_topics(source, target, self._follower(source, target))
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        every_s, check_at = max(_LEAST_S, self._config.topics.discovery_s), 0.0
        controls_s = CONTROLS_OF_A_CATALOG_EVERY_S if self._config.table_location.is_read_by_spark else CONTROLS_EVERY_S
        with self._clusters() as (source, target):
            follower = self._follower(source, target)
            while not self._stop.wait(controls_s):
                self._read_controls()
                self._look_at_map()
                routes = self._targets.names()
                self._cycles.check_while_running({name: target for name, target in routes.items() if name not in self._gone})
                is_due = time.monotonic() >= check_at
                if is_due:
                    self._check_topics(source, target, follower)
                    check_at = time.monotonic() + every_s
                # After the settings that `topics.configs: sync` has put back.
                self._look_at_idle_settings(target, is_due=is_due)

    @contextmanager
    def _clusters(self) -> Iterator[tuple[Cluster, Cluster]]:
        """Yield source and target with connections of their own."""
        source_id, target_id = self._cluster_ids
        with (
            closing(Cluster(self._config.source.client, cluster_id=source_id)) as source,
            closing(Cluster(self._config.target.client, cluster_id=target_id)) as target,
        ):
            yield source, target

    def _follower(self, source: Cluster, target: Cluster) -> _Follower | None:
        if self._config.topics.configs == "sync":
            return TopicConfigSync(source, target, self._targets, self._positions)
        return SourcePolicies(source, target, self._targets) if self._config.topics.preserves_offsets else None

    def _read_controls(self) -> None:
        try:
            controls = self._controls.read()
            self._moving = controls.moving
            self._cycles.exempt(controls.without_cycle, controls.returned)
            if not self._may_copy_again(controls):
                return
            self._apply_paused(controls)
            is_noted = self._keep_note(controls)
            # A micro-batch that was planned before may still write to them: Spark asks for the next plan when it has ended.
            if is_noted and controls.requested and planner_state.read_planned_revision(self._paused_path) == self._revision:
                self._controls.table.add("handed-over", sorted(controls.requested))
        except (MirrorError, OSError) as error:  # OSError: the file for the planner, on a full disk
            self._repeated.warn("controls", f"the table controls cannot be followed, paused topics stay paused: {error}")

    def _look_at_map(self) -> None:
        try:
            self._idle_map.look()
        except (OlderTablesError, FencedError) as error:
            with suppress(MirrorError):
                self._controls.end(error)
        except (MirrorError, OSError) as error:
            self._repeated.warn("map", f"the offset map cannot be read: {error}")

    def _keep_note(self, controls: TopicControls) -> bool:
        """Return whether the target has a note of the last row. Raises OlderTablesError, also in the thread of the query."""
        try:
            return self._newest.keep(controls.rows, self._cycles.registered_at)
        except OlderTablesError:
            # Another run of this mirror may have noted a row that was added since.
            try:
                self._newest.require_in(self._controls.read)
            except OlderTablesError as error:
                self._controls.end(error)
            return False

    def _may_copy_again(self, controls: TopicControls) -> bool:
        """Return False if topics that a migration has taken back must not be copied, or the source does not say so yet.

        The check once a minute would come too late: until then the mirrors of both directions copied in a ring.
        """
        again = ((self._paused or frozenset()) & controls.returned) - controls.not_copied
        try:
            return not again or self._cycles.may_copy_again(again)
        except RetriableError as error:
            topics = ", ".join(sorted(again))
            self._repeated.warn("returned", f"{topics}: taken back, and not copied until the source answers: {error}")
            return False

    def _apply_paused(self, controls: TopicControls) -> None:
        # A hidden target has no route with its settings: if its topic is taken back, the next attempt prepares it.
        paused, moved = controls.not_copied | self._targets.hidden, controls.moving
        if (paused, moved) == (self._paused, self._moved):
            return
        self._revision = planner_state.write_paused_topics(self._paused_path, paused, moved)
        before, self._paused, self._moved = self._paused or frozenset(), paused, moved
        for topic in sorted(paused - before):
            what = "handed over by a migration or fail-over" if topic in controls.moving else "paused"
            _log.warning("topic %s is %s: it is not planned from now on", topic, what)
        for topic in sorted(before - paused):
            _log.info("topic %s is planned again", topic)

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(_CHECK_MS, lambda: math.inf if self._stop.is_set() else time.monotonic())

    def _set_topics(self, source: Cluster, target: Cluster, follower: _Follower | None) -> None:
        """Set the settings that may be set before the query begins. Failures are reported by the thread."""
        try:
            self._held.release(source, target, self._deadline())
            if follower is not None:
                self._follow(follower, (), self._deadline())
        except MirrorError as error:
            _log.info("settings of target topics were not compared: %s", error)

    def _follow(self, follower: _Follower, missing: Collection[str], deadline: Deadline) -> Mapping[str, Sequence[str]]:
        """Compare settings with the source, but not of topics that were handed over.

        The copy is in use by then: the reverse mirror follows it in the other direction, and of two mirrors that follow each
        other one would undo the changes of the other.
        """
        return follower.sync({*missing, *self._moving}, deadline)

    def _check_topics(self, source: Cluster, target: Cluster, follower: _Follower | None) -> None:
        deadline = self._deadline()
        deleted: tuple[str, ...] = ()
        problems: list[Problem] = []
        followed: Mapping[str, str] = {}
        without_target: frozenset[str] = frozenset()
        try:
            names = sorted(name for name in self._mirrored | self._targets.routes.keys() if self._config.topics.is_included(name))
            missing = missing_topics(source, names, deadline)
            deleted = self._deleted = self._confirmed(source, missing.gone, deadline)
            self._missing = frozenset((*missing.gone, *missing.hidden))
            problems += [
                _problem(f"source topic {name} {_HIDDEN}: {grant}", _REMEDY_OF_HIDDEN, name)
                for name, grant in missing.hidden.items()
            ]
            problems += [_problem(text, _REMEDY_OF_RING, name) for text, name in self._cycles.rings_of_others.items()]
            problems += [problem for _, problem in problems_of_new(self._cycles.left_out)]
            if self._deletions is not None:
                followed = self._deletions.follow(source, target, deadline)
                without_target = self._deletions.without_target
                problems += [
                    _problem(text, _REMEDY_OF_FOLLOWED, name) for name, text in followed.items() if name not in without_target
                ]
            gone = self._gone_targets(target, deadline)
            self._gone = frozenset(gone)
            problems += [_problem(text, REMEDY_OF_GONE, name) for name, text in gone.items() if name not in without_target]
            held = self._held.release(source, target, deadline)
            problems += [_problem(text, _REMEDY_OF_HELD, name) for name, text in held.items()]
            if follower is not None:
                followed_settings = self._follow(follower, {*missing.gone, *missing.hidden, *gone}, deadline)
                remedy = _REMEDY_OF_POLICY if isinstance(follower, SourcePolicies) else _REMEDY
                problems += [_problem(text, remedy, name) for name, texts in followed_settings.items() for text in texts]
        except RetriableError as error:
            _log.info("topics were not checked: %s", error)  # the copy waits for that cluster as well, and reports it
            return
        except MirrorError as error:
            problems.append(_problem(f"topics cannot be checked: {error}", _REMEDY))
        if not self._stop.is_set():
            self._report_topics(deleted, problems, followed)

    def _confirmed(self, source: Cluster, missing: Sequence[str], deadline: Deadline) -> tuple[str, ...]:
        """Return those of `missing`, which one broker does not list, that are deleted: others say so too, once for each topic.

        A broker that has only just started may not list a topic yet.
        """
        gone = gone_topics(source, {name: "" for name in missing if name not in self._deleted}, deadline)
        return tuple(name for name in missing if name in self._deleted or gone.get(name) == "")

    def _look_at_idle_settings(self, target: Cluster, *, is_due: bool) -> None:
        """Compare the settings of preserved target topics, idle ones included, but not of topics that are not copied now."""
        if self._idle_settings is None:
            return
        not_written = {*self._missing, *self._gone, *(self._paused or ())}
        try:
            self._idle_settings.look(target, not_written, self._deadline(), is_due=is_due)
        except MirrorError as error:
            self._repeated.warn("settings", f"settings of preserved target topics cannot be compared: {error}")

    def _gone_targets(self, target: Cluster, deadline: Deadline) -> dict[str, str]:
        """Return a sentence for each target topic that was deleted, or created again, by source topic. Raises RetriableError."""
        routes = dict(self._targets.routes)
        ids = {route.target_topic: route.target_topic_id for route in routes.values()}
        gone = gone_topics(target, ids, deadline)
        return {
            source: gone_problem(source, route.target_of(SourcePartition(source, "", 0)), gone[route.target_topic])
            for source, route in sorted(routes.items())
            if route.target_topic in gone
        }

    def _report_topics(self, deleted: Sequence[str], problems: Sequence[Problem], followed: Mapping[str, str]) -> None:
        """Record new problems of the run, and write all of them for `status`.

        `followed`: what becomes of target topics of deleted topics. It is no problem, and has no remedy, once they are deleted.
        Topics with broker timestamps are written only: a Produce response, or their settings, made them problems before.
        """
        kept = deleted if self._deletions is None else ()
        of_deleted = [_problem(f"source topic {name} {_DELETED}", _REMEDY_OF_DELETED, name) for name in kept]
        by_sentence = {problem.text: problem for problem in (*of_deleted, *problems)}
        for sentence in sorted(by_sentence.keys() - self._reported):
            self._report(by_sentence[sentence])
        self._reported = frozenset(by_sentence)
        stamping = [f"{sentence} (remedy: {remedy})" for sentence, remedy in self._targets.stamping.sentences().items()]
        try:
            state = planner_state.TopicsState(
                at_ms=int(time.time() * 1000),
                gone=tuple(deleted),
                problems=(*dict.fromkeys((*followed.values(), *(problem.text for problem in problems))), *stamping),
                topics={text: name for name, text in followed.items()}
                | {problem.text: problem.topic for problem in problems if problem.topic is not None},
                followed=tuple(sorted(followed.keys() & set(deleted))),
            )
            planner_state.write_state(planner_state.topics_state_path(self._config.checkpoint), state)
        except OSError as error:
            _log.warning("the state of topics was not written: %s", error)


def _problem(text: str, remedy: str, topic: str | None = None) -> Problem:
    return Problem(kind=ProblemKind.CONFIG, text=text, remedy=remedy, topic=topic)
