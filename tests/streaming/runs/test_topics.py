"""Topics that come, grow, change and go under a running mirror, on real clusters."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import Running, catch_up, config, create_topic, read_values, write

from shallow_mirror import cli
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import BatchRefusedError, ConfigError, IncompleteRunError, OlderTablesError, TopicRecreatedError
from shallow_mirror.operations.status import gather_status
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.verify import verify_mirror

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(400)]


@contextmanager
def load(bootstrap: str, topic: str, partitions: int) -> Iterator[None]:
    """Write records to all partitions until the block ends."""
    producer, over = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 20}), threading.Event()

    def produce() -> None:
        number = 0
        while not over.wait(0.005):
            producer.produce(topic, f"{number}", partition=number % partitions)
            number += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        assert producer.flush(60) == 0


def _micro_batch_sizes(settings: MirrorConfig) -> list[int]:
    rows = DeltaTable(f"{settings.tables}/micro_batches").to_pyarrow_table().to_pylist()
    return [row["size_bytes"] for row in sorted(rows, key=lambda row: row["micro_batch"])]


def _say(*words: str, exit_code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == exit_code


def test_topics_that_come_grow_and_change_under_load_are_followed_from_their_first_offset(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    source, target, topic = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name
    later, gone, compacted = f"{topic}.later", f"{topic}.gone", f"{topic}.compacted"
    create_topic(source, topic, 2, {"retention.ms": "86400000"})
    create_topic(source, gone)
    write(source, topic, ["before"])
    write(source, gone, ["kept"])
    create_topic(source, compacted)
    write(source, compacted, ["without a key"])
    runs.set_topic(source, compacted, {"cleanup.policy": "compact"})
    topics = {"configs": "sync", "discovery": "1 second", "start": {gone: "earliest", compacted: "earliest"}}
    settings = config(tmp_path, source, target, [f"{topic}.*"], topics=topics, read={"start": "latest"})
    with Running(settings, spark) as mirror, load(source, topic, 2):
        mirror.wait_for("the first copies", lambda: runs.positions(settings).get((topic, 1), 0) > 20)
        create_topic(source, later, 3)
        runs.add_partitions(source, topic, 6)
        runs.wait_for("the new partitions", lambda: runs.topics_of(source)[topic] == 6)
        for partition in range(2, 6):
            write(source, topic, [f"grown {partition}"], partition)
        write(source, later, ["new"], 2)
        mirror.wait_for(
            "what came", lambda: [runs.positions(settings).get(partition) for partition in ((topic, 5), (later, 2))] == [1, 1]
        )
        runs.set_topic(source, topic, {"retention.ms": "172800000", "max.message.bytes": "2000000"})
        runs.delete_topic(source, gone)
        mirror.wait_for(
            "the settings",
            lambda: (
                [runs.topic_settings(target, topic)[name] for name in ("retention.ms", "max.message.bytes")]
                == ["172800000", "2000000"]
            ),
        )

        mirror.wait_for("compaction", lambda: runs.topic_settings(target, compacted)["cleanup.policy"] == "compact")

        def is_reported() -> bool:
            note = planner_state.read_state(planner_state.topics_state_path(settings.checkpoint), planner_state.TopicsState)
            return note is not None and note.gone == (gone,)

        mirror.wait_for("word of the deleted topic", is_reported)
        assert gather_status(settings).gone_topics == (gone,)
    assert runs.is_settled(settings)
    assert f"source topic {gone} was deleted: its copies stay on the target" in caplog.text
    assert read_values(target, gone) == ["kept"]
    assert read_values(target, compacted) == ["without a key"]
    assert [read_values(target, topic, partition) for partition in range(2, 6)] == [[f"grown {n}"] for n in range(2, 6)]
    assert read_values(target, later, 2) == ["new"]
    runs.add_partitions(source, topic, 7)
    runs.wait_for("the seventh partition", lambda: runs.topics_of(source)[topic] == 7)
    write(source, topic, ["seventh"], 6)
    catch_up(settings, spark)
    assert read_values(target, topic, 6) == ["seventh"]
    assert "before" not in read_values(target, topic)
    report = verify_mirror(settings, topics=[topic, later])
    assert report.is_equal, report.sentences()


@pytest.mark.long
def test_records_without_a_key_are_copied_before_a_copy_is_compacted_and_by_the_remedy_where_it_is(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    new, existing, preserved = (f"{topic_name}.{name}" for name in ("new", "existing", "preserved"))
    for topic in (new, existing, preserved):
        create_topic(source, topic)
        write(source, topic, ["without a key"])
        runs.set_topic(source, topic, {"cleanup.policy": "compact", "retention.ms": "86400000"})
    create_topic(target, existing, 1, {"cleanup.policy": "compact"})

    settings = config(tmp_path, source, target, [new], tables="new")
    catch_up(settings, spark)
    assert read_values(target, new) == ["without a key"]
    assert runs.topic_settings(target, new)["retention.ms"] == "-1"
    catch_up(settings, spark)
    of_new = runs.topic_settings(target, new)
    assert (of_new["cleanup.policy"], of_new["retention.ms"]) == ("compact", "86400000")
    runs.set_topic(target, new, {"cleanup.policy": "delete"})
    catch_up(settings, spark)
    assert runs.topic_settings(target, new)["cleanup.policy"] == "delete", "an operator has the last word"

    for topic, offsets in ((existing, "translated"), (preserved, "preserved")):

        def of_topic(offsets: str, topic: str = topic) -> MirrorConfig:
            return config(tmp_path, source, target, [topic], tables=topic, topics={"offsets": {".*": offsets}})

        with pytest.raises(BatchRefusedError) as refused:
            catch_up(of_topic(offsets), spark)
        remedy = "Set cleanup.policy=delete and retention.ms=-1 on the target topic and start again"
        assert remedy in str(refused.value)
        assert ("use topics.offsets: translated for it" in str(refused.value)) is (offsets == "preserved")
        runs.set_topic(target, topic, {"cleanup.policy": "delete", "retention.ms": "-1"})
        catch_up(of_topic("translated"), spark)
        assert read_values(target, topic) == ["without a key"]


@pytest.mark.usefixtures("micro_batch_loop")
def test_paused_topics_wait_while_others_continue_and_a_deleted_one_does_not_hold_up_a_start(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any, crash_points: None, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, topic = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name
    other, gone = f"{topic}.other", f"{topic}.gone"
    for name in (topic, other, gone):
        create_topic(source, name)
        write(source, name, ["first"])
    settings = config(tmp_path, source, target, [f"{topic}.*"])
    with pytest.raises(runs.CrashError):
        catch_up(settings, spark, runs.CrashAt("TakeDecision"))
    runs.delete_topic(source, gone)
    catch_up(settings, spark)
    assert [read_values(target, name) for name in (topic, other, gone)] == [["first"], ["first"], []]
    conf = runs.conf_file(tmp_path, source, target, [f"{topic}.*"])
    tables, before, newest = Path(settings.tables), tmp_path / "before", tmp_path / "newest"
    shutil.copytree(tables, before)
    _say("pause", str(conf), topic)
    tables.rename(newest)
    shutil.copytree(before, tables)
    _say("resume", str(conf), topic, exit_code=4)
    assert "their newest row of the table controls is none" in capsys.readouterr().err
    with pytest.raises(OlderTablesError, match=rf"notes row 1 \(pause of {topic}"):
        catch_up(settings, spark)
    shutil.rmtree(tables)
    newest.rename(tables)
    with Running(settings, spark) as mirror:
        write(source, topic, ["second"])
        write(source, other, ["second"])
        mirror.wait_for("the other topic", lambda: runs.positions(settings)[other, 0] == 2)
        assert runs.positions(settings)[topic, 0] == 1
        status = gather_status(settings)
        assert [paused_topic.topic for paused_topic in status.paused_topics] == [topic]
        _say("resume", str(conf), topic)
        mirror.wait_for("the paused topic", lambda: runs.positions(settings)[topic, 0] == 2)
    assert gather_status(settings).paused_topics == ()

    done, bulk = len(_micro_batch_sizes(settings)), f"{topic}.bulk"
    create_topic(source, bulk)
    for number in range(40):
        write(source, bulk, [f"{number:010}" * 1000])
    limited = config(tmp_path, source, target, [f"{topic}.*"], write={"bytes_per_second": 60_000})
    catch_up(limited, spark)
    sizes = _micro_batch_sizes(settings)[done:]
    assert sum(sizes) >= 400_000
    assert len(sizes) > 1
    assert len(read_values(target, bulk)) == 40


@pytest.mark.usefixtures("micro_batch_loop")
def test_topics_that_are_created_again_while_they_are_not_copied_hold_up_no_others(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    paused, handed_over, other = (f"{topic_name}.{name}" for name in ("paused", "handed_over", "other"))
    conf = runs.conf_file(tmp_path, source, target, [f"{topic_name}.*"])
    settings = MirrorConfig.load(conf)
    for topic in (paused, handed_over, other):
        create_topic(source, topic)
        write(source, topic, ["first"])
    catch_up(settings, spark)
    _say("pause", str(conf), paused)
    controls = Controls.open(TableStorage(settings.table_location))
    controls.add("hand-over", [handed_over])
    with Running(settings, spark) as mirror:
        mirror.wait_for("the answer to the hand-over", lambda: handed_over in controls.read().handed_over)
        for topic in (paused, handed_over):
            runs.delete_topic(source, topic)
        write(source, other, ["second"])
        mirror.wait_for("the other topic", lambda: runs.positions(settings)[other, 0] == 2)
        for topic in (paused, handed_over):
            create_topic(source, topic)
            write(source, topic, ["of the new topic"])
        write(source, other, ["third"])
        mirror.wait_for("the other topic", lambda: runs.positions(settings)[other, 0] == 3)
    write(source, other, ["fourth"])
    with pytest.raises(IncompleteRunError, match=f"source topic {paused} was deleted and created again"):
        catch_up(settings, spark)
    expected = {paused: ["first"], handed_over: ["first"], other: ["first", "second", "third", "fourth"]}
    assert {topic: read_values(target, topic) for topic in expected} == expected
    controls.add("take-back", [handed_over])
    with pytest.raises(TopicRecreatedError, match=handed_over):
        catch_up(settings, spark)
    controls.add("hand-over", [handed_over])
    _say("resume", str(conf), paused)
    with pytest.raises(TopicRecreatedError, match=paused):
        catch_up(settings, spark)
    assert {topic: read_values(target, topic) for topic in expected} == expected


@pytest.mark.usefixtures("micro_batch_loop")
def test_two_mirrors_in_both_directions_are_safe_with_the_source_in_names_and_refused_without(
    two_clusters: Any, topic_name: str, tmp_path: Path, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    east, west, topic = two_clusters.source.bootstrap, two_clusters.target.bootstrap, topic_name

    def mirrors(name: str, template: str) -> list[Any]:
        """Of the same topics in both directions, under every name that a copy of theirs may have."""
        include, made = [rf"((east|west)\.)*{topic}\.{name}"], []
        for number, (source, other, alias, other_alias) in enumerate(
            ((east, west, "east", "west"), (west, east, "west", "east"))
        ):
            folder = tmp_path / f"{name}-{number}"
            folder.mkdir()
            sides = {"source": {"alias": alias}, "target": {"alias": other_alias}}
            tables = {"tables": str(folder)}
            made.append(config(folder, source, other, include, topics={"target_name": template}, **sides, **tables))
        return made

    safe, unsafe = f"{topic}.safe", f"{topic}.unsafe"
    for cluster, side in ((east, "east"), (west, "west")):
        create_topic(cluster, safe, 2)
        write(cluster, safe, [side])
    there, back = mirrors("safe", "{source}.{topic}")
    with Running(there, spark) as first, Running(back, spark) as second:
        first.wait_for("copies in the west", lambda: runs.positions(there).get((safe, 0)) == 1)
        second.wait_for("copies in the east", lambda: runs.positions(back).get((safe, 0)) == 1)
        write(east, safe, ["more"], 1)
        first.wait_for("more copies in the west", lambda: runs.positions(there).get((safe, 1)) == 1)
    for settings in (there, back):
        catch_up(settings, spark)
        assert verify_mirror(settings).is_equal
    for cluster, other in ((east, "west"), (west, "east")):
        assert {name for name in runs.topics_of(cluster) if topic in name} == {safe, f"{other}.{safe}"}
        assert read_values(cluster, f"{other}.{safe}") == [other]

    there, back = mirrors("unsafe", "{topic}")
    is_copy = f"source topic {unsafe} is a copy of {unsafe} made by mirror {there.mirror}"
    with Running(there, spark) as first, Running(back, spark) as second:
        runs.wait_for("both to find no topic", lambda: caplog.text.count("no topic of the source matches") == 2)
        create_topic(east, unsafe)
        write(east, unsafe, ["a"])
        first.wait_for("the copy", lambda: runs.positions(there).get((unsafe, 0)) == 1)
        with pytest.raises(ConfigError, match=is_copy):
            second.wait_for_error()
    with pytest.raises(ConfigError, match=is_copy):
        catch_up(back, spark)
    assert read_values(east, unsafe) == ["a"]
