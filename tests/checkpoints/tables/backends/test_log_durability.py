"""Commits in a folder of this machine: synced before anybody is told, and set aside when a power failure left half of one."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.checkpoints.map_rows import SOURCE, TXN, data, run_of

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import choose_writer
from shallow_mirror.checkpoints.tables.backends.log_durability import LocalLog, _is_cut, local_log
from shallow_mirror.errors import OffsetMapConflictError, OutcomeUnknownError
from shallow_mirror.types import SlotTxn

pytestmark = pytest.mark.thorough


def take(tables: Path, run: str) -> LedgerOwner:
    return LedgerOwner.take_over(
        str(tables), name="m", source_cluster_id="S", target_cluster_id="T", run=run_of(run), now_ms=lambda: 0
    )


@pytest.fixture
def owner(tmp_path: Path) -> LedgerOwner:
    """Of a map with one settled decision and one that is not."""
    made = take(tmp_path, "one")
    made.settle()
    for at in range(2):
        made.next_decision()
        made.decide([data(5 * at, 5 * at + 5, SlotTxn("m-0", 1, at))], 0)
    return made


def log_of(tables: Path) -> Path:
    return tables / "offset_map" / "_delta_log"


def newest_commit(tables: Path) -> Path:
    return max(log_of(tables).glob("*.json"))


def age(*files: Path) -> None:
    for file in files:
        os.utime(file, (1_700_000_000, 1_700_000_000))


def empty(commit: Path) -> None:
    commit.write_bytes(b"")


def cut_short(commit: Path) -> None:
    commit.write_bytes(commit.read_bytes()[:-20])


def zero(commit: Path) -> None:
    commit.write_bytes(bytes(commit.stat().st_size))


def data_file(commit: Path) -> Path:
    (added,) = (json.loads(line)["add"]["path"] for line in commit.read_text().splitlines() if '"add"' in line)
    return commit.parent.parent / str(added)


def cut_its_data_short(commit: Path) -> None:
    file = data_file(commit)
    file.write_bytes(file.read_bytes()[:100])


def zero_its_data(commit: Path) -> None:
    file = data_file(commit)
    file.write_bytes(bytes(file.stat().st_size))


def lose_its_data(commit: Path) -> None:
    data_file(commit).unlink()


@pytest.mark.parametrize("tear", [empty, cut_short, zero, cut_its_data_short, zero_its_data, lose_its_data])
def test_a_half_written_newest_commit_was_never_acknowledged_and_the_next_run_continues_without_it(
    tmp_path: Path, owner: LedgerOwner, tear: Callable[[Path], None]
) -> None:
    torn = newest_commit(tmp_path)
    tear(torn)
    age(torn)
    assert choose_writer(str(tmp_path), "auto") == "deltalake"
    new = take(tmp_path, "two")
    assert [row.segment.source_end for row in new.unsettled()] == [5]
    new.settle()
    new.next_decision()
    new.decide([data(5, 7)], 0)
    new.settle()
    assert [position.offset for position in OffsetMap.open(str(tmp_path)).positions().values()] == [7]
    assert [file.name for file in log_of(tmp_path).glob("*.torn")] == [f"{torn.name}.torn"]


def test_a_half_written_commit_that_is_young_may_be_in_progress_and_is_kept(tmp_path: Path, owner: LedgerOwner) -> None:
    cut_short(newest_commit(tmp_path))
    before = sorted(log_of(tmp_path).iterdir())
    with pytest.raises(OutcomeUnknownError, match="half-written"):
        take(tmp_path, "two")
    assert sorted(log_of(tmp_path).iterdir()) == before


def test_a_damaged_commit_below_a_whole_one_is_no_power_failure(tmp_path: Path, owner: LedgerOwner) -> None:
    damaged = log_of(tmp_path) / f"{int(newest_commit(tmp_path).stem) - 1:020}.json"
    cut_short(damaged)
    age(damaged)
    with pytest.raises(OffsetMapConflictError, match="not a readable Delta table"):
        take(tmp_path, "two")
    assert damaged.exists()


@pytest.mark.parametrize("file", ['{"path": "part-0.parquet"}', '{"size": 5}', '{"path": "part-0.parquet", "size": null}', "7"])
def test_a_whole_commit_that_does_not_say_its_files_is_no_power_failure(tmp_path: Path, file: str) -> None:
    log_of(tmp_path).mkdir(parents=True)
    commit = log_of(tmp_path) / f"{0:020}.json"
    commit.write_text(f'{{"add": {file}}}')
    age(commit)
    with pytest.raises(
        OffsetMapConflictError, match=f"{commit.name} is no commit of a Delta table: a file lacks its path or size"
    ):
        LocalLog(tmp_path / "offset_map").discard_torn_commit()
    assert commit.exists()


@pytest.mark.parametrize("path", ["", "x" * 5_000, "a%00b"])
def test_a_whole_commit_that_names_what_can_be_no_file_is_no_power_failure(tmp_path: Path, path: str) -> None:
    log_of(tmp_path).mkdir(parents=True)
    commit = log_of(tmp_path) / f"{0:020}.json"
    commit.write_text(json.dumps({"add": {"path": path, "size": 5}}))
    age(commit)
    with pytest.raises(OffsetMapConflictError, match="which the log names, cannot be read"):
        LocalLog(tmp_path / "offset_map").discard_torn_commit()
    assert commit.exists()


@pytest.mark.parametrize("content", [b"", bytes(50)], ids=["empty", "zeros"])
def test_the_only_commit_empty_or_of_zeros_is_a_map_that_never_was(tmp_path: Path, content: bytes) -> None:
    torn = only_commit(tmp_path, content)
    assert take(tmp_path, "one").run_epoch == 1
    assert torn.with_name(f"{torn.name}.torn").exists()


def only_commit(tables: Path, content: bytes) -> Path:
    log_of(tables).mkdir(parents=True)
    commit = log_of(tables) / f"{0:020}.json"
    commit.write_bytes(content)
    age(commit)
    return commit


@pytest.mark.parametrize("content", [b'{"protocol":{"minRe', b"garbage"])
def test_the_only_commit_with_other_content_is_no_map_that_never_was(tmp_path: Path, content: bytes) -> None:
    commit = only_commit(tmp_path, content)
    with pytest.raises(OffsetMapConflictError, match=f"{commit.name}.*: put the newest copy of the tables back"):
        take(tmp_path, "one")
    assert commit.read_bytes() == content


def test_the_only_commit_empty_beside_rows_is_no_map_that_never_was(tmp_path: Path) -> None:
    Controls.open(str(tmp_path)).add("pause", ["orders"])
    (commit,) = (tmp_path / "controls" / "_delta_log").glob("*.json")
    empty(commit)
    age(commit)
    with pytest.raises(OffsetMapConflictError, match=r"the only commit of its log, or a file .* is half-written: put"):
        LocalLog(tmp_path / "controls").discard_torn_commit()
    assert commit.exists()


def exchange(commit: Path) -> None:
    commit.write_text("garbage", encoding="utf-8")


def exchange_last_line(commit: Path) -> None:
    first, *_ = commit.read_text(encoding="utf-8").splitlines()
    commit.write_text(f"{first}\ngarbage", encoding="utf-8")


def exchange_first_line(commit: Path) -> None:
    _, *others = commit.read_text(encoding="utf-8").splitlines()
    commit.write_text("\n".join(["{}garbage", *others]), encoding="utf-8")


def write_behind_zeros(commit: Path) -> None:
    content = commit.read_bytes()
    commit.write_bytes(content[:20] + bytes(20) + content[40:])


@pytest.mark.parametrize("damage", [exchange, exchange_last_line, exchange_first_line, write_behind_zeros])
def test_a_newest_commit_with_content_that_no_power_failure_leaves_is_damage(
    tmp_path: Path, owner: LedgerOwner, damage: Callable[[Path], None]
) -> None:
    commit = newest_commit(tmp_path)
    damage(commit)
    age(commit)
    before = sorted(log_of(tmp_path).iterdir())
    with pytest.raises(
        OffsetMapConflictError, match=f"{commit.name} of its log holds what no power failure leaves: put the newest"
    ):
        take(tmp_path, "two")
    assert sorted(log_of(tmp_path).iterdir()) == before


def test_wherever_a_commit_is_cut_its_beginning_is_one_of_a_power_failure() -> None:
    action = {"add": {"path": "é\U0001f600.parquet", "size": -12, "on": [True, False, None, 1.5e-7, {}], "stats": '"\\u00e9\n'}}
    for is_ascii in (True, False):
        content = "\n".join(json.dumps(action, ensure_ascii=is_ascii) for _ in range(2)).encode()
        assert all(_is_cut(content[:end] + zeros) for end in range(len(content)) for zeros in (b"", bytes(9)))


@pytest.mark.parametrize("is_pointer_torn", [False, True])
def test_a_half_written_checkpoint_is_set_aside_and_the_log_read_instead(
    tmp_path: Path, owner: LedgerOwner, is_pointer_torn: bool
) -> None:
    DeltaTable(str(tmp_path / "offset_map")).create_checkpoint()
    (checkpoint,) = log_of(tmp_path).glob("*.checkpoint.parquet")
    pointer = log_of(tmp_path) / "_last_checkpoint"
    torn = pointer if is_pointer_torn else checkpoint
    torn.write_bytes(torn.read_bytes()[:7])
    age(checkpoint, pointer)
    assert [row.segment.source_end for row in take(tmp_path, "two").unsettled()] == [10]
    assert (checkpoint.exists(), pointer.exists()) == (is_pointer_torn, False)


def test_a_commit_is_on_the_disk_with_its_data_before_it_is_acknowledged(
    tmp_path: Path, owner: LedgerOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    owner.next_decision()
    owner.decide([data(10, 11, TXN)], 0)
    commit = newest_commit(tmp_path)
    assert synced[:2] == [str(data_file(commit)), str(commit)]
    assert {str(log_of(tmp_path)), str(tmp_path / "offset_map"), str(tmp_path)} <= set(synced)


def test_a_decision_that_the_disk_does_not_confirm_is_unknown_and_resolved_first(
    tmp_path: Path, owner: LedgerOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuse)
        owner.next_decision()
        with pytest.raises(OutcomeUnknownError, match="does not confirm"):
            owner.decide([data(10, 11, TXN)], 0)
    with pytest.raises(OutcomeUnknownError, match="not resolved"):
        owner.positions()
    owner.check_ownership()
    assert owner.unsettled() == (data(10, 11, TXN),)
    owner.settle()
    assert owner.positions()[SOURCE].offset == 11


# --- a short log


def many_commits(tables: Path, checkpoints: tuple[int, ...]) -> list[int]:
    """Versions of a map with ten decisions; checkpoints at some of them, with what other writers leave beside commits."""
    made = take(tables, "one")
    made.settle()
    for at in range(10):
        made.next_decision()
        made.decide([data(at, at + 1, SlotTxn("m-0", 1, at))], 0)
        if DeltaTable(str(tables / "offset_map")).version() in checkpoints:
            DeltaTable(str(tables / "offset_map")).create_checkpoint()
    for version in versions(tables):
        for name in (f".{version:020}.json.crc", f"{version:020}.crc"):
            (log_of(tables) / name).touch()
    return versions(tables)


def versions(tables: Path) -> list[int]:
    return sorted(int(file.stem) for file in log_of(tables).glob("*.json"))


def checkpoint_of(tables: Path, version: int) -> Path:
    return log_of(tables) / f"{version:020}.checkpoint.parquet"


def test_a_log_is_cut_below_the_newest_checkpoint_that_kept_versions_need(tmp_path: Path) -> None:
    last = many_commits(tmp_path, (3, 5, 8, 11))[-1]
    LocalLog(tmp_path / "offset_map").shorten(kept_commits=last - 7)
    assert versions(tmp_path) == list(range(5, last + 1))
    names = {file.name for file in log_of(tmp_path).iterdir()}
    assert not [name for name in names if name.lstrip(".")[:20] < f"{5:020}"]
    assert {checkpoint_of(tmp_path, version).name for version in (5, 8, 11)} < names
    assert DeltaTable(str(tmp_path / "offset_map"), version=7).to_pyarrow_table().num_rows == 5
    assert [row.segment.source_end for row in take(tmp_path, "two").unsettled()] == [10]


@pytest.mark.parametrize("harm", ["half-written", "in parts", "too young"])
def test_without_a_whole_checkpoint_below_the_kept_versions_a_log_stays(tmp_path: Path, harm: str) -> None:
    before = many_commits(tmp_path, (5,))
    checkpoint = checkpoint_of(tmp_path, 5)
    if harm == "half-written":
        checkpoint.write_bytes(checkpoint.read_bytes()[:-2])
    elif harm == "in parts":
        checkpoint.rename(log_of(tmp_path) / f"{5:020}.checkpoint.0000000001.0000000002.parquet")
    LocalLog(tmp_path / "offset_map").shorten(kept_commits=before[-1] - 4 if harm == "too young" else 3)
    assert versions(tmp_path) == before


@pytest.mark.parametrize("deleted", [1, 4, 9])
def test_a_log_that_was_half_shortened_has_no_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int) -> None:
    last = many_commits(tmp_path, (3, 9))[-1]
    left = deleted
    unlink = Path.unlink

    def until_killed(file: Path, missing_ok: bool = False) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        unlink(file, missing_ok)

    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", until_killed)
        with pytest.raises(KeyboardInterrupt):
            LocalLog(tmp_path / "offset_map").shorten(kept_commits=1)
    left_over = versions(tmp_path)
    assert left_over == list(range(left_over[0], last + 1))
    assert [row.segment.source_end for row in take(tmp_path, "two").unsettled()] == [10]
    LocalLog(tmp_path / "offset_map").shorten(kept_commits=1)
    assert versions(tmp_path)[0] == 9


@pytest.mark.parametrize("folder", ["s3://bucket/map", "abfss://c@a.dfs.core.windows.net/map", "dbfs:/map", "/Volumes/a/b/map"])
def test_a_folder_that_is_not_on_this_machine_is_left_to_its_store(folder: str) -> None:
    assert local_log(folder) is None


@pytest.mark.parametrize("folder", ["/data/map", "file:/data/map", "file:///data/map"])
def test_a_folder_of_this_machine_has_a_log_however_it_is_written(folder: str) -> None:
    assert isinstance(local_log(folder), LocalLog)
