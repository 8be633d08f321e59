"""`status`, `report`, `translate`, `recover` and `quarantine` of a restore file, as of a mirror file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.support.record_batches import batch, record
from tests.verify.mirrored import Mirrored

from shallow_mirror import cli
from shallow_mirror.checkpoints.ledger import LedgerOwner, RestoreRanges, RestoreRangesTable, RunIdentity
from shallow_mirror.checkpoints.logs import Quarantine
from shallow_mirror.checkpoints.logs.runs import MicroBatchObservation, RunHistory
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT, TableStorage
from shallow_mirror.config import RestoreConfig
from shallow_mirror.operations import quarantine_retry, recover
from shallow_mirror.operations.quarantine import Selection
from shallow_mirror.operations.status import gather_status
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.planning.planner_state import StartState
from shallow_mirror.types import OffsetRange

pytestmark = pytest.mark.thorough

END = 20


def written(base_offset: int) -> bytes:
    return batch(base_offset, 2, payload=b"".join(record(n, b"k", b"%d" % (base_offset + n)) for n in range(2)))


class Restored(Mirrored):
    """A restore of which two of three batches are copied and one is in quarantine; its archive has ten more offsets."""

    def __init__(self, folder: Path, *, settles: bool = True) -> None:
        super().__init__(folder)
        self.folder = folder
        with self:
            self.poison = {2}
            self.mirror(*(written(n) for n in (0, 2, 4)), settles=settles)
            archive = LedgerOwner.take_over(
                str(folder / "archive"),
                layout=ARCHIVE_LAYOUT,
                name="backup",
                source_cluster_id=self.source.cluster_id,
                target_cluster_id="archive",
                run=RunIdentity.of_this_process(),
                now_ms=lambda: 1_000,
            )
            archive.settle()
            self.path = folder / "restore.yaml"
            self.path.write_text(yaml.safe_dump(self.restore_document()), encoding="utf-8")
            self.restore = RestoreConfig.load(self.path)
            ranges = RestoreRangesTable.of(TableStorage.to_write(self.restore.table_location, "auto"))
            source, _ = self.pair
            ranges.write(
                RestoreRanges(
                    archive_id=archive.map_id,
                    until="{}",
                    last_decision=1,
                    ranges={source: OffsetRange(0, END)},
                    lineages={source: 0},
                )
            )

    def restore_document(self) -> dict[str, object]:
        return {
            "restore": "m",
            "archive": {"tables": "archive", "objects": "objects", "alias": "east"},
            "target": {"alias": "west", "client": {"bootstrap.servers": self.target.bootstrap, "request.timeout.ms": 2000}},
            "tables": "tables",
        }


@pytest.fixture
def restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Restored:
    monkeypatch.setattr(quarantine_retry, "START_MS", 10_000)
    return Restored(tmp_path)


def output(restored: Restored, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Return what a command prints for the restore file; CONF stands for the file."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(restored.path) if argument == "CONF" else argument for argument in command])
    assert ended.value.code in (None, 0)
    return capsys.readouterr().out


def test_status_counts_what_is_left_up_to_the_end_of_the_restore(restored: Restored, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(output(restored, capsys, "status", "CONF", "--json"))
    assert (report["mirror"], report["is_restore"], report["source_problem"]) == ("m", True, None)
    (partition,) = report["partitions"]
    assert (partition["position"], partition["end"], partition["lag_offsets"]) == (6, END, END - 6)
    assert report["quarantined_batches"] == 1
    text = output(restored, capsys, "status", "CONF")
    assert text.startswith("restore m, ")
    assert "1 partition, 14 offsets left to restore" in text
    assert "lag_ms" not in text


def test_a_step_of_the_start_is_over_with_the_next_micro_batch(restored: Restored) -> None:
    config = restored.restore
    restored.owner = LedgerOwner.take_over(
        config.tables,
        name="m",
        source_cluster_id=restored.source.cluster_id,
        target_cluster_id=restored.target.cluster_id,
        run=RunIdentity.of_this_process(),
        now_ms=lambda: 1_000,
    )
    restored.owner.settle()
    now_ms = restored.owner.recorded().run.started_at_ms + 1_000
    state = StartState(step="preparing target topics", since_ms=now_ms)
    planner_state.write_state(planner_state.start_state_path(config.checkpoint), state)
    assert gather_status(config).starting == "preparing target topics"
    settled = MicroBatchObservation(
        run_epoch=2,
        micro_batch=restored.owner.recorded().micro_batch,
        fetched_bytes=0,
        size_bytes=0,
        batch_count=0,
        rebuilt_batch_count=0,
        record_count=0,
        dropped_batch_counts={},
        duration_ms={},
        lag_offsets=None,
        settled_at_ms=now_ms + 1,
    )
    RunHistory(TableStorage(config.table_location).best_effort_tables()).micro_batch(settled)
    assert gather_status(config).starting is None


def test_translate_and_report_read_the_map_of_the_restore(
    restored: Restored, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "source orders-0 offset 4 -> target orders-0 offset 2 (exact)" in output(
        restored, capsys, "translate", "CONF", "orders", "0", "4"
    )
    page = tmp_path / "page.html"
    output(restored, capsys, "report", "CONF", "--out", str(page))
    assert "<title>m: restore report</title>" in page.read_text(encoding="utf-8")


def test_batches_in_quarantine_are_listed_and_released(restored: Restored, capsys: pytest.CaptureFixture[str]) -> None:
    assert "1 batch" in output(restored, capsys, "quarantine", "list", "CONF")
    with restored.target:
        released = quarantine_retry.retry(restored.restore, Selection())
    assert (released.batch_count, released.refused) == (1, [])
    assert [entry.is_released for entry in Quarantine.open(restored.restore.tables).entries()] == [True]


def test_recover_inspects_a_restore_as_it_does_a_mirror(tmp_path: Path) -> None:
    restored = Restored(tmp_path, settles=False)
    with restored.target:
        reports = recover.inspect(restored.restore)
        assert [report.slot for report in reports] == [0]
        assert [report.document() for report in reports] == [report.document() for report in recover.inspect(restored.config)]
