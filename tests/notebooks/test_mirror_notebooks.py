"""run_mirror, explore_offsets and failover, executed one after the other on a mirror of their own, as a user would."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tests.support.mirror_runs import admin, conf_file, create_topic, open_transaction, read_partitions, read_values, write

NOTEBOOKS = ("run_mirror", "explore_offsets", "failover")
PATIENCE_S = 240
COMPUTED = {
    "run_mirror": 'print(json.dumps({"lag": lag, "partitions": len(partitions)}))',
    "explore_offsets": (
        'print(json.dumps({"kinds": sorted(set(fates.kind)), "records": int(fates.records.sum()), "holes": len(holes), '
        '"positions": places.position.tolist(), "there": there.target_offset, "back": back.target_offset, "asked": int(offset), '
        '"recent": len(recent)}))'
    ),
    "failover": 'print(json.dumps({"is_applied": done is not None, "rows": json.loads((plan if done is None else done).to_json(orient="records"))}))',
}


def path_of(repository: Path, name: str) -> Path:
    return repository / "notebooks" / f"{name}.ipynb"


def executed(repository: Path, name: str, folder: Path, **parameters: object) -> Any:
    """Return what `COMPUTED` prints behind the last cell."""
    notebook = nbformat.read(path_of(repository, name), as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(f"import json\n{COMPUTED[name]}", id="computed"))
    with pytest.MonkeyPatch.context() as patch:
        for variable in [line for line in os.environ if line.startswith("SHALLOW_MIRROR_") and line != "SHALLOW_MIRROR_CACHE"]:
            patch.delenv(variable)
        for parameter, value in parameters.items():
            patch.setenv(f"SHALLOW_MIRROR_{parameter.upper()}", str(value))
        patch.setenv("TMPDIR", str(folder))
        NotebookClient(notebook, timeout=PATIENCE_S, kernel_name="python3").execute()
    (output,) = (output for output in notebook.cells[-1].outputs if output.get("name") == "stdout")
    return json.loads(output.text)


def steps(computed: Any) -> dict[tuple[str, int], str]:
    return {(row["group"], row["partition"]): row["step"] for row in computed["rows"]}


# --- the files


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_without_outputs_and_paths_of_a_machine(repository: Path, name: str) -> None:
    notebook = nbformat.read(path_of(repository, name), as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count, cell.metadata) for cell in code] == [([], None, {})] * len(code)
    assert not re.search(r"/(home|Users|root|tmp|work|private|var)/", path_of(repository, name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_without_a_mirror_file_a_notebook_says_what_to_set(repository: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHALLOW_MIRROR_CONF", raising=False)
    with pytest.raises(
        ValueError, match="no mirror file: set the widget `conf`, or the environment variable SHALLOW_MIRROR_CONF"
    ):
        exec(compile(parameters_cell(repository, name), "parameters", "exec"), {})


def test_a_parameter_of_a_job_comes_from_its_widget(repository: Path) -> None:
    given = {"conf": "/Volumes/a/b/c/mine.yaml", "mode": "continuous"}
    widgets = SimpleNamespace(text=given.setdefault, get=given.__getitem__)
    names: dict[str, Any] = {"dbutils": SimpleNamespace(widgets=widgets)}
    exec(compile(parameters_cell(repository, "run_mirror"), "parameters", "exec"), names)
    assert (names["conf"], names["mode"], names["seconds"]) == ("/Volumes/a/b/c/mine.yaml", "continuous", None)


def parameters_cell(repository: Path, name: str) -> str:
    (cell,) = (cell for cell in nbformat.read(path_of(repository, name), as_version=4).cells if cell.id == "parameters")
    return str(cell.source)


# --- what they do


@pytest.fixture(scope="module")
def mirrored(repository: Path, two_clusters: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Any]:
    """(mirror file, topic, what run_mirror says). Offsets differ on the two sides: the source has transaction markers."""
    folder, topic = tmp_path_factory.mktemp("notebooks"), f"moved-{os.getpid()}"
    source = two_clusters.source.bootstrap
    create_topic(source, topic, 2)
    for part in range(3):
        write(source, topic, [f"plain {part} {number}" for number in range(20)], part % 2)
        with open_transaction(source, topic, [f"in a transaction {part} {number}" for number in range(20)]):
            pass
    conf = conf_file(folder, source, two_clusters.target.bootstrap, [topic])
    return conf, topic, executed(repository, "run_mirror", folder, conf=conf)


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
class TestOnAMirror:
    def test_run_mirror_catches_up_and_says_so(self, mirrored: tuple[Path, str, Any], two_clusters: Any) -> None:
        _, topic, output = mirrored
        assert output == {"lag": 0, "partitions": 2}
        for partition in (0, 1):
            values = [read_values(cluster.bootstrap, topic, partition) for cluster in two_clusters]
            assert values[0] == values[1] != []

    def test_explore_offsets_accounts_for_everything_and_translates_both_ways(
        self, repository: Path, mirrored: tuple[Path, str, Any], tmp_path: Path
    ) -> None:
        output = executed(repository, "explore_offsets", tmp_path, conf=mirrored[0])
        assert (output["holes"], output["records"]) == (0, 120)
        assert {"data", "commit"} <= set(output["kinds"])
        assert output["back"] == output["asked"]
        assert output["recent"] > 0

    def test_failover_moves_a_group_so_that_each_record_is_read_once_and_back(
        self, repository: Path, mirrored: tuple[Path, str, Any], two_clusters: Any, tmp_path: Path
    ) -> None:
        conf, topic, _ = mirrored
        source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
        original = read_partitions(source, [(topic, 0), (topic, 1)])
        halfway = original[topic, 0][len(original[topic, 0]) // 2].offset
        commit(source, "billing", {(topic, 0): halfway, (topic, 1): original[topic, 1][-1].offset + 1})

        planned = executed(repository, "failover", tmp_path, conf=conf, groups="billing")
        assert (steps(planned), planned["is_applied"]) == ({("billing", 0): "to commit", ("billing", 1): "to commit"}, False)
        assert committed(target, "billing", topic) == {}

        done = executed(repository, "failover", tmp_path, conf=conf, groups="billing", apply="yes")
        assert (steps(done), done["is_applied"]) == ({("billing", 0): "committed", ("billing", 1): "committed"}, True)
        rest = [record.value for record in original[topic, 0] if record.offset >= halfway]
        assert read_on(target, "billing", topic, len(rest)) == rest

        executed(repository, "failover", tmp_path, conf=conf, groups="billing", direction="back", apply="yes")
        assert committed(source, "billing", topic)[0] == original[topic, 0][-1].offset + 1

    def test_failover_fails_and_says_what_is_in_the_way(
        self, repository: Path, mirrored: tuple[Path, str, Any], two_clusters: Any, tmp_path: Path
    ) -> None:
        conf, topic, _ = mirrored
        commit(two_clusters.source.bootstrap, "ahead", {(topic, 0): 1_000_000})
        with pytest.raises(CellExecutionError, match=r"not in place at west yet. The first: ahead, moved-\d+-0: waits"):
            executed(repository, "failover", tmp_path, conf=conf, groups="ahead", apply="yes")
        assert committed(two_clusters.target.bootstrap, "ahead", topic) == {}

    def test_run_mirror_refuses_another_mode(self, repository: Path, mirrored: tuple[Path, str, Any], tmp_path: Path) -> None:
        with pytest.raises(CellExecutionError, match="it must be available-now or continuous"):
            executed(repository, "run_mirror", tmp_path, conf=mirrored[0], mode="sometimes")


def commit(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    topic_partitions = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
    client = admin(bootstrap)
    client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, topic_partitions)])[group].result(30)


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """By partition."""
    client = admin(bootstrap)
    actual = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
    return {
        topic_partition.partition: topic_partition.offset
        for topic_partition in actual.topic_partitions
        if topic_partition.topic == topic and topic_partition.offset >= 0
    }


def consumer_settings(bootstrap: str, group: str) -> dict[str, Any]:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_committed", "log_level": 0}
    return {**settings, "auto.offset.reset": "error", "enable.auto.commit": False}


def read_on(bootstrap: str, group: str, topic: str, count: int) -> list[bytes | None]:
    """From the group's own offsets: so many records, and that no other comes. The group commits that it read them."""
    consumer = Consumer(consumer_settings(bootstrap, group))
    read: list[bytes | None] = []
    try:
        consumer.subscribe([topic])
        while len(read) < count:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None, message.error()
            read.append(message.value())
        assert consumer.poll(2) is None
        consumer.commit(asynchronous=False)
        return read
    finally:
        consumer.close()
