"""A few faults of an object store that holds the tables of a mirror; all of them are the campaign `table-store` of `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults import steps
from tests.faults.cases import Case, assert_nothing_differs
from tests.faults.store_faults import KilledWithLostResponse, StoreStopped
from tests.faults.table_store import COMMITS, TableStoreScene

pytestmark = [pytest.mark.brokers, pytest.mark.long, pytest.mark.timeout(300)]

CASES: list[Case] = [(KilledWithLostResponse(path=COMMITS), steps.ANSWERED), (StoreStopped(2.0), steps.DECIDED)]


def test_a_decision_whose_response_was_lost_and_a_stopped_store_lose_and_repeat_nothing(tmp_path: Path) -> None:
    with TableStoreScene()(tmp_path, "stored", seed=0) as scene:
        endings = assert_nothing_differs(scene, CASES)
    assert endings == ["killed, started again", "went on"]
