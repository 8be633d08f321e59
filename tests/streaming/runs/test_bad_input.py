"""What the mirror refuses, on real clusters: what it says, that nothing is lost by it, and that it goes on after the remedy."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import Running, catch_up, config, create_topic, read_values, wait_for_markers, write

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import BatchRefusedError, ConfigError, DataLossError, TargetDataLossError
from shallow_mirror.types import TopicPartition

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(400)]


class Clusters:
    """Addresses of the two clusters, and a name that no other test has."""

    def __init__(self, two_clusters: Any, topic_name: str) -> None:
        self.source, self.target, self.name = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name
        self.ids = two_clusters.source.cluster_id, two_clusters.target.cluster_id


@pytest.fixture
def clusters(two_clusters: Any, topic_name: str) -> Clusters:
    return Clusters(two_clusters, topic_name[-60:])


def test_tables_of_other_clusters_are_refused_and_the_message_names_both(
    clusters: Clusters, tmp_path: Path, inline_streams: Any
) -> None:
    create_topic(clusters.source, clusters.name)
    catch_up(config(tmp_path, clusters.source, clusters.target, [clusters.name]), inline_streams)
    with pytest.raises(ConfigError) as swapped:
        catch_up(config(tmp_path, clusters.target, clusters.source, [clusters.name]), inline_streams)
    source_id, target_id = clusters.ids
    for problem, side, ids in zip(
        swapped.value.problems, ("source", "target"), (clusters.ids, (target_id, source_id)), strict=True
    ):
        assert f"{side}_cluster_id = '{ids[0]}', this mirror has '{ids[1]}'" in problem
    with pytest.raises(ConfigError, match=r"shallow_mirror\.mirror = 'm-.*', this mirror has 'other'"):
        catch_up(config(tmp_path, clusters.source, clusters.target, [clusters.name], mirror="other"), inline_streams)


def test_a_mirror_with_the_id_of_another_is_refused_and_the_other_continues(
    clusters: Clusters, tmp_path: Path, inline_streams: Any
) -> None:
    create_topic(clusters.source, clusters.name)
    write(clusters.source, clusters.name, ["a"])
    first, second = (
        config(tmp_path / name, clusters.source, clusters.target, [clusters.name], mirror=clusters.name) for name in ("a", "b")
    )
    catch_up(first, inline_streams)
    with pytest.raises(ConfigError, match=f"the target knows the transactional id {clusters.name}-0 .*another name"):
        catch_up(second, inline_streams)
    assert not Path(second.tables).exists()
    LedgerOwner.take_over(
        second.tables,
        name=second.mirror,
        source_cluster_id=clusters.ids[0],
        target_cluster_id=clusters.ids[1],
        run=RunIdentity.of_this_process(),
        now_ms=lambda: 0,
    )
    with pytest.raises(ConfigError, match=f"holds a receipt of the tables {OffsetMap.open(first.tables).map_id} .*one name"):
        catch_up(second, inline_streams)
    write(clusters.source, clusters.name, ["b"])
    catch_up(first, inline_streams)
    assert read_values(clusters.target, clusters.name) == ["a", "b"]


def test_the_spark_checkpoint_of_another_mirror_is_refused_and_nothing_is_lost_by_an_empty_one(
    clusters: Clusters, tmp_path: Path, spark: Any
) -> None:
    create_topic(clusters.source, clusters.name)
    write(clusters.source, clusters.name, ["a"])

    def settings(name: str, checkpoint: str) -> MirrorConfig:
        return config(
            tmp_path / name, clusters.source, clusters.target, [clusters.name],
            mirror=f"{clusters.name}-{name}", topics={"target_name": f"{name}.{{topic}}"}, checkpoint=str(tmp_path / checkpoint),
        )  # fmt: skip

    first = settings("one", "shared")
    catch_up(first, spark)
    with pytest.raises(ConfigError, match=f"for the offset map {OffsetMap.open(first.tables).map_id}, .*folder of its own"):
        catch_up(settings("two", "shared"), spark)
    write(clusters.source, clusters.name, ["b"])
    catch_up(settings("two", "own"), spark)
    catch_up(settings("one", "shared"), spark)
    for name in ("one", "two"):
        assert read_values(clusters.target, f"{name}.{clusters.name}") == ["a", "b"]


def test_a_transactional_id_of_another_application_is_refused_and_left_alone(
    clusters: Clusters, tmp_path: Path, inline_streams: Any
) -> None:
    create_topic(clusters.source, clusters.name)
    create_topic(clusters.target, f"{clusters.name}-its")
    settings = config(tmp_path, clusters.source, clusters.target, [clusters.name])
    other = Producer({"bootstrap.servers": clusters.target, "transactional.id": f"{settings.mirror}-1"})
    other.init_transactions(20)
    other.begin_transaction()
    other.produce(f"{clusters.name}-its", b"its own")
    other.flush(20)
    with pytest.raises(ConfigError, match=f"the target knows the transactional id {settings.mirror}-1 .*another application"):
        catch_up(settings, inline_streams)
    other.commit_transaction(20)
    wait_for_markers(clusters.target, f"{clusters.name}-its")
    assert read_values(clusters.target, f"{clusters.name}-its") == ["its own"]
    assert not Path(settings.tables).exists()


def test_a_mirror_onto_itself_is_refused_before_anything_is_written(
    clusters: Clusters, tmp_path: Path, inline_streams: Any
) -> None:
    create_topic(clusters.source, clusters.name)
    write(clusters.source, clusters.name, ["a"])
    settings = config(tmp_path, clusters.source, clusters.source, [clusters.name])
    with pytest.raises(ConfigError, match=r"source east and target west are one cluster.*\{source\}\.\{topic\}"):
        catch_up(settings, inline_streams)
    assert not Path(settings.tables).exists()
    assert read_values(clusters.source, clusters.name) == ["a"]


def test_a_mirror_within_one_cluster_does_not_feed_itself(clusters: Clusters, tmp_path: Path, inline_streams: Any) -> None:
    topic, copy, later = clusters.name, f"east.{clusters.name}", f"{clusters.name}.later"
    create_topic(clusters.source, topic)
    write(clusters.source, topic, ["a"])
    settings = config(tmp_path, clusters.source, clusters.source, [f".*{topic}.*"], topics={"target_name": "{source}.{topic}"})
    with Running(settings, inline_streams) as mirror:
        mirror.wait_for("the first record", lambda: runs.positions(settings).get((topic, 0)) == 1)
        create_topic(clusters.source, later)
        write(clusters.source, later, ["b"])
        mirror.wait_for("the later topic", lambda: runs.positions(settings).get((later, 0)) == 1)
    catch_up(settings, inline_streams)
    made = {name for name in runs.topics_of(clusters.source) if topic in name}
    assert made == {topic, copy, later, f"east.{later}"}
    assert read_values(clusters.source, copy) == ["a"]
    assert read_values(clusters.source, f"east.{later}") == ["b"]


def test_unfit_target_topics_are_refused_all_at_once_and_mirrored_once_they_are_fit(
    clusters: Clusters, tmp_path: Path, inline_streams: Any
) -> None:
    missing, narrow, recompressed = (f"{clusters.name}.{kind}" for kind in ("missing", "narrow", "recompressed"))
    for topic in (missing, narrow, recompressed):
        create_topic(clusters.source, topic, partitions=2)
        write(clusters.source, topic, [topic], partition=1)
    create_topic(clusters.target, narrow, partitions=1)
    create_topic(clusters.target, recompressed, partitions=2, settings={"compression.type": "zstd"})
    settings = config(tmp_path, clusters.source, clusters.target, [f"{clusters.name}.*"], topics={"create": False})
    with pytest.raises(ConfigError) as refused:
        catch_up(settings, inline_streams)
    assert [(topic, sentence in problem) for topic, problem, sentence in zip(
        (missing, narrow, recompressed),
        refused.value.problems,
        ("topics.create is false: create it with at least 2 partitions", "has fewer partitions (1) than source topic", "compression.type=zstd"),
        strict=True,
    )] == [(missing, True), (narrow, True), (recompressed, True)]  # fmt: skip
    create_topic(clusters.target, missing, partitions=2)
    runs.add_partitions(clusters.target, narrow, 2)
    runs.set_topic(clusters.target, recompressed, {"compression.type": "producer"})
    catch_up(settings, inline_streams)
    assert [read_values(clusters.target, topic, 1) for topic in (missing, narrow, recompressed)] == [
        [missing], [narrow], [recompressed]
    ]  # fmt: skip


@pytest.mark.usefixtures("micro_batch_loop")
def test_what_the_source_lost_is_named_and_the_rest_continues_once_it_is_excluded(
    clusters: Clusters, tmp_path: Path, spark: Any
) -> None:
    recreated, deleted, fine = (f"{clusters.name}.{kind}" for kind in ("recreated", "deleted", "fine"))
    for topic in (recreated, deleted, fine):
        create_topic(clusters.source, topic)
        write(clusters.source, topic, ["a", "b"])

    def settings(*exclude: str) -> Any:
        return config(tmp_path, clusters.source, clusters.target, [f"{clusters.name}.*"], topics={"exclude": list(exclude)})

    with Running(settings(), spark) as mirror:
        mirror.wait_for("the first records", lambda: runs.positions(settings()).get((fine, 0)) == 2)
        runs.delete_topic(clusters.source, recreated)
        create_topic(clusters.source, recreated)
        with pytest.raises(DataLossError, match=f"^{recreated}-0: .*created again.*topics.exclude") as while_running:
            mirror.wait_for_error()
    assert (while_running.value.topic_partition, while_running.value.expected_offset) == (TopicPartition(recreated, 0), 2)
    with pytest.raises(DataLossError, match=f"^{recreated}-0: .*created again.*topics.exclude"):
        catch_up(settings(), spark)
    for topic in (deleted, fine):
        write(clusters.source, topic, ["c", "d"])
    runs.delete_records(clusters.source, deleted, before=3)
    for _ in range(2):
        with pytest.raises(DataLossError, match=f"^{deleted}-0: expected offset 2, source log starts at 3: .*topics.exclude"):
            catch_up(settings(recreated), spark)
    catch_up(settings(recreated, deleted), spark)
    assert [read_values(clusters.target, topic) for topic in (recreated, deleted, fine)] == [
        ["a", "b"], ["a", "b"], ["a", "b", "c", "d"]
    ]  # fmt: skip


def test_a_log_start_at_a_batch_boundary_is_where_earliest_begins(
    clusters: Clusters, tmp_path: Path, inline_streams: Any
) -> None:
    create_topic(clusters.source, clusters.name)
    for values in (["a", "b"], ["c", "d"]):
        write(clusters.source, clusters.name, values)
    runs.delete_records(clusters.source, clusters.name, before=2)
    settings = config(tmp_path, clusters.source, clusters.target, [clusters.name])
    catch_up(settings, inline_streams)
    assert read_values(clusters.target, clusters.name) == ["c", "d"]
    assert OffsetMap.open(settings.tables).translate(clusters.name, 0, 2).exact


@pytest.mark.usefixtures("micro_batch_loop")
def test_a_batch_that_is_too_large_for_the_target_stops_the_mirror_until_the_setting_is_raised(
    clusters: Clusters, tmp_path: Path, spark: Any
) -> None:
    topic, large = clusters.name, "x" * 300_000
    create_topic(clusters.source, topic, partitions=2)
    create_topic(clusters.target, topic, partitions=2, settings={"max.message.bytes": "200000"})
    for round_number in range(8):
        write(clusters.source, topic, [f"{round_number}" + "y" * 50_000], partition=0)
    write(clusters.source, topic, ["small"], partition=1)
    write(clusters.source, topic, [large], partition=1)
    settings = config(tmp_path, clusters.source, clusters.target, [topic], write={"slots": 1}, read={"fetch_bytes": 65_536})
    for _ in range(2):
        with pytest.raises(
            BatchRefusedError, match=rf"^{topic}-1: batch at base offset 1 refused: .*max.message.bytes"
        ) as refused:
            catch_up(settings, spark)
        assert runs.last_stable_offset(clusters.target, topic) == runs.high_watermark(clusters.target, topic) > 0
    assert "\n" not in str(refused.value)
    runs.set_topic(clusters.target, topic, {"max.message.bytes": "400000"})
    catch_up(settings, spark)
    assert read_values(clusters.target, topic, 1) == ["small", large]
    assert read_values(clusters.target, topic, 0) == read_values(clusters.source, topic, 0)


def test_a_target_topic_that_lost_what_was_copied_is_refused(clusters: Clusters, tmp_path: Path, inline_streams: Any) -> None:
    create_topic(clusters.source, clusters.name)
    write(clusters.source, clusters.name, ["a"])
    settings = config(tmp_path, clusters.source, clusters.target, [clusters.name])
    catch_up(settings, inline_streams)
    renamed = config(tmp_path, clusters.source, clusters.target, [clusters.name], topics={"target_name": "{source}.{topic}"})
    with pytest.raises(
        ConfigError, match=f"was mirrored to {clusters.name} until now, topics.target_name makes it east.{clusters.name}"
    ):
        catch_up(renamed, inline_streams)
    runs.delete_topic(clusters.target, clusters.name)
    with pytest.raises(ConfigError, match="was deleted, with what was copied to it"):
        catch_up(settings, inline_streams)
    create_topic(clusters.target, clusters.name)
    with pytest.raises(ConfigError, match="was deleted and created again"):
        catch_up(settings, inline_streams)


def is_at(settings: Any, positions: Any) -> bool:
    return bool(runs.positions(settings) == positions)


@pytest.mark.usefixtures("micro_batch_loop")
def test_a_target_topic_that_is_deleted_under_a_running_mirror_ends_it_before_the_next_decision(
    clusters: Clusters, tmp_path: Path, spark: Any
) -> None:
    deleted, recreated = f"{clusters.name}.deleted", f"{clusters.name}.recreated"
    for topic, error, is_recreated in (
        (deleted, "was deleted, with what was copied", False),
        (recreated, "was deleted and created again", True),
    ):
        create_topic(clusters.source, topic)
        write(clusters.source, topic, ["a"])
        hasty = {"transaction_timeout_ms": 10_000}
        settings = config(tmp_path / topic, clusters.source, clusters.target, [topic], mirror=topic, write=hasty)
        with Running(settings, spark) as mirror:
            mirror.wait_for("the first record", partial(is_at, settings, {(topic, 0): 1}))
            runs.delete_topic(clusters.target, topic)
            if is_recreated:
                create_topic(clusters.target, topic)
            write(clusters.source, topic, ["b"])
            with pytest.raises((ConfigError, TargetDataLossError), match=error):
                mirror.wait_for_error()
        assert runs.positions(settings) == {(topic, 0): 1}
