"""`failover abort`: a false alarm is taken back, and the mirror continues; not where others have used the target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.operators.failover_reports import SilentReports
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import KilledError, Life
from tests.operators.surroundings import opened_world
from tests.support.acl_stores import FakeStore

from shallow_mirror import cli
from shallow_mirror.access import read_only, read_only_sync, write_deny
from shallow_mirror.broker.admin.access import Acl, AclOperation, ResourceKind, ResourcePattern
from shallow_mirror.checkpoints.logs.runs import log_problem
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.failover_config import FailoverConfig, FailoverFiles
from shallow_mirror.errors import ConfigError, OlderTablesError, RetriableError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.sync_plan import committed_offsets
from shallow_mirror.migration import Options
from shallow_mirror.migration.failover import (
    FailoverState,
    Step,
    abort_failover,
    effects as failover_effects,
    fail_back,
    fail_over,
    plan_failover,
    read_failover,
    view,
)
from shallow_mirror.migration.newest_row import NewestRow
from shallow_mirror.migration.session import owned_log
from shallow_mirror.preflight import preflight_mirror, start_problems
from shallow_mirror.sinks.kafka import NewestControl

pytestmark = [pytest.mark.usefixtures("without_logging"), pytest.mark.thorough]


class FailedOver:
    """A world whose mirror was failed over after ten records, although its source answers."""

    def __init__(self, world: FakeWorld, files: FailoverFiles) -> None:
        self.world, self.files = world, files

    def fail_over(self) -> FailoverState:
        return fail_over(self.files, SilentReports(), Options(), despite_source=True)

    def abort(self, **options: Any) -> FailoverState:
        return abort_failover(self.files, SilentReports(), Options(), **options)

    def refused(self, **options: Any) -> list[str]:
        """Return why an abort is refused; nothing is changed then."""
        with pytest.raises(ConfigError) as refusal:
            self.abort(**options)
        assert self.world.controls().read().failed_over
        assert self.state().is_failed_over
        return list(refusal.value.problems)

    def state(self) -> FailoverState:
        return read_failover(self.files)


@pytest.fixture
def failed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailedOver]:
    with opened_world(tmp_path / "world") as world:
        world.create_source_topic("a", 1)
        world.produce("a", 0, 10)
        world.source.commit_group("billing", "a", 0, 4)
        assert world.run(Life()) is None
        world.target.commit_group("billing", "a", 0, 3)
        monkeypatch.setattr(MirrorConfig, "load", lambda _path: world.config)
        scene = FailedOver(world, files_in(tmp_path / "world"))
        assert scene.fail_over().phase == "failed over"
        yield scene


def values(world: FakeWorld) -> list[str]:
    return list(world.target.read("a", 0).values())


def test_a_mirror_continues_after_the_abort_and_can_be_failed_over_again(failed_over: FailedOver) -> None:
    world = failed_over.world
    world.produce("a", 0, 5)
    assert isinstance(world.run(Life()), ConfigError), "it is fenced"
    state = failed_over.abort()
    assert (state.phase, state.is_aborting, state.done) == ("at the source", False, {})
    assert state.aborted_at is not None
    assert world.run(Life()) is None
    world.check()
    assert len(values(world)) == 15
    assert failed_over.fail_over().phase == "failed over"
    assert isinstance(world.run(Life()), ConfigError)


def test_what_others_have_at_the_name_of_a_forgotten_copy_is_not_in_the_way_of_an_abort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_world(tmp_path / "world") as world:
        for topic in ("a", "b"):
            world.create_source_topic(topic, 1)
            world.produce(topic, 0, 5)
        assert world.run(Life()) is None
        world.delete_target_topic("b")
        world.forget("b")
        world.target.create_topic("b", 1)
        world.target.produce("b", 0, [f"of others {number}" for number in range(20)])
        monkeypatch.setattr(MirrorConfig, "load", lambda _path: world.config)
        scene = FailedOver(world, files_in(tmp_path / "world"))
        assert scene.fail_over().phase == "failed over"
        world.target.commit_group("of others", "b", 0, 7)
        assert world.controls().read().failed_over.keys() == {"a"}
        assert scene.abort().phase == "at the source"
        world.produce("a", 0, 5)
        assert world.run(Life()) is None
        assert len(values(world)) == 10


def test_preflight_refuses_a_mirror_that_was_failed_over_as_a_start_does(failed_over: FailedOver) -> None:
    world = failed_over.world
    refusal = world.run(Life())
    assert isinstance(refusal, ConfigError)
    assert preflight_mirror(world.config).stops() == [f"cluster west: {refusal}"]
    assert start_problems(world.config, ()) == [f"cluster west: {refusal}"]
    failed_over.abort()
    assert not preflight_mirror(world.config).stops()
    assert world.run(Life()) is None


@pytest.mark.parametrize("is_behind", [False, True])
def test_an_abort_that_is_killed_anywhere_is_finished_by_the_next_one(failed_over: FailedOver, is_behind: bool) -> None:
    world, number = failed_over.world, 0

    def abort() -> None:
        failed_over.abort()

    while True:
        number += 1
        life = Life(kill_at=number, is_behind=is_behind)
        try:
            world.command(life, abort)
        except KilledError:
            pass
        else:
            break
        if failed_over.state().is_aborting:
            with pytest.raises(ConfigError, match="finish it with `shallow-mirror failover abort FILE`"):
                failed_over.fail_over()
        if failed_over.state().begun_at:
            failed_over.abort()
        assert not world.controls().read().failed_over
        failed_over.fail_over()
    assert number > 4
    assert world.run(Life()) is None
    world.check()


def test_records_of_others_at_the_target_are_in_the_way(failed_over: FailedOver) -> None:
    failed_over.world.target.produce("a", 0, ["of an application", "another one"])
    (problem,) = failed_over.refused()
    assert problem.startswith("records were written to west since, which east lacks: a-0 offset")
    assert "(2 records): `failover back` brings topics, groups and writers back without loss" in problem
    assert failed_over.refused(despite_groups=True) == [problem]


def test_records_that_come_to_the_target_while_it_is_aborted_are_in_the_way(
    failed_over: FailedOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = failed_over.world

    def taken_over_late(*arguments: Any) -> Any:
        world.target.produce("a", 0, ["of an application"])
        return owned_log(*arguments)

    with monkeypatch.context() as late:
        late.setattr("shallow_mirror.migration.failover.session.owned_log", taken_over_late)
        (problem,) = failed_over.refused()
    assert problem.startswith(
        "the abort is withdrawn, its hooks are undone: records were written to west since, which east lacks"
    )
    state = failed_over.state()
    assert (state.phase, state.is_aborting) == ("failed over", False)
    assert isinstance(world.run(Life()), ConfigError), "it is still fenced"
    assert failed_over.fail_over().phase == "failed over"


def test_a_transaction_that_is_open_at_the_target_is_in_the_way(failed_over: FailedOver) -> None:
    target = failed_over.world.target
    txn = target.begin()
    target.produce("a", 0, ["pending"], txn)
    (problem,) = failed_over.refused()
    assert problem.startswith("a transaction is open at west: a-0")
    target.end(txn, is_commit=False)
    assert failed_over.abort().phase == "at the source", "aborted records are nobody's"


def test_offsets_that_groups_have_committed_since_are_in_the_way_unless_that_is_wanted(failed_over: FailedOver) -> None:
    failed_over.world.target.commit_group("billing", "a", 0, 8)
    failed_over.world.target.commit_group("new", "a", 0, 1)
    (problem,) = failed_over.refused()
    assert problem.startswith("groups have committed offsets at west since: billing, new: move them with `shallow-mirror groups")
    assert failed_over.abort(despite_groups=True).phase == "at the source"


def test_offsets_of_topics_that_are_no_copies_are_in_nobodys_way(failed_over: FailedOver) -> None:
    target = failed_over.world.target
    target.create_topic("own", 1)
    target.produce("own", 0, ["of the target itself"])
    target.commit_group("billing", "own", 0, 1)
    target.commit_group("local", "own", 0, 1)
    assert failed_over.abort().phase == "at the source"


def test_a_source_that_does_not_answer_is_in_the_way(failed_over: FailedOver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_effects.FailoverEffects, "source_answers", lambda _: False)
    assert failed_over.refused() == ["source cluster east does not answer: there is nothing to go back to"]


def test_others_are_denied_again_by_the_mirror_that_continues(failed_over: FailedOver, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ResourcePattern(ResourceKind.TOPIC, "a")
    store = FakeStore(*(Acl(topic, user, AclOperation.WRITE) for user in ("User:anna", "User:mirror")))
    deny = write_deny("a", "User:anna")
    monkeypatch.setattr(read_only, "AclClient", lambda *_, **__: store)
    monkeypatch.setattr(read_only, "writable_topics", lambda _, topics: frozenset(topics))
    config = failed_over.world.config
    acls = config.acls.model_copy(update={"read_only": True, "mirror_principal": "User:mirror"})
    sync = read_only_sync(
        config.model_copy(update={"acls": acls}),
        TableStorage.to_write(config.table_location, config.tables_writer),
        report=log_problem,
    )
    assert sync is not None
    passes = sync.open_passes()
    for _ in range(2):
        assert passes.run_pass(datetime.now(UTC)).created == 0, "it is fenced"
        failed_over.abort()
        assert passes.run_pass(datetime.now(UTC)).created == 1
        assert deny in store.existing
        failed_over.fail_over()
        assert deny not in store.existing


def test_a_command_that_is_done_says_that_its_conductor_has_ended(failed_over: FailedOver) -> None:
    failed_over.abort()
    assert view.state_text(failed_over.fail_over(), failed_over.files).splitlines()[0].endswith(", ended")


def test_without_a_fail_over_there_is_nothing_to_abort(failed_over: FailedOver) -> None:
    failed_over.abort()
    with pytest.raises(ConfigError, match="no fail-over was begun: there is nothing to abort"):
        failed_over.abort()
    with pytest.raises(ConfigError, match="nothing was failed over yet"):
        fail_back(failed_over.files, SilentReports(), Options())


def test_a_fail_over_of_another_mirror_is_not_done_by_a_file_that_names_it_since(failed_over: FailedOver) -> None:
    world, files = failed_over.world, failed_over.files
    files.mirror = world.config.model_copy(update={"mirror": "m1", "tables": "tables1"})
    refusal = r"mirror: names mirror m1 now, but f has failed over mirror m0: undo that change; the next fail-over needs another"
    for command in (failed_over.fail_over, failed_over.abort, lambda: fail_back(files, SilentReports(), Options())):
        with pytest.raises(ConfigError, match=refusal):
            command()
    (problem,) = plan_failover(files).problems
    assert "names mirror m1 now" in problem
    files.mirror = world.config
    assert failed_over.fail_over().phase == "failed over"


def test_a_file_that_names_another_mirror_since_a_fail_over_was_killed_ends_no_second_one(
    failed_over: FailedOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it aborted: the first one may have been ended already."""
    world, files = failed_over.world, failed_over.files
    failed_over.abort()

    def killed(*_: object, **__: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(failover_effects, "open_operator_session", killed)
        with pytest.raises(KilledError):
            failed_over.fail_over()
    assert Step.FENCE not in failed_over.state().done
    assert world.controls().read().failed_over
    files.mirror = world.config.model_copy(update={"mirror": "m1", "tables": "tables1"})
    for command in (failed_over.fail_over, failed_over.abort):
        with pytest.raises(ConfigError, match="names mirror m1 now, but f has failed over mirror m0, or has begun to: undo that"):
            command()
    files.mirror = world.config
    assert failed_over.abort().phase == "at the source"
    assert world.run(Life()) is None


def test_an_older_table_of_the_fail_over_is_refused_by_every_command(failed_over: FailedOver) -> None:
    """With it, a fail-over that was aborted since looks done: nothing would be fenced."""
    table = failed_over.world.table_folders.at(str(failed_over.files.config.tables))
    older = table.copy()
    failed_over.abort()
    newest = table.copy()
    table.put_back(older)
    for command in (failed_over.fail_over, failed_over.abort, lambda: plan_failover(failed_over.files)):
        with pytest.raises(ConfigError, match="the table of f is older than the target: its newest row is row"):
            command()
    table.put_back(newest)
    assert failed_over.fail_over().phase == "failed over"
    assert failed_over.world.controls().read().failed_over


@pytest.mark.parametrize("is_emptied", [False, True])
def test_an_older_table_of_the_fail_over_is_not_shown_as_its_state(
    failed_over: FailedOver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_emptied: bool
) -> None:
    table = failed_over.world.table_folders.at(str(failed_over.files.config.tables))
    older = {} if is_emptied else table.copy()
    failed_over.abort()
    newest = table.copy()
    file = Path(str(failed_over.files.config.tables)).parent / "failover.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text("{failover: f, mirror: mirror.yaml, tables: failover}")

    def shown() -> int:
        with pytest.raises(SystemExit) as ended:
            cli.main(("failover", "status", str(file)))
        return int(ended.value.code or 0)

    def unanswered(_: object) -> None:
        raise RetriableError("DEADLINE", "gave up")

    table.put_back(older)
    assert shown() == 2
    output = capsys.readouterr()
    assert "the table of f is older than the target: its newest row is " in output.err
    assert output.out == ""
    with monkeypatch.context() as patch:
        patch.setattr(NewestRow, "_read", unanswered)
        assert shown() == 0
    output = capsys.readouterr()
    assert output.out.startswith(f"fail-over f: {'at the source' if is_emptied else 'failed over'}; ")
    assert "whether the table of f is the newest is not known: DEADLINE: gave up" in output.err
    table.put_back(newest)
    assert shown() == 0
    output = capsys.readouterr()
    assert "an earlier fail-over was aborted at" in output.out
    assert output.err == ""


def test_an_abort_with_tables_of_before_the_fail_over_is_refused(failed_over: FailedOver) -> None:
    world = failed_over.world
    tables = world.table_folders.at(world.config.tables)
    newest = tables.copy()
    tables.put_back({name: rows for name, rows in newest.items() if name != "controls"})
    with pytest.raises(OlderTablesError, match="newest row of the table controls is none"):
        failed_over.abort()
    tables.put_back(newest)
    assert failed_over.abort().phase == "at the source"
    assert world.run(Life()) is None
    world.check()


def test_a_fail_over_with_tables_of_before_an_abort_is_refused(failed_over: FailedOver) -> None:
    """They say that the mirror is failed over already: the newest ones, put back later, would let it run."""
    world = failed_over.world
    tables = world.table_folders.at(world.config.tables)
    older = tables.copy()
    failed_over.abort()
    newest = tables.copy()
    tables.put_back(older)
    (problem,) = plan_failover(failed_over.files).problems
    assert "newest row of the table controls is row 1 (fail-over of a, " in problem
    assert "on the target notes row 2 (abort-fail-over of a, " in problem
    with pytest.raises(ConfigError, match="on the target notes row 2 "):
        failed_over.fail_over()
    tables.put_back(newest)
    assert failed_over.fail_over().phase == "failed over"
    assert isinstance(world.run(Life()), ConfigError)


def test_tables_that_become_older_while_a_fail_over_is_checked_are_refused_before_anything_is_added(
    failed_over: FailedOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = failed_over.world
    tables = world.table_folders.at(world.config.tables)
    empty = {name: rows for name, rows in tables.copy().items() if name != "controls"}
    failed_over.abort()
    newest = tables.copy()

    def checked(_: object) -> list[str]:
        tables.put_back(empty)
        return []

    with monkeypatch.context() as patch:
        patch.setattr(failover_effects.FailoverEffects, "problems", checked)
        with pytest.raises(OlderTablesError, match="newest row of the table controls is none"):
            failed_over.fail_over()
    assert world.controls().read().rows == []
    tables.put_back(newest)
    assert failed_over.fail_over().phase == "failed over"


def test_groups_in_which_mirrors_note_something_come_back_with_no_topic(failed_over: FailedOver) -> None:
    world = failed_over.world
    noted = {"m0-origin", "m0-controls", "m0-steps.f"}
    with closing(GroupClient(world.config.target.client, "target cluster west")) as client:
        assert noted <= client.listed().keys()
        assert {commit.group for commit in committed_offsets(client, [*noted, "billing"])} == {"billing"}
    with closing(failover_effects.FailoverEffects(failed_over.files, SilentReports(), Options())) as effects:
        assert effects.way_back.groups_of(["a"]) == ["billing"]


def test_an_abort_that_is_killed_behind_its_row_is_noted_by_the_next_one(
    failed_over: FailedOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = failed_over.world
    tables = world.table_folders.at(world.config.tables)
    older = tables.copy()

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(NewestControl, "note", killed)
        with pytest.raises(KilledError):
            failed_over.abort()
    assert failed_over.abort().phase == "at the source"
    tables.put_back(older)
    with pytest.raises(ConfigError, match="on the target notes row 2 "):
        failed_over.fail_over()


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailedOver]:
    """Yield a world whose topic b was moved by a migration; nothing was failed over."""
    with opened_world(tmp_path / "world") as world:
        for topic in ("a", "b"):
            world.create_source_topic(topic, 1)
            world.produce(topic, 0, 10)
            world.source.commit_group("billing", topic, 0, 4)
        assert world.run(Life()) is None
        world.sync_groups_beside()
        world.controls().add("hand-over", ["b"])
        world.controls().add("handed-over", ["b"])
        world.target.commit_group("billing", "b", 0, 2)
        monkeypatch.setattr(MirrorConfig, "load", lambda _path: world.config)
        yield FailedOver(world, files_in(tmp_path / "world"))


def files_in(folder: Path) -> FailoverFiles:
    document = {"failover": "f", "mirror": "mirror.yaml", "tables": "failover"}
    return FailoverFiles(FailoverConfig.from_document(document, folder=folder))


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_fail_over_of_topics_that_a_migration_has_moved_is_refused(moved: FailedOver, is_confirmed: bool) -> None:
    if not is_confirmed:
        moved.world.controls().add("hand-over", ["a"])
    names = "b" if is_confirmed else "a, b"
    (problem,) = plan_failover(moved.files).problems
    assert problem.startswith(f"a migration has moved {names} to west, or is moving them: ")
    assert "`shallow-mirror migrate rollback`" in problem
    assert f"topics.exclude of {moved.files.config.mirror}: they stay where they are" in problem
    with pytest.raises(ConfigError) as refusal:
        moved.fail_over()
    assert refusal.value.problems == (problem,)
    assert not moved.world.controls().read().failed_over


def test_a_fail_over_leaves_out_moved_topics_that_the_mirror_file_excludes(moved: FailedOver, tmp_path: Path) -> None:
    world = moved.world
    world.settings.excluded.add("b")
    moved.files = files_in(tmp_path / "world")
    assert plan_failover(moved.files).problems == []
    state = moved.fail_over()
    assert world.controls().read().failed_over.keys() == {"a"}
    assert [row["topic"] for row in state.done[Step.FENCE]["partitions"]] == ["a"]
    assert (state.done[Step.MOVE_GROUPS]["offsets"], state.done[Step.MOVE_GROUPS]["left"]) == (1, [])
    assert world.target.group_offsets("billing") == {("a", 0): 4, ("b", 0): 2}
    world.target.produce("b", 0, ["of an application"])
    world.target.commit_group("billing", "b", 0, 11)
    assert moved.abort().phase == "at the source"


def test_a_mirror_whose_topics_were_all_moved_has_nothing_to_fail_over(moved: FailedOver, tmp_path: Path) -> None:
    world = moved.world
    world.controls().add("hand-over", ["a"])
    world.settings.excluded |= {"a", "b"}
    moved.files = files_in(tmp_path / "world")
    (problem,) = plan_failover(moved.files).problems
    assert problem == "mirror m0 has copied nothing that was not moved by a migration: there is nothing to fail over"
