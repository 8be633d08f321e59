"""Does the target hold what the source holds, and the map say so? Checked piece by piece, as the mirror gets on.

A piece of a partition ends where the map says that everything is accounted for, at a moment when the mirror stands between
two micro-batches: nothing of it may be open on the target then. Records are read and compared by `shallow_mirror.demo`; this adds
what writers were told of their records, and that the rows of the map cover the piece.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from tests.faults.end_offsets import settled_end_offsets
from tests.faults.offset_audit import OffsetAudit
from tests.faults.writers import Outcome, Written

from shallow_mirror.demo.checker import partitions_of, read_histories
from shallow_mirror.demo.history import Difference, DifferenceKind, History, compare_histories, mistranslated
from shallow_mirror.demo.map_rows import MapRow, RowTranslation, offset_map_path
from shallow_mirror.types import IsolationLevel, TopicPartition

_NOTHING = History.of(())
_MAP_COLUMNS = [field.name for field in dataclasses.fields(MapRow)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one partition gained since the last check; source and target have the same names.

    `source` holds the committed records of offsets [start, end), `rows` are the map's rows of these, `target` are the
    committed records that came since. `written` is what writers know of records below `end`. `keeps_offsets`: every record has
    to be at its own offset on the target.
    """

    topic_partition: TopicPartition
    start: int
    end: int
    source: History
    target: History
    rows: Sequence[MapRow]
    written: Sequence[Written]
    keeps_offsets: bool = False


def differences_of(piece: Piece) -> list[str]:
    """Pure. Each begins with its kind and a colon."""
    aborted = {written_record.digest for written_record in piece.written if written_record.outcome is Outcome.FAILED}
    translate = RowTranslation(piece.rows)
    compared = compare_histories(piece.topic_partition, piece.source, piece.target, aborted)
    differences = [
        *compared.differences,
        *mistranslated(piece.topic_partition, compared.pairs, translate),
        *_broken_promises(piece),
    ]
    moved = [pair for pair in compared.pairs.tolist() if pair[0] != pair[1]] if piece.keeps_offsets else []
    shifts = [f"offset: {piece.topic_partition}: the record of offset {before} is at {after}" for before, after in moved]
    return [*dict.fromkeys(str(difference) for difference in differences), *shifts, *_holes(piece, translate)]


def _broken_promises(piece: Piece) -> Iterable[Difference]:
    """Compare the outcomes that writers have of their records with what a reader of the target sees: the source is not read."""
    visible = {digest.tobytes() for digest in piece.target.digests}
    for record in piece.written:
        if record.outcome is Outcome.OK and record.digest not in visible:
            yield lost_write(record)
        elif record.outcome is Outcome.FAILED and record.digest in visible:
            yield _broken_promise(DifferenceKind.ABORTED_VISIBLE, record)


def lost_write(record: Written) -> Difference:
    """Return the difference of a record that was acknowledged to its writer, and that no reader finds."""
    return _broken_promise(DifferenceKind.LOST, record)


def _broken_promise(kind: DifferenceKind, record: Written) -> Difference:
    detail = f"its writer was told {record.outcome}"
    return Difference(kind=kind, topic_partition=record.topic_partition, source_offset=record.offset, detail=detail)


def _holes(piece: Piece, translate: RowTranslation) -> Iterable[str]:
    rows = [row for row in piece.rows if row.source_start < row.source_end]
    reached = (min(row.source_start for row in rows), max(row.source_end for row in rows)) if rows else (piece.start,) * 2
    if reached != (piece.start, piece.end):
        yield f"map: {piece.topic_partition}: rows of [{piece.start}, {piece.end}) cover [{reached[0]}, {reached[1]})"
    yield from (f"map: {problem}" for problem in translate.overlaps())


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """How far the mirror is while it stands between two micro-batches. `rows` are those since the last moment."""

    rows: Mapping[TopicPartition, Sequence[MapRow]]
    micro_batch: int
    target_ends: Mapping[TopicPartition, int]
    still_open: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """`records` are those compared on both sides; `unknown` counts records whose writer never learned their fate."""

    records: int
    acknowledged: int
    unknown: int
    differences: tuple[str, ...]


class Checker:
    """Compares every record once. `topics` have the same names on both sides; addresses are those of the clusters themselves."""

    def __init__(
        self,
        source: str,
        target: str,
        topics: Sequence[str],
        tables: Path,
        take_written: Callable[[], list[Written]],
        *,
        audit: OffsetAudit | None = None,
    ) -> None:
        """`audit`: of preserved offsets. The target is read with read_uncommitted then, and every record has to be at its own
        offset."""
        self._audit = audit
        self._keeps_offsets = audit is not None
        self._source, self._target, self._topics, self._tables = source, target, tuple(topics), tables
        self._take_written = take_written
        self._source_until: dict[TopicPartition, int] = {}
        self._target_until: dict[TopicPartition, int] = {}
        self._micro_batch = -1
        self._later: list[Written] = []

    def look(self) -> Moment:
        """To be called while the mirror stands between two micro-batches."""
        table = DeltaTable(str(offset_map_path(self._tables)))
        listed = table.to_pyarrow_table(
            columns=[*_MAP_COLUMNS, "micro_batch"], filters=[("micro_batch", ">", self._micro_batch)]
        ).to_pylist()
        rows: dict[TopicPartition, list[MapRow]] = {}
        for document in listed:
            row = MapRow(**{name: document[name] for name in _MAP_COLUMNS})
            rows.setdefault(TopicPartition(row.source_topic, row.source_partition), []).append(row)
        admin = AdminClient({"bootstrap.servers": self._target, "log_level": 0})
        topic_partitions = partitions_of(admin, self._topics)
        stable = settled_end_offsets(admin, topic_partitions, IsolationLevel.READ_COMMITTED)
        ends = settled_end_offsets(admin, topic_partitions, IsolationLevel.READ_UNCOMMITTED)
        return Moment(
            rows=rows,
            micro_batch=max((document["micro_batch"] for document in listed), default=self._micro_batch),
            target_ends=stable,
            still_open=[
                topic_partition for topic_partition in topic_partitions if stable[topic_partition] < ends[topic_partition]
            ],
        )

    def check(self, moment: Moment) -> Checked:
        """Check what came up to `moment`. The mirror may continue meanwhile; moments are checked in their order."""
        pieces = self._pieces(moment)
        differences = [
            f"{DifferenceKind.OPEN_TXN}: {topic_partition}: its LSO is below its end" for topic_partition in moment.still_open
        ]
        for piece in pieces:
            differences += differences_of(piece)
            self._source_until[piece.topic_partition] = piece.end
        if self._audit is not None:
            differences += self._audit.differences(self._source_until)
        self._target_until.update(self._source_until if self._keeps_offsets else moment.target_ends)
        self._micro_batch = moment.micro_batch
        outcomes = [written_record.outcome for piece in pieces for written_record in piece.written]
        return Checked(
            records=sum(len(piece.target) for piece in pieces),
            acknowledged=outcomes.count(Outcome.OK),
            unknown=outcomes.count(Outcome.UNKNOWN),
            differences=tuple(differences),
        )

    def _pieces(self, moment: Moment) -> list[Piece]:
        committed = IsolationLevel.READ_COMMITTED
        topic_partitions = self._source_until.keys() | moment.rows.keys() | moment.target_ends.keys()
        ends = {
            topic_partition: max(
                (row.source_end for row in moment.rows.get(topic_partition, ())),
                default=self._source_until.get(topic_partition, 0),
            )
            for topic_partition in topic_partitions
        }
        source = read_histories(self._source, self._topics, committed, _ignore, starts=self._source_until, ends=ends)
        target_ends = ends if self._keeps_offsets else moment.target_ends
        visible = IsolationLevel.READ_UNCOMMITTED if self._keeps_offsets else committed
        target = read_histories(self._target, self._topics, visible, _ignore, starts=self._target_until, ends=target_ends)
        written = self._written_below(ends, target)
        return [
            Piece(
                topic_partition=topic_partition,
                start=self._source_until.get(topic_partition, 0),
                end=end,
                source=source.get(topic_partition, _NOTHING),
                target=target.get(topic_partition, _NOTHING),
                rows=moment.rows.get(topic_partition, ()),
                written=written.get(topic_partition, ()),
                keeps_offsets=self._keeps_offsets,
            )
            for topic_partition, end in sorted(ends.items())
        ]

    def audit_everything(self) -> list[str]:
        """Audit preserved offsets from the first record on. To be called after the last check."""
        return [] if self._audit is None else self._audit.differences_of_everything(self._source_until)

    def not_found(self) -> list[str]:
        """Return a difference for each acknowledged record that no check has found. To be called after the last one."""
        return [str(lost_write(record)) for record in (*self._later, *self._take_written()) if record.outcome is Outcome.OK]

    def _written_below(
        self, ends: Mapping[TopicPartition, int], target: Mapping[TopicPartition, History]
    ) -> dict[TopicPartition, list[Written]]:
        """Return what was written below `ends`; the rest waits for a later check.

        So does a record that was acknowledged without an offset, while it is not in what the target shows: a leader that was
        elected meanwhile answers a repeated request so, and the record may lie behind `ends`.
        """
        visible = {
            topic_partition: {digest.tobytes() for digest in history.digests} for topic_partition, history in target.items()
        }
        written_below: dict[TopicPartition, list[Written]] = {}
        later: list[Written] = []
        for record in (*self._later, *self._take_written()):
            if record.offset is None:
                is_later = record.outcome is Outcome.OK and record.digest not in visible.get(record.topic_partition, ())
            else:
                is_later = record.offset >= ends.get(record.topic_partition, 0)
            if is_later:
                later.append(record)
            else:
                written_below.setdefault(record.topic_partition, []).append(record)
        self._later = later
        return written_below


def _ignore(_records: int) -> None:
    return None
