"""Logging of runs of operators' actions."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def without_logging() -> Iterator[None]:
    """Disable logging: a script makes many starts and errors, and no test of this folder reads their lines."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
