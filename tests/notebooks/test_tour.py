"""The tour, executed on the tables of a real mirror run over the demo's traffic; what its cells computed is checked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from confluent_kafka import Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from nbclient import NotebookClient
from tests.support.mirror_runs import delete_topics_ending

from shallow_mirror.demo import checker
from shallow_mirror.demo.mirror_process import MirrorProcess
from shallow_mirror.demo.run import mirror_file
from shallow_mirror.demo.traffic import TOPICS, TrafficReport, write_traffic
from shallow_mirror.types import IsolationLevel

RECORDS = 12_000
PATIENCE_S = 240.0
PARTITIONS = sum(TOPICS.values())

COMPUTED = """
import json
print(json.dumps({
    "kinds": {row.kind: [int(row.segments), int(row.offsets), int(row.records), int(row.batches)] for row in kinds.itertuples()},
    "first_segment": [int(first_segments.source_start[0]), int(first_segments.source_end[0])],
    "places": places,
    "coverage": coverage.asDict(),
    "target_overlaps": target_overlaps,
    "aborted": {row.source_topic: int(row.records) for row in aborted.itertuples()},
    "without_abort_marker": int(aborted.without_abort_marker.sum()),
    "markers": {kind: int(of_kind.markers.sum()) for kind, of_kind in markers.groupby("kind")},
    "outcomes": runs.outcome.tolist(),
    "offsets_missing": [int(one) for one in progress.offsets_missing],
    "lag_offsets": [int(one) for one in progress.lag_offsets],
    "without_observation": [[int(row.micro_batch), int(row.segments), int(row.records)] for row in without_observation.itertuples()],
    "asked": [longest.topic, longest.partition, source_offset],
    "there": [there.target_topic, there.target_partition, there.target_offset],
    "back": [back.exact, back.target_offset],
    "next_record": [str(next_record.kind), next_record.exact],
    "at_decision": [at_decision.exact, at_decision.target_offset == there.target_offset],
    "before_decision": before_decision.exact,
    "translated": len(by_sql),
    "disagreements": len(disagreements),
}))
"""


@dataclass(frozen=True, slots=True)
class FinishedMirror:
    """What `shallow-mirror demo --keep` leaves, from less traffic and without the kill."""

    folder: Path
    source: str
    target: str
    traffic: TrafficReport

    @property
    def conf(self) -> Path:
        return self.folder / "mirror.yaml"


@pytest.fixture(scope="module")
def notebook_file(repository: Path) -> Path:
    return repository / "notebooks" / "tour.ipynb"


@pytest.fixture(scope="module")
def finished(two_clusters: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedMirror]:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    folder = tmp_path_factory.mktemp("demo")
    try:
        traffic = write_traffic(source, records=RECORDS, seed=11, on_progress=lambda written: None)
        settings = yaml.safe_load(mirror_file(source, target, folder / "tables"))
        settings["read"]["micro_batch_bytes"] = 1 << 20
        made = FinishedMirror(folder, source, target, traffic)
        made.conf.write_text(yaml.safe_dump(settings), encoding="utf-8")
        _mirror(made)
        yield made
    finally:
        for bootstrap in (source, target):
            delete_topics_ending(bootstrap, TOPICS)


def _mirror(made: FinishedMirror) -> None:
    mirror = MirrorProcess(made.conf, made.folder / "run-1.log")
    give_up_at = time.monotonic() + PATIENCE_S
    try:
        while mirror.exit_code is None and time.monotonic() < give_up_at:
            time.sleep(0.2)
        assert mirror.exit_code == 0, mirror.log_tail()
    finally:
        mirror.kill()


@pytest.fixture(scope="module")
def executed(notebook_file: Path, finished: FinishedMirror) -> Any:
    notebook = nbformat.read(notebook_file, as_version=4)
    assert notebook.cells[-1].id == "stop"
    notebook.cells.insert(-1, nbformat.v4.new_code_cell(COMPUTED, id="computed"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHALLOW_MIRROR_DEMO", str(finished.folder))
        patch.setenv("TMPDIR", str(finished.folder))
        NotebookClient(notebook, timeout=PATIENCE_S, kernel_name="python3").execute()
    return notebook


@pytest.fixture(scope="module")
def computed(executed: Any) -> Any:
    (cell,) = (cell for cell in executed.cells if cell.id == "computed")
    return json.loads("".join(output.text for output in cell.outputs if output.get("name") == "stdout"))


def cell_source(notebook_file: Path, cell_id: str) -> str:
    (cell,) = (cell for cell in nbformat.read(notebook_file, as_version=4).cells if cell.id == cell_id)
    return str(cell.source)


# --- the file


def test_the_notebook_is_stored_without_outputs_and_paths_of_a_machine(notebook_file: Path) -> None:
    notebook = nbformat.read(notebook_file, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count, cell.metadata) for cell in code] == [([], None, {})] * len(code)
    assert not re.search(r"/(home|Users|root|tmp|work|private|var)/", notebook_file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", [None, "", "nowhere", "empty"])
def test_without_the_folder_of_a_demo_the_first_cell_says_how_to_make_one(
    notebook_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    if folder is None:
        monkeypatch.delenv("SHALLOW_MIRROR_DEMO", raising=False)
    else:
        monkeypatch.setenv("SHALLOW_MIRROR_DEMO", folder)
    with pytest.raises(FileNotFoundError, match=r"shallow-mirror demo --keep.*SHALLOW_MIRROR_DEMO"):
        exec(compile(cell_source(notebook_file, "parameters"), "parameters", "exec"), {})


# --- what it computes


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
class TestOnRealTables:
    def test_the_kinds_account_for_every_record_and_every_offset_of_the_source(
        self, computed: Any, finished: FinishedMirror
    ) -> None:
        kinds, traffic = computed["kinds"], finished.traffic
        admin = AdminClient({"bootstrap.servers": finished.source, "log_level": 0})
        ends = checker.end_offsets(admin, checker.partitions_of(admin, TOPICS), IsolationLevel.READ_COMMITTED)
        assert sum(offsets for _, offsets, _, _ in kinds.values()) == sum(ends.values())
        assert kinds["data"][2] == traffic.visible_records
        assert kinds["aborted"][2] == traffic.written_records - traffic.visible_records
        assert traffic.aborted_txns > 0
        for kind in ("commit", "abort"):
            segments, offsets, records, batches = kinds[kind]
            assert segments == offsets == batches == computed["markers"][kind]
            assert records == 0

    def test_aborted_records_of_each_topic_are_those_that_its_producers_aborted(
        self, computed: Any, finished: FinishedMirror
    ) -> None:
        expected = {
            written_topic.topic: written_topic.written_records - written_topic.visible_records
            for written_topic in finished.traffic.topics
        }
        assert computed["aborted"] == {topic: records for topic, records in expected.items() if records}
        assert computed["without_abort_marker"] == 0

    def test_the_map_has_no_hole_and_no_overlap(self, computed: Any) -> None:
        assert computed["coverage"] == {"partitions": PARTITIONS, "holes": 0, "overlaps": 0, "crooked": 0}
        assert computed["target_overlaps"] == 0
        assert computed["first_segment"] == [0, 0]
        assert len(computed["places"]) == PARTITIONS

    def test_the_lag_noted_by_the_planner_is_what_was_not_decided_yet(self, computed: Any) -> None:
        missing = computed["offsets_missing"]
        assert len(missing) > 2
        assert missing == sorted(missing, reverse=True)
        assert missing[-1] == 0
        assert computed["lag_offsets"] == missing

    def test_only_the_registration_of_partitions_has_no_observation(self, computed: Any) -> None:
        assert computed["without_observation"] == [[1, PARTITIONS, 0]]
        assert computed["outcomes"] == ["done"]

    def test_an_offset_leads_to_the_same_record_and_back(self, computed: Any, finished: FinishedMirror) -> None:
        original, copy = record_at(finished.source, *computed["asked"]), record_at(finished.target, *computed["there"])
        assert (copy.key(), copy.value(), copy.headers(), copy.timestamp()) == (
            original.key(),
            original.value(),
            original.headers(),
            original.timestamp(),
        )
        assert computed["back"] == [True, computed["asked"][2]]
        assert computed["next_record"] == ["aborted", False]

    def test_a_translation_as_of_the_time_before_the_decision_is_not_exact(self, computed: Any) -> None:
        assert computed["at_decision"] == [True, True]
        assert computed["before_decision"] is False

    def test_sql_and_python_translate_alike(self, computed: Any) -> None:
        assert computed["translated"] == 2 * computed["kinds"]["data"][0]
        assert computed["disagreements"] == 0

    def test_it_draws_segments_and_lag(self, executed: Any) -> None:
        drawn = [
            cell.id for cell in executed.cells if cell.cell_type == "code" and any(_is_picture(output) for output in cell.outputs)
        ]
        assert drawn == ["barcode", "lag"]

    def test_status_says_of_the_same_tables_that_nothing_is_missing(self, executed: Any, finished: FinishedMirror) -> None:
        command = [sys.executable, "-m", "shallow_mirror.cli", "status", str(finished.conf), "--json"]
        report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
        assert {(partition["lag_offsets"], partition["lag_ms"]) for partition in report["partitions"]} == {(0, 0)}
        assert len(report["partitions"]) == PARTITIONS
        assert (report["run"]["run_epoch"], report["run"]["outcome"], report["waiting_for"]) == (1, "done", None)
        assert report["micro_batches"][-1]["lag_offsets"] == 0


def _is_picture(output: Any) -> bool:
    return "image/png" in output.get("data", {})


def record_at(bootstrap: str, topic: str, partition: int, offset: int) -> Message:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tour", "isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        assert message.offset() == offset
        return message
    finally:
        consumer.close()
