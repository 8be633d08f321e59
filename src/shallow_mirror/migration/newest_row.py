"""Driver: the newest row of a migration's table, noted in the target cluster, so that an older copy of the table is noticed.

The note is written behind its row and in front of what the row announces. Kafka keeps it for `offsets.retention.minutes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from shallow_mirror.broker import Cluster, ConsumerGroups, write_group_note
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints.logs.runs import RowNote
from shallow_mirror.checkpoints.rows import MigrationRow
from shallow_mirror.checkpoints.tables import RepeatedWarnings
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import REQUEST_MS, request_deadline
from shallow_mirror.errors import ConfigError, FencedError, OutcomeUnknownError, RetriableError
from shallow_mirror.sinks.kafka import GROUP_SUFFIX


@dataclass(slots=True)
class NewestRow:
    """Of the table of one migration or fail-over. `name`: its id.

    The note is in the metadata of offsets of the group `<mirror>-steps.<name>`, of the topics where the mirror is registered.
    """

    mirror: MirrorConfig
    name: str
    _warnings: RepeatedWarnings = field(default_factory=RepeatedWarnings, init=False)

    @property
    def group(self) -> str:
        return f"{self.mirror.mirror}-steps.{self.name}"

    def require_in(self, read: Callable[[], Sequence[MigrationRow]]) -> Sequence[MigrationRow]:
        """Return what `read` returns. Raise ConfigError if the target has a note of a newer row. Raises RetriableError."""
        newest, _ = self._read()
        rows = read()  # behind the note: a conductor that runs adds rows and notes them
        known = RowNote.of(rows[-1]) if rows else None
        if newest is None or (known is not None and newest.position <= known.position):
            return rows
        raise ConfigError(
            f"the table of {self.name} is older than the target: its newest row is {known or 'none'}, but "
            f"consumer group {self.group} on {self.mirror.target_cluster_name} notes {newest}. Nothing was done: steps "
            "that are done would be done again. Put the newest table back (all of the folder or prefix of `tables`). If it is "
            "lost, see with `shallow-mirror status` which mirror copies each topic, and move the others by a file with another "
            "name"
        )

    def note(self, row: MigrationRow) -> None:
        """Note a row that was added. Raises FencedError if a conductor with another copy of the table is further.

        Where the target refuses it or does not answer, that is logged: the step continues without.
        """
        try:
            newest, topics = self._read()
            if newest is not None and newest.conductor_epoch >= row.conductor_epoch and newest.run_id != row.run_id:
                raise FencedError(f"a conductor with another copy of the table has written {newest}")
            note = RowNote.of(row).build()
            write_group_note(self.mirror.target.client, self.group, topics, note, timeout_s=REQUEST_MS / 1000)
        except (RetriableError, OutcomeUnknownError, ConfigError) as error:
            self._warnings.warn("note", f"an older copy of the table of {self.name} will not be noticed: {error}")

    def _read(self) -> tuple[RowNote | None, Sequence[str]]:
        """Return the newest note, and the topics where the mirror is registered; none before its first run."""
        deadline = request_deadline()
        with closing(Cluster(self.mirror.target.client)) as cluster:
            reach(cluster, self.mirror.target_cluster_name, deadline)
            groups = ConsumerGroups(cluster, "target")
            offsets = groups.committed(self.group, deadline)
            registered = groups.committed(f"{self.mirror.mirror}{GROUP_SUFFIX}", deadline)
        notes = [note for offset in offsets if (note := RowNote.parse(offset.metadata)) is not None]
        newest = max(notes, key=lambda note: note.position, default=None)
        return newest, [offset.topic_partition.topic for offset in registered]
