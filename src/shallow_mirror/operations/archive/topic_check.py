"""Driver, for the cli: the descriptions of topics beside the objects of an archive, against the table that has them too."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from shallow_mirror.checkpoints.ledger import ArchivedTopics
from shallow_mirror.operations.archive.findings import Finding, FindingKind
from shallow_mirror.sinks.archive import TopicObjects

_STORED_AGAIN = "the next `shallow-mirror archive run` stores it again"


def check_topics(objects: TopicObjects, table: ArchivedTopics) -> Iterator[Finding]:
    """Yield damaged descriptions, and those that a rebuild of the tables would lack.

    Raises ConfigError for an object that a newer release wrote, and the errors of the store and the tables.
    """
    history = table.seen()  # at first: a running archive stores an object before it appends the rows
    found = objects.find()
    for name, error in found.damaged.items():
        detail = f"{error.detail}; {_STORED_AGAIN}, as far as the table archive_topics has it"
        yield Finding(FindingKind.DAMAGED, name, detail)
    for name in sorted(found.replaced):
        yield Finding(FindingKind.REPLACED, name, "it is no description of topics; what it held was stored again")
    for seen_topic in found.missing_of(history):
        topic, at = seen_topic.description, datetime.fromtimestamp(seen_topic.seen_at_ms / 1000, UTC)
        detail = f"no object describes {topic.topic} (topic id {topic.topic_id}) as it was at {at.isoformat(timespec='seconds')}"
        yield Finding(FindingKind.MISSING, "", f"{detail}; {_STORED_AGAIN}")
