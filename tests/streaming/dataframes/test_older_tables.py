"""Tables of a sink that are older than the target: put back from a backup, with and without Spark's checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support.inline_frames import InlineFrame, QuerySession, Row, rows_of, sink_to, texts

from shallow_mirror import ConfigError, MicroBatchInDoubtError, OlderTablesError, WrittenRecords

pytestmark = pytest.mark.thorough

QUERY = QuerySession("query-1", {0: "[0]", 1: "[1]", 2: "[2]"})


def frame(*slots: list[Row], session: QuerySession = QUERY) -> InlineFrame:
    return InlineFrame(*slots, session=session)


ONE = (rows_of("a", "b"), rows_of("c"))
TWO = (rows_of("d"), rows_of("e", "f"))
THREE = (rows_of("g"),)


@pytest.fixture
def tables(target: StrictCluster, tmp_path: Path) -> Path:
    """Tables as they were behind batch 0. The target has batch 1 as well."""
    newest, older = tmp_path / "newest", tmp_path / "tables"
    with sink_to(target, newest) as sink:
        sink(frame(*ONE), 0)
        shutil.copytree(newest, older)
        sink(frame(*TWO), 1)
    return older


def lost_run(target: StrictCluster, tables: Path) -> str:
    with sink_to(target, tables) as sink, pytest.raises(OlderTablesError) as older:
        sink(frame(*THREE), 2)
    return older.value.run_id


def test_older_tables_are_refused_with_the_way_on(target: StrictCluster, tables: Path) -> None:
    with sink_to(target, tables) as sink:
        for _ in range(2):
            with pytest.raises(OlderTablesError) as older:
                sink(frame(*TWO), 1)
    run_id = older.value.run_id
    assert str(older.value).endswith(
        "Put the newest tables back (all of the folder or prefix of `tables`), or leave it to the run that has them; if they are "
        f"lost, give the sink lost_run='{run_id}': it continues behind batch 1 of query query-1 (source offsets [1]), which was "
        "written last"
    )
    assert sorted(texts(target)) == list("abcdef")
    newest = WrittenRecords.open(str(tables.parent / "newest")).recorded()
    assert newest is not None
    assert newest.run.run_id == run_id


def test_a_query_with_its_newest_checkpoint_continues(target: StrictCluster, tables: Path) -> None:
    with sink_to(target, tables, lost_run=lost_run(target, tables)) as sink:
        sink(frame(*THREE), 2)
        sink(frame(rows_of("z")), 3)
    with sink_to(target, tables) as sink:  # lost_run is needed once
        QUERY.runs += 1
        replay = frame(rows_of("z"))
        sink(replay, 3)
    assert (replay.evaluations, sorted(texts(target))) == (0, [*"abcdefg", "z"])


def test_a_replay_of_what_the_tables_lack_needs_a_choice_also_after_the_next_start(target: StrictCluster, tables: Path) -> None:
    lost = lost_run(target, tables)
    given: tuple[dict[str, Any], ...] = ({"lost_run": lost}, {}, {"lost_run": lost})
    for arguments in given:
        with (
            sink_to(target, tables, **arguments) as sink,
            pytest.raises(MicroBatchInDoubtError, match="do not say what it wrote"),
        ):
            sink(frame(*TWO), 1)
    with sink_to(target, tables, on_doubt="skip") as sink:
        sink(frame(*TWO), 1)
        sink(frame(*THREE), 2)
    assert sorted(texts(target)) == list("abcdefg")


def test_what_the_tables_lack_can_be_repeated(target: StrictCluster, tables: Path) -> None:
    with sink_to(target, tables, lost_run=lost_run(target, tables), on_doubt="repeat") as sink:
        sink(frame(*TWO), 1)
    assert sorted(texts(target)) == list("abcddeeff")


@pytest.mark.parametrize("offsets", [{0: "[7]"}, {0: "[0]", 1: "[7]"}], ids=["batch 0", "batch 1"])
def test_a_checkpoint_that_is_older_as_well_is_refused(target: StrictCluster, tables: Path, offsets: dict[int, str]) -> None:
    older = QuerySession("query-1", offsets)
    with sink_to(target, tables, lost_run=lost_run(target, tables)) as sink:
        with pytest.raises(ConfigError, match=r"begin a new query behind .* batch 1 of query query-1 \(\[1\]\)"):
            sink(frame(*THREE, session=older), max(offsets))
    assert sorted(texts(target)) == list("abcdef")


def test_a_new_query_may_follow_what_the_tables_lack(target: StrictCluster, tables: Path) -> None:
    new = QuerySession("query-2", {0: "[2]"})
    arguments: dict[str, Any] = {"lost_run": lost_run(target, tables)}
    with sink_to(target, tables, **arguments) as sink:
        with pytest.raises(ConfigError, match=r"batch 1 of query query-1 \(\[1\]\), and give the sink follows='query-1'"):
            sink(frame(*THREE, session=new), 0)
    with sink_to(target, tables, follows="query-1") as sink:
        with pytest.raises(MicroBatchInDoubtError, match="batch 0 of query query-2 follows batch 1 of query query-1, which was"):
            sink(frame(*THREE, session=new), 0)
    with sink_to(target, tables, follows="query-1", on_doubt="skip") as sink:
        sink(frame(*THREE, session=new), 0)
    assert sorted(texts(target)) == list("abcdefg")


def test_a_job_that_the_tables_lack_is_not_written_again(target: StrictCluster, tmp_path: Path) -> None:
    job, older = "2026-11-27 " + "x" * 200, tmp_path / "older"
    with sink_to(target, tmp_path / "tables") as sink:
        sink.write(InlineFrame(*ONE), job_id="2026-11-26")
        shutil.copytree(tmp_path / "tables", older)
        sink.write(InlineFrame(*TWO), job_id=job)
    with sink_to(target, older) as sink, pytest.raises(OlderTablesError, match="continues behind job") as refused:
        sink.write(InlineFrame(*THREE), job_id="2026-11-28")
    with sink_to(target, older, lost_run=refused.value.run_id) as sink:
        assert not sink.write(InlineFrame(*ONE), job_id="2026-11-26")
        with pytest.raises(MicroBatchInDoubtError):
            sink.write(InlineFrame(*TWO), job_id=job)
        assert sink.write(InlineFrame(*THREE), job_id="2026-11-28")
    assert sorted(texts(target)) == list("abcdefg")


def test_a_job_waits_for_the_query_whose_last_micro_batch_the_tables_lack(target: StrictCluster, tables: Path) -> None:
    with sink_to(target, tables, lost_run=lost_run(target, tables)) as sink:
        with pytest.raises(MicroBatchInDoubtError, match="job a follows batch 1 of query query-1, which was committed"):
            sink.write(InlineFrame(rows_of("j")), job_id="a")
        with pytest.raises(MicroBatchInDoubtError, match="batch 1 of query query-1, which was committed"):
            sink(frame(*TWO), 1)
        sink(frame(*THREE), 2)
        assert sink.write(InlineFrame(rows_of("j")), job_id="a")
    assert sorted(texts(target)) == [*"abcdefg", "j"]


def test_the_run_with_the_newest_tables_ends_when_another_continues_without_them(target: StrictCluster, tables: Path) -> None:
    with sink_to(target, tables.parent / "newest") as newest:
        newest(frame(*THREE), 2)
        with sink_to(target, tables, lost_run=lost_run(target, tables)) as older:
            older(frame(rows_of("y")), 3)
            with pytest.raises(OlderTablesError, match="continues behind batch 3 of query query-1"):
                newest(frame(rows_of("z")), 3)
    assert sorted(texts(target)) == [*"abcdefg", "y"]


def test_another_run_than_the_named_one_is_not_accepted(target: StrictCluster, tables: Path) -> None:
    lost = lost_run(target, tables)
    with sink_to(target, tables.parent / "newest") as newest:
        newest(frame(*THREE), 2)
    with sink_to(target, tables, lost_run=lost) as sink, pytest.raises(OlderTablesError, match="batch 2 of query query-1"):
        sink(frame(rows_of("z")), 3)
    assert sorted(texts(target)) == list("abcdefg")


def test_what_a_slot_wrote_that_the_older_tables_do_not_know_of_is_not_written_again(
    target: StrictCluster, tmp_path: Path
) -> None:
    newest, older = tmp_path / "newest", tmp_path / "older"
    with sink_to(target, newest, slots=1) as sink:
        sink(frame(rows_of("a")), 0)
    shutil.copytree(newest, older)
    with sink_to(target, newest, slots=4) as sink:
        sink(frame([], [], rows_of("b")), 1)
    with sink_to(target, older, slots=1) as sink, pytest.raises(OlderTablesError) as refused:
        sink(frame(rows_of("b")), 1)
    assert "behind batch 1 of query query-1" in str(refused.value)
    with (
        sink_to(target, older, slots=1, lost_run=refused.value.run_id) as sink,
        pytest.raises(MicroBatchInDoubtError, match="batch 1 of query query-1, which was committed"),
    ):
        sink(frame(rows_of("b")), 1)
    assert sorted(texts(target)) == ["a", "b"]
