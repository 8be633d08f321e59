"""Driver and commands: where the tables of a mirror are, and the options with which deltalake reaches their store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from shallow_mirror.checkpoints.rows.schema import CATALOG, OFFSET_MAP_TABLE, table_uri
from shallow_mirror.object_store import resolved_options

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_NO_STORES = ("file", "dbfs")


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Hold `tables` of the mirror file as `root`: an absolute folder, a URI, or `catalog:<catalog>.<schema>`.

    `written_options` are deltalake's, as written: references are resolved when a table is opened, so they travel and print
    unresolved. `single_table`: `root` is this table itself, as a catalog places it.
    """

    root: str
    written_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    single_table: str | None = None

    @property
    def is_read_by_spark(self) -> bool:
        """Return whether only Spark reaches the tables: they cannot be read without a JVM then."""
        return self.root.startswith((CATALOG, "dbfs:"))

    @property
    def is_object_store(self) -> bool:
        """Return whether requests to a server stand behind it, which can fail and hang as those to a broker."""
        scheme = _URI.match(self.root)
        return scheme is not None and scheme[1].lower() not in _NO_STORES

    def uri(self, table: str = OFFSET_MAP_TABLE) -> str:
        if self.single_table is None:
            return table_uri(self.root, table)
        if table != self.single_table:
            raise ValueError(f"{self.root} is the table {self.single_table}: there is no {table}")
        return self.root

    def options(self) -> dict[str, str] | None:
        """Return deltalake's `storage_options`, resolved now; None for a folder of this machine. Raises ConfigError.

        Other options come from the environment (AWS_*, AZURE_*, GOOGLE_*), and timeouts from this file.
        """
        if not self.is_object_store:
            return None
        return resolved_options(self.written_options)


Tables = str | TableLocation
"""A bare root has no options of its own."""


def location_of(tables: Tables) -> TableLocation:
    return tables if isinstance(tables, TableLocation) else TableLocation(str(tables))
