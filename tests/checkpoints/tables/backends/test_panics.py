"""Panics of the library below deltalake, which no `except Exception` sees."""

from __future__ import annotations

import pytest

from shallow_mirror.checkpoints.tables.backends.delta_tables import store_errors_raised
from shallow_mirror.checkpoints.tables.backends.deltalake_writer import _commit_errors
from shallow_mirror.checkpoints.tables.table_protocol import DeltaCommitError
from shallow_mirror.errors import StoreUnreachableError


class PanicException(BaseException):
    __module__ = "pyo3_runtime"


def test_a_panic_is_an_operation_of_the_store_that_may_have_had_its_effect() -> None:
    with pytest.raises(StoreUnreachableError) as raised, store_errors_raised("read rows", "/tables/runs"):
        raise PanicException("Already shut down\n  0: rust_begin_unwind")
    assert "\n" not in str(raised.value)
    assert "/tables/runs: the store did not read rows: the library of Delta tables panicked: Already shut down" in str(
        raised.value
    )
    assert "Remedy: free or add space on the file system of the folder" in str(raised.value)


def test_a_panic_of_a_commit_is_one_that_may_still_appear() -> None:
    with pytest.raises(DeltaCommitError, match="panicked: Already shut down"), _commit_errors("/tables/runs"):
        raise PanicException("Already shut down")


@pytest.mark.parametrize("other", [KeyboardInterrupt, SystemExit])
def test_whatever_else_ends_a_process_passes(other: type[BaseException]) -> None:
    for raising in (store_errors_raised("read rows", "/tables/runs"), _commit_errors("/tables/runs")):
        with pytest.raises(other), raising:
            raise other
