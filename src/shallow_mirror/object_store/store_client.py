"""Everywhere: obstore's client of one store, opened at the first use, and its errors as ours.

obstore starts threads at the first request, and a process that is forked afterwards has none of them: its requests would hang. So
it is imported and opened at the first use in a process, and refuses to work in a process that was forked from a user of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shallow_mirror.errors import (
    ConfigError,
    MirrorError,
    ObjectExistsError,
    ObjectMissingError,
    StoreRefusedError,
    StoreUnreachableError,
)
from shallow_mirror.object_store.direct_read_options import direct_read_options, reason_for_obstore
from shallow_mirror.object_store.range_reader import RangeReader
from shallow_mirror.object_store.store_errors import is_missing, is_past_end, one_line, store_error
from shallow_mirror.object_store.store_options import (
    LibraryOptions,
    environment_http_options,
    library_options,
    payload_options,
    resolved_options,
)

_log = logging.getLogger(__name__)

SCHEMES = {"s3": "aws", "s3a": "aws", "abfss": "azure", "abfs": "azure", "gs": "google"}
"""And how the names of their options begin."""
REMEDY_MISSING = "restore it from a copy or a former version"

_UNKNOWN_KEY = re.compile(r"Configuration key: '([^']+)'")

_users_pid: int | None = None
"""The process whose threads obstore runs in, once there are any."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """obstore's client, and the reader of direct reads; None: obstore reads."""

    client: Any
    reader: RangeReader | None


class StoreClient:
    """The client of the store at `root`. For any thread."""

    def __init__(self, root: str, written_options: Mapping[str, str]) -> None:
        self.root = root
        self._written_options = written_options
        self._opened: _Opened | None = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def errors_raised(self, operation: str, name: str | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield the library and its client, and raise its errors as ours."""
        obstore, opened = self._library()
        try:
            yield obstore, opened.client
        except obstore.exceptions.AlreadyExistsError as error:
            raise ObjectExistsError(self.root, name or "") from error
        except (obstore.exceptions.BaseError, OSError, ValueError, RuntimeError) as error:
            cause = self._cause(error, operation, name)
            if isinstance(cause, ConfigError):
                self._opened = None  # credentials may have been renewed where they are referenced
            raise cause from error

    def _cause(self, error: BaseException, operation: str, name: str | None) -> MirrorError:
        if name is not None and is_past_end(error):
            return ObjectMissingError(self.root, name, "the object ends before the bytes that were expected", REMEDY_MISSING)
        if name is not None and is_missing(error):
            return ObjectMissingError(self.root, name, "the object does not exist", REMEDY_MISSING)
        cause = store_error(error, operation, self.root)
        if isinstance(cause, StoreUnreachableError) and cause.is_refused:
            return StoreRefusedError(cause.operation, cause.table, cause.reason, cause.remedy)
        return cause or StoreUnreachableError(operation, self.root, one_line(error), "look at the state of the store")

    def reader(self) -> RangeReader | None:
        """Return the reader of this store; None if obstore reads its objects. Raises as `errors_raised`."""
        return self._library()[1].reader

    def disable_reader(self, reason: str) -> None:
        """Let obstore read, because it succeeded after the reader was refused."""
        with self._lock:
            if self._opened is None or self._opened.reader is None:
                return
            self._opened = _Opened(self._opened.client, None)
        _log.warning(
            "%s: a read by a signed URL is refused (%s), and the same read through obstore is not: obstore reads all objects "
            "from now on, which takes more CPU over TLS",
            self.root,
            reason,
        )

    def _library(self) -> tuple[Any, _Opened]:
        """Return obstore and its open handles of this store. Raises ConfigError, RuntimeError in a forked process."""
        global _users_pid
        pid = os.getpid()
        with self._lock:
            if _users_pid not in (None, pid):
                raise RuntimeError(
                    f"{self.root}: process {pid} was forked from process {_users_pid}, which had used an object store: start it "
                    "anew (multiprocessing: spawn), or fork before the first use"
                )
            import obstore
            import obstore.exceptions

            if self._opened is None:
                self._opened = self._open()
            _users_pid = pid
            return obstore, self._opened

    def _open(self) -> _Opened:
        written = library_options(resolved_options(self._written_options))
        kind = SCHEMES[self.root.partition(":")[0].lower()]
        client = {**environment_http_options(os.environ, kind), **written.client}
        config = dict(written.config)
        if kind == "aws":
            config |= payload_options(config, client, os.environ)
        options = LibraryOptions(config, client, written.retry)
        opened = self._open_library(options)
        reason = reason_for_obstore(kind, options, os.environ)
        if reason is None:
            return _Opened(opened, RangeReader(direct_read_options(options)))
        _log.info("%s: objects are read through obstore, not by direct reads: %s", self.root, reason)
        return _Opened(opened, None)

    def _open_library(self, options: LibraryOptions) -> Any:
        from obstore.exceptions import BaseError, UnknownConfigurationKeyError
        from obstore.store import from_url

        config = dict(options.config)
        while True:
            try:
                return from_url(self.root, config=config, client_options=options.client, retry_config=options.retry)
            except UnknownConfigurationKeyError as error:
                # Of deltalake alone, or of another kind of store; deltalake ignores them as well.
                unknown = _UNKNOWN_KEY.search(str(error))
                if unknown is None or config.pop(unknown[1], None) is None:
                    raise ConfigError(f"{self.root}: storage.options cannot be used: {one_line(error)}") from error
            except (BaseError, OSError, ValueError) as error:
                raise ConfigError(f"{self.root}: storage.options or the URI cannot be used: {one_line(error)}") from error
