"""Driver: does the store of the tables refuse to write an object that is already there? Fencing rests on nothing else.

A Delta commit on an object store is `PUT _delta_log/<version>.json` with `If-None-Match: *`. A store that ignores the condition
lets the commits of two runs overwrite each other without an error. deltalake has no call for such a PUT alone, and looks for a
table before it creates one; so several threads create the same scratch table at once. Who looked before the first PUT and was
late is refused by the store itself, by another error than who looked after it.
"""

from __future__ import annotations

import logging
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler

from shallow_mirror.checkpoints.tables.backends.delta_tables import LIBRARY_ERRORS, store_errors_raised
from shallow_mirror.checkpoints.tables.table_location import TableLocation
from shallow_mirror.errors import ConfigError, OutcomeUnknownError, StoreUnreachableError
from shallow_mirror.object_store import one_line

_log = logging.getLogger(__name__)

PROBE_FOLDER = "_shallow_mirror"
WRITERS = 4
MOST_ROUNDS = 40
"""On a store in the same machine about every second round is conclusive; the slower the store, the more of them."""

_SCHEMA = pa.schema([("probe", pa.int64())])
_FIRST_COMMIT = "_delta_log/00000000000000000000.json"

Outcome = Literal["created", "refused", "found"]


def require_conditional_puts(location: TableLocation) -> None:
    """Return when the store has refused to overwrite an object; at once for folders of this machine.

    Raises ConfigError (it overwrites), StoreUnreachableError, OutcomeUnknownError (no round was conclusive: try again). Its
    files are deleted again; a crash leaves a folder of one small file below PROBE_FOLDER.
    """
    if not location.is_object_store:
        return
    with ThreadPoolExecutor(WRITERS, thread_name_prefix="conditional-put") as threads:
        for _ in range(MOST_ROUNDS):
            outcomes = _round(location, threads)
            if outcomes.count("created") > 1:
                raise ConfigError(
                    f"{location.root}: the store ignores conditional writes (If-None-Match): {outcomes.count('created')} of "
                    f"{WRITERS} writers created the same object, so two runs could overwrite each other's commits. "
                    "Use a release of the store that supports them (S3 since 2024, Azure, GCS, MinIO), or put `tables` "
                    "elsewhere; no setting replaces them"
                )
            if "refused" in outcomes:
                return
    raise OutcomeUnknownError(f"{location.root}: {MOST_ROUNDS} probes did not show whether the store supports conditional writes")


def _round(location: TableLocation, threads: ThreadPoolExecutor) -> list[Outcome]:
    """Return the outcome of each writer of one new scratch table. Raises ConfigError, StoreUnreachableError."""
    uri, options = location.uri(f"{PROBE_FOLDER}/conditional-put-probe-{uuid.uuid4()}"), location.options()
    all_ready = threading.Barrier(WRITERS)

    def create() -> Outcome:
        all_ready.wait()
        with store_errors_raised("write the probe of conditional writes", uri):
            return _create(uri, options)

    futures = [threads.submit(create) for _ in range(WRITERS)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    _delete(uri, options)
    if errors:
        error = errors[0]
        if isinstance(error, StoreUnreachableError) and error.is_refused:
            raise ConfigError(str(error)) from error  # credentials that may read and not write: no run has begun that could wait
        raise error
    return [future.result() for future in futures]


def _create(uri: str, options: dict[str, str] | None) -> Outcome:
    try:
        DeltaTable.create(
            uri, _SCHEMA, mode="error", storage_options=options, commit_properties=CommitProperties(max_commit_retries=0)
        )
    except CommitFailedError as error:
        if "Generic" in str(error) or "Error performing" in str(error):
            raise  # the request failed: nothing is known of the condition
        return "refused"
    except DeltaError as error:
        if "already exists" in str(error):
            return "found"
        raise
    return "created"


def _delete(uri: str, options: dict[str, str] | None) -> None:
    try:
        DeltaStorageHandler(uri, options).delete_file(_FIRST_COMMIT)
    except LIBRARY_ERRORS as error:
        _log.warning("%s/%s, a probe of conditional writes, was not deleted: %s", uri, _FIRST_COMMIT, one_line(error))
