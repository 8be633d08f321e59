"""A partition without a leader, on either side: the others are copied, and the run says that this one was not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.fakes.peers import NOW_MS, transactional
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import Life
from tests.operators.surroundings import opened_world
from tests.support.inline_streams import InlineStreams

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.produce.txn import add_partitions, end_txn, init_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import IncompleteRunError
from shallow_mirror.streaming.runs import Mirror, mirror_query
from shallow_mirror.streaming.runs.supervisor import Supervisor
from shallow_mirror.types import TopicPartition

pytestmark = pytest.mark.usefixtures("without_logging")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorld]:
    monkeypatch.setattr(mirror_query, "FOLLOW_MS", 0.0)  # tasks that read on do so by the clock of the machine
    with opened_world(tmp_path / "world") as opened:
        opened.create_source_topic("a", 2)
        opened.create_source_topic("b", 1)
        yield opened


def _produce(world: FakeWorld) -> None:
    for topic, partition in (("a", 0), ("a", 1), ("b", 0)):
        world.produce(topic, partition, 1)


def _without_source_leader(world: FakeWorld) -> None:
    world.source.state.move_leader(("a", 1), -1)


def _without_target_leader(world: FakeWorld) -> None:
    world.target.state.move_leader(("a", 1), -1)


def _with_target_leader(world: FakeWorld) -> None:
    """Its coordinators then write the markers that the partition lacks."""
    world.target.state.move_leader(("a", 1), 1)
    world.target.state.write_markers()


@pytest.mark.parametrize(
    ("offsets", "loses_leader"), [("translated", _without_source_leader), ("preserved", _without_target_leader)]
)
def test_offsets_that_expired_beside_it_are_given_up(
    world: FakeWorld, offsets: str, loses_leader: Callable[[FakeWorld], None]
) -> None:
    world.settings.on_data_loss, world.settings.offsets = "continue", offsets
    for _ in range(2):
        _produce(world)
    assert world.run(Life()) is None
    for _ in range(3):
        _produce(world)
    for partition in (0, 1):
        world.source.delete_records("a", partition, 4)
    loses_leader(world)
    error = world.run(Life())
    assert isinstance(error, IncompleteRunError)
    assert "a-1" in str(error)
    assert "a-0" not in str(error)
    assert len(world.target.read("a", 0)) == 3
    assert len(world.target.read("b", 0)) == 5


@pytest.mark.parametrize("checkpoint", [None, "s3a://bucket/checkpoint"])
def test_a_run_up_to_the_log_ends_does_not_end_in_success_without_it(world: FakeWorld, checkpoint: str | None) -> None:
    """Also where nothing can be written beside the checkpoint, and where it ends before an election would be over."""
    if checkpoint is not None:
        world._configs[world.settings.key()] = world.config.model_copy(update={"checkpoint": checkpoint})
    _produce(world)
    assert world.run(Life()) is None
    _produce(world)
    _without_source_leader(world)
    error = world.run(Life())
    assert isinstance(error, IncompleteRunError)
    assert "left out: a-1 (a-1 has no leader)" in str(error)
    assert [len(world.target.read(*partition)) for partition in (("a", 0), ("a", 1), ("b", 0))] == [2, 1, 2]
    world.source.state.move_leader(("a", 1), 1)
    assert world.run(Life()) is None


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_run_up_to_the_log_ends_waits_for_it_to_show_what_was_committed(world: FakeWorld, comes_back: bool) -> None:
    _produce(world)

    def observe(action: str) -> None:
        if action == "Decide" and len(world.rows) > 3:
            _without_target_leader(world)

    def wait(_supervisor: Supervisor, seconds: float) -> bool:
        world.clock.sleep(seconds)
        if comes_back:
            _with_target_leader(world)
        return False

    def run() -> None:
        with pytest.MonkeyPatch.context() as patch:  # within that of the world, which has another one
            patch.setattr(Supervisor, "wait", wait)
            Mirror(world.config, observer=observe).run(InlineStreams(world.checkpoints, lambda: None), available_now=True)

    if comes_back:
        run()
    else:
        expected = r"left out: a-0, a-1, b-0 \(records of .* are committed, and are visible once each"
        with pytest.raises(IncompleteRunError, match=expected):
            run()
        assert not world.target.read("a", 1)
        _with_target_leader(world)
        assert world.run(Life()) is None
    assert [len(world.target.read(*partition)) for partition in (("a", 0), ("a", 1), ("b", 0))] == [1, 1, 1]


@pytest.mark.parametrize("ends", [True, False])
def test_an_open_transaction_of_another_producer_at_the_target_holds_up_its_partition_alone(world: FakeWorld, ends: bool) -> None:
    assert world.run(Life()) is None
    with closing(Cluster(world.config.target.client)) as target:
        deadline = Deadline.after_ms(10_000, time.monotonic)
        other = init_producer_id(target, "another-application", 60_000, deadline)
        add_partitions(target, other, [TopicPartition("a", 1)], deadline)
        log = world.target.state.log("a", 1)
        log.append(transactional(0, (other.producer_id, other.producer_epoch)), NOW_MS)
        _produce(world)

        def wait(_supervisor: Supervisor, seconds: float) -> bool:
            world.clock.sleep(seconds)
            if ends:
                end_txn(target, other, False, Deadline.after_ms(10_000, time.monotonic))
            return False

        def run() -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Supervisor, "wait", wait)
                Mirror(world.config).run(InlineStreams(world.checkpoints, lambda: None), available_now=True)

        if ends:
            run()
        else:
            with pytest.raises(IncompleteRunError, match=r"left out: a-0, a-1, b-0 .*no other producer has a transaction open"):
                run()
            end_txn(target, other, False, deadline)
            assert world.run(Life()) is None
    assert [len(world.target.read(*partition)) for partition in (("a", 0), ("a", 1), ("b", 0))] == [1, 1, 1]
