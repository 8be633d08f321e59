"""Starts that nothing can decide: what `recover` shows, that it takes no choice which evidence contradicts, and both choices."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.raw_client import RawClient
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import (
    CrashAt,
    CrashError,
    catch_up,
    create_topic,
    delete_records,
    high_watermark,
    read_values,
    write,
)

from shallow_mirror import cli
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.produce.txn import init_producer_id
from shallow_mirror.checkpoints import DecidedSegment, OffsetMap
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RecoverNeededError
from shallow_mirror.types import Segment, SegmentKind, SlotTxn

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(600)]


class Stopped:
    """A mirror of one topic whose run ended at a point of the contract, with ten records on their way."""

    def __init__(self, two_clusters: Any, topic: str, folder: Path, session: Any) -> None:
        self.source, self.target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
        self.topic, self.session = topic, session
        self.conf = runs.conf_file(folder, self.source, self.target, [topic], mirror=f"m-{uuid.uuid4()}")
        self.settings = MirrorConfig.load(self.conf)
        self.transactional_id = f"{self.settings.mirror}-0"
        create_topic(self.source, topic)
        write(self.source, topic, numbers(0, 10))

    def crash(self, point: str) -> None:
        with pytest.raises(CrashError):
            catch_up(self.settings, self.session, observer=CrashAt(point))

    def crash_behind_spark(self) -> None:
        """Spark has recorded the micro-batch as done; its decision is not settled."""
        settle = LedgerOwner.settle

        def settle_or_crash(owner: LedgerOwner, *resolved: Any) -> None:
            if owner.recorded().unsettled_micro_batch is not None:
                raise CrashError("in front of Settle")
            settle(owner, *resolved)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LedgerOwner, "settle", settle_or_crash)
            with pytest.raises(CrashError):
                catch_up(self.settings, self.session)

    def initialise(self) -> None:
        """As a start does that then ends: the transaction is over, and its producer epoch not the coordinator's any more."""
        cluster = Cluster(ClientConfig.from_properties({"bootstrap.servers": self.target}))
        init_producer_id(cluster, self.transactional_id, 60_000, Deadline.after_ms(30_000, time.monotonic))
        cluster.close()

    def forget(self) -> None:
        """Delete the receipt and the records, as expiration and retention would."""
        client = runs.admin(self.target)
        listed = client.list_consumer_groups().result(30)
        if self.transactional_id in {group.group_id for group in listed.valid}:
            client.delete_consumer_groups([self.transactional_id])[self.transactional_id].result(30)
        delete_records(self.target, self.topic, high_watermark(self.target, self.topic))


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def command(capsys: pytest.CaptureFixture[str], conf: Path, *options: str) -> tuple[int, str]:
    """Exit code and standard output of `recover`."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["recover", str(conf), *options])
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.fixture
def stopped(two_clusters: Any, topic_name: str, tmp_path: Path, inline_streams: Any) -> Stopped:
    return Stopped(two_clusters, topic_name, tmp_path, inline_streams)


def test_an_aborted_transaction_without_evidence_is_copied_again_when_the_operator_says_so(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.crash("Decide")
    code, output = command(capsys, stopped.conf)
    assert (code, "Ongoing" in output, "Nothing needs a choice" in output) == (0, True, True)
    stopped.initialise()
    code, output = command(capsys, stopped.conf)
    assert (code, "holds our records, aborted" in output, "`run` copies it again" in output) == (0, True, True)
    stopped.forget()
    with pytest.raises(
        RecoverNeededError, match=r"there is no evidence whether .* was committed: .* \[0, 10\)\. .*shallow-mirror recover CONF"
    ):
        catch_up(stopped.settings, stopped.session)
    code, output = command(capsys, stopped.conf)
    assert (code, "YOUR CHOICE" in output) == (4, True)
    (slot,) = json.loads(command(capsys, stopped.conf, "--json")[1])
    assert (slot["slot"], slot["receipt"], slot["fate"], slot["needs_choice"]) == (0, "absent", "undecidable", True)
    assert (slot["copied"][0]["source_start"], slot["copied"][0]["source_end"], slot["record_count"]) == (0, 10, 10)
    assert (slot["written"][0]["log"], slot["written"][0]["is_lost"]) == ("nothing", False)
    assert command(capsys, stopped.conf, "--redo")[0] == 0
    assert runs.is_settled(stopped.settings)
    catch_up(stopped.settings, stopped.session)
    assert read_values(stopped.target, stopped.topic) == numbers(0, 10)
    write(stopped.source, stopped.topic, numbers(10, 20))
    stopped.crash_behind_spark()
    stopped.initialise()
    stopped.forget()
    assert command(capsys, stopped.conf, "--redo")[0] == 0
    catch_up(stopped.settings, stopped.session)
    assert read_values(stopped.target, stopped.topic) == numbers(10, 20), (
        "the source has nothing new, Spark's checkpoint is at 20"
    )


def test_a_committed_transaction_without_evidence_is_kept_when_the_operator_says_so(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.crash("EndTxn")
    stopped.initialise()
    code, output = command(capsys, stopped.conf, "--redo")  # evidence says committed: nothing to choose, nothing is changed
    assert (code, "written by this transaction: it was committed" in output) == (0, True)
    assert not runs.is_settled(stopped.settings)
    stopped.forget()
    with pytest.raises(RecoverNeededError):
        catch_up(stopped.settings, stopped.session)
    assert command(capsys, stopped.conf, "--commit", "--slot", "1")[0] == 2
    assert command(capsys, stopped.conf, "--commit", "--slot", "0")[0] == 0
    write(stopped.source, stopped.topic, numbers(10, 20))
    catch_up(stopped.settings, stopped.session)
    assert read_values(stopped.target, stopped.topic) == numbers(10, 20)
    assert runs.positions(stopped.settings) == {(stopped.topic, 0): 20}


def test_a_target_topic_that_went_with_the_last_decision_needs_no_choice_and_is_named(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.crash("EndTxn")
    runs.delete_topic(stopped.target, stopped.topic)
    with pytest.raises(ConfigError, match="was deleted, with what was copied to it"):
        catch_up(stopped.settings, stopped.session)
    assert command(capsys, stopped.conf)[0] == 0
    with pytest.raises(ConfigError, match="was deleted, with what was copied to it"):
        catch_up(stopped.settings, stopped.session)


def test_wrong_options_are_refused_before_anything_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["--commit", "--redo"], ["--slot", "0"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(["recover", str(tmp_path / "none.yaml"), *options])
        assert ended.value.code == 2
        assert "--" in capsys.readouterr().err


def test_slots_that_evidence_decides_are_resolved_though_another_waits_for_the_operator(
    two_clusters: Any,
    topic_name: str,
    tmp_path: Path,
    inline_streams: Any,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name, partitions=3)
    for partition in range(3):
        write(source, topic_name, ["a", "b"], partition)
    conf = runs.conf_file(tmp_path, source, target, [topic_name], mirror=f"m-{uuid.uuid4()}")
    settings = MirrorConfig.load(conf)
    catch_up(settings, inline_streams)
    owner = LedgerOwner.take_over(
        settings.tables,
        name=settings.mirror,
        source_cluster_id=two_clusters.source.cluster_id,
        target_cluster_id=two_clusters.target.cluster_id,
        run=RunIdentity(run_id=str(uuid.uuid4()), host="h", pid=1, started_at_ms=0),
        now_ms=lambda: int(time.time() * 1000),
    )
    owner.settle()
    owner.next_decision()
    unproved, disproved = SlotTxn(f"{settings.mirror}-7", 999_999, 3), SlotTxn(f"{settings.mirror}-0", 999_999, 3)
    # partition 0: a receipt of slot 0 names another transaction; 1: beyond the log's end; 2: exactly at it
    invented = {0: (disproved, 2), 1: (unproved, 100), 2: (unproved, 3)}
    rows = []
    for source_partition, position in owner.positions().items():
        txn, target_start = invented[source_partition.partition]
        data = Segment(
            source=source_partition,
            source_start=2,
            source_end=4,
            kind=SegmentKind.DATA,
            target=position.target,
            target_start=target_start,
            target_end=target_start + 2,
            record_count=2,
            batch_count=1,
        )
        rows.append(DecidedSegment(data, txn))
    owner.decide(rows, highest_slot=7)
    for _ in range(2):
        with pytest.raises(RecoverNeededError, match=rf"{unproved.transactional_id} \(producer id 999999, epoch 3\)") as stopped:
            catch_up(settings, inline_streams)
    assert f"{topic_name}-1 [100, 102), {topic_name}-2 [3, 5)" in str(stopped.value)
    assert f"slot txn {disproved}: removed, will be read again" in caplog.text
    assert not runs.is_settled(settings)
    assert command(capsys, conf, "--redo")[0] == 0
    write(source, topic_name, ["c"], 1)
    catch_up(settings, inline_streams)
    assert [read_values(target, topic_name, partition) for partition in range(3)] == [["a", "b"], ["a", "b", "c"], ["a", "b"]]


def test_a_partition_that_an_operator_aborted_while_the_mirror_was_down_is_copied_again(
    two_clusters: Any, topic_name: str, tmp_path: Path, inline_streams: Any
) -> None:
    """What `kafka-transactions.sh abort` does to one partition of a decided transaction; EndTxn(commit) still answers 0."""
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name, 2)
    settings = runs.config(tmp_path, source, target, [topic_name])
    for partition in (0, 1):
        write(source, topic_name, [f"{partition} first"], partition)
    with pytest.raises(CrashError):
        catch_up(settings, inline_streams, observer=CrashAt("Decide"))
    decided = {row.txn for row in OffsetMap.open(settings.tables).unsettled_rows() if row.txn is not None}
    txn = next(iter(decided))
    with RawClient(target) as client:
        assert client.write_marker(topic_name, txn.producer_id, txn.producer_epoch, coordinator_epoch=0, partition=0) == 0
    write(source, topic_name, ["0 second"], 0)
    catch_up(settings, inline_streams)
    assert read_values(target, topic_name, 0) == ["0 first", "0 second"]
    assert read_values(target, topic_name, 1) == ["1 first"]
    assert runs.positions(settings) == {(topic_name, 0): 2, (topic_name, 1): 1}
