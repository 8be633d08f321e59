"""Brokers that go away, forget and come back: the mirror waits, says for what, and every record arrives once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from tests.conftest import TwoClusters
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import CrashAt, CrashError, Running, catch_up, config, create_topic, read_values, write

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import DataLossError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.status import gather_status

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("micro_batch_loop")]

HASTE = {"request.timeout.ms": "3000"}


class Pair(NamedTuple):
    source: LocalKafka
    target: LocalKafka

    def hasty(self, topic: str, **groups: Any) -> dict[str, Any]:
        """Return a mirror file that gives up soon, so that every level of retries is needed."""
        return runs.document(
            self.source.bootstrap,
            self.target.bootstrap,
            [topic],
            source={"client": HASTE | {"bootstrap.servers": self.source.bootstrap}},
            target={"client": HASTE | {"bootstrap.servers": self.target.bootstrap}},
            write={"transaction_timeout_ms": 10_000, "slots": 2},
            **groups,
        )


@pytest.fixture
def pair(stoppable_clusters: TwoClusters) -> Iterator[Pair]:
    """Yield a source and a target that may be stopped; they run before and after every test."""
    yield Pair(stoppable_clusters.source, stoppable_clusters.target)
    for cluster in stoppable_clusters:
        if not cluster.is_running():
            cluster.start()


def values(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


@pytest.mark.long
def test_a_mirror_survives_the_absence_of_either_cluster_and_status_shows_what_it_waits_for(
    pair: Pair, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = pair
    create_topic(source.bootstrap, topic_name)
    settings = MirrorConfig.from_document(pair.hasty(topic_name), folder=tmp_path)

    def is_copied(count: int) -> bool:
        return runs.positions(settings).get((topic_name, 0)) == count

    with Running(settings, spark) as mirror:
        write(source.bootstrap, topic_name, values(0, 100))
        mirror.wait_for("the first records", lambda: is_copied(100))
        target.kill()
        write(source.bootstrap, topic_name, values(100, 200))
        mirror.wait_for("a status without the target", lambda: target.bootstrap in (gather_status(settings).target_problem or ""))
        mirror.wait_for("the supervisor's word", lambda: target.bootstrap in (gather_status(settings).waiting_for or ""))
        target.start()
        mirror.wait_for("the records after the target's absence", lambda: is_copied(200))
        source.stop()
        mirror.wait_for("the planner's word", lambda: source.bootstrap in (gather_status(settings).waiting_for or ""))
        source.start()
        write(source.bootstrap, topic_name, values(200, 300))
        mirror.wait_for("the records after the source's absence", lambda: is_copied(300))
        mirror.wait_for("a status that waits for nothing", lambda: gather_status(settings).waiting_for is None)
    assert read_values(target.bootstrap, topic_name) == values(0, 300)
    recorded = OffsetMap.open(settings.tables).recorded()
    assert recorded is not None
    assert recorded.run_epoch == 1


@pytest.mark.long
def test_transactions_that_timed_out_while_the_target_was_away_are_copied_again_and_once(
    pair: Pair, topic_name: str, tmp_path: Path, spark: Any, crash_points: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The target calls them aborted as soon as it is back, and forgets to write the markers. One of them was decided."""
    source, target = pair
    mirrors: dict[str, MirrorConfig] = {}
    for point in ("RunSlots", "Decide"):
        topic = f"timed-out-at-{point}"
        create_topic(source.bootstrap, topic)
        write(source.bootstrap, topic, values(0, 10))
        document = pair.hasty(topic, mirror=topic, tables=point)
        mirrors[topic] = MirrorConfig.from_document(document, folder=tmp_path)
        with pytest.raises(CrashError):
            catch_up(mirrors[topic], spark, observer=CrashAt(point))
    crashed = time.monotonic()
    target.kill()
    runs.wait_for("the end of their time", lambda: time.monotonic() > crashed + 10)
    target.start()
    for topic, settings in mirrors.items():
        write(source.bootstrap, topic, values(10, 20))
        catch_up(settings, spark)
        assert read_values(target.bootstrap, topic) == values(0, 20)
        assert runs.last_stable_offset(target.bootstrap, topic) > 30  # both copies of ten records, the first of them aborted
    assert "removed, will be read again" in caplog.text


def test_a_log_that_the_source_lost_is_named(pair: Pair, topic_name: str, tmp_path: Path, spark: Any) -> None:
    source, _ = pair
    create_topic(source.bootstrap, topic_name)
    write(source.bootstrap, topic_name, values(0, 10))
    settings = MirrorConfig.from_document(pair.hasty(topic_name), folder=tmp_path)
    catch_up(settings, spark)
    source.stop()
    for lost in (source.folder / "data" / f"{topic_name}-0").iterdir():
        if lost.name != "partition.metadata":
            lost.unlink()
    source.start()
    write(source.bootstrap, topic_name, ["other"])
    with pytest.raises(DataLossError, match=rf"^{topic_name}-0: expected offset 10: the log ends at 1, below .*topics\.exclude"):
        catch_up(settings, spark)


@pytest.mark.long
def test_a_second_signal_ends_a_run_at_once_and_nothing_is_lost(pair: Pair, topic_name: str, tmp_path: Path, spark: Any) -> None:
    source, target = pair
    create_topic(source.bootstrap, topic_name)
    write(source.bootstrap, topic_name, values(0, 10))
    conf = runs.conf_file(tmp_path, source.bootstrap, target.bootstrap, [topic_name])
    settings = MirrorConfig.load(conf)
    with runs.command(tmp_path, conf) as process:
        runs.wait_for_run(process, "the first records", lambda: runs.positions(settings).get((topic_name, 0)) == 10)
        started = psutil.Process(process.pid).children(recursive=True)
        target.kill()
        write(source.bootstrap, topic_name, values(10, 20))
        runs.wait_for_run(process, "a status without the target", lambda: gather_status(settings).target_problem)
        os.killpg(process.pid, signal.SIGINT)
        runs.wait_for_run(process, "the first signal", lambda: "ending after the micro-batch" in runs.log_text(tmp_path))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
        assert not psutil.wait_procs(started, 30)[1]
    target.start()
    catch_up(settings, spark)
    assert read_values(target.bootstrap, topic_name) == values(0, 20)


def test_what_an_open_source_transaction_holds_back_is_copied_once_it_has_ended(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["before"])
    settings = config(tmp_path, source, target, [topic_name])
    with Running(settings, spark) as mirror:
        with runs.open_transaction(source, topic_name, ["within"]):
            write(source, topic_name, ["behind"])
            mirror.wait_for("what lies in front", lambda: runs.positions(settings).get((topic_name, 0)) == 1)
            assert read_values(target, topic_name) == ["before"]
            assert runs.positions(settings) == {(topic_name, 0): 1}
        mirror.wait_for("the rest", lambda: runs.positions(settings).get((topic_name, 0)) == 4)
    assert read_values(target, topic_name) == ["before", "within", "behind"]


@pytest.mark.parametrize("transfer", ["direct", pytest.param("through-spark", marks=pytest.mark.long)])
def test_a_python_worker_that_is_killed_does_not_end_the_mirror(
    transfer: str,
    two_clusters: Any,
    topic_name: str,
    tmp_path: Path,
    spark: Any,
    crash_points: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    topic = f"{transfer}-{topic_name}"[:200]
    create_topic(source, topic)
    write(source, topic, values(0, 10))
    # Only a stream hands over rows.
    stream = {"micro_batches": "stream"} if transfer == "through-spark" else {}
    settings = config(
        tmp_path, source, target, [topic], mirror=f"killed-worker-{transfer}", read={"transfer": transfer}, **stream
    )
    catch_up(settings, spark, observer=runs.KillWorkerOnce("task.produced", tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    assert "WORKER_LOST: Spark lost a Python worker" in caplog.text
    assert read_values(target, topic) == values(0, 10)
    assert runs.last_stable_offset(target, topic) == runs.high_watermark(target, topic)
