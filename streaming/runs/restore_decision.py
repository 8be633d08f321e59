"""Driver and commands: what a restore copies, as its first start decided, with the topics that the file includes since."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.ledger import LedgerOwner, RestoreRanges, RestoreRangesTable
from shallow_mirror.config import RestoreConfig
from shallow_mirror.config.restore_changes import accepted_changes, require_same_restore
from shallow_mirror.plurals import listed
from shallow_mirror.streaming.planning.restore_planner import OtherLineages, RestorePlanner, unmatched_sentence
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreDecision:
    """The topics, ranges and cut that one start or dry run restores."""

    ranges: RestoreRanges
    is_first: bool
    added: RestoreRanges | None
    """What of `ranges` extends an earlier decision; None for a first decision, and where nothing is added."""
    earlier: RestoreRanges | None
    changes: tuple[str, ...]
    """Differences of the file to that of the first start, which are accepted."""
    unmatched_patterns: tuple[str, ...]
    """Of `topics.include`, that match no topic of the archive."""
    other_lineages: tuple[OtherLineages, ...]
    choices: tuple[str, ...]
    """Between topic ids, lineages and numbers of partitions, as `RestorePlanner.choices`."""

    @property
    def added_topics(self) -> list[str]:
        return [] if self.added is None else sorted(self.added.topic_names)

    def log(self) -> None:
        for choice in self.choices:
            _log.warning("%s", choice)
        for change in self.changes:
            _log.warning("%s", change)
        if self.added is not None:
            _log.info("added to the restore, up to decision %d: %s", self.ranges.last_decision, listed(self.added_topics))
        for pattern in self.unmatched_patterns:
            _log.warning("%s", unmatched_sentence(pattern))
        for others in self.other_lineages:
            _log.warning("%s", others.sentence())

    def write(self, table: RestoreRangesTable, owner: LedgerOwner) -> None:
        """Record topics that are not recorded yet. Raises FencedError if another run owns the map, and as `DurableTable`."""
        unwritten = self.ranges if self.is_first else self.added
        if unwritten is not None:
            owner.check_ownership()
            table.write(replace(unwritten, run_epoch=owner.run_epoch), self.earlier)


def decide_restore(
    config: RestoreConfig,
    earlier: RestoreRanges | None,
    positions: Mapping[SourcePartition, Position],
    planner: RestorePlanner,
    archive_id: str,
    run_epoch: int | None = None,
) -> RestoreDecision:
    """Return the decision of the first start, with topics that the file includes since. Write nothing.

    `earlier`: as it is recorded. `positions`: of the offset map. `run_epoch`: of the run that asks; None: a command, which writes
    nothing. Raises ConfigError if the file would lead to another result than that of the first start.
    """
    changes: tuple[str, ...] = ()
    added: RestoreRanges | None = None
    # Where nothing was registered nothing is restored: the file may be another one. Not that of this run: two decisions of one
    # run could not be told from each other, and the archive may have grown in between.
    if not positions and earlier is not None and earlier.run_epoch != run_epoch:
        earlier = None
    if earlier is None:
        ranges = planner.decide_ranges()
    else:
        require_same_restore(earlier, config, archive_id, positions)
        changes = tuple(accepted_changes(earlier, config))
        added = planner.added_ranges(earlier)
        ranges = earlier if added is None else earlier.with_more(added)
    return RestoreDecision(
        ranges=ranges,
        is_first=earlier is None,
        added=added,
        earlier=earlier,
        changes=changes,
        unmatched_patterns=planner.unmatched_patterns,
        other_lineages=tuple(planner.other_lineages(ranges)),
        choices=tuple(planner.choices),
    )
