"""A restore beside the run of its archive."""

from __future__ import annotations

import pytest
from tests.support.archives import replace_files
from tests.support.inline_restores import InlineRestores
from tests.support.inline_session import InlineSession

from shallow_mirror.streaming.planning import RestorePlanner
from shallow_mirror.streaming.runs import Restore

pytestmark = pytest.mark.thorough


def test_a_table_that_a_running_archive_compacts_meanwhile_is_read_on(
    restores: InlineRestores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestorePlanner, "_last_decisions", lambda *_: [1, 2])
    compact = [replace_files]

    def observer(point: str) -> None:
        while point == "Decide" and compact:
            compact.pop()(restores.archive.config)

    assert Restore(restores.config(), observer=observer).run(InlineSession()) == ()
    assert (restores.records("east.orders"), compact) == (10, [])
