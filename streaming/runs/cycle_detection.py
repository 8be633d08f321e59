"""Driver: detection of replication cycles, by names and by the registrations of mirrors in their target clusters.

A mirror registers in its target cluster (`sinks/kafka/targets/mirror_registration.py`), with the mirrors that it found registered
in its source cluster. One that reads from there detects whether it would send topics back to where they came from, directly or
through other clusters.

A start is refused, and so is a new topic. Rings that are closed while all their mirrors run are found within minutes, and the
mirror whose run began last stops.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from shallow_mirror import routing
from shallow_mirror.broker import MAX_NOTE_BYTES, read_group_notes, write_group_note
from shallow_mirror.checkpoints.tables import RepeatedWarnings
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, MirrorError, OutcomeUnknownError, RetriableError
from shallow_mirror.sinks.kafka import GROUP_SUFFIX, Origin, Ring, RingMirror, find_rings, upstream_of

_log = logging.getLogger(__name__)

_REQUEST_S = 10.0
REGISTRATION_EVERY_S, REGISTRATION_RETRY_S = 6 * 3600.0, 60.0
"""`offsets.retention.minutes` of the target is a week by default."""
RINGS_EVERY_S = 60.0
"""How often a running mirror reads the registrations of others, and passes on what is new in them."""
REGISTRATION_TOPICS = 3
"""How many topics the registration is committed for: it is deleted with a topic, and others have to find it all the time."""
RING_PATIENCE_S = 3 * RINGS_EVERY_S
"""So long the mirror that has to stop may take to find a ring; then this one stops as well."""


class CycleDetector:
    """Of one run. Registrations of other mirrors in the source cluster are read when it begins, when topics are added, and once a
    minute. For the thread of the query and the topic monitor.
    """

    def __init__(
        self,
        config: MirrorConfig,
        *,
        source_cluster_id: str,
        target_cluster_id: str,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._config = config
        self._source_id = source_cluster_id
        self.target_cluster_id = target_cluster_id
        self._origins: Sequence[Origin] = ()
        self._exempt: frozenset[str] = frozenset()
        self._returned: frozenset[str] = frozenset()
        self._since_ms = now_ms()
        self._registered: tuple[tuple[str, ...], str] | None = None
        """Target topics and text of the registration."""
        self._note_topics: tuple[str, ...] = ()
        self._registration_due_at = -math.inf
        self._rings_due_at = -math.inf
        self._repeated = RepeatedWarnings()
        self._ending: ConfigError | None = None
        self._rings_since: dict[str, float] = {}
        """When each of `rings_of_others` was found, by its sentence."""
        self.rings_of_others: Mapping[str, str] = {}
        """Rings of this mirror in which another one has to stop: source topics by sentence. Replaced as a whole."""
        self.left_out: Mapping[str, str] = {}
        """New topics that are not copied, because a migration has not decided which mirror does: sentences by source topic."""

    def exempt(self, topics: frozenset[str], returned: frozenset[str] = frozenset()) -> None:
        """Leave out topics that a migration has handed over from one mirror to the other: only one of the two copies them.

        `returned`: those that were handed over once and taken back. The other mirror leaves them out for good, so if it copies
        them, this one has to stop.
        """
        self._exempt, self._returned = topics, returned

    def leave_out_new(self, config: MirrorConfig, topics: Collection[str]) -> MirrorConfig:
        """Return `config` without those of `topics` that the other mirror of a migration would copy back.

        A migration hands over the topics that there are. Of two mirrors whose patterns match a later one, none copies it, and
        both continue with the others; it is in `left_out`. `topics`: without a position. `exempt` has to be called before.
        """
        if not self._exempt or not topics:
            return config
        self.read_registrations()
        found = {ring.topic: ring for ring in self._rings(topics)}
        if not found:
            return config
        sentences = {
            topic: f"source topic {topic} appeared after a migration and is not copied: mirror "
            f"{ring.hops[-1].mirror} would copy it back"
            for topic, ring in sorted(found.items())
        }
        for sentence in sentences.values():
            _log.warning("%s", sentence)
        self.left_out = {**self.left_out, **sentences}
        exclude = [*config.topics.exclude, *map(re.escape, sentences)]
        self._config = config.model_copy(update={"topics": config.topics.model_copy(update={"exclude": exclude})})
        return self._config

    def may_copy_again(self, returned: Collection[str]) -> bool:
        """Return whether topics that were taken back may be copied: not while another mirror brings them back to the source.

        `require_no_ring` raises from then on. Raises RetriableError if the source does not answer.
        """
        try:
            self._read_origins()
        except ConfigError as error:
            self._warn_of_unreadable(error)
            return True
        self._judge([ring for ring in self._rings(returned) if ring.topic in returned])
        return self._ending is None

    def read_registrations(self) -> None:
        """Read the registrations of other mirrors in the source. A source that does not list its groups is only logged."""
        try:
            self._read_origins()
        except (RetriableError, ConfigError) as error:
            self._warn_of_unreadable(error)

    def _read_origins(self) -> None:
        notes = read_group_notes(self._config.source.client, GROUP_SUFFIX, timeout_s=_REQUEST_S)
        newest: list[Origin] = []
        for texts in notes.values():
            origins = [origin for origin in map(Origin.parse, texts) if origin is not None]
            # Of each group one: an earlier run may have committed one for another topic.
            newest += sorted(origins, key=lambda origin: origin.since_ms)[-1:]
        self._origins = newest

    def _warn_of_unreadable(self, error: MirrorError) -> None:
        self._repeated.warn(
            "registrations",
            f"registrations of other mirrors cannot be read, so cycles through the source are not detected: {error}",
        )

    def register(self, routes: Mapping[str, str]) -> None:
        """Register in the target, then check against all registrations. Raises ConfigError. `routes`: targets by source topic.

        In this order, after the target has its topics and before anything is copied to them: of two mirrors that begin at the
        same time one sees the registration of the other.
        """
        self.refresh_registration(routes)
        self.read_registrations()
        self.refresh_registration(routes)
        self.require_no_cycles(routes)

    def check_while_running(self, routes: Mapping[str, str]) -> None:
        """Keep the registration, and look for rings that were closed since the last time. Called by the topic monitor.

        `routes`: without target topics that are gone, because the registration is deleted with its topic.
        If this mirror has to stop, `require_no_ring` raises from then on; other rings are in `rings_of_others`.
        """
        if self._ending is not None or not routes:
            return
        if time.monotonic() >= self._rings_due_at:
            self._rings_due_at = time.monotonic() + RINGS_EVERY_S
            self.read_registrations()
            self._judge(self._rings(routes))
        if self._ending is None:
            self.refresh_registration(routes)

    def _judge(self, rings: Sequence[Ring]) -> None:
        """Note the consequence of rings for this mirror. The one whose run began last stops; if it does not, all others do.

        It does not where a migration has handed the topic over to it, which the others do not know if their tables are older.
        """
        back = [ring for ring in rings if ring.topic in self._returned]
        own = [f"{ring.topic} was taken back from a migration: {ring.sentence()}" for ring in back]
        own += [ring.sentence() for ring in rings if ring.other_to_stop is None and ring not in back]
        others = {
            f"replication ring: {ring.path()}: mirror {ring.other_to_stop} began last and stops": ring
            for ring in rings
            if ring.other_to_stop is not None
        }
        now_s = time.monotonic()
        self._rings_since = {sentence: self._rings_since.get(sentence, now_s) for sentence in others}
        own += [
            f"mirror {ring.other_to_stop} began last, and has not stopped for {now_s - self._rings_since[sentence]:.0f} s: "
            f"{ring.sentence()}"
            for sentence, ring in others.items()
            if now_s - self._rings_since[sentence] >= RING_PATIENCE_S
        ]
        if own:
            self._withdraw()
            self._ending = ConfigError(own)
            return
        self.rings_of_others = {sentence: ring.topic for sentence, ring in others.items()}

    def require_no_ring(self) -> None:
        """Raise ConfigError if a ring was found while the mirror runs, and this mirror is the one to stop."""
        if self._ending is not None:
            raise self._ending

    def refresh_registration(self, routes: Mapping[str, str]) -> None:
        """Write the registration once there is a topic to commit it for, if it or its topics changed, and before it expires."""
        if not routes or self._ending is not None:
            return
        origin = self._origin()
        self._note_topics, note = self._topics_of_note(routes), origin.build(MAX_NOTE_BYTES)
        is_changed = self._registered is not None and (self._note_topics, note) != self._registered
        if is_changed or time.monotonic() >= self._registration_due_at:
            is_written = self._write_note(note)
            self._registered = (self._note_topics, note) if is_written else None
            self._warn_of_left_out(origin, note)
            self._registration_due_at = time.monotonic() + (REGISTRATION_EVERY_S if is_written else REGISTRATION_RETRY_S)

    def _warn_of_left_out(self, origin: Origin, note: str) -> None:
        """Log that the registration is too long for all mirrors upstream."""
        written = Origin.parse(note)
        if written is not None and written.hops < origin.hops:
            self._repeated.warn(
                "shortened",
                f"the registration of this mirror holds {written.hops} of {origin.hops} mirrors in a row upstream of it: longer "
                "replication rings are not detected",
            )

    def _topics_of_note(self, routes: Mapping[str, str]) -> tuple[str, ...]:
        """Return the target topics that the registration is committed for: the same ones while they are mirrored and there."""
        targets = set(routes.values())
        kept = [topic for topic in self._note_topics if topic in targets]
        return tuple([*kept, *sorted(targets.difference(kept))][:REGISTRATION_TOPICS])

    def _origin(self) -> Origin:
        config = self._config
        return Origin(
            mirror=config.mirror,
            source_cluster_id=self._source_id,
            source_alias=config.source.alias,
            target_name=config.topics.target_name,
            include=tuple(config.topics.include),
            exclude=tuple(config.topics.exclude),
            since_ms=self._since_ms,
            upstream=upstream_of(self._origins, {self._source_id, self.target_cluster_id}),
        )

    def _withdraw(self) -> None:
        """Register that nothing is copied any more, so that the other mirrors of a ring can be started again."""
        if self._registered is not None:
            self._write_note(replace(self._origin(), include=()).build(MAX_NOTE_BYTES))
            self._registered = None

    @property
    def registered_at(self) -> tuple[str, ...]:
        """Return the target topics that the registration was committed for; none if there is no registration."""
        return () if self._registered is None else self._registered[0]

    def _write_note(self, note: str) -> bool:
        """Return whether it was written for all topics."""
        group = f"{self._config.mirror}{GROUP_SUFFIX}"
        try:
            write_group_note(self._config.target.client, group, self._note_topics, note, timeout_s=_REQUEST_S)
        except (RetriableError, OutcomeUnknownError, ConfigError) as error:
            self._repeated.warn("writing", f"other mirrors will not detect replication cycles through this one: {error}")
            return False
        return True

    def require_no_cycles(self, topics: Iterable[str]) -> None:
        """Raise ConfigError with every reason not to mirror `topics` as the mirror file says."""
        names, config = sorted(set(topics)), self._config
        problems = routing.problems(
            names,
            template=config.topics.target_name,
            source_alias=config.source.alias,
            is_same_cluster=self._source_id == self.target_cluster_id,
        )
        rings = self._rings(names)
        if rings:
            self._withdraw()
            problems += [ring.sentence() for ring in rings]
        if problems:
            raise ConfigError(problems)

    def _rings(self, topics: Iterable[str]) -> list[Ring]:
        config = self._config
        if self._source_id == self.target_cluster_id:
            return []
        closing = RingMirror(
            mirror=config.mirror,
            source_alias=config.source.alias,
            target_alias=config.target.alias,
            target_cluster_id=self.target_cluster_id,
            target_name=config.topics.target_name,
            since_ms=self._since_ms,
            takes=config.topics.is_included,
        )
        # A topic that is continued holds what came from the target, at its own offsets: no mirror can copy them a second time.
        is_continued = config.topics.is_continued
        chosen = (topic for topic in topics if topic not in self._exempt and not is_continued(topic))
        return find_rings(chosen, self._origins, closing)

    def target_topic_name(self, topic: str) -> str:
        """Return the name of a target topic, also of a source topic that appears later. Raises ConfigError if none is valid."""
        self.require_no_cycles([topic])
        return routing.target_topic_name(self._config.topics.target_name, self._config.source.alias, topic)
