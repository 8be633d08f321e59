"""Driver: the table `restore_ranges`: what a restore copies of each partition, decided at its first start and kept.

A later start whose file includes more topics adds rows for them, in one commit. The rows of one commit are a decision of the run
that wrote them. Of two decisions that were made at once, as by a run that was fenced meanwhile, that of the later run counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from shallow_mirror.checkpoints.rows.codec import Int32, row_codec
from shallow_mirror.checkpoints.tables.storage import DurableTable, TableStorage
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import OffsetRange, SourcePartition

RESTORE_RANGES_TABLE = "restore_ranges"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSettings:
    """The settings of a restore file, beside the cut, that decide the content of the target after the restore."""

    include: tuple[str, ...]
    exclude: tuple[str, ...]
    isolation_level: str
    log_append_time: str
    configs: str
    """`topics.configs`."""
    groups_commit: str
    groups_include: tuple[str, ...]
    groups_exclude: tuple[str, ...]

    def document(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> RestoreSettings:
        """Return the settings. Those that only a newer release knows are left out."""
        document: dict[str, Any] = json.loads(text)
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in document.items()
            if name in cls.__dataclass_fields__
        }
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class RestoredTopic:
    """How an archived topic is restored."""

    target_topic: str
    is_preserved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRanges:
    """`until`: the cut as the restore file has it. `last_decision`: of the archive, up to which its rows are read.

    `lineages`: of each partition, the lineage whose log is restored.
    """

    archive_id: str
    until: str
    last_decision: int
    ranges: Mapping[SourcePartition, OffsetRange]
    lineages: Mapping[SourcePartition, int]
    settings: RestoreSettings | None = None
    """None: the restore was begun by a release that did not record them."""
    topics: Mapping[str, RestoredTopic] | None = None
    """By archived topic; None as `settings`."""
    run_epoch: int = 0
    """Of the run that decided, or added the last topics."""

    @property
    def topic_names(self) -> frozenset[str]:
        return frozenset(source.topic for source in self.ranges)

    def with_more(self, added: RestoreRanges) -> RestoreRanges:
        """Return the ranges of both, with the settings of the first start."""
        return replace(
            self,
            ranges={**self.ranges, **added.ranges},
            lineages={**self.lineages, **added.lineages},
            topics={**(self.topics or {}), **(added.topics or {})},
            run_epoch=added.run_epoch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRangeRow:
    """A row of the table: the range of one partition, with the decision that it is part of."""

    archive_id: str
    until: str
    last_decision: int
    source: SourcePartition
    lineage: Int32
    source_start: int
    source_end: int
    # Earlier releases have none of these columns.
    target_topic: str | None = None
    is_preserved: bool | None = None
    settings: str | None = None
    run_epoch: Int32 = 0
    extends_epoch: Int32 | None = None


RESTORE_RANGES = row_codec(RestoreRangeRow)


class RestoreRangesTable:
    """Raises as `DurableTable`."""

    def __init__(self, table: DurableTable[RestoreRangeRow]) -> None:
        self._table = table

    @classmethod
    def of(cls, storage: TableStorage) -> RestoreRangesTable:
        return cls(storage.durable_table(RESTORE_RANGES_TABLE, RESTORE_RANGES))

    def read(self) -> RestoreRanges | None:
        """Return the decision of the first start, with the topics that later ones added; None before it."""
        decisions: dict[tuple[int, int | None], list[RestoreRangeRow]] = {}
        for row in self._table.read():
            decisions.setdefault((row.run_epoch, row.extends_epoch), []).append(row)
        decided: RestoreRanges | None = None
        while True:
            before = None if decided is None else decided.run_epoch
            # A run that lost the map to a later one may have written all the same.
            last = -1 if before is None else before
            run_epoch = max((epoch for epoch, extends in decisions if extends == before and epoch > last), default=None)
            if run_epoch is None:
                return decided
            of_run = _ranges_of(decisions[run_epoch, before], run_epoch)
            decided = of_run if decided is None else decided.with_more(of_run)

    def write(self, decided: RestoreRanges, extends: RestoreRanges | None = None) -> None:
        """Append all in one commit. Raises ConfigError for a cut that holds no partition.

        `extends`: the decision to which these ranges are added. The run must own the offset map.
        """
        if not decided.ranges:
            raise ConfigError("nothing to restore: the archive has no segment of these topics before the cut")
        topics = decided.topics or {}
        self._table.append(
            [
                RestoreRangeRow(
                    archive_id=decided.archive_id,
                    until=decided.until,
                    last_decision=decided.last_decision,
                    source=source,
                    lineage=decided.lineages[source],
                    source_start=offsets.start,
                    source_end=offsets.end,
                    target_topic=topics[source.topic].target_topic if source.topic in topics else None,
                    is_preserved=topics[source.topic].is_preserved if source.topic in topics else None,
                    settings=None if decided.settings is None else decided.settings.document(),
                    run_epoch=decided.run_epoch,
                    extends_epoch=None if extends is None else extends.run_epoch,
                )
                for source, offsets in sorted(decided.ranges.items())
            ]
        )


def _ranges_of(rows: Sequence[RestoreRangeRow], run_epoch: int) -> RestoreRanges:
    """Return one decision."""
    first = rows[0]
    topics = {
        row.source.topic: RestoredTopic(row.target_topic, row.is_preserved)
        for row in rows
        if row.target_topic is not None and row.is_preserved is not None
    }
    return RestoreRanges(
        archive_id=first.archive_id,
        until=first.until,
        last_decision=first.last_decision,
        ranges={row.source: OffsetRange(row.source_start, row.source_end) for row in rows},
        lineages={row.source: row.lineage for row in rows},
        settings=None if first.settings is None else RestoreSettings.parse(first.settings),
        topics=None if first.settings is None else topics,
        run_epoch=run_epoch,
    )
