"""Commands that write to the target, against a run with a copy of the tables: of the two, one decides. Real tables, strict clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.deadlines import deadline
from tests.support.record_batches import batch, record
from tests.verify.mirrored import TOPIC, Mirrored

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.net import RUN_SUPERSEDED
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import RetriableError
from shallow_mirror.migration import reverse_mirror
from shallow_mirror.operations.quarantine import Selection
from shallow_mirror.operations.quarantine_retry import retry
from shallow_mirror.operations.redo import RedoRequest, redo, redo_config
from shallow_mirror.sinks.kafka import RunGuard, id_count
from shallow_mirror.sinks.kafka.targets import first_rows
from shallow_mirror.types import TopicPartition

pytestmark = pytest.mark.thorough

TIMEOUT_MS = 60_000
REQUEST = RedoRequest(TopicPartition(TOPIC, 0), 0, 2, "again")

Event = Callable[[], object]


def _retry(mirrored: Mirrored, meanwhile: Event) -> MirrorConfig:
    retry(mirrored.config, Selection(), observer=_at("task.produced", meanwhile))
    return mirrored.config


def _redo(mirrored: Mirrored, meanwhile: Event) -> MirrorConfig:
    config = redo_config(mirrored.config, REQUEST)
    redo(config, REQUEST, observer=_at("task.produced", meanwhile))
    return config


def _of_reverse(mirrored: Mirrored) -> MirrorConfig:
    return mirrored.config.model_copy(update={"mirror": "back", "tables": f"{mirrored.config.tables}-back"})


def _register(mirrored: Mirrored, meanwhile: Event) -> MirrorConfig:
    config = _of_reverse(mirrored)

    def rows_and_then(*arguments: Any) -> Any:
        rows = first_rows(*arguments)
        meanwhile()
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reverse_mirror, "first_rows", rows_and_then)
        reverse_mirror.register_positions(config, {TopicPartition(TOPIC, 0): 2}, {})
    return config


Command = Callable[[Mirrored, Event], MirrorConfig]
COMMANDS = pytest.mark.parametrize(
    ("command", "mirror"),
    [(_retry, "m"), (_redo, f"m.redo.{REQUEST.name}"), (_register, "back")],
    ids=["retry", "redo", "register"],
)


def _at(point: str, event: Event) -> Callable[[str], None]:
    def observe(name: str) -> None:
        if name == point:
            event()

    return observe


def _committed(mirrored: Mirrored) -> list[int]:
    """Return how far readers of committed records see the target topics."""
    return [mirrored.target.log(topic).last_stable_offset for topic in (TOPIC, "again")]


@pytest.fixture
def mirrored(tmp_path: Path) -> Iterator[Mirrored]:
    """Two batches of two records; the first is in quarantine."""
    with Mirrored(tmp_path) as made:
        made.poison = {0}
        made.mirror(*(batch(n, 2, payload=b"".join(record(i, b"k", b"v") for i in range(2))) for n in (0, 2)))
        made.target.create_topic("again")
        yield made


@pytest.fixture
def target(mirrored: Mirrored) -> Iterator[Cluster]:
    with closing(Cluster(mirrored.config.target.client)) as target:
        yield target


@COMMANDS
def test_a_run_with_a_copy_of_the_tables_decides_nothing_after_a_command(
    mirrored: Mirrored, target: Cluster, command: Command, mirror: str
) -> None:
    copy = RunGuard(target, mirror, TIMEOUT_MS)
    copy.take(deadline())
    assert command(mirrored, lambda: None).mirror == mirror
    with pytest.raises(RetriableError) as raised:
        copy.require(deadline(), is_begun_enough=False)
    assert raised.value.error_name == RUN_SUPERSEDED


@COMMANDS
def test_a_command_decides_nothing_once_a_run_with_a_copy_of_the_tables_has_begun(
    mirrored: Mirrored, target: Cluster, command: Command, mirror: str
) -> None:
    copy, before = RunGuard(target, mirror, TIMEOUT_MS), _committed(mirrored)

    def begin() -> None:
        copy.take(deadline())

    with pytest.raises(RetriableError) as raised:
        command(mirrored, begin)
    assert raised.value.error_name == RUN_SUPERSEDED
    copy.require(deadline(), is_begun_enough=False)
    assert _committed(mirrored) == before
    assert reverse_mirror.reverse_positions(_of_reverse(mirrored)) == {}


@COMMANDS
def test_a_command_claims_the_transactional_ids_that_a_start_claims(mirrored: Mirrored, command: Command, mirror: str) -> None:
    config = command(mirrored, lambda: None)
    recorded = OffsetMap.open(config.table_location, mirror=config.mirror).recorded()
    assert recorded is not None
    assert recorded.highest_slot + 1 == id_count(config.write.slots)
