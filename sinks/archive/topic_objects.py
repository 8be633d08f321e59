"""Driver: descriptions of topics beside the objects of an archive, so that a rebuilt table is enough for a restore.

Objects `<archive id>/topics/<milliseconds>-<8 hexadecimal digits>.json` hold what changed; they are never changed or deleted.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from shallow_mirror.checkpoints.archived_topics import TopicDescription
from shallow_mirror.errors import ArchiveFormatError, ConfigError
from shallow_mirror.object_store.object_store import ObjectStore

FORMAT = 1
_NAME = re.compile(r".*/topics/[0-9]{13}-[0-9a-f]{8}\.json")
_REMEDY = "Restore it from a copy or a former version, or move it out of the store"


@dataclass(frozen=True, slots=True)
class SeenTopics:
    """Descriptions that were recorded together."""

    at_ms: int
    topics: tuple[TopicDescription, ...]


class TopicObjects:
    """Of one archive. Reads what there is at the first use. Raises what the store raises, and ArchiveFormatError."""

    def __init__(self, store: ObjectStore, archive_id: str) -> None:
        self._store = store
        self._archive_id = archive_id
        self._newest: dict[str, TopicDescription] | None = None

    def record(self, topics: Iterable[TopicDescription], *, at_ms: int) -> None:
        """Store the topics that are not as they were stored last, as one object."""
        if self._newest is None:
            self._newest = {topic.topic_id: topic for seen in self.read() for topic in seen.topics}
        changed = [topic for topic in topics if self._newest.get(topic.topic_id) != topic]
        if not changed:
            return
        document = {"format": FORMAT, "seen_at_ms": at_ms, "topics": [asdict(topic) for topic in changed]}
        with self._store.writer(f"{self._archive_id}/topics/{at_ms:013d}-{uuid.uuid4().hex[:8]}.json") as writer:
            writer.write(json.dumps(document, sort_keys=True).encode())
            writer.close()
        self._newest |= {topic.topic_id: topic for topic in changed}

    def read(self) -> list[SeenTopics]:
        """Return all descriptions, in the order in which they were seen."""
        infos = [info for info in self._store.list(f"{self._archive_id}/topics") if _NAME.fullmatch(info.name)]
        seen = [_parse(info.name, self._store.read(info.name, 0, info.size_bytes)) for info in infos]
        return sorted(seen, key=lambda description: description.at_ms)


def _parse(name: str, content: bytes) -> SeenTopics:
    try:
        document = json.loads(content)
        if document["format"] > FORMAT:
            raise ConfigError(
                f"object {name} has format {document['format']}, this release reads {FORMAT}. Use a newer shallow-mirror"
            )
        return SeenTopics(int(document["seen_at_ms"]), tuple(TopicDescription(**topic) for topic in document["topics"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveFormatError(name, f"it is no description of topics: {error}", _REMEDY) from error
