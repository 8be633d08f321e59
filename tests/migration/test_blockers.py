"""What stands in the way of a move, where the logs of the target show it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.broker.cluster import connectivity
from shallow_mirror.config import AclSettings
from shallow_mirror.config.conductor_config import WriterSettings
from shallow_mirror.config.migration_config import WaveSettings
from shallow_mirror.errors import RetriableError
from shallow_mirror.migration import blockers
from shallow_mirror.migration.observations import LogEnd, MappedEnd
from shallow_mirror.migration.steps import Direction
from shallow_mirror.types import TopicPartition

FILLED, EMPTY, COPIED, ABORTED = (TopicPartition("orders", number) for number in range(4))


@pytest.mark.parametrize(
    ("is_preserved", "log_end_of_filled", "foreign"),
    [(True, 100, []), (True, 101, [FILLED]), (False, 100, [FILLED, ABORTED])],
    ids=["fillers up to the position", "a record behind it", "translated"],
)
def test_fillers_of_preserved_offsets_are_no_records_of_others(
    monkeypatch: pytest.MonkeyPatch, is_preserved: bool, log_end_of_filled: int, foreign: list[TopicPartition]
) -> None:
    """`orders` has a partition without records that begins at 100, a new one, one with copies, and one with aborted data only."""
    monkeypatch.setattr(blockers, "SETTLED_WITHIN_MS", 0)
    monkeypatch.setattr(blockers, "holding_records", lambda _cluster, _client, ends: sorted(ends))
    mapped = {FILLED: MappedEnd(100, 0), EMPTY: MappedEnd(0, 0), COPIED: MappedEnd(20, 20), ABORTED: MappedEnd(4, 0)}
    ends = {FILLED: log_end_of_filled, EMPTY: 0, COPIED: 30, ABORTED: 4}
    passage: Any = SimpleNamespace(
        mirror=SimpleNamespace(topics=SimpleNamespace(is_preserved=lambda _: is_preserved), target=SimpleNamespace(client=None)),
        other=None,
        written_targets=lambda: frozenset([COPIED]),
        target_topic=lambda topic: topic,
        mapped_ends=lambda: mapped,
        other_log_ends=lambda: {name: LogEnd(end, end) for name, end in ends.items()},
    )
    assert blockers._foreign_partitions(passage) == foreign


@pytest.mark.parametrize("direction", Direction)
def test_a_mirror_that_copies_acls_would_copy_those_that_keep_writers_from_the_cluster_that_was_left(
    direction: Direction,
) -> None:
    passage: Any = SimpleNamespace(
        files=SimpleNamespace(config=SimpleNamespace(writers=WriterSettings())),
        direction=direction,
        are_writers_denied_at_other=False,
        mirror=SimpleNamespace(mirror="m", acls=AclSettings(sync="1 minute"), target=SimpleNamespace(alias="west")),
        reverse=SimpleNamespace(mirror="back", acls=AclSettings(read_only=True)),
    )
    problems = list(blockers._deny_problems(passage))
    expected = (
        "mirror m: acls.sync copies the Deny ACLs of acls.read_only of mirror back to west: set acls.sync: off and restart the mirror "
        "first"
    )
    assert problems == ([expected] if direction is Direction.MOVE else [])


def test_a_rollback_leaves_no_topic_that_was_taken_out_of_its_wave_since_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stay, and the wave, once it is back, goes back no more."""
    monkeypatch.setattr(blockers, "unauthorized_topics", lambda *_: {})
    wave = WaveSettings(name="shop", topics=["orders"])
    passage: Any = SimpleNamespace(
        wave=wave,
        files=SimpleNamespace(config=SimpleNamespace(waves=[wave])),
        direction=Direction.ROLLBACK,
        mirror=SimpleNamespace(mirror="back", topics=SimpleNamespace(is_included=lambda name: name != "excluded")),
        mirror_file="back.yaml",
        origin=None,
        origin_alias="west",
        topics=lambda: ("orders",),
        left_topics=lambda: frozenset({"returns", "excluded"}),
        forgotten_topics=tuple,
        lost_topics=lambda _: frozenset(),
        moved_topics=frozenset({"orders", "returns", "excluded"}),
    )
    (problem,) = blockers._topic_problems(passage)
    assert problem == (
        "waves: shop: topics: returns moved with this wave, and the file does not have it there any more: undo that change, or "
        "exclude it in back.yaml (topics.exclude) to leave it at west"
    )


@pytest.mark.parametrize("silent", ["source cluster east", "target cluster west"])
def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, silent: str) -> None:
    monkeypatch.setattr(connectivity, "REACH_MS", 10)
    clusters = {"source cluster east": SimpleNamespace(metadata=answer), "target cluster west": SimpleNamespace(metadata=answer)}
    clusters[silent].metadata = refuse
    origin, other = clusters.values()
    names = SimpleNamespace(source_cluster_name="source cluster east", target_cluster_name="target cluster west")
    passage: Any = SimpleNamespace(mirror=names, origin=origin, other=other)
    with pytest.raises(RetriableError, match=f"the {silent} does not answer: cannot connect"):
        blockers.problems_of(passage)


def answer(*_: object) -> None: ...


def refuse(*_: object) -> None:
    raise RetriableError("NETWORK_EXCEPTION", "cannot connect to 127.0.0.1:1")
