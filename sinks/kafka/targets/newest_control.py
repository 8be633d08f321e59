"""Driver: the newest row of a mirror's table `controls`, noted in the target cluster, so that older tables are noticed.

Receipts tell it only where records were copied since. Nothing is, once a topic was handed over, failed over or forgotten; a
mirror that does not know that would copy it again. The note is written behind its row, and in front of the mirror's answer to it.
Kafka keeps it for `offsets.retention.minutes`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Self

from shallow_mirror.broker import Cluster, ConsumerGroups, write_group_note
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints.logs.topics import ControlRow, TopicControls, older_controls
from shallow_mirror.checkpoints.tables import RepeatedWarnings
from shallow_mirror.deadline import REQUEST_MS, Deadline, request_deadline
from shallow_mirror.errors import ConfigError, MirrorError, OutcomeUnknownError, RetriableError
from shallow_mirror.sinks.kafka.targets.mirror_registration import GROUP_SUFFIX

NOTE_EVERY_S = 6 * 3600.0
"""`offsets.retention.minutes` of the target is a week by default."""


@dataclass(frozen=True, slots=True)
class ControlNote:
    """Names a row of the table `controls` of the mirror whose offset map has this id. `sequence` 0: of an empty table."""

    map_id: str
    sequence: int = 0
    action: str = ""
    topic: str = ""
    at_ms: int = 0
    host: str = ""
    pid: int = 0

    @classmethod
    def of(cls, map_id: str, row: ControlRow) -> Self:
        return cls(map_id, row.sequence, row.action, row.topic, int(row.at_ms), row.host, row.pid)

    @classmethod
    def newest(cls, map_id: str, rows: Sequence[ControlRow]) -> Self:
        """Return the name of the last one of `rows`."""
        return cls.of(map_id, rows[-1]) if rows else cls(map_id)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the note; None for any other text."""
        try:
            found = json.loads(text)
            numbers = (int(found["sequence"]), str(found["action"]), str(found["topic"]), int(found["at_ms"]))
            return cls(str(found["map_id"]), *numbers, str(found["host"]), int(found["pid"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def build(self) -> str:
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        if not self.sequence:
            return "none"
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"row {self.sequence} ({self.action} of {self.topic}, {at}, on {self.host}, pid {self.pid})"


class NewestControl:
    """Of one mirror. The note is in the metadata of offsets of the group `<mirror>-controls`, of the topics where the mirror is
    registered."""

    def __init__(self, client: ClientConfig, mirror: str, map_id: str) -> None:
        """`client`: of the target."""
        self._client, self._mirror, self._map_id = client, mirror, map_id
        self._kept: tuple[ControlNote, Sequence[str]] | None = None
        """Note that was written last, and the topics of the registration."""
        self._due_at = 0.0
        self._warnings = RepeatedWarnings()

    @staticmethod
    def is_note(metadata: str) -> bool:
        """Return whether the metadata of an offset is a note of any mirror."""
        return ControlNote.parse(metadata) is not None

    @property
    def group(self) -> str:
        return f"{self._mirror}-controls"

    def require_in(self, read: Callable[[], TopicControls], deadline: Deadline | None = None) -> TopicControls:
        """Return what `read` returns. Raise OlderTablesError if the target has a note of a row that is not in it.

        Where the user may not read notes, that is logged. `deadline`: by default that of a request. Raises RetriableError.
        """
        notes = list[ControlNote]()
        try:
            notes = self._read(deadline)[0]
        except ConfigError as error:
            self._warn(error)
        controls = read()  # behind the note: a row that was added meanwhile may be noted, and is among these
        self._require(notes, controls.rows)
        return controls

    def keep(self, rows: Sequence[ControlRow], topics: Sequence[str]) -> bool:
        """Note the last row if it or the topics changed, and before the note expires. `topics`: of the mirror's registration.

        Return as `note`.
        """
        if not topics or not rows:
            return True
        kept = (ControlNote.newest(self._map_id, rows), topics)
        if kept == self._kept and time.monotonic() < self._due_at:
            return True
        is_answered = self.note(rows)
        if is_answered:
            self._kept, self._due_at = kept, time.monotonic() + NOTE_EVERY_S
        return is_answered

    def note(self, rows: Sequence[ControlRow]) -> bool:
        """Note the last row. Return False if the target does not answer: what the row asks for has to wait.

        Where the target refuses notes, that is logged, and older tables will not be noticed. Raises OlderTablesError, and notes
        nothing, if the target has a note of a row that is not among these.
        """
        try:
            notes, topics = self._read()
            self._require(notes, rows)
            self._write(rows, topics)
        except (RetriableError, OutcomeUnknownError, ConfigError) as error:
            self._warn(error)
            return isinstance(error, ConfigError)
        return True

    def write(self, rows: Sequence[ControlRow]) -> None:
        """Note the last row, or that there is none, in place of any other one. Raises as `write_group_note`."""
        self._write(rows, self._read()[1])

    def _warn(self, error: MirrorError) -> None:
        self._warnings.warn("note", f"tables of mirror {self._mirror} that lack a pause or a hand-over are not noticed: {error}")

    def _write(self, rows: Sequence[ControlRow], topics: Collection[str]) -> None:
        """Also replace the note at a topic where the mirror was registered before: of several notes, the newest row counts."""
        note = ControlNote.newest(self._map_id, rows).build()
        write_group_note(self._client, self.group, topics, note, timeout_s=REQUEST_MS / 1000)

    def _require(self, notes: Sequence[ControlNote], rows: Sequence[ControlRow]) -> None:
        """Raise OlderTablesError if the newest note is not of one of the rows."""
        noted = max(notes, key=lambda note: note.sequence, default=None)
        if noted is None or not noted.sequence or noted in {ControlNote.of(self._map_id, row) for row in rows}:
            return
        known = str(ControlNote.newest(self._map_id, rows))
        raise older_controls(known, f"consumer group {self.group} on the target notes {noted}")

    def _read(self, deadline: Deadline | None = None) -> tuple[list[ControlNote], set[str]]:
        """Return the notes, and the topics where they are or the mirror is registered."""
        deadline = deadline or request_deadline()
        with closing(Cluster(self._client)) as cluster:
            groups = ConsumerGroups(cluster, "target")
            offsets = groups.committed(self.group, deadline)
            registered = groups.committed(f"{self._mirror}{GROUP_SUFFIX}", deadline)
        notes = (ControlNote.parse(offset.metadata) for offset in offsets)
        topics = {offset.topic_partition.topic for offset in (*offsets, *registered)}
        return [note for note in notes if note is not None and note.map_id == self._map_id], topics
