"""Two runs of one archive, and two of one restore, at once: the first is fenced, and what it had begun does no harm."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support import archive_runs, restore_runs
from tests.support.archive_traffic import PARTITIONS, write_transactions
from tests.support.mirror_runs import create_topic, high_watermark, read_values

from shallow_mirror.errors import FencedError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.sinks import Observer
from shallow_mirror.types import TopicPartition
from shallow_mirror.verify import verify_restore

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

PATIENCE_S = 120.0


class HoldAt:
    """Observer. The first driver that reaches `point` waits there; it travels to workers, so files say how far it is."""

    def __init__(self, point: str, folder: Path) -> None:
        self._point = point
        self.is_there = folder / "is-there"
        self.is_released = folder / "is-released"

    def __call__(self, reached: str) -> None:
        if reached == self._point and not self.is_there.exists():
            self.is_there.touch()
            give_up_at = time.monotonic() + PATIENCE_S
            while not self.is_released.exists() and time.monotonic() < give_up_at:
                time.sleep(0.05)


@contextmanager
def held_at(hold: HoldAt, run: Callable[[Observer], None]) -> Iterator[list[BaseException]]:
    """Hold a run during the block, then let it continue; yield what it raises."""
    raised: list[BaseException] = []

    def run_first() -> None:
        try:
            run(hold)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run_first, name="the first run")
    thread.start()
    try:
        while not hold.is_there.exists():
            assert thread.is_alive(), raised
            time.sleep(0.05)
        yield raised
    finally:
        hold.is_released.touch()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_the_second_of_two_archive_runs_fences_the_first(
    source_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source = source_cluster.bootstrap
    create_topic(source, topic_name, PARTITIONS)
    write_transactions(source, topic_name)
    settings = archive_runs.config(tmp_path, source, [topic_name])
    second = settings.model_copy(update={"checkpoint": str(tmp_path / "_second")})
    with held_at(
        HoldAt("done.RunSlots", tmp_path), lambda observer: archive_runs.archive_all(settings, spark, observer)
    ) as raised:
        archive_runs.archive_all(second, spark)
    (error,) = raised
    assert isinstance(error, FencedError)
    ends = {
        TopicPartition(topic_name, partition): high_watermark(source, topic_name, partition) for partition in range(PARTITIONS)
    }
    assert archive_runs.covered(settings) == ends
    assert clean(settings, older_than_s=0).object_count == 1
    assert verify_archive(settings, is_deep=True).findings.counts == {}


def test_the_second_of_two_restores_fences_the_first(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target, restored = source_cluster.bootstrap, target_cluster.bootstrap, f"east.{topic_name}"
    create_topic(source, topic_name, PARTITIONS)
    write_transactions(source, topic_name)
    archive = archive_runs.config(tmp_path, source, [topic_name])
    archive_runs.archive_all(archive, spark)
    settings = restore_runs.config(tmp_path, archive, target)
    with held_at(HoldAt("Decide", tmp_path), lambda observer: restore_runs.restore(settings, spark, observer)) as raised:
        restore_runs.restore(settings, spark)
    (error,) = raised
    assert isinstance(error, FencedError)
    for partition in range(PARTITIONS):
        assert read_values(target, restored, partition) == read_values(source, topic_name, partition)
    report = verify_restore(settings, is_deep=True)
    assert report.is_equal, report.sentences()
