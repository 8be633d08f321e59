"""Driver: entries of `topics.include` that match no topic of the source: they were asked for, and are not there.

Every command whose success says that all of the file was done asks here: `run` and `archive run`, `preflight`, `verify`.
"""

from __future__ import annotations

from collections.abc import Collection

from shallow_mirror import routing
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import missing_topics
from shallow_mirror.config.sections import SourceTopicSettings
from shallow_mirror.deadline import Deadline


def unmatched_sentences(
    source: Cluster, topics: SourceTopicSettings, known: Collection[str], deadline: Deadline
) -> tuple[str, ...]:
    """Return a sentence for each of them; with the ACL to grant where brokers say that they hide a topic of that name.

    `known`: topics that the caller has found, or that need not be there any more. Raises RetriableError.
    """
    unmatched = routing.unmatched_entries(topics.include, topics.exclude, known)
    if not unmatched:
        return ()
    listed = source.metadata(None, deadline).topics  # with excluded topics, unlike what callers have found
    names = [name for name, topic in listed.items() if topic.error_code == 0 and not topic.is_internal]
    unmatched = routing.unmatched_entries(unmatched, topics.exclude, names)
    hidden = missing_topics(source, [entry for entry in unmatched if routing.is_plain_name(entry)], deadline).hidden
    why = "the source has no such topic, or hides it because DESCRIBE is not granted"
    return tuple(f"topics.include: {entry}: {hidden.get(entry, why)}" for entry in unmatched)
