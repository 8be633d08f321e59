"""What `migrate status` says of a wave."""

from __future__ import annotations

from typing import Any

import pytest

from shallow_mirror.migration import MigrationState, Phase
from shallow_mirror.migration.state import WaveState
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.migration.view import state_text


@pytest.mark.parametrize(
    ("prepared", "end"),
    [
        ({}, "a rollback deletes them"),
        ({"skipped": "no reverse mirror is named"}, "no command deletes them, `kafka-acls.sh --remove` does"),
    ],
    ids=["with a way back", "without"],
)
def test_deny_acls_of_a_wave_that_has_moved_are_deleted_by_a_rollback_where_there_is_one(
    prepared: dict[str, Any], end: str
) -> None:
    acls = [{"topic": "orders", "principal": "User:shop"}]
    wave = WaveState(
        name="all", phase=Phase.MOVED, move={Step.PREPARE_REVERSE: prepared}, denied={Direction.MOVE: acls}, attempt=1
    )
    lines = state_text(MigrationState(waves={"all": wave}), "m").splitlines()
    assert lines[-1] == f"  Deny ACLs created at the source: WRITE of orders by User:shop: {end}"
