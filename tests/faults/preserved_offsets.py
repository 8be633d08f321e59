"""Faults for mirrors with preserved offsets: steps, requests and brokers of a mirror that has no transactions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from tests.faults import process_faults
from tests.faults.broker_faults import Blow, OneOfThree
from tests.faults.network_faults import SOURCE, TARGET, NetworkFault
from tests.faults.proxy import Harm, Moment
from tests.faults.rounds import BETWEEN_MICRO_BATCHES, Fault
from tests.faults.steps import ANSWERED, COMMITTED, DECIDED, OWNER_CHECKED, PLANNED, PRODUCED, RETURNED, Step

GROUPS: Mapping[str, Any] = {"topics": {"offsets": {".*": "preserved"}}}
"""Of the mirror file."""

QUICK_ELECTIONS: Mapping[str, str] = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "leader.imbalance.check.interval.seconds": "1",
    "leader.imbalance.per.broker.percentage": "0",
}
"""Of brokers: a killed one has successors in seconds, and leads its partitions again soon after its start. Both are failovers,
the second one to a leader that has read the producer's state from its disk."""

STEPS = (PLANNED, OWNER_CHECKED, PRODUCED, ANSWERED, DECIDED, RETURNED, COMMITTED)

KILLS: list[tuple[Fault, Step]] = [
    *((fault, step) for fault in (process_faults.KillAll(), process_faults.KillDriver()) for step in STEPS),
    *(
        (process_faults.Suspend(4, "SIGSTOP of the mirror, then SIGCONT"), step)
        for step in (PLANNED, PRODUCED, ANSWERED, DECIDED)
    ),
]

APIS: Mapping[str, tuple[str, ...]] = {
    SOURCE: ("Metadata", "ListOffsets", "Fetch"),
    TARGET: ("Produce", "ListOffsets", "DescribeProducers", "Metadata"),
}
NETWORK: list[tuple[Fault, Step]] = [
    (NetworkFault(side, api, harm, moment), Step(name=f"{api} to the {side}", point=BETWEEN_MICRO_BATCHES.point))
    for harm, moment in itertools.product(Harm, Moment)
    for side, apis in APIS.items()
    for api in apis
]

ONE_OF_THREE: list[tuple[Fault, Step]] = [
    (OneOfThree(TARGET, blow), step) for blow, step in itertools.product(Blow, (PLANNED, PRODUCED, ANSWERED, DECIDED, RETURNED))
]
