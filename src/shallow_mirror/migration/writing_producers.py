"""Names the producers that write to logs that should be at rest, as far as their leaders know them (KIP-664).

A leader remembers producers with an id: idempotent and transactional ones. Whoever wrote between two looks has another state in
the second one. Where a log grew and no state has changed, the writer has no id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shallow_mirror.broker import ProducerState
from shallow_mirror.errors import BrokerTooOldError, MirrorError
from shallow_mirror.migration.conductor_ports import Clock, Effects
from shallow_mirror.migration.observations import LogEnds, named
from shallow_mirror.types import TopicPartition

LOOK_S = 2.0
"""At least between two looks: each asks every leader."""
MOST_PARTITIONS = 100
"""So many of the partitions of a wave are looked at."""

Producers = Mapping[TopicPartition, Sequence[ProducerState]]


class Writing(NamedTuple):
    """`producer` None: one without an id."""

    topic_partition: TopicPartition
    producer: ProducerState | None


@dataclass(frozen=True, slots=True)
class Look:
    """`ends`: of the logs, listed behind `producers`."""

    producers: Producers
    ends: LogEnds


def writing_between(before: Look, ends: LogEnds, producers: Producers) -> list[Writing]:
    """Return who has written since a look. `ends`: listed before `producers`.

    So whatever is between the ends of both looks was appended between the looks at the producers.
    """
    found = []
    for name, states in sorted(producers.items()):
        if name not in before.producers or name not in before.ends or name not in ends:
            continue
        writing = [state for state in states if state not in before.producers[name]]
        found += [Writing(name, state) for state in writing]
        if not writing and ends[name].end > before.ends[name].end:
            found.append(Writing(name, None))
    return found


def open_in(producers: Producers) -> list[Writing]:
    """Return the producers with an open transaction."""
    return [
        Writing(name, state)
        for name, states in sorted(producers.items())
        for state in states
        if state.current_txn_start_offset >= 0
    ]


def sentence(writing: Sequence[Writing], transactional_ids: Mapping[int, str] | None) -> str:
    """Return who writes where, the latest first; empty if none is known. `transactional_ids` None: brokers do not tell them."""
    by_producer: dict[int | None, list[Writing]] = {}
    for each in sorted(writing, key=lambda each: -(each.producer.last_timestamp_ms if each.producer is not None else 0)):
        by_producer.setdefault(None if each.producer is None else each.producer.producer_id, []).append(each)
    return named(
        f"{_name(places[0].producer, transactional_ids)} in {named(sorted(each.topic_partition for each in places))}"
        for places in by_producer.values()
    )


def _name(producer: ProducerState | None, transactional_ids: Mapping[int, str] | None) -> str:
    if producer is None:
        return "a producer without id (neither idempotent nor transactional)"
    facts = []
    if transactional_ids is not None and producer.producer_id in transactional_ids:
        facts.append(f"transactional id {transactional_ids[producer.producer_id]}")
    elif producer.coordinator_epoch >= 0 or producer.current_txn_start_offset >= 0:
        why = "Kafka 3.0 or later tells it" if transactional_ids is None else "grant Describe on it to see it"
        facts.append(f"transactional id not known: {why}")
    if (at := producer.last_written_at) is not None:
        facts.append(f"last record of {at}")
    return f"producer id {producer.producer_id}" + (f" ({', '.join(facts)})" if facts else "")


class WritingProducers:
    """Of the logs at the origin of one wave."""

    def __init__(self, effects: Effects, clock: Clock, ends: LogEnds) -> None:
        """Look for the first time. `ends`: listed just now."""
        self._effects, self._clock = effects, clock
        self._partitions = sorted(ends)[:MOST_PARTITIONS]
        self._before: Look | None = None
        self._text: str | None = None
        self._looked_at_s = 0.0
        self._find(ends)

    def seen(self, ends: LogEnds) -> str:
        """Return who has written since the last look, as the end of a sentence; empty if none is known."""
        now_s = self._clock.monotonic()
        if self._text is None or now_s - self._looked_at_s >= LOOK_S:
            self._text, self._looked_at_s = self._find(ends), now_s
        return self._text

    def _find(self, ends: LogEnds) -> str:
        try:
            producers = self._effects.producers([name for name in self._partitions if name in ends])
            writing = [] if self._before is None else writing_between(self._before, ends, producers)
            text = _end_of_sentence(self._effects, [*writing, *(each for each in open_in(producers) if each not in writing)])
            self._before = Look(producers, self._effects.log_ends())
        except MirrorError as error:
            return _unknown(error)
        return text


def holders_sentence(effects: Effects, partitions: Sequence[TopicPartition], *, at_origin: bool) -> str:
    """Return who holds transactions open there, as the end of a sentence."""
    try:
        producers = effects.producers(partitions[:MOST_PARTITIONS], at_origin=at_origin)
        return _end_of_sentence(effects, open_in(producers), at_origin=at_origin)
    except MirrorError as error:
        return _unknown(error)


def _unknown(error: MirrorError) -> str:
    """Say why it is not known, and no more: a broker that does not tell ends no wait."""
    return f"; who writes is not known: {error}"


def _end_of_sentence(effects: Effects, writing: Sequence[Writing], *, at_origin: bool = True) -> str:
    ids = {each.producer.producer_id for each in writing if each.producer is not None}
    names: Mapping[int, str] | None
    try:
        names = effects.transactional_ids(ids, at_origin=at_origin) if ids else {}
    except BrokerTooOldError:
        names = None
    return f"; by {sentence(writing, names)}" if writing else ""
