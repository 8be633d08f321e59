"""Planner process: new partitions of the source: asked of the driver, and planned once their first row is in the offset map."""

from __future__ import annotations

import logging
from collections.abc import Collection

from shallow_mirror.errors import RetriableError
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.planning.offset_planning import Offsets
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

_REGISTRATION_PATIENCE_S = 120.0
"""Longer than an attempt of the driver may take. It also detects a driver that does not see the files of this process."""


class NewPartitions:
    """Partitions by whether the offset map has them, over the life of a query. `files` None: the driver registers none."""

    def __init__(self, files: planner_state.RegistrationFiles | None, registered: Offsets) -> None:
        self._files = files
        self._registered: dict[SourcePartition, int] = dict(registered)
        self._newly_registered: dict[SourcePartition, int] = {}
        self._unregistered_since: dict[SourcePartition, float] = {}

    def unregistered(self, start: Offsets, ends: Offsets) -> Collection[SourcePartition]:
        """Return partitions whose first offset is needed: new ones, and all that lack a required registration.

        A mirror plans only partitions that the driver has registered. A partition in Spark's log of plans that the offset map
        does not have would begin elsewhere after a crash, because `topics.start` applies to partitions that the map does not
        have at a start.
        """
        files = self._files
        if files is None:
            return ends.keys() - start.keys()
        unregistered = ends.keys() - self._registered.keys()
        registered = files.read_registered() if unregistered else {}
        newly = {partition: registered[partition] for partition in unregistered if partition in registered}
        self._registered |= newly
        self._newly_registered |= newly  # kept until a plan contains them: this one may still fail
        return unregistered - newly.keys()

    def entering_positions(self, start: Offsets, ends: Offsets, first_offsets: Offsets, now_s: float) -> Offsets:
        """Return the positions at which partitions enter the plan. Raises RetriableError if the driver does not register them.

        A partition that has just been registered may be in `start` already: an older plan contained it, and it is rewound to
        its registered position.
        """
        files = self._files
        if files is None:
            return first_offsets
        if first_offsets or self._unregistered_since:
            self._request_registration(files, first_offsets, now_s)
        entering = {
            partition: self._registered[partition] for partition in ends.keys() - start.keys() if partition in self._registered
        }
        # Once only: from the next plan on they move, and would be rewound again.
        newly, self._newly_registered = self._newly_registered, {}
        return {**entering, **newly}

    def _request_registration(self, files: planner_state.RegistrationFiles, first_offsets: Offsets, now_s: float) -> None:
        """Write the request. Again with every plan: the driver may have missed the last one."""
        if first_offsets and not self._unregistered_since:
            _log.info("%d new partitions are planned once the offset map holds their first row", len(first_offsets))
        self._unregistered_since = {partition: self._unregistered_since.get(partition, now_s) for partition in first_offsets}
        for partition, since in self._unregistered_since.items():
            if now_s - since > _REGISTRATION_PATIENCE_S:
                # The query begins again, and the driver registers what it lists: also where it cannot see these files.
                raise RetriableError("NOT_REGISTERED", f"the driver does not register {partition.topic_partition}, which is new")
        try:
            files.write_seen(first_offsets)
        except OSError as error:
            raise RetriableError("NOTE_NOT_WRITTEN", f"new partitions cannot be registered: {error}") from error

    def registered_only(self, ends: Offsets) -> Offsets:
        """Return the ends of the partitions that may be planned; all if the driver registers none."""
        if self._files is None or ends.keys() <= self._registered.keys():
            return ends
        return {partition: end for partition, end in ends.items() if partition in self._registered}
