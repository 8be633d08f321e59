"""A run up to the log ends copies what a consumer can read, and names the transactions that hide the rest."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.operators.lives import Life
from tests.operators.surroundings import opened_world


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_an_open_transaction_is_named_where_it_hides_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, isolation: str
) -> None:
    caplog.set_level(logging.INFO)
    with opened_world(tmp_path / "world") as world:
        world.create_source_topic("a", 1)
        world.settings.isolation = isolation
        world.produce("a", 0, 3)
        txn = world.source.begin()
        world.source.produce("a", 0, ["in a transaction"], txn)
        world.source.produce("a", 0, ["behind it"])
        assert world.run(Life()) is None
        (line,) = [message for message in caplog.messages if message.startswith("caught up: ")]
        is_hidden = isolation == "read_committed"
        assert len(world.target.read("a", 0)) == (3 if is_hidden else 5)
        assert ("open transactions of the source is read once they end: a-0 from offset 3: producer id" in line) is is_hidden
        world.source.end(txn, is_commit=True)
        assert world.run(Life()) is None
        assert len(world.target.read("a", 0)) == 5
