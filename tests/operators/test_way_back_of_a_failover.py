"""`failover back` while records that only the old source has expire, or their topic is deleted: nothing is in the way for good."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.operators.failover_reports import Said
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import KilledError, Life
from tests.operators.surroundings import opened_world
from tests.support import mirror_runs

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.ledger import RunIdentity
from shallow_mirror.checkpoints.logs.runs import MigrationLog
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.failover_config import FailoverConfig, FailoverFiles
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, OlderTablesError
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.migration import MigrationState, Options, Phase, WaitsForOutsideError
from shallow_mirror.migration.failover import (
    FailoverState,
    Step,
    abort_failover,
    divergence,
    fail_back,
    fail_over,
    plan_failover,
    read_failover,
    view,
    way_back,
)
from shallow_mirror.migration.failover.conductor import FailoverConductor
from shallow_mirror.migration.failover.effects import FailoverEffects
from shallow_mirror.migration.failover.way_back import WayBack
from shallow_mirror.migration.late_writes import LateWrite
from shallow_mirror.migration.session import owned_log
from shallow_mirror.migration.state import WaveState
from shallow_mirror.migration.steps import Direction, Step as WaveStep
from shallow_mirror.operations.recover import accept_repeats
from shallow_mirror.operations.redo import RedoRequest, redo
from shallow_mirror.sinks.kafka import NewestControl
from shallow_mirror.sinks.kafka.targets.settings import pause_of
from shallow_mirror.types import TopicPartition

pytestmark = [pytest.mark.usefixtures("without_logging"), pytest.mark.thorough]

KEPT = "__diverged.a"


class WentApart:
    """A world that was failed over after ten records; its source has three batches of five more, from offset 10 on."""

    def __init__(self, world: FakeWorld, files: FailoverFiles) -> None:
        self.world, self.files, self.reports = world, files, Said()

    def back(self, life: Life | None = None) -> FailoverState:
        """Go back until the mirror back has to run. Raises KilledError where the life ends before."""

        def perform() -> None:
            with pytest.raises(WaitsForOutsideError):
                fail_back(self.files, self.reports, Options(waits=False))

        self.world.command(Life() if life is None else life, perform)
        return read_failover(self.files)

    def kept(self) -> list[str]:
        """Return what the topic of kept records has."""
        return list(self.world.target.read(KEPT, 0).values()) if KEPT in self.world.target.topic_ids() else []

    def expire(self, before: int) -> None:
        self.world.source.delete_records("a", 0, before)

    @property
    def only_at_source(self) -> list[str]:
        return [value for offset, value in self.world.source.read("a", 0).items() if offset >= 10]


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WentApart]:
    with world_apart(tmp_path / "world", monkeypatch) as opened:
        yield opened


@contextmanager
def world_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WentApart]:
    with opened_world(folder) as world:
        world.create_source_topic("a", 1)
        world.produce("a", 0, 10)
        assert world.run(Life()) is None
        apart = failed_over(world, folder, monkeypatch)
        for first in range(0, 15, 5):
            world.source.produce("a", 0, [f"only-{number}" for number in range(first, first + 5)])
        yield apart


def failed_over(world: FakeWorld, folder: Path, monkeypatch: pytest.MonkeyPatch) -> WentApart:
    document = mirror_runs.document(
        world.target.bootstrap,
        world.source.bootstrap,
        ["[a-z]"],
        mirror="back",
        tables="back",
        topics={"offsets": {".*": "preserved"}},
    )
    document["source"]["alias"], document["target"]["alias"] = "west", "east"
    back = MirrorConfig.from_document(document, folder=folder)
    monkeypatch.setattr(MirrorConfig, "load", lambda path: back if str(path).endswith("back.yaml") else world.config)
    failover = {"failover": "f", "mirror": "mirror.yaml", "tables": "failover", "back": {"mirror": "back.yaml"}}
    files = FailoverFiles(FailoverConfig.from_document(failover, folder=folder))
    assert fail_over(files, Said(), Options(), despite_source=True).phase == "failed over"
    return WentApart(world, files)


def meanwhile(act: Callable[[], object]) -> None:
    """Let another command act between the checks of the next one and its take-over."""

    def taken_over_late(*arguments: Any) -> Any:
        late.undo()
        act()
        return owned_log(*arguments)

    late = pytest.MonkeyPatch()
    late.setattr("shallow_mirror.migration.failover.session.owned_log", taken_over_late)


def test_a_way_back_that_begins_while_an_abort_is_checked_is_not_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror would start again, and the topics of its source are deleted."""
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a")
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        meanwhile(apart.back)
        with pytest.raises(ConfigError, match="the way back has begun, and cannot be aborted"):
            abort_failover(apart.files, apart.reports, Options())
        assert read_failover(apart.files).phase == "failing back"
        assert world.controls().read().failed_over


def test_an_abort_that_is_done_while_a_way_back_is_checked_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a")
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        meanwhile(lambda: abort_failover(apart.files, apart.reports, Options()))
        with pytest.raises(ConfigError, match="nothing was failed over yet"):
            fail_back(apart.files, apart.reports, Options(waits=False))
        assert read_failover(apart.files).phase == "at the source"
        assert world.source.topic_ids().keys() == {"a"}
        assert world.run(Life()) is None


def test_a_way_back_begins_behind_no_abort_that_was_killed_while_it_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror may run again, and fill the topics that would be deleted."""

    def killed(*_: object) -> None:
        raise KilledError

    def abort() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(NewestControl, "note", killed)
            with pytest.raises(KilledError):
                abort_failover(scene.files, scene.reports, Options())

    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a")
        scene = failed_over(world, tmp_path / "world", monkeypatch)
        meanwhile(abort)
        with pytest.raises(ConfigError, match="an abort has begun: finish it with"):
            fail_back(scene.files, scene.reports, Options(waits=False))
        assert world.source.topic_ids().keys() == {"a"}
        assert abort_failover(scene.files, scene.reports, Options()).phase == "at the source"


def test_an_abort_fences_no_conductor_that_has_begun_while_it_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One on another host, of which it is not known whether it is alive."""

    def begin_elsewhere() -> None:
        log = MigrationLog.open(TableStorage(scene.files.config.table_location), "f")
        log.take_over(RunIdentity(run_id="run", host="another host", pid=1, started_at_ms=0), "fingerprint", lambda: 0)

    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a")
        scene = failed_over(world, tmp_path / "world", monkeypatch)
        with monkeypatch.context() as patch:
            problems = FailoverEffects.abort_problems

            def checked(*arguments: Any, **options: Any) -> list[str]:
                begin_elsewhere()
                return problems(*arguments, **options)

            patch.setattr(FailoverEffects, "abort_problems", checked)
            with pytest.raises(ConfigError, match=r"conductor 2 on another host .* has not ended"):
                abort_failover(scene.files, scene.reports, Options())
        conductor = read_failover(scene.files).conductor
        assert conductor is not None
        assert (conductor.host, conductor.epoch) == ("another host", 2)


def test_topics_of_a_mirror_that_continued_with_older_tables_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source is in use, and what it has copied since would count as records that only the source has."""
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a")
        older = world.copied_tables(with_checkpoint=True)
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        world.put_back(older)
        with pytest.raises(OlderTablesError) as refused:
            fail_back(apart.files, apart.reports, Options(waits=False))
        assert read_failover(apart.files).phase == "failed over"
        accept_repeats(world.config, refused.value)
        world.source.produce("a", 0, [f"later-{number}" for number in range(5)])
        assert world.run(Life()) is None
        (problem,) = plan_failover(apart.files).problems
        assert problem.startswith("mirror m0 is not failed over any more, by its tables: it may copy from east again")
        with pytest.raises(ConfigError, match="mirror m0 is not failed over any more"):
            fail_back(apart.files, apart.reports, Options(waits=False))
        assert world.source.topic_ids().keys() == {"a"}


def test_deny_acls_that_stopped_the_writers_at_the_target_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would refuse these writers after the next fail-over."""
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a")
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        last = handed_back(apart, monkeypatch)[-1]
        assert last.startswith("Deny ACLs created at west: WRITE of a by User:anna: no command deletes them, `kafka-acls.sh")


def test_topics_that_the_mirror_back_copies_and_that_do_not_come_back_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their writers and consumers would be forgotten at the target when the mirror back is stopped."""
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a", "b")
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        positions = OffsetMap.open(world.config.table_location, mirror=world.config.mirror).positions()
        monkeypatch.setattr(way_back, "positions_of", lambda _: positions)
        (line,) = [line for line in handed_back(apart, monkeypatch) if line.startswith("topic ")]
        assert line.startswith("topic b did not come back: east did not have it when the way back began. Its writers and")
        assert "back.yaml copies it to east as long as it runs: `shallow-mirror migrate` with that mirror moves it" in line


def handed_back(apart: WentApart, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what `status` says once topic a is back, whose writers were stopped by Deny ACLs."""
    moved = WaveState(
        name="back",
        phase=Phase.MOVED,
        done={WaveStep.REPORT: {"writers_stopped_s": 1.0, "records_verified": 10, "groups": 0, "late_writes": []}},
        denied={Direction.MOVE: [{"topic": "a", "principal": "User:anna"}]},
    )
    monkeypatch.setattr(way_back, "run_migration", lambda *_: MigrationState(waves={"back": moved}))
    monkeypatch.setattr(WayBack, "_require_filled", lambda *_: None)
    with closing(FailoverEffects(apart.files, apart.reports, Options())) as effects:
        found = effects.way_back.hand_back(["a"], [])
    state = replace(read_failover(apart.files), done={Step.HAND_BACK: {"seconds": 1.0, **found}}, begun_at={})
    return view.state_text(state, apart.files).splitlines()


def test_offsets_that_only_the_source_has_of_a_group_come_to_the_target_before_its_topics_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without groups.sync no fail-over moves them, and an application that did not run since would read from somewhere else."""
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a")
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        for group in ("weekly", "in-use", "of-others"):
            world.source.commit_group(group, "b" if group == "of-others" else "a", 0, 5)
        world.target.commit_group("in-use", "a", 0, 6)
        with pytest.raises(ConfigError, match=r"groups have offsets of these topics at east only, .*: weekly: `shallow-mirror"):
            fail_back(apart.files, apart.reports, Options(waits=False))
        assert sync_groups(world.config, pattern="weekly", is_applied=True, is_forced=True).is_done
        assert Step.DELETE in apart.back().done
        offset = world.target.group_offsets("weekly")["a", 0]
        assert [value for at, value in world.target.read("a", 0).items() if at >= offset] == [f"a0:{n}" for n in range(5, 10)]


def test_offsets_of_a_group_that_the_file_excludes_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a")
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        world.source.commit_group("weekly", "a", 0, 5)
        groups = apart.files.config.groups.model_copy(update={"exclude": ["weekly"]})
        apart.files.config = apart.files.config.model_copy(update={"groups": groups})
        apart.back()
        assert world.source.topic_ids() == {}


def kill_before_the_copy(apart: WentApart, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(divergence, "redo", killed)
        with pytest.raises(KilledError):
            apart.back()
    assert len(read_failover(apart.files).keeping) == 1


def test_what_only_the_old_source_has_is_kept(apart: WentApart) -> None:
    only = apart.only_at_source
    state = apart.back()
    assert apart.kept() == only
    assert [kept["gone"] for kept in state.done[Step.KEEP]["kept"]] == [[]]
    assert "a" not in apart.world.source.topic_ids()


def test_a_topic_of_kept_records_that_has_those_of_an_earlier_failover_gets_the_others_as_well(apart: WentApart) -> None:
    only, former = apart.only_at_source, ["of an earlier fail-over"] * 3
    apart.world.target.create_topic(KEPT, 1)
    apart.world.target.produce(KEPT, 0, former)
    with pytest.raises(
        ConfigError, match=r"topic __diverged\.a exists at west, .*: set retention\.ms=-1, retention\.bytes=-1 on"
    ):
        fail_back(apart.files, apart.reports, Options(waits=False))
    for name in ("retention.ms", "retention.bytes"):
        apart.world.target.set_config(KEPT, name, "-1")
    apart.back()
    assert apart.kept() == [*former, *only]
    assert "a" not in apart.world.source.topic_ids()


def test_what_was_kept_and_differs_is_copied_again_to_a_topic_of_another_name(
    apart: WentApart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is left as it is: it may have the only records of an earlier fail-over."""

    def copied(*arguments: Any, **options: Any) -> Any:
        result = redo(*arguments, **options)
        apart.world.target.produce(KEPT, 0, ["of others"])
        return result

    only = apart.only_at_source
    with monkeypatch.context() as patch:
        patch.setattr(divergence, "redo", copied)
        with pytest.raises(ConfigError, match=r"another writer.*write another name in back\.kept: all of it is copied again"):
            fail_back(apart.files, apart.reports, Options(waits=False))
    before = apart.kept()
    back = apart.files.config.back.model_copy(update={"kept": "kept-{topic}"})
    apart.files.config = apart.files.config.model_copy(update={"back": back})
    apart.back()
    assert apart.kept() == before
    assert list(apart.world.target.read("kept-a", 0).values()) == only


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_brokers_delete_nothing_of_what_was_kept(apart: WentApart, policy: str) -> None:
    """By the settings of the source topic they would, within minutes: its records are old when the source returns."""
    apart.world.source.set_config("a", "cleanup.policy", policy)
    apart.world.source.set_config("a", "retention.ms", "604800000")
    only = apart.only_at_source
    apart.back()
    assert apart.kept() == only
    assert pause_of(apart.world.target.state.log(KEPT, 0).configs) == {}


def test_what_expired_since_it_was_found_is_named_and_the_rest_is_kept(apart: WentApart, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_before_the_copy(apart, monkeypatch)
    apart.expire(15)
    left = apart.only_at_source
    state = apart.back()
    assert apart.kept() == left
    assert len(left) == 10
    assert "fail-back: not kept, deleted at east before: a-0 offsets 10 to 14" in apart.reports.sentences
    (kept,) = state.done[Step.KEEP]["kept"]
    assert kept["gone"] == [{"start": 10, "end": 15}]
    shown = view.state_text(state, apart.files)
    assert (
        "kept: what was left of a-0 offsets 10 to 24 (15 records) of east in __diverged.a-0 at west; not kept, deleted at east before: a-0 offsets "
        "10 to 14" in shown
    )
    assert "keep diverged records: done at" in shown
    assert "1 range kept, 5 offsets were deleted before" in shown


def test_what_has_expired_whole_since_it_was_found_is_named(apart: WentApart, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_before_the_copy(apart, monkeypatch)
    apart.expire(25)
    state = apart.back()
    assert apart.kept() == []
    assert KEPT not in apart.world.target.topic_ids()
    assert "fail-back: not kept, deleted at east before: a-0 offsets 10 to 24" in apart.reports.sentences
    shown = view.state_text(state, apart.files)
    assert "not kept, deleted at east before: a-0 offsets 10 to 24 (15 records)" in shown
    assert "0 ranges kept, 15 offsets were deleted before" in shown


def test_a_topic_that_is_deleted_before_it_is_kept_comes_back_all_the_same(
    apart: WentApart, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_before_the_copy(apart, monkeypatch)
    apart.world.source.delete_topic("a")
    state = apart.back()
    assert apart.kept() == []
    assert "fail-back: not kept, deleted at east before: a-0 offsets 10 to 24" in apart.reports.sentences
    assert list(state.done[Step.KEEP]["topics"]) == ["a"], "the mirror back fills it again"


def test_a_topic_that_is_created_again_before_it_is_kept_has_records_of_its_own(
    apart: WentApart, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_before_the_copy(apart, monkeypatch)
    apart.world.source.delete_topic("a")
    apart.world.source.create_topic("a", 1)
    for first in range(0, 25, 5):
        apart.world.source.produce("a", 0, [f"again-{number}" for number in range(first, first + 5)])
    state = apart.back()
    assert sorted(apart.kept()) == sorted(f"again-{number}" for number in range(25))
    assert [(kept["start"], kept["gone"]) for kept in state.done[Step.KEEP]["kept"]] == [
        (10, [{"start": 10, "end": 25}]),
        (0, []),
    ]
    assert "a" not in apart.world.source.topic_ids()


@pytest.mark.parametrize("is_commit", [True, False])
def test_what_a_transaction_hides_that_began_when_the_rest_was_kept_is_kept_as_well(
    apart: WentApart, monkeypatch: pytest.MonkeyPatch, *, is_commit: bool
) -> None:
    """Its records, and those of others behind it, which were acknowledged."""

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(WayBack, "delete_topics", killed)
        with pytest.raises(KilledError):
            apart.back()
    source = apart.world.source
    txn = source.begin()
    source.produce("a", 0, ["in a transaction"], txn)
    source.produce("a", 0, ["behind it"])
    open_at_source = WayBack.open_at_source

    def seen_open(way_back: WayBack, state: FailoverState) -> list[str]:
        seen = open_at_source(way_back, state)
        if seen and Step.KEEP not in state.done:
            source.end(txn, is_commit=is_commit)
        return seen

    monkeypatch.setattr(WayBack, "open_at_source", seen_open)
    apart.back()
    assert apart.kept()[15:] == [*(["in a transaction"] if is_commit else []), "behind it"]
    assert "a" not in source.topic_ids()


@pytest.mark.parametrize("is_in_transaction", [True, False])
def test_what_is_written_when_nothing_more_was_found_is_kept_before_its_topic_is_deleted(
    apart: WentApart, monkeypatch: pytest.MonkeyPatch, *, is_in_transaction: bool
) -> None:
    source, delete_topics = apart.world.source, WayBack.delete_topics
    source.create_topic("b", 1)
    apart.world.target.create_topic("b", 1)

    def written_before(way_back: WayBack, ids: Mapping[str, str]) -> list[str]:
        monkeypatch.setattr(WayBack, "delete_topics", delete_topics)
        txn = source.begin() if is_in_transaction else None
        source.produce("a", 0, ["late"], txn)
        written = delete_topics(way_back, ids)
        assert source.topic_ids().keys() == {"a"}
        if txn is not None:
            source.end(txn, is_commit=True)
        return written

    monkeypatch.setattr(WayBack, "delete_topics", written_before)
    only = apart.only_at_source
    state = apart.back()
    assert apart.kept() == [*only, "late"]
    assert source.topic_ids() == {}
    assert list(state.done[Step.KEEP]["topics"]) == ["a", "b"]
    assert "fail-back: written to at east meanwhile, and not deleted yet: a" in apart.reports.sentences


@pytest.mark.parametrize("is_first", [True, False], ids=["its id is the first", "its id is the last"])
def test_what_only_the_old_source_has_of_a_topic_that_was_created_again_while_it_was_mirrored_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    """The former topic was mirrored further than the new one, of which the rest must not count as mirrored."""
    with opened_world(tmp_path / "world") as world:
        world.settings.on_data_loss = "continue"
        world.create_source_topic("a", 1)
        world.produce("a", 0, 20)
        former_id = world.source.topic_ids()["a"]
        assert world.run(Life()) is None
        while world.source.topic_ids()["a"] == former_id or (world.source.topic_ids()["a"] < former_id) is not is_first:
            world.delete_source_topic("a")
            world.create_source_topic("a", 1)
        world.produce("a", 0, 5)
        assert world.run(Life()) is None
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        only = [f"only-{number}" for number in range(5)]
        world.source.produce("a", 0, only)
        apart.back()
        assert apart.kept() == only
        assert "a" not in world.source.topic_ids()


def mirrored_topics(world: FakeWorld, *topics: str) -> None:
    """Create topics with two batches of five records each, and mirror them."""
    for topic in topics:
        world.create_source_topic(topic, 1)
        for _ in range(2):
            world.produce(topic, 0, 5)
    assert world.run(Life()) is None


@pytest.mark.parametrize("is_kept", [False, True], ids=["before the way back", "when the rest is kept"])
def test_a_topic_that_is_deleted_at_the_target_stays_at_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    """Nothing would fill it again."""

    def killed(*_: object) -> None:
        raise KilledError

    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a", "b")
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        if is_kept:
            with monkeypatch.context() as patch:
                patch.setattr(WayBack, "delete_topics", killed)
                with pytest.raises(KilledError):
                    apart.back()
        world.target.delete_topic("b")
        state = apart.back()
        assert world.source.topic_ids().keys() == {"b"}
        assert list(state.done[Step.KEEP]["topics"]) == ["a"]
        assert ("fail-back: west does not have b any more: what is at east stays" in apart.reports.sentences) is is_kept


def test_all_of_a_topic_is_kept_where_its_copy_was_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a")
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        world.target.delete_topic("a")
        world.target.create_topic("a", 1)
        world.target.produce("a", 0, ["of an application"])
        mirrored = list(world.source.read("a", 0).values())
        apart.back()
        assert apart.kept() == mirrored
        assert "a" not in world.source.topic_ids()


@pytest.mark.parametrize("offsets", ["translated", "preserved"])
@pytest.mark.parametrize("left", [0, 6, 8])
def test_what_the_target_has_lost_of_its_copies_before_the_failover_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offsets: str, left: int
) -> None:
    """An unclean leader election there, behind which the mirror has not started: the map says that all was copied."""
    with opened_world(tmp_path / "world") as world:
        world.settings.offsets = offsets
        mirrored_topics(world, "a")
        world.target.state.logs["a", 0].truncate(left)
        held = set(world.target.read("a", 0).values())
        lost = [value for value in world.source.read("a", 0).values() if value not in held]
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        world.target.produce("a", 0, [f"of an application {number}" for number in range(20)])
        apart.back()
        assert [value for value in apart.kept() if value not in held] == lost
        assert "a" not in world.source.topic_ids()


@pytest.mark.parametrize("offsets", ["translated", "preserved"])
@pytest.mark.parametrize("is_longer", [True, False], ids=["a longer retention", "the same retention"])
def test_what_the_target_has_deleted_and_the_source_keeps_for_longer_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offsets: str, *, is_longer: bool
) -> None:
    with opened_world(tmp_path / "world") as world:
        world.settings.offsets = offsets
        world.create_source_topic("a", 1)
        world.source.produce_marker("a", 0)
        for _ in range(2):
            world.produce("a", 0, 5)
            assert world.run(Life()) is None
        if is_longer:
            world.source.set_config("a", "retention.ms", "-1")
        world.target.delete_records("a", 0, list(world.target.read("a", 0))[6])
        deleted = list(world.source.read("a", 0).values())[:6]
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        apart.back()
        assert [value for value in apart.kept() if value in deleted] == (deleted if is_longer else [])
        assert "a" not in world.source.topic_ids()


def test_a_topic_of_which_the_mirror_has_forgotten_its_copy_stays_at_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has its name at the target is another topic, with which it must not be filled."""
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a", "b")
        world.delete_target_topic("b")
        world.forget("b")
        world.target.create_topic("b", 1)
        world.target.produce("b", 0, ["of others"])
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        state = apart.back()
        assert list(world.source.topic_ids()) == ["b"]
        assert list(state.done[Step.KEEP]["topics"]) == ["a"]


def test_a_topic_that_the_source_has_lost_before_the_way_back_is_filled_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its groups and its writers would stay at the target."""
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a", "b")
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        world.source.delete_topic("b")
        assert list(apart.back().done[Step.KEEP]["topics"]) == ["a", "b"]


@pytest.mark.parametrize(("cut_at", "left"), [(5, 5), (0, 0)])
def test_what_was_written_behind_the_cut_of_a_log_is_kept_although_it_has_offsets_of_mirrored_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_at: int, left: int
) -> None:
    """The source lost the end of its log before it failed, and took records on from there."""
    with opened_world(tmp_path / "world") as world:
        mirrored_topics(world, "a")
        world.source.state.logs["a", 0].truncate(cut_at)
        only = [f"only-{number}" for number in range(3)]
        assert world.source.produce("a", 0, only) == left
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        apart.back()
        assert apart.kept() == only
        assert "a" not in world.source.topic_ids()


@pytest.mark.parametrize("has_moved_on", [False, True], ids=["one election", "further elections"])
def test_what_was_written_behind_an_earlier_cut_is_kept_although_the_mirror_has_continued_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_moved_on: bool
) -> None:
    """With `read.on_data_loss: continue` it continues at its position: what the source has below that since, it never copies."""
    with opened_world(tmp_path / "world") as world:
        world.settings.on_data_loss = "continue"
        mirrored_topics(world, "a")
        log = world.source.state.logs["a", 0]
        log.truncate(5)
        only = [f"only-{number}" for number in range(5)]
        assert world.source.produce("a", 0, only) == 5
        for _ in range(3 if has_moved_on else 1):
            world.source.produce("a", 0, [f"mirrored-{number}" for number in range(5)])
            assert world.run(Life()) is None
            log.move(log.leader)
        assert [value for value in world.target.read("a", 0).values() if value.startswith("only")] == []
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        apart.back()
        assert apart.kept() == only
        assert "a" not in world.source.topic_ids()


def test_an_elected_leader_that_has_everything_changes_nothing_of_what_is_kept(apart: WentApart) -> None:
    log = apart.world.source.state.logs["a", 0]
    log.move(log.leader)
    only = apart.only_at_source
    apart.back()
    assert apart.kept() == only


def test_what_others_wrote_to_a_preserved_log_before_the_fence_is_no_copy_of_what_has_its_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_world(tmp_path / "world") as world:
        world.settings.offsets = "preserved"
        mirrored_topics(world, "a")
        only = [f"only-{number}" for number in range(3)]
        assert world.source.produce("a", 0, only) == world.target.produce("a", 0, ["of others"] * 3) == 10
        apart = failed_over(world, tmp_path / "world", monkeypatch)
        with pytest.raises(ConfigError, match=r"records were written to west since, which east lacks: a-0 offsets 10 to 12"):
            abort_failover(apart.files, apart.reports, Options())
        apart.back()
        assert apart.kept() == only


def test_a_topic_that_a_broker_does_not_list_is_not_deleted_before_its_records_are_kept(
    apart: WentApart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has started a moment ago may know no topic, and the controller deletes it all the same."""
    hidden = 0
    metadata, check_back = Cluster.metadata, FailoverConductor._check_back

    def checked(*arguments: Any) -> Any:
        nonlocal hidden
        detail = check_back(*arguments)
        hidden = 5
        return detail

    def listed(cluster: Cluster, topics: Any, deadline: Deadline) -> Any:
        nonlocal hidden
        found = metadata(cluster, topics, deadline)
        if topics is None and hidden and ("east", 9092) in cluster.config.bootstrap:
            hidden -= 1
            return replace(found, topics={})
        return found

    monkeypatch.setattr(FailoverConductor, "_check_back", checked)
    monkeypatch.setattr(Cluster, "metadata", listed)
    only = apart.only_at_source
    apart.back()
    assert hidden == 0
    assert apart.kept() == only


@pytest.mark.parametrize("left_from", [15, 20, 25, None], ids=lambda before: "deleted" if before is None else f"from {before}")
def test_a_copy_that_was_killed_anywhere_is_continued_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_from: int | None
) -> None:
    """Nothing is copied twice, and what was copied before it expired stays."""
    kills = [(point, number) for point in ("RunSlots", "Decide", "EndTxn", "AwaitVisible") for number in range(3)]
    for at, (point, number) in enumerate(kills):
        with monkeypatch.context() as patch, world_apart(tmp_path / str(at), patch) as apart:
            only = {offset: value for offset, value in apart.world.source.read("a", 0).items() if offset >= 10}
            kill_in_the_copy(apart, patch, point, number)
            if left_from is None:
                apart.world.source.delete_topic("a")
            else:
                apart.expire(left_from)
            (kept,) = apart.back().done[Step.KEEP]["kept"]
            gone = {offset for lost in kept["gone"] for offset in range(lost["start"], lost["end"])}
            assert apart.kept() == [value for offset, value in only.items() if offset not in gone], (point, number)
            assert all(left_from is None or offset < left_from for offset in gone), (point, number)
            copied = 5 * (number + (point in ("EndTxn", "AwaitVisible")))
            assert gone <= set(range(10 + copied, 25)), (point, number)


def kill_in_the_copy(apart: WentApart, patch: pytest.MonkeyPatch, point: str, number: int) -> None:
    """Kill the way back at this point of the copy of the batch with this number."""
    rounds = 0

    def observe(name: str) -> None:
        nonlocal rounds
        if name == point:
            rounds += 1
            if rounds > number:
                raise KilledError

    def killed(config: MirrorConfig, request: RedoRequest, **options: Any) -> Any:
        small = config.model_copy(update={"write": config.write.model_copy(update={"slot_bytes": 1})})
        return redo(small, request, observer=observe, **options)

    with patch.context() as killing:
        killing.setattr(divergence, "redo", killed)
        with pytest.raises(KilledError):
            apart.back()


def test_records_that_expire_between_the_copy_and_the_comparison_are_kept(
    apart: WentApart, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = apart.only_at_source

    def copied(*arguments: Any, **options: Any) -> Any:
        result = redo(*arguments, **options)
        apart.expire(20)
        return result

    monkeypatch.setattr(divergence, "redo", copied)
    state = apart.back()
    assert apart.kept() == only
    assert [kept["gone"] for kept in state.done[Step.KEEP]["kept"]] == [[]]


def test_a_plan_names_records_that_are_not_kept_yet(apart: WentApart, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_before_the_copy(apart, monkeypatch)
    apart.expire(15)
    plan = plan_failover(apart.files)
    (write,) = plan.diverged
    assert replace(write, topic_id="") == LateWrite(topic_partition=TopicPartition("a", 0), start=15, end=25, record_count=10)
    assert "only at east: a-0 offsets 15 to 24 (10 records)" in view.plan_text(plan, apart.files)
    apart.back()
    assert plan_failover(apart.files).diverged == ()


def test_a_plan_names_open_transactions_that_hide_records_of_the_old_source(apart: WentApart) -> None:
    apart.world.source.produce("a", 0, ["before"])
    txn = apart.world.source.begin()
    apart.world.source.produce("a", 0, ["in a transaction"], txn)
    apart.world.source.produce("a", 0, ["behind it"])
    text = view.plan_text(plan_failover(apart.files), apart.files)
    assert "a transaction is open at east in a-0 from offset 26: what lies behind it is not counted" in text
    assert "has no record that" not in text
    apart.world.source.end(txn, is_commit=True)
    assert plan_failover(apart.files).open == []
