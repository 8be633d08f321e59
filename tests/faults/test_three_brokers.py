"""What the campaign of three brokers on both sides covers and how it finds the active controller; its rounds need brokers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.faults.network_faults import SOURCE, TARGET
from tests.faults.rounds import RoundFailedError
from tests.faults.steps import ALL, IN_RECOVERY
from tests.faults.three_brokers import CASES, LEAST_BYTES_PER_S, LOAD, Role, active_controller


@dataclass(frozen=True)
class Node:
    folder: Path


@dataclass(frozen=True)
class Cluster:
    """Stands in for a LocalKafkaCluster: what its nodes wrote about the last election."""

    folder: Path
    nodes: tuple[Node, ...]


def cluster_that_elected(folder: Path, *elections: tuple[int, int]) -> Any:
    """`elections`: epoch and leader id that each node knows."""
    nodes = []
    for number, (epoch, leader_id) in enumerate(elections, 1):
        metadata = folder / f"node-{number}" / "data" / "__cluster_metadata-0"
        metadata.mkdir(parents=True)
        (metadata / "quorum-state").write_text(json.dumps({"leaderId": leader_id, "leaderEpoch": epoch}), encoding="utf-8")
        nodes.append(Node(folder / f"node-{number}"))
    return Cluster(folder, tuple(nodes))


def test_leaders_and_controllers_of_both_sides_are_killed_at_the_same_steps() -> None:
    steps = {step for _, step in CASES}
    assert set(IN_RECOVERY) < steps <= set(ALL)
    killed = Counter((fault.side, fault.role) for fault, _ in CASES)
    assert killed == {(side, role): len(steps) for side in (SOURCE, TARGET) for role in Role}
    assert len({(fault.name, step.name) for fault, step in CASES}) == len(CASES)


def test_writers_aim_above_the_rate_that_a_round_has_to_reach() -> None:
    assert LOAD.bytes_per_s > LEAST_BYTES_PER_S


def test_the_active_controller_is_the_leader_of_the_newest_epoch(tmp_path: Path) -> None:
    assert active_controller(cluster_that_elected(tmp_path, (4, 1), (6, 3), (6, 3))) == 3


def test_an_election_without_a_leader_yet_is_not_the_last_one(tmp_path: Path) -> None:
    assert active_controller(cluster_that_elected(tmp_path, (5, 2), (7, -1), (5, 2))) == 2


def test_a_quorum_without_a_leader_ends_the_round(tmp_path: Path) -> None:
    with pytest.raises(RoundFailedError, match="knows an active controller"):
        active_controller(cluster_that_elected(tmp_path, (1, -1), (1, -1)))
