"""A few rounds of queries with DataFrame sinks on a real broker; all of them are the campaign `sink-brokers` of `make faults`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.faults import process_faults, sink_faults, steps
from tests.faults.campaigns import KILL
from tests.faults.cases import Case, assert_nothing_differs
from tests.faults.mirror_process import WITHOUT_SPARK
from tests.faults.network_faults import TARGET, Network
from tests.faults.sink_scene import SinkScene

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(300)]

SHORT: list[Case] = [
    (sink_faults.DecidedAborted(), steps.DECIDED),
    (KILL, steps.RETURNED),
    (sink_faults.SecondRun(), steps.ANSWERED),
]
LONG: list[Case] = [
    (sink_faults.CheckpointLost(), steps.PRODUCED),
    (sink_faults.CheckpointFromBackup(), steps.DECIDED),
    (sink_faults.CheckpointLost(), steps.RETURNED),
    (process_faults.KillTask(), steps.RECEIPT),
]
ENDINGS = {
    sink_faults.SecondRun: "superseded, ended with exit code 3",
    process_faults.KillTask: "ended with exit code 1, started again",
}


@pytest.mark.parametrize("cases", [pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.long)])
def test_queries_that_are_harmed_write_every_record_once(
    target_cluster: Any, topic_name: str, tmp_path: Path, cases: list[Case]
) -> None:
    more = {Network.__name__: Network({TARGET: target_cluster}, random.Random(1))}
    name = topic_name[-80:]
    with SinkScene(tmp_path / "queries", "", target_cluster.bootstrap, name=name, engine=WITHOUT_SPARK, more=more) as scene:
        endings = assert_nothing_differs(scene, cases)
    assert endings == [ENDINGS.get(type(fault), "killed, started again") for fault, _ in cases]
