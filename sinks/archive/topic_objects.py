"""Driver: descriptions of topics beside the objects of an archive, so that a rebuilt table is enough for a restore.

Objects `<archive id>/topics/<milliseconds>-<8 hexadecimal digits>.json` hold changes; they are never changed or deleted.
Damaged or missing ones are stored again from the table `archive_topics`, in other objects, which name those that they
replace.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from shallow_mirror.checkpoints.ledger import SeenTopic, TopicDescription
from shallow_mirror.errors import ArchiveFormatError, ConfigError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.wire import crc32c

FORMAT = 1
MINOR = 1
"""1 added the checksum and `replaces`; objects before it have neither."""
_NAME = re.compile(r".*/topics/[0-9]{13}-[0-9a-f]{8}\.json")
_CHECKSUM = b', "crc32c": '
"""Behind the bytes that the checksum is of. It is the last field."""
_REMEDY = "Restore it from a copy or a former version, or move it out of the store"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SeenTopics:
    """Descriptions that were recorded together. `replaces`: names of damaged objects, of which nothing is needed any more."""

    at_ms: int
    topics: tuple[TopicDescription, ...]
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundTopics:
    """Content of a store. `seen`: in the order in which it was seen. `damaged`, `replaced`: objects that cannot be read.

    Others have the content of the `replaced` ones.
    """

    seen: tuple[SeenTopics, ...]
    damaged: Mapping[str, ArchiveFormatError]
    replaced: frozenset[str]

    def missing_of(self, history: Sequence[SeenTopic]) -> list[SeenTopic]:
        """Return the topics that a table rebuilt from these objects would lack or have otherwise, at that time."""
        described: dict[str, list[tuple[int, TopicDescription]]] = {}
        for seen in self.seen:
            for topic in seen.topics:
                described.setdefault(topic.topic_id, []).append((seen.at_ms, topic))
        missing = []
        for seen_topic in history:
            of_topic = described.get(seen_topic.description.topic_id, [])
            # An object is stored before its rows are, so it is older than they, by the same clock.
            newest = bisect_right(of_topic, seen_topic.seen_at_ms, key=lambda entry: entry[0]) - 1
            if newest < 0 or of_topic[newest][1] != seen_topic.description:
                missing.append(seen_topic)
        return missing


class TopicObjects:
    """Of one archive. Raises errors of the store."""

    def __init__(self, store: ObjectStore, archive_id: str) -> None:
        self._store = store
        self._archive_id = archive_id
        self._newest: dict[str, TopicDescription] | None = None

    def record(
        self, topics: Iterable[TopicDescription], *, at_ms: int, history: Callable[[], Sequence[SeenTopic]] = tuple
    ) -> None:
        """Store the topics that are not as they were stored last, as one object.

        The first call reads existing objects, and stores damaged or missing entries of `history` again, the rows of the table.
        """
        if self._newest is None:
            self._newest = self._completed(history())
        changed = [topic for topic in topics if self._newest.get(topic.topic_id) != topic]
        if not changed:
            return
        self._store_object(SeenTopics(at_ms, tuple(changed)))
        self._newest |= {topic.topic_id: topic for topic in changed}

    def _completed(self, history: Sequence[SeenTopic]) -> dict[str, TopicDescription]:
        """Return the newest description of each topic, once everything of `history` can be read."""
        found = self.find()
        missing = sorted(found.missing_of(history), key=lambda seen_topic: seen_topic.seen_at_ms)
        for name, error in found.damaged.items():
            _log.warning(
                "object %s: %s. What the table archive_topics has is stored again, in another object", name, error.detail
            )
        again = [
            SeenTopics(at_ms, tuple(seen_topic.description for seen_topic in seen))
            for at_ms, seen in groupby(missing, key=lambda seen_topic: seen_topic.seen_at_ms)
        ]
        if found.damaged and history:
            # The last one, so that nothing counts as replaced before all of it is stored.
            again.append(SeenTopics(max(seen_topic.seen_at_ms for seen_topic in history), (), tuple(found.damaged)))
        for seen_topics in again:
            self._store_object(seen_topics)
        newest = sorted([*found.seen, *again], key=lambda seen: seen.at_ms)
        return {topic.topic_id: topic for seen in newest for topic in seen.topics}

    def _store_object(self, seen: SeenTopics) -> None:
        document = {
            "format": FORMAT,
            "minor": MINOR,
            "seen_at_ms": seen.at_ms,
            "topics": [asdict(topic) for topic in seen.topics],
            "replaces": seen.replaces,
        }
        content = json.dumps(document, sort_keys=True).encode()[:-1]
        with self._store.writer(f"{self._archive_id}/topics/{seen.at_ms:013d}-{uuid.uuid4().hex[:8]}.json") as writer:
            writer.write(content + _CHECKSUM + b"%d}" % crc32c(content))
            writer.close()

    def find(self) -> FoundTopics:
        """Read all objects. Raises ConfigError for one that a newer release wrote."""
        seen: list[SeenTopics] = []
        damaged: dict[str, ArchiveFormatError] = {}
        for info in self._store.list(f"{self._archive_id}/topics"):
            if not _NAME.fullmatch(info.name):
                continue
            try:
                seen.append(_parse(info.name, self._store.read(info.name, 0, info.size_bytes)))
            except ArchiveFormatError as error:
                damaged[info.name] = error
        replaced = damaged.keys() & {name for seen_topics in seen for name in seen_topics.replaces}
        return FoundTopics(
            tuple(sorted(seen, key=lambda description: description.at_ms)),
            {name: damaged[name] for name in sorted(damaged.keys() - replaced)},
            frozenset(replaced),
        )

    def read(self) -> tuple[SeenTopics, ...]:
        """Return all descriptions, in the order in which they were seen. Raises ArchiveFormatError, ConfigError."""
        found = self.find()
        for error in found.damaged.values():
            raise error
        return found.seen


def _parse(name: str, content: bytes) -> SeenTopics:
    try:
        document = json.loads(content)
        if document["format"] > FORMAT:
            raise ConfigError(
                f"object {name} has format {document['format']}, this release reads {FORMAT}. Use a newer shallow-mirror"
            )
        if (document.get("minor", 0) >= 1 or "crc32c" in document) and document["crc32c"] != crc32c(
            content[: content.rindex(_CHECKSUM)]
        ):
            raise ValueError("its checksum does not match")
        return SeenTopics(
            int(document["seen_at_ms"]),
            tuple(TopicDescription(**topic) for topic in document["topics"]),
            tuple(document.get("replaces", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArchiveFormatError(name, f"it is no description of topics: {error}", _REMEDY) from error
