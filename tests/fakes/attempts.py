"""Perform an effect, or what a test put in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.fakes.changes import Change
from tests.fakes.coordinators import PartitionKey
from tests.fakes.record_rules import RefusedError

_T = TypeVar("_T")


def attempt(
    change: Change, perform: Callable[[], _T], topic_partition: PartitionKey | None = None
) -> tuple[int, _T | None, RefusedError | None]:
    """(error code, what was done, why not)."""
    forced = change.code_of(topic_partition)
    if forced and not change.is_performed:
        return forced, None, RefusedError(forced, "by the test")
    try:
        return forced, perform(), None
    except RefusedError as refused:
        return forced or refused.code, None, refused
