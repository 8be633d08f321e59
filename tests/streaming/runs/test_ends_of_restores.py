"""When a restore is complete."""

from __future__ import annotations

import threading

import pytest
from tests.support.inline_restores import InlineRestores
from tests.support.inline_session import InlineSession

from shallow_mirror.streaming.runs import Restore

pytestmark = pytest.mark.thorough


def test_it_waits_until_the_records_of_the_last_micro_batch_are_visible(
    restores: InlineRestores, caplog: pytest.LogCaptureFixture
) -> None:
    target = restores.target
    back = threading.Timer(9.0, target.write_markers)

    def observer(point: str) -> None:
        if point == "Decide" and not back.is_alive():
            target.hold_markers()
            back.start()

    assert Restore(restores.config(), observer=observer).run(InlineSession()) == ()
    back.join()
    log = target.log("east.orders")
    assert (log.last_stable_offset, restores.records("east.orders")) == (log.end_offset, 10)
    assert "MARKER_PENDING: target east.orders-0: it has not accepted the commit marker of" in caplog.text
