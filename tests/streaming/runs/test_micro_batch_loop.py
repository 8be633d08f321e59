"""Mirrors and archives whose micro-batches come from the loop of the driver, on real brokers; also in turn with the stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import archive_runs
from tests.support.archive_traffic import PARTITIONS, write_transactions
from tests.support.mirror_runs import (
    CrashAt,
    CrashError,
    KillWorkerOnce,
    Running,
    add_partitions,
    catch_up,
    config,
    create_topic,
    is_settled,
    open_transaction,
    positions,
    read_values,
    wait_for_markers,
    write,
)

from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import FencedError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.streaming.runs import Mirror
from shallow_mirror.streaming.sources.admission_control import has_admission_control
from shallow_mirror.verify import verify_mirror

HAS_STREAMS = has_admission_control()
"""Not in PySpark 4.0 and 4.1: the loop alone is tested there."""

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(300)]


def _with(kind: str, settings: MirrorConfig) -> MirrorConfig:
    return settings.model_copy(update={"micro_batches": kind if HAS_STREAMS else "loop"})


@pytest.mark.smoke
def test_stream_and_loop_take_turns_at_any_point_and_nothing_is_lost_or_copied_twice(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name, 2)
    settings = config(tmp_path, source, target, [topic_name])
    written: list[str] = []

    def write_more() -> None:
        more = [f"v{number}" for number in range(len(written), len(written) + 50)]
        write(source, topic_name, more)
        write(source, topic_name, more, partition=1)
        written.extend(more)

    for kind, crash_point in (
        ("stream", None),
        ("loop", "Decide"),
        ("stream", "RunSlots"),
        ("loop", None),
        ("stream", None),
    ):
        write_more()
        if crash_point is None:
            catch_up(_with(kind, settings), spark)
            continue
        with pytest.raises(CrashError):
            catch_up(_with(kind, settings), spark, CrashAt(crash_point))
    copy = topic_name
    assert read_values(target, copy) == written
    assert read_values(target, copy, 1) == written
    assert verify_mirror(settings).is_equal


@pytest.mark.skipif(not HAS_STREAMS, reason="PySpark before 4.2 has no admission control")
def test_a_checkpoint_of_the_stream_that_is_behind_the_map_is_set_to_it_at_once(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name)
    settings = config(tmp_path, source, target, [topic_name], read={"micro_batch_bytes": 1 << 20})
    write(source, topic_name, ["first"])
    catch_up(_with("stream", settings), spark)
    for _ in range(6):
        write(source, topic_name, ["x" * 900_000])
    catch_up(_with("loop", settings), spark)
    write(source, topic_name, ["last"])
    catch_up(_with("stream", settings), spark)
    assert len(read_values(target, topic_name)) == 8
    offsets = sorted(Path(settings.checkpoint, "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(offsets) == 2, "one micro-batch of each stream"
    assert json.loads(offsets[-1].read_text().splitlines()[-1])["topics"][topic_name]["partitions"] == {"0": 8}


def test_a_loop_continues_takes_in_new_partitions_waits_for_transactions_and_settles(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name)
    settings = _with("loop", config(tmp_path, source, target, [topic_name]))
    copy = topic_name
    write(source, topic_name, ["a"])
    with Running(settings, spark) as running:
        running.wait_for("the first record", lambda: positions(settings).get((topic_name, 0)) == 1)
        add_partitions(source, topic_name, 2)
        write(source, topic_name, ["b"], partition=1)
        running.wait_for("the new partition", lambda: positions(settings).get((topic_name, 1)) == 1)
        with open_transaction(source, topic_name, ["c"] * 20):
            pass
        wait_for_markers(source, topic_name)
        running.wait_for(
            "the transaction", lambda: positions(settings).get((topic_name, 0), 0) + positions(settings)[topic_name, 1] > 22
        )
        running.wait_for("settled rows", lambda: is_settled(settings))
    assert sorted(read_values(target, copy) + read_values(target, copy, 1)) == ["a", "b", *["c"] * 20]
    assert not Path(settings.checkpoint, "offsets").exists()


def test_a_killed_worker_of_a_loop_is_replaced(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name)
    settings = _with("loop", config(tmp_path, source, target, [topic_name]))
    values = [str(number) for number in range(100)]
    write(source, topic_name, values)
    catch_up(settings, spark, KillWorkerOnce("task.produced", tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    assert read_values(target, topic_name) == values


@pytest.mark.parametrize(("first", "second"), [("stream", "loop"), ("loop", "stream")])
def test_the_second_of_two_runs_fences_the_first_of_the_other_kind(
    first: str, second: str, source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name)
    settings = config(tmp_path, source, target, [topic_name])
    write(source, topic_name, ["a"])
    with Running(_with(first, settings), spark) as running:
        running.wait_for("the first record", lambda: positions(settings).get((topic_name, 0)) == 1)
        write(source, topic_name, ["b"])
        other = _with(second, settings.model_copy(update={"checkpoint": str(tmp_path / "_other")}))
        Mirror(other).run(spark, available_now=True)
        write(source, topic_name, ["c"])
        with pytest.raises(FencedError):
            running.wait_for_error()
    catch_up(_with(second, settings), spark)
    assert read_values(target, topic_name) == ["a", "b", "c"]


def test_an_archive_by_the_loop_continues_one_by_the_stream(
    source_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source = source_cluster.bootstrap
    create_topic(source, topic_name, PARTITIONS)
    settings = archive_runs.config(tmp_path, source, [topic_name])
    for kind in ("stream", "loop", "stream") if HAS_STREAMS else ("auto", "loop"):
        write_transactions(source, topic_name)
        archive_runs.archive_all(settings.model_copy(update={"micro_batches": kind}), spark)
        assert verify_archive(settings, is_deep=True).is_equal
