"""What `verify` asks the clusters before it reads."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pytest
from tests.operators.lives import Life
from tests.operators.surroundings import opened_world

from shallow_mirror.verify import verify_mirror


def test_each_cluster_is_asked_for_its_id_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    with opened_world(tmp_path / "world") as world:
        world.create_source_topic("a", 1)
        world.produce("a", 0, 2)
        assert world.run(Life()) is None
        requests: Counter[tuple[str, str]] = Counter()
        world.network.observe = lambda host, api: requests.update([(host, api)])
        assert verify_mirror(world.config).is_equal
    # Besides the id: of the source all topics, then those of the map; of the target the topics before and after the map is read.
    assert (requests["east", "Metadata"], requests["west", "Metadata"]) == (3, 3)
