"""Late writes: where they lie between the copies of a reverse mirror, and how they are settled exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.fakes.strict_broker import StrictCluster
from tests.support import mirror_runs as runs
from tests.support.record_batches import batch, marker

from shallow_mirror import cli
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import connectivity
from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.logs.runs import MigrationLog, MigrationOwner
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles
from shallow_mirror.errors import ConfigError, OlderTablesError, RetriableError
from shallow_mirror.migration import Choice, late_settling, read_state, require_wave, session, settle_late_writes, view
from shallow_mirror.migration.late_settling import QUARANTINE_PREFIX
from shallow_mirror.migration.late_writes import (
    Copied,
    LateWrite,
    Passed,
    find_late_writes,
    gaps_of,
    holding_records,
    parted,
    settled_writes,
)
from shallow_mirror.migration.newest_row import NewestRow
from shallow_mirror.migration.reverse_mirror import register_positions
from shallow_mirror.migration.session import LateWrites
from shallow_mirror.migration.state import BEGUN, DONE, SETTLED_LATE
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.operations import recover
from shallow_mirror.operations.redo import RedoRequest, RedoResult
from shallow_mirror.types import OffsetRange, TopicPartition

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("copies", "gaps"),
    [
        pytest.param([], [(20, 40)], id="no copies"),
        pytest.param([(20, 39, 1)], [], id="copies and their marker"),
        pytest.param([(20, 29, 1), (30, 39, 2)], [], id="two transactions with a marker each"),
        pytest.param([(20, 29, 1), (30, 40, 1)], [(29, 30)], id="a record within the copies of a transaction"),
        pytest.param([(20, 29, 1), (31, 39, 2)], [(29, 31)], id="a record beside a marker"),
        pytest.param([(21, 39, 1)], [(20, 21)], id="a record before the first copy"),
        pytest.param([(20, 38, 1)], [(38, 40)], id="a record behind the last marker"),
        pytest.param([(20, 29, 1), (30, 31, None), (32, 39, 2)], [(31, 32)], id="a record behind a settled one"),
        pytest.param([(20, 25, None), (25, 39, 2)], [], id="settled ones and copies"),
        pytest.param([(10, 30, 1), (25, 60, 1)], [], id="copies that reach further on both sides"),
        pytest.param([(50, 60, 1)], [(20, 40)], id="copies behind the range"),
    ],
)
def test_offsets_that_no_copy_covers_are_looked_at_but_for_the_marker_of_each_transaction(
    copies: list[tuple[int, int, int | None]], gaps: list[tuple[int, int]]
) -> None:
    found = gaps_of(OffsetRange(20, 40), [Copied(*copied) for copied in copies])
    assert [(gap.start, gap.end) for gap in found] == gaps


@pytest.fixture(autouse=True)
def _without_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster is there to note the newest row of the table."""
    monkeypatch.setattr(NewestRow, "require_in", lambda _, read: read())
    monkeypatch.setattr(NewestRow, "note", lambda *_: None)


@pytest.fixture(autouse=True)
def deleted(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the topics that the other cluster does not have: none until a test adds some."""
    topics = set[str]()
    monkeypatch.setattr(late_settling, "absent_topics", lambda _cluster, names, _deadline: topics & set(names))
    monkeypatch.setattr(late_settling, "_is_gone", lambda _mirror, write: str(write) in topics)
    monkeypatch.setattr(late_settling, "source_ids", lambda _mirror: {})
    return topics


@pytest.fixture
def files(tmp_path: Path) -> MigrationFiles:
    """Return a migration whose wave has passed its point of no return."""
    for name, source, target in (("mirror", "east", "west"), ("reverse", "west", "east")):
        document = {
            "mirror": name,
            "source": {"alias": source, "client": {"bootstrap.servers": "127.0.0.1:1"}},
            "target": {"alias": target, "client": {"bootstrap.servers": "127.0.0.1:1"}},
            "topics": {"include": ["orders"]},
            "tables": name,
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    wave = {"name": "all", "topics": ["orders"], "reverse": "reverse.yaml"}
    migration = {"migration": "m", "mirror": "mirror.yaml", "waves": [wave], "tables": "migration"}
    (tmp_path / "migration.yaml").write_text(yaml.safe_dump(migration), encoding="utf-8")
    files = MigrationFiles(MigrationConfig.load(tmp_path / "migration.yaml"))
    log = MigrationLog.open(TableStorage(files.config.table_location), "m")
    owner = log.take_over(RunIdentity.of_this_process(), files.fingerprint, lambda: 0)
    owner.append(event=BEGUN, wave="all", detail={"direction": "move"})
    ends = {"origin_ends": {"orders": {"0": 20}}, "other_ends": {"orders": {"0": 22}}}
    owner.append(event=DONE, wave="all", step=Step.POINT_OF_NO_RETURN.value, detail=ends)
    return files


class Said:
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def begun(self, wave: str, step: Step) -> None: ...
    def done(self, wave: str, step: Step, detail: Any) -> None: ...
    def waits(self, outside: Any) -> None: ...
    def says(self, sentence: str) -> None:
        self.sentences.append(sentence)


class Copies:
    """Copies of ranges; the process ends at the copy number `fails_at`. `gone`: what the source has no more."""

    def __init__(self, fails_at: int | None = None, gone: Sequence[OffsetRange] = ()) -> None:
        self._fails_at, self._gone = fails_at, gone
        self.made: list[tuple[str, RedoRequest]] = []

    def __call__(self, config: MirrorConfig, request: RedoRequest) -> RedoResult:
        if len(self.made) == self._fails_at:
            raise RetriableError("BROKER_NOT_AVAILABLE", "the target does not answer")
        self.made.append((config.mirror, request))
        gone = tuple(offsets for offsets in self._gone if request.start <= offsets.start < request.end)
        count = request.end - request.start - sum(offsets.end - offsets.start for offsets in gone)
        return RedoResult(request, request.start, request.end, count, "tables", was_done=False, gone=gone)


def at_source(monkeypatch: pytest.MonkeyPatch, *writes: LateWrite) -> None:
    """Let the source hold these late writes, but for what was settled."""

    def find(files: MigrationFiles, settings: Any, wave: Any) -> list[LateWrite]:
        passed = Passed.of(wave)
        assert passed is not None
        return [write for write in writes if write not in settled_writes(wave, passed.direction)]

    for module in (late_settling, session):
        monkeypatch.setattr(module, "find_late_writes", find)
    monkeypatch.setattr(session, "find_open_transactions", lambda *_: [])


FIRST, SECOND, THIRD = (LateWrite(topic_partition=ORDERS, start=start, end=start + 5, record_count=5) for start in (20, 30, 40))


@pytest.mark.slow
@pytest.mark.parametrize(("choice", "topic"), [(Choice.CARRY, "orders"), (Choice.QUARANTINE, "__late-writes.orders")])
def test_late_writes_are_copied_once_to_the_topic_of_the_choice(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, choice: Choice, topic: str
) -> None:
    at_source(monkeypatch, FIRST, SECOND)
    copies = Copies()
    (settled,) = settle_late_writes(files, Said(), choice, copy=copies)
    assert copies.made == [("mirror", RedoRequest(ORDERS, write.start, write.end, topic)) for write in (FIRST, SECOND)]
    assert (settled.topics, settled.other) == ((topic,), "west")
    assert settle_late_writes(files, Said(), choice, copy=copies) == []
    assert len(copies.made) == 2
    state = read_state(files)
    assert settled_writes(state.waves["all"], Direction.MOVE) == [FIRST, SECOND]
    (lines,) = view.late_lines(files, state, {"all": LateWrites()}).values()
    assert lines[0].startswith("orders-0 offsets 20 to 24 (5 records): c")


@pytest.mark.slow
def test_a_command_that_ended_in_between_is_continued_with_its_ranges_and_its_choice(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range that ends the log may have grown since: with its new end it would be another copy, and records be repeated."""
    at_source(monkeypatch, FIRST, SECOND)
    ended = Copies(fails_at=1)
    with pytest.raises(RetriableError):
        settle_late_writes(files, Said(), Choice.CARRY, copy=ended)
    at_source(monkeypatch, FIRST, SECOND, LateWrite(topic_partition=ORDERS, start=35, end=50, record_count=15))
    copies = Copies()
    settle_late_writes(files, Said(), Choice.QUARANTINE, copy=copies)
    begun, came = [(20, 25, "orders"), (30, 35, "orders")], (35, 50, "__late-writes.orders")
    assert [(made.start, made.end, made.target_topic) for _, made in copies.made] == [*begun, came]


@pytest.mark.slow
@pytest.mark.parametrize("fails_at", [None, 0], ids=["ended", "killed"])
def test_what_another_command_has_settled_since_it_was_found_is_not_copied_again(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, fails_at: int | None
) -> None:
    """The log has grown between both looks: with another end it would be another copy."""
    grown = replace(FIRST, end=30, record_count=10)
    others, copies, looks = Copies(fails_at), Copies(), list[LateWrite]()

    def find(files: MigrationFiles, _settings: Any, wave: Any) -> list[LateWrite]:
        if not looks:
            looks.append(grown)
            with monkeypatch.context() as elsewhere, suppress(RetriableError):
                at_source(elsewhere, FIRST)
                settle_late_writes(files, Said(), Choice.CARRY, copy=others)
        return looks

    monkeypatch.setattr(late_settling, "find_late_writes", find)
    with pytest.raises(ConfigError, match="another command has changed wave all since this one began, and nothing was copied"):
        settle_late_writes(files, Said(), Choice.CARRY, copy=copies)
    assert copies.made == []
    at_source(monkeypatch, FIRST, replace(grown, start=25, record_count=5))
    settle_late_writes(files, Said(), Choice.CARRY, copy=copies)
    assert [(made.start, made.end) for _, made in (*others.made, *copies.made)] == [(20, 25), (25, 30)]


@pytest.mark.slow
def test_the_quarantine_of_a_topic_with_a_long_name_has_the_begin_of_it_and_a_hash(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TopicPartition("o" * (249 - len(QUARANTINE_PREFIX) + 1), 0)
    other = TopicPartition(f"{name.topic[:-1]}p", 0)
    at_source(monkeypatch, *(LateWrite(topic_partition=each, start=0, end=1) for each in (name, other)))
    copies = Copies()
    settle_late_writes(files, Said(), Choice.QUARANTINE, copy=copies)
    first, second = (made.target_topic for _, made in copies.made)
    assert len(first) == len(second) == 249
    assert first[:240] == second[:240] == (QUARANTINE_PREFIX + name.topic)[:240]
    assert first != second


@pytest.mark.slow
def test_a_topic_that_was_deleted_since_the_move_is_not_created_again_by_late_writes(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, deleted: set[str]
) -> None:
    deleted.add("orders")
    at_source(monkeypatch, FIRST)
    copies = Copies()
    with pytest.raises(ConfigError, match="orders was deleted at west since the move, and nothing was copied: give --quarantine"):
        settle_late_writes(files, Said(), Choice.CARRY, copy=copies)
    assert (copies.made, read_state(files).waves["all"].settling) == ([], ())
    settle_late_writes(files, Said(), Choice.QUARANTINE, copy=copies)
    assert [made.target_topic for _, made in copies.made] == [f"{QUARANTINE_PREFIX}orders"]


@pytest.mark.slow
def test_what_was_carried_to_a_topic_that_was_deleted_since_goes_into_quarantine_only(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, deleted: set[str]
) -> None:
    at_source(monkeypatch, FIRST, SECOND)
    with pytest.raises(RetriableError):
        settle_late_writes(files, Said(), Choice.CARRY, copy=Copies(fails_at=1))
    deleted.add("orders")
    copies = Copies()
    with pytest.raises(ConfigError, match="orders was deleted at west since the move, and nothing was copied: give --quarantine"):
        settle_late_writes(files, Said(), Choice.CARRY, copy=copies)
    settle_late_writes(files, Said(), Choice.QUARANTINE, copy=copies)
    assert [(made.start, made.target_topic) for _, made in copies.made] == [
        (write.start, f"{QUARANTINE_PREFIX}orders") for write in (FIRST, SECOND)
    ]
    wave = read_state(files).waves["all"]
    assert (wave.settling, [done["choice"] for done in wave.late_writes]) == ((), ["quarantine"])


@pytest.mark.slow
def test_what_was_carried_to_other_topics_than_the_one_that_was_deleted_since_does_not_go_into_quarantine_as_well(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, deleted: set[str]
) -> None:
    other = replace(SECOND, topic_partition=TopicPartition("payments", 0))
    at_source(monkeypatch, FIRST, other)
    carried = Copies(fails_at=1)
    with pytest.raises(RetriableError):
        settle_late_writes(files, Said(), Choice.CARRY, copy=carried)
    deleted.add("payments")
    copies = Copies()
    (settled,) = settle_late_writes(files, Said(), Choice.QUARANTINE, copy=copies)
    targets = ["orders", f"{QUARANTINE_PREFIX}payments"]
    assert [made.target_topic for _, made in copies.made] == list(settled.topics) == targets
    assert carried.made[0] == copies.made[0], "the same copy, which is continued"
    state = read_state(files)
    (lines,) = view.late_lines(files, state, {"all": LateWrites()}).values()
    assert lines == [f"{FIRST}: carried to the other cluster", f"{other}: copied to topics of their own"]
    (wave,) = view.state_document(state, "m")["waves"]
    assert [each["choice"] for each in wave["settled_late_writes"]] == ["carry", "quarantine"]


@pytest.mark.slow
def test_what_is_gone_by_the_time_a_killed_command_is_continued_does_not_hold_up_the_rest(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, deleted: set[str]
) -> None:
    at_source(monkeypatch, FIRST, SECOND)
    with pytest.raises(RetriableError):
        settle_late_writes(files, Said(), Choice.CARRY, copy=Copies(fails_at=0))
    deleted.add(str(FIRST))
    said, copies = Said(), Copies(gone=(OffsetRange(FIRST.start, FIRST.end),))
    (settled,) = settle_late_writes(files, said, Choice.CARRY, copy=copies)
    assert (settled.writes, settled.lost) == ((SECOND,), (FIRST,))
    assert f"all: {FIRST} is not at east any more: nothing of it is left to copy" in said.sentences
    assert read_state(files).waves["all"].settling == ()


@pytest.mark.slow
def test_what_was_deleted_before_it_was_copied_is_lost_and_neither_copied_nor_late_any_more(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, deleted: set[str]
) -> None:
    at_source(monkeypatch, FIRST, SECOND)
    deleted.add(str(FIRST))
    said = Said()
    (settled,) = settle_late_writes(files, said, Choice.CARRY, copy=Copies(gone=(OffsetRange(20, 25), OffsetRange(30, 32))))
    copied, lost = replace(SECOND, start=32, record_count=3), replace(SECOND, end=32, record_count=2)
    assert (settled.writes, settled.lost, settled.topics) == ((copied,), (FIRST, lost), ("orders",))
    sentence = "orders-0 offsets 30 to 31 (2 records): LOST: deleted at east before they were copied"
    assert f"all: {sentence}" in said.sentences
    assert settle_late_writes(files, said, Choice.CARRY, copy=Copies()) == []
    state = read_state(files)
    (lines,) = view.late_lines(files, state, {"all": LateWrites()}).values()
    assert lines == [
        "orders-0 offsets 32 to 34 (3 records): carried to the other cluster",
        "orders-0 offsets 20 to 24 (5 records): LOST: deleted at east before they were copied",
        sentence,
    ]
    (wave,) = view.state_document(state, "m")["waves"]
    assert wave["settled_late_writes"] == [{**copied.document(), "choice": "carry"}]
    assert wave["lost_late_writes"] == [FIRST.document(), lost.document()]


def printed(capsys: pytest.CaptureFixture[str], files: MigrationFiles, *options: str) -> tuple[int | str | None, str, str]:
    """Return the exit code of `migrate late-writes`, and what it prints."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["migrate", "late-writes", files.config.path, *options])
    return (ended.value.code, *capsys.readouterr())


@pytest.mark.slow
def test_the_command_names_what_came_while_it_copied_and_ends_with_1(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_source(monkeypatch, FIRST)
    copies = Copies()

    def copy(config: MirrorConfig, request: RedoRequest, **_: Any) -> RedoResult:
        at_source(monkeypatch, FIRST, THIRD)
        return copies(config, request)

    monkeypatch.setattr(late_settling, "redo", copy)
    code, output, _ = printed(capsys, files, "--carry")
    came = "wave all: orders-0 offsets 40 to 44 (5 records): came meanwhile, and is not copied: run the command again"
    assert (code, output.splitlines()) == (1, ["wave all: 1 range copied to orders at west", came])
    assert printed(capsys, files, "--carry")[0] == 0


@pytest.mark.slow
def test_a_range_whose_copy_was_killed_is_named_with_the_command_that_continues_it(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_source(monkeypatch, FIRST, SECOND)
    with pytest.raises(RetriableError):
        settle_late_writes(files, Said(), Choice.QUARANTINE, copy=Copies(fails_at=0))
    grown = replace(SECOND, end=THIRD.end, record_count=15)
    at_source(monkeypatch, FIRST, grown)
    code, output, _ = printed(capsys, files)
    lines = output.splitlines()
    assert code == 1
    came = replace(SECOND, start=SECOND.end, end=THIRD.end, record_count=10)
    assert [line.split(": ")[1] for line in lines] == [str(FIRST), str(SECOND), str(came)]
    assert lines[0].endswith("--wave all --quarantine` continues it")
    assert "no mirror copies that" in lines[2]


@pytest.mark.slow
def test_the_command_says_what_was_lost_and_ends_with_1(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, deleted: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    at_source(monkeypatch, FIRST, SECOND)
    copies = Copies(gone=(OffsetRange(20, 25), OffsetRange(30, 32)))
    monkeypatch.setattr(late_settling, "redo", lambda config, request, **_: copies(config, request))
    deleted.add(str(FIRST))
    lost = (
        "orders-0 offsets 20 to 24 (5 records): LOST: deleted at east before they were copied",
        "orders-0 offsets 30 to 31 (2 records): LOST: deleted at east before they were copied",
    )
    code, output, _ = printed(capsys, files, "--carry")
    assert code == 1
    assert output.splitlines() == ["wave all: 1 range copied to orders at west", *(f"wave all: {line}" for line in lost)]
    carried = "orders-0 offsets 32 to 34 (3 records): carried to the other cluster"
    code, output, _ = printed(capsys, files)
    assert (code, output.splitlines()) == (0, [f"all: {line}" for line in (carried, *lost)])
    assert printed(capsys, files, "--quarantine")[:2] == (0, "no late writes\n")


@pytest.mark.slow
def test_the_command_names_no_topic_where_nothing_was_copied(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, deleted: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    at_source(monkeypatch, FIRST)
    deleted.add(str(FIRST))
    copies = Copies(gone=(OffsetRange(FIRST.start, FIRST.end),))
    monkeypatch.setattr(late_settling, "redo", lambda config, request, **_: copies(config, request))
    code, output, _ = printed(capsys, files, "--carry")
    lost = "wave all: orders-0 offsets 20 to 24 (5 records): LOST: deleted at east before they were copied\n"
    assert (code, output) == (1, lost)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--carry",)])
def test_the_command_refuses_a_wave_that_the_file_does_not_have(
    files: MigrationFiles, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    code, output, error = printed(capsys, files, "--wave", "al", *options)
    assert (code, output) == (2, "")
    assert "--wave al: the migration file has no wave of this name; it has all" in error


@pytest.mark.slow
def test_late_writes_that_a_former_version_has_settled_count_as_copied(files: MigrationFiles) -> None:
    log = MigrationLog.open(TableStorage(files.config.table_location), "m")
    owner = log.take_over(RunIdentity.of_this_process(), files.fingerprint, lambda: 0)
    owner.append(event=SETTLED_LATE, wave="all", detail={"direction": "move", "choice": "carry", "writes": [FIRST.document()]})
    (lines,) = view.late_lines(files, read_state(files), {"all": LateWrites()}).values()
    assert lines == ["orders-0 offsets 20 to 24 (5 records): carried to the other cluster"]


@pytest.mark.slow
def test_a_wave_that_the_file_does_not_have_is_refused_and_those_that_it_has_are_named(files: MigrationFiles) -> None:
    with pytest.raises(ConfigError, match="--wave al: the migration file has no wave of this name; it has all"):
        settle_late_writes(files, Said(), Choice.CARRY, "al", copy=Copies())
    state = read_state(files)
    former = replace(state, waves={**state.waves, "former": replace(state.waves["all"], name="former")})
    with pytest.raises(ConfigError, match="former is under way or has moved, and is not in the migration file any more"):
        require_wave(files, former, "former")


@dataclass
class LeftTopic:
    """The topic `orders` at east, with a record that its reverse mirror has copied there behind the point of no return."""

    files: MigrationFiles
    folder: Path

    def owner(self) -> MigrationOwner:
        log = MigrationLog.open(TableStorage(self.files.config.table_location), "m")
        return log.take_over(RunIdentity.of_this_process(), self.files.fingerprint, lambda: 0)

    def loaded(self, **reverse: str) -> MigrationFiles:
        """Return the files with another `reverse` of the wave; none: it is left out."""
        document = yaml.safe_load((self.folder / "migration.yaml").read_text(encoding="utf-8"))
        del document["waves"][0]["reverse"]
        document["waves"][0].update(reverse)
        (self.folder / "changed.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        return MigrationFiles(MigrationConfig.load(self.folder / "changed.yaml"))

    def late_writes(self, files: MigrationFiles) -> LateWrites:
        return session.read_late_writes(files, read_state(files))["all"]


@pytest.fixture
def left_topic(tmp_path: Path) -> Iterator[LeftTopic]:
    with StrictCluster(cluster_id="east-id") as east, StrictCluster(cluster_id="west-id") as west:
        for cluster in (east, west):
            cluster.create_topic("orders", 1)
        east.seed(("orders", 0), batch(0, 1), batch(1, 1))
        for name, source, target in (("mirror", east, west), ("reverse", west, east), ("other", west, east)):
            topic = "orders" if name != "other" else "others"
            document = runs.document(source.bootstrap, target.bootstrap, [topic], tables=name)
            document["mirror"] = name
            document["source"]["alias"], document["target"]["alias"] = (("east", "west"), ("west", "east"))[name != "mirror"]
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        wave = {"name": "all", "topics": ["orders"], "reverse": "reverse.yaml"}
        migration = {"migration": "m", "mirror": "mirror.yaml", "waves": [wave], "tables": "migration"}
        (tmp_path / "migration.yaml").write_text(yaml.safe_dump(migration), encoding="utf-8")
        files = MigrationFiles(MigrationConfig.load(tmp_path / "migration.yaml"))
        left = LeftTopic(files, tmp_path)
        owner = left.owner()
        owner.append(event=BEGUN, wave="all", detail={"direction": "move"})
        ends = {"origin_ends": {"orders": {"0": 1}}, "other_ends": {"orders": {"0": 0}}}
        owner.append(event=DONE, wave="all", step=Step.POINT_OF_NO_RETURN.value, detail={**ends, "writers_stopped_s": 1.0})
        for mirror in (files.mirror, files.reverses["all"]):
            register_positions(mirror, {ORDERS: 0}, {})
        owner.append(event=DONE, wave="all", step=Step.PREPARE_REVERSE.value, detail={})
        yield left


@pytest.mark.slow
def test_copies_of_a_reverse_mirror_that_the_file_does_not_name_any_more_are_no_late_writes(left_topic: LeftTopic) -> None:
    """They would be carried to where they come from."""
    (written,) = left_topic.late_writes(left_topic.files).writes
    assert (written.start, written.record_count) == (1, 1), "no row of the reverse mirror's map has it"
    changed = left_topic.loaded()
    late = left_topic.late_writes(changed)
    assert late.writes == ()
    assert late.problem == (
        "waves: all: has moved with a reverse mirror, and the migration file names none any more: without its map nothing tells "
        "late writes from its copies. Undo that change"
    )
    with pytest.raises(ConfigError, match="names none any more"):
        settle_late_writes(changed, Said(), Choice.CARRY, copy=Copies())


@pytest.mark.slow
def test_copies_of_a_reverse_mirror_are_no_late_writes_where_the_file_names_another_one(left_topic: LeftTopic) -> None:
    changed = left_topic.loaded(reverse="other.yaml")
    with pytest.raises(OlderTablesError, match="has registered the positions of mirror other in them"):
        settle_late_writes(changed, Said(), Choice.CARRY, copy=Copies())
    other = TopicPartition("others", 0)
    register_positions(changed.reverses["all"], {other: 0}, {})
    with pytest.raises(ConfigError, match=r"mirror other is not the reverse mirror .*: its map does not have orders\. Undo that"):
        settle_late_writes(changed, Said(), Choice.CARRY, copy=Copies())


@pytest.mark.slow
def test_a_wave_that_was_rolled_back_has_a_status_without_its_reverse_mirror(
    left_topic: LeftTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = left_topic.owner()
    owner.append(event=DONE, wave="all", step=Step.REPORT.value)
    owner.append(event=BEGUN, wave="all", detail={"direction": "rollback"})
    changed = left_topic.loaded()
    with pytest.raises(ConfigError, match="names none any more"):
        session.abort(changed, Said())
    owner = left_topic.owner()
    ends = {"origin_ends": {"orders": {"0": 0}}, "other_ends": {"orders": {"0": 2}}}
    owner.append(event=DONE, wave="all", step=Step.POINT_OF_NO_RETURN.value, detail={**ends, "writers_stopped_s": 1.0})
    owner.append(event=DONE, wave="all", step=Step.REPORT.value)
    assert not view.show_state(read_state(changed), changed, as_json=False)
    printed_lines = capsys.readouterr().out.splitlines()
    assert "wave all: rolled back, attempt 2" in printed_lines
    assert any(line.startswith("  late writes: unknown: waves: all: has moved with a reverse mirror") for line in printed_lines)


@pytest.mark.parametrize(
    ("lost", "count", "copied_pieces", "lost_pieces"),
    [
        pytest.param([], 15, [(20, 35, 15)], [], id="nothing"),
        pytest.param([(34, 35)], 15, [(20, 35, 15)], [], id="an offset without a record"),
        pytest.param([(20, 25)], 10, [(25, 35, 10)], [(20, 25, 5)], id="the front"),
        pytest.param([(25, 30)], 10, [(20, 25, None), (30, 35, None)], [(25, 30, 5)], id="what followed a part that was copied"),
        pytest.param([(20, 22), (25, 28)], 10, [(22, 25, None), (28, 35, None)], [(20, 22, None), (25, 28, None)], id="twice"),
        pytest.param([(20, 35)], 0, [], [(20, 35, 15)], id="everything"),
        pytest.param([(20, 34)], 0, [], [(20, 35, 15)], id="all but a marker"),
        pytest.param([(20, 25)], None, [(25, 35, None)], [(20, 25, None)], id="the copy holds other records as well"),
    ],
)
def test_what_was_lost_of_a_late_write_is_told_from_what_was_copied(
    lost: list[tuple[int, int]],
    count: int | None,
    copied_pieces: list[tuple[int, int, int | None]],
    lost_pieces: list[tuple[int, int, int | None]],
) -> None:
    write = LateWrite(topic_partition=ORDERS, start=20, end=35, record_count=15)
    pieces = parted(write, [OffsetRange(*gap) for gap in lost], count)
    assert [[(each.start, each.end, each.record_count) for each in part] for part in pieces] == [copied_pieces, lost_pieces]


@pytest.mark.slow
@pytest.mark.parametrize("is_begun", [False, True])
def test_no_late_writes_are_settled_while_the_mirror_that_copies_has_older_tables(
    files: MigrationFiles, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """They may lack the maps of what was copied of late writes before."""
    at_source(monkeypatch, FIRST, SECOND)
    if is_begun:
        with pytest.raises(RetriableError):
            settle_late_writes(files, Said(), Choice.CARRY, copy=Copies(fails_at=1))
    before = len(read_state(files).waves["all"].settling)

    def older_tables(mirror: MirrorConfig, _spark: Any) -> OlderTablesError | None:
        return OlderTablesError("run 1 micro-batch 3", "...", 8) if mirror.mirror == "mirror" else None

    monkeypatch.setattr(recover, "older_tables", older_tables)
    has_map = SimpleNamespace(offset_map=SimpleNamespace(snapshot=lambda: 1))
    monkeypatch.setattr(late_settling, "TableStorage", lambda _location: has_map)
    copies = Copies()
    with pytest.raises(OlderTablesError, match="tables are older than the target"):
        settle_late_writes(files, Said(), Choice.CARRY, copy=copies)
    assert (copies.made, len(read_state(files).waves["all"].settling)) == ([], before)


@pytest.mark.slow
def test_a_log_with_only_markers_and_aborted_records_holds_none() -> None:
    with StrictCluster() as west:
        west.create_topic("orders", 4)
        logs = {
            0: [marker(0, 0, 7), marker(1, 1, 8)],
            1: [batch(0, 2, attributes=0x10, producer_id=7, base_sequence=0), marker(2, 0, 7)],
            2: [batch(0, 2, attributes=0x10, producer_id=7, base_sequence=0), marker(2, 1, 7)],
            3: [batch(0, 1)],
        }
        for partition, batches in logs.items():
            west.seed(("orders", partition), *batches)
        ends = {TopicPartition("orders", partition): west.log("orders", partition).end_offset for partition in logs}
        client = ClientConfig.from_properties({"bootstrap.servers": west.bootstrap})
        with closing(Cluster(client)) as cluster:
            assert holding_records(cluster, client, ends) == [TopicPartition("orders", partition) for partition in (2, 3)]


def test_the_document_of_a_late_write_is_read_back() -> None:
    assert LateWrite.of(FIRST.document()) == FIRST
    assert str(LateWrite(topic_partition=ORDERS, start=7, end=8)) == "orders-0 offset 7"


def test_a_cluster_that_does_not_answer_is_named(files: MigrationFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connectivity, "REACH_MS", 100)
    with pytest.raises(RetriableError, match="the source cluster east does not answer"):
        find_late_writes(files, files.config.waves[0], read_state(files).waves["all"])
