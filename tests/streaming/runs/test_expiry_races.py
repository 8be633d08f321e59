"""Expiry and cleaning beside a capture and a restore of the same archive, on real brokers, without Spark."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faults import without_spark
from tests.support import archive_runs, restore_runs
from tests.support.archive_traffic import PARTITIONS, write_transactions
from tests.support.inline_session import InlineSession
from tests.support.mirror_runs import create_topic, high_watermark, read_values
from tests.support.own_worker_clients import own_worker_clients

from shallow_mirror.config import ArchiveConfig
from shallow_mirror.config.archive_config import RetentionSettings
from shallow_mirror.errors import ConfigError, FencedError, MirrorError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.archive.rebuild import rebuild
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.streaming.runs import Archive
from shallow_mirror.types import TopicPartition

pytestmark = [
    pytest.mark.brokers,
    pytest.mark.long,
    pytest.mark.timeout(300),
    # The planner of a query lives in this process, and its connections end with it.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

PATIENCE_S = 60.0


@pytest.fixture
def sessions() -> Iterator[list[Any]]:
    """Two, whose workers are forked before there is a thread."""
    made = [without_spark.Session(workers=1) for _ in range(2)]
    yield made
    for session in made:
        session.workers.shutdown()
    made.clear()
    gc.collect()  # while the warning about these connections is ignored


@pytest.fixture(autouse=True)
def own_clusters() -> Iterator[None]:
    """Close what the tasks of a restore keep, which run in this process."""
    with own_worker_clients():
        yield


class HoldAt:
    """Observer. The first driver that reaches `point` waits there; it travels to workers, so files say how far it is."""

    def __init__(self, point: str, folder: Path) -> None:
        folder.mkdir()
        self._point = point
        self.is_there, self.is_released = folder / "is-there", folder / "is-released"

    def __call__(self, reached: str) -> None:
        if reached == self._point and not self.is_there.exists():
            self.is_there.touch()
            give_up_at = time.monotonic() + PATIENCE_S
            while not self.is_released.exists() and time.monotonic() < give_up_at:
                time.sleep(0.05)


@contextmanager
def held_at(hold: HoldAt, run: Callable[[Observer], None]) -> Iterator[list[BaseException]]:
    """Hold a run during the block, then let it continue; yield what it raises."""
    raised = list[BaseException]()

    def run_it() -> None:
        try:
            run(hold)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    thread = threading.Thread(target=run_it, name="held")
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


def archive_all(
    settings: ArchiveConfig, ends: Mapping[TopicPartition, int], session: Any, observer: Observer = observe_nothing
) -> None:
    """Archive up to `ends`: without Spark a query does not end by itself."""
    archive, is_over = Archive(settings, observer=observer), threading.Event()

    def stop_at_the_ends() -> None:
        while not is_over.wait(0.2):
            if (Path(settings.tables) / "archive_segments").exists() and archive_runs.covered(settings) == ends:
                archive.stop()
                return

    thread = threading.Thread(target=stop_at_the_ends, name="stop at the ends")
    thread.start()
    try:
        archive.run(session)
    finally:
        is_over.set()
        thread.join(PATIENCE_S)


def ends_of(source: str, topic: str) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): high_watermark(source, topic, partition) for partition in range(PARTITIONS)}


def test_expiry_and_cleaning_beside_a_capture_and_a_restore_lose_nothing(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, sessions: list[Any]
) -> None:
    source, target, restored = source_cluster.bootstrap, target_cluster.bootstrap, f"east.{topic_name}"
    create_topic(source, topic_name, PARTITIONS)
    write_transactions(source, topic_name)
    kept_forever = archive_runs.config(tmp_path, source, [topic_name])
    settings = kept_forever.model_copy(update={"retention": {topic_name: RetentionSettings(keep_bytes=1)}})
    first, second = sessions
    archive_all(kept_forever, ends_of(source, topic_name), first)
    write_transactions(source, topic_name)
    archive_all(kept_forever, ends_of(source, topic_name), first)

    # A restore has decided its first round when the archive deletes the objects of it.
    restore = restore_runs.config(tmp_path, settings, target)
    hold = HoldAt("Decide", tmp_path / "held-restore")
    with held_at(hold, lambda observer: restore_runs.restore(restore, InlineSession(), observer)) as raised:
        assert expire(settings, takes_over=True).object_count > 0
        assert clean(settings, older_than_s=0).object_count == 0
    for error in raised:  # what it had not read yet
        assert isinstance(error, MirrorError)
        assert "retention?" in str(error) or "does not exist" in str(error)
    for partition in range(PARTITIONS):
        copied, written = read_values(target, restored, partition), read_values(source, topic_name, partition)
        assert copied == written[: len(copied)]
        assert raised or len(copied) == len(written)

    # A capture has stored the objects of a decision when another run expires, and the objects are cleaned.
    write_transactions(source, topic_name)
    ends = ends_of(source, topic_name)
    hold = HoldAt("done.RunSlots", tmp_path / "held-capture")
    with held_at(hold, lambda observer: archive_all(settings, ends, first, observer)) as raised:
        assert clean(settings, older_than_s=0).object_count == 0
        with pytest.raises(ConfigError, match="is running"):
            expire(settings)
        expire(settings, takes_over=True)
        cleaned = clean(settings, older_than_s=0)
        assert (cleaned.object_count, len(cleaned.kept) > 0) == (0, True)  # no row has their offsets yet
    (error,) = raised
    assert isinstance(error, FencedError)
    archive_all(settings, ends, second)
    assert archive_runs.covered(settings) == ends
    assert clean(settings, older_than_s=0).object_count == len(cleaned.kept)
    assert verify_archive(settings, is_deep=True).findings.counts == {}
    new = settings.model_copy(update={"tables": str(tmp_path / "new"), "checkpoint": str(tmp_path / "new" / "_spark")})
    rebuild(settings, new.tables)
    assert archive_runs.covered(new) == ends
