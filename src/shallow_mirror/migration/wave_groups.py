"""Driver: the consumer groups of a wave, as the cluster has them where the wave begins."""

from __future__ import annotations

import re

from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.sync_plan import committed_offsets


class WaveGroups:
    """`pattern`: one regular expression for all groups of the wave; None: it has none. The client is not closed by it."""

    def __init__(self, client: GroupClient, pattern: str | None) -> None:
        self._client = client
        self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)

    def active(self) -> list[str]:
        """Return those that have members, in order."""
        if self._pattern is None:
            return []
        groups = self._client.listed().values()
        return sorted(group.name for group in groups if self._pattern.fullmatch(group.name) and not group.is_free)

    def offsets(self) -> dict[str, set[str]]:
        """Return the topics for which each group has offsets; only groups that have any."""
        if self._pattern is None:
            return {}
        names = [name for name in self._client.listed() if self._pattern.fullmatch(name)]
        topics: dict[str, set[str]] = {}
        # A group that has members, and has committed nothing yet, is listed as well.
        for commit in committed_offsets(self._client, names):
            topics.setdefault(commit.group, set()).add(commit.topic_partition.topic)
        return topics
