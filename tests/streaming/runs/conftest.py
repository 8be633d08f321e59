"""Restores without Spark and brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.inline_restores import InlineRestores, inline_restores


@pytest.fixture
def restores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InlineRestores]:
    with inline_restores(tmp_path, monkeypatch) as restores:
        yield restores
