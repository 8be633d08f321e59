"""A few of the network's faults on single requests; all of them, many times over, are the campaigns of `make faults`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.faults.cases import Case, assert_nothing_differs
from tests.faults.mirror_process import SPARK, WITHOUT_SPARK
from tests.faults.network_faults import APIS, CASES, FAR_DELAY_S, SOURCE, TARGET, NetworkScene, network_case
from tests.faults.proxy import Harm, Moment

FEW = [
    network_case(SOURCE, "Metadata", Harm.HALF_OPEN, Moment.ARRIVING),
    network_case(SOURCE, "ListOffsets", Harm.CUT, Moment.APPLIED),
    network_case(SOURCE, "Fetch", Harm.RESET, Moment.APPLIED),
    network_case(TARGET, "FindCoordinator", Harm.CUT, Moment.ARRIVING),
    network_case(TARGET, "InitProducerId", Harm.DELAY, Moment.ARRIVING),
    network_case(TARGET, "AddPartitionsToTxn", Harm.RESET, Moment.APPLIED),
    network_case(TARGET, "Produce", Harm.CUT, Moment.APPLIED),
    network_case(TARGET, "AddOffsetsToTxn", Harm.CUT, Moment.ARRIVING),
    network_case(TARGET, "TxnOffsetCommit", Harm.CUT, Moment.APPLIED),
    network_case(TARGET, "EndTxn", Harm.HALF_OPEN, Moment.APPLIED),
    network_case(TARGET, "ListOffsets", Harm.RESET, Moment.ARRIVING),
    network_case(TARGET, "Metadata", Harm.HALF_OPEN, Moment.APPLIED),
    network_case(TARGET, "OffsetFetch", Harm.CUT, Moment.APPLIED),
]

FAR_AWAY = [
    network_case(TARGET, "InitProducerId", Harm.CUT, Moment.APPLIED),
    network_case(TARGET, "AddPartitionsToTxn", Harm.CUT, Moment.ARRIVING),
    network_case(TARGET, "AddPartitionsToTxn", Harm.DELAY, Moment.ARRIVING),
    network_case(TARGET, "AddOffsetsToTxn", Harm.HALF_OPEN, Moment.APPLIED),
    network_case(TARGET, "Produce", Harm.CUT, Moment.APPLIED),
]

ON_SPARK = [
    network_case(TARGET, "Produce", Harm.CUT, Moment.APPLIED),
    network_case(TARGET, "EndTxn", Harm.RESET, Moment.APPLIED),
]


def test_every_api_of_both_sides_is_harmed_in_every_way_once() -> None:
    requests = {(side, api) for side, apis in APIS.items() for api in apis}
    harmed = [(fault.side, fault.api, fault.harm, fault.moment) for fault, _ in CASES]
    assert len(harmed) == len(set(harmed)) == len(requests) * len(Harm) * len(Moment)
    assert {(fault.side, fault.api) for fault, _ in FEW} == requests


@pytest.mark.brokers
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("engine", "cases", "delay_s"),
    [
        (WITHOUT_SPARK, FEW, 0.0),
        pytest.param(WITHOUT_SPARK, FAR_AWAY, FAR_DELAY_S, marks=pytest.mark.long),
        pytest.param(SPARK, ON_SPARK, 0.0, marks=[pytest.mark.spark, pytest.mark.long]),
    ],
    ids=["near", "far target", "Spark"],
)
def test_a_harmed_request_loses_and_repeats_nothing_and_the_mirror_continues(
    tmp_path: Path, engine: str, cases: Sequence[Case], delay_s: float
) -> None:
    with NetworkScene(engine, target_delay_s=delay_s)(tmp_path, "network", 1) as scene:
        assert set(assert_nothing_differs(scene, cases)) == {"went on"}
