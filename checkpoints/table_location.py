"""Driver and commands: where the tables of a mirror are, and the options with which deltalake reaches their store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shallow_mirror.broker.auth import secrets
from shallow_mirror.checkpoints.schema import CATALOG, OFFSET_MAP_TABLE, table_uri
from shallow_mirror.errors import ConfigError

CONNECT_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 20
"""Of one request with its response: a store that accepts a connection and does not respond counts as unreachable then."""
RETRY_S = 15
"""A retry of a request begins only within this time. Less than REQUEST_TIMEOUT_S: a request that hung is not repeated."""
MOST_RETRIES = 6
_FIRST_PAUSE_MS, _MOST_PAUSE_MS = 100, 3_000

_CLIENT_OPTIONS: Mapping[str, str] = {
    "connect_timeout": f"{CONNECT_TIMEOUT_S}s",
    "timeout": f"{REQUEST_TIMEOUT_S}s",
    "max_retries": str(MOST_RETRIES),
    "retry_timeout": f"{RETRY_S}s",
    "backoff_config.init_backoff": f"{_FIRST_PAUSE_MS}ms",
    "backoff_config.max_backoff": f"{_MOST_PAUSE_MS}ms",
}
"""deltalake's own are 30 s for a request, ten retries and 180 s: longer than a transaction should wait for its decision."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_NO_STORES = ("file", "dbfs")
_SECRET = re.compile(r"secret|token(?!_file)|password|sas|(account|access|master|customer)_key(?!_id|_path)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TableLocation:
    """Hold `tables` of the mirror file as `root`: an absolute folder, a URI, or `catalog:<catalog>.<schema>`.

    `written_options` are deltalake's, as written: references are resolved where a table is opened, so they travel and print
    unresolved.
    """

    root: str
    written_options: Mapping[str, str] = field(default_factory=dict, repr=False)

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
        return table_uri(self.root, table)

    def options(self) -> dict[str, str] | None:
        """Return deltalake's `storage_options`, resolved now; None for a folder of this machine. Raises ConfigError.

        What is not given comes from the environment (AWS_*, AZURE_*, GOOGLE_*), and timeouts from this file.
        """
        if not self.is_object_store:
            return None
        given = {name: secrets.resolve(value) for name, value in self.written_options.items()}
        names = {name.lower() for name in given}
        return {name: value for name, value in _CLIENT_OPTIONS.items() if name not in names} | given


Tables = str | TableLocation
"""A bare root has no options of its own."""


def location_of(tables: Tables) -> TableLocation:
    return tables if isinstance(tables, TableLocation) else TableLocation(str(tables))


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """Return the problems of `storage.options`. Pure but for references, which are resolved to see that they can be."""
    problems: list[str] = []
    for name, value in options.items():
        text = str(value)
        if _SECRET.search(name) and not secrets.is_only_references(text):
            problems.append(
                f"{name}: must not be in plain text: use a reference, ${{env:NAME}}, ${{file:PATH}} or ${{secret:scope/key}}"
            )
            continue
        try:
            secrets.resolve(text)
        except ConfigError as error:
            problems += [f"{name}: {problem}" for problem in error.problems]
    return problems
