"""Random cuts of one archive."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.random_archives.cuts import Cut
from tests.random_archives.histories import ArchiveHistory
from tests.random_archives.oracle import Oracle

from shallow_mirror.types import SourcePartition


def random_cut(chance: random.Random, history: ArchiveHistory, oracle: Oracle) -> Cut:
    """Return what a restore file might ask of this archive."""
    names = sorted({source.topic for source in oracle.decision_at(None).positions})
    topics = tuple(names) if chance.random() < 0.6 else tuple(sorted(chance.sample(names, chance.randint(1, len(names)))))
    options: dict[str, Any] = {"topics": topics, "is_committed_only": chance.random() < 0.85}
    # What belongs together is known for producers with an epoch of their own, and around the cut.
    options["whole_transactions"] = history.versions == "own epochs" and not history.retention and chance.random() < 0.5
    kind = chance.choice(("none", "time", "time", "decision", "decision", "offsets", "lineage"))
    if kind == "time":
        return Cut(**options, time_ms=_random_time(chance, history))
    if kind == "decision":
        return Cut(**options, decision=chance.choice(history.decisions).number)
    if kind == "offsets":
        return Cut(**options, offsets=_random_offsets(chance, oracle, topics))
    if kind == "lineage":
        highest = max(oracle.logs.log(source).lineage for source in _newest_sources(oracle, topics))
        return Cut(**options, lineage=chance.randint(0, highest))
    return Cut(**options)


def _newest_sources(oracle: Oracle, topics: Sequence[str]) -> list[SourcePartition]:
    newest = oracle.newest_topics()
    sources = oracle.decision_at(None).positions
    return [source for source in sources if source.topic in topics and newest[source.topic] == source.topic_id]


def _random_time(chance: random.Random, history: ArchiveHistory) -> int:
    at_ms = chance.choice(history.decisions).at_ms
    stamps = [record.timestamp_ms for log in history.logs.values() for batch in log.batches for record in batch.records]
    if stamps and chance.random() < 0.5:
        at_ms = max(0, chance.choice(stamps))
    first, last = history.decisions[0].at_ms, history.decisions[-1].at_ms
    return chance.choice(
        (at_ms, at_ms, max(0, at_ms + chance.choice((-1, 1))), chance.randint(first, last), last + 90_000, first - 1)
    )


def _random_offsets(chance: random.Random, oracle: Oracle, topics: Sequence[str]) -> dict[str, dict[int, int]]:
    offsets: dict[str, dict[int, int]] = {}
    sources = _newest_sources(oracle, topics)
    for source in chance.sample(sources, chance.randint(1, len(sources))):
        log = oracle.logs.log(source)
        offsets.setdefault(source.topic, {})[source.partition] = chance.randint(log.start, log.end)
    return offsets
