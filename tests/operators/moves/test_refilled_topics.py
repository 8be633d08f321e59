"""`failover back` where somebody deletes a topic that the mirror back fills: what the messages name is a way on, and loses nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.operators.lives import Life
from tests.operators.moves.application import Site
from tests.operators.moves.moving_world import FORWARD, MovingWorld, Service, Setting
from tests.operators.moves.operator import Operator
from tests.operators.moves.processes import Process
from tests.operators.moves.surroundings import opened_world

from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.failover_config import FailoverConfig, FailoverFiles
from shallow_mirror.errors import ConfigError, MirrorError
from shallow_mirror.migration import Options, run_migration
from shallow_mirror.migration.failover import (
    FailoverState,
    Step,
    Way,
    fail_back,
    fail_over,
    plan_failover,
    read_failover,
    view,
    way_back,
)
from shallow_mirror.migration.late_writes import LateWrite
from shallow_mirror.migration.steps import Step as WaveStep
from shallow_mirror.operations.forget import forget
from shallow_mirror.operations.redo import RedoRequest, redo, redo_config
from shallow_mirror.types import TopicPartition

pytestmark = [pytest.mark.usefixtures("without_logging"), pytest.mark.thorough]

BACK, FAILOVER = "back-ab.yaml", "failover.yaml"
KEPT = "__diverged.a"


class BackOperator(Operator):
    """Does what a fail-over says."""

    def __init__(self, world: MovingWorld) -> None:
        super().__init__(world)
        self.sentences: list[str] = []
        self.at_step: Callable[[Step | WaveStep], None] = lambda _: None
        self.on_step = self._begun

    def _begun(self, step: Step | WaveStep) -> None:
        self.at_step(step)

    def step_begun(self, way: Way, step: Step) -> None:
        self._world.events.append(f"  {way}: {step}")
        self._world.note_progress()
        self.at_step(step)

    def step_done(self, way: Way, step: Step, detail: Mapping[str, Any]) -> None: ...

    def says(self, sentence: str) -> None:
        self.sentences.append(sentence)
        super().says(sentence)

    def _action(self, request: str, site: Site, seen: str) -> Callable[[], None]:
        if found := re.fullmatch(r"stop the mirror (\S+), which is replaced", request):
            mirror = found[1]
            return lambda: self._stop_mirror(mirror)
        return super()._action(request, site, seen)

    def keep_running(self, mirror: str, *, is_blocked: bool = False) -> None:
        # One that was asked for may have been replaced before the operator acts.
        if any(service.config.mirror == mirror for service in self._world.services.values()):
            super().keep_running(mirror, is_blocked=is_blocked)

    def _stop_mirror(self, mirror: str) -> None:
        (service,) = (service for service in self._world.services.values() if service.config.mirror == mirror)
        service.is_wanted = False

    def _site(self, wave: str) -> Site:
        (site,) = self._world.application.sites
        return site


class GoingBack:
    """A world that was failed over: applications have written to west, and east has its old topics."""

    def __init__(self, world: MovingWorld) -> None:
        self.world, self.operator, self.failures = world, BackOperator(world), list[MirrorError]()
        (self.site,) = world.application.sites
        self.change_back(offsets={".*": "preserved"})
        self._write(FAILOVER, {"failover": "f", "mirror": FORWARD, "back": {"mirror": BACK}, "tables": "failover"})
        world.begin()
        world.let(20)
        world.come_to_rest()
        self.service(FORWARD).is_wanted = False
        world.let(10)
        options = Options(clock=world.wall_clock)
        assert world.command("failover run", lambda: self._out(options)) is None
        world.application.stop_consumers(self.site)
        world.application.read.clear()  # what a fail-over repeats is another matter
        world.application.start_consumers(self.site, "west")
        world.application.start_writers(self.site, "west")
        world.let(20)

    def _out(self, options: Options) -> None:
        fail_over(self.files(), self.operator, options, despite_source=True)

    def service(self, file: str) -> Service:
        return self.world.services[file]

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        (self.world.folder / name).write_text(yaml.safe_dump(document), encoding="utf-8")

    def change_back(self, mirror: str | None = None, **topics: Any) -> None:
        """Change the file of the mirror back; the one that runs is stopped. `mirror`: another id, with other tables."""
        document = yaml.safe_load((self.world.folder / BACK).read_text(encoding="utf-8"))
        document["topics"] = {**document["topics"], **topics}
        if mirror is not None:
            document |= {"mirror": mirror, "tables": mirror}
        self._write(BACK, document)
        service = self.service(BACK)
        self.world.kill(service)
        service.config, service.is_wanted = MirrorConfig.load(self.world.folder / BACK), False

    def files(self) -> FailoverFiles:
        return FailoverFiles(FailoverConfig.load(self.world.folder / FAILOVER))

    def state(self) -> FailoverState:
        return read_failover(self.files())

    def back(self, life: Life | None = None) -> MirrorError | None:
        """`shallow-mirror failover back`. Return the error that ended it."""
        options = Options(clock=self.world.wall_clock, launch=self.world.launch)
        return self.world.command("failover back", lambda: self._back(options), life)

    def _back(self, options: Options) -> None:
        fail_back(self.files(), self.operator, options)

    def gone_at(self, moment: Step | WaveStep, records: int | None = None) -> None:
        """Delete topic a at east once, at the begin of a step; at FILL once the mirror back has registered it.

        `records`: in the topic that is created again; None: none is.
        """
        is_begun = is_done = False

        def act() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                self._recreate(records)

        def at_step(step: Step | WaveStep) -> None:
            nonlocal is_begun
            is_begun = is_begun or step is moment
            if is_begun and moment is not Step.FILL:
                act()

        def on_request(_: Process) -> None:
            if is_begun and moment is Step.FILL and self.rows("offset_map"):
                act()

        self.operator.at_step, self.world.on_request = at_step, on_request

    def rows(self, table: str) -> int:
        """Return how many rows a table of the mirror back has."""
        versions = self.world.table_folders.at(self.service(BACK).config.tables).tables.get(table)
        return versions[-1].rows.num_rows if versions else 0

    def _recreate(self, records: int | None) -> None:
        east = self.world.clusters["east"]
        east.delete_topic("a")
        if records is not None:
            east.create_topic("a", 2)
            if records:
                east.produce("a", 0, [f"of somebody {number}" for number in range(records)])

    def kill_at(self, moment: Step | WaveStep) -> None:
        """`shallow-mirror failover back`, which is killed at the begin of a step."""
        life = Life()

        def at_step(step: Step | WaveStep) -> None:
            if step is moment:
                life.kill_at = life.effects + 1

        self.operator.at_step = at_step
        assert self.back(life) is None
        assert life.is_over, self.world.events
        self.operator.at_step = lambda _: None

    def isolate(self) -> None:
        """Let a mirror back leave topics out that are gone."""
        document = yaml.safe_load((self.world.folder / BACK).read_text(encoding="utf-8"))
        self._write(BACK, {**document, "on_error": "isolate"})
        self.change_back()

    def keep_former_running(self) -> Service:
        """Let the mirror back go on with its settings of now, whatever becomes of its file."""
        former = self.world.services["former"] = self.service(BACK)
        self.world.services[BACK] = Service(BACK, former.config)
        former.is_wanted = True
        self.world.start(former)
        return former

    def kept(self) -> list[str]:
        """Return what the topic of kept records has."""
        west = self.world.clusters["west"]
        partitions = range(west.partitions(KEPT))
        return [value for partition in partitions for value in west.read(KEPT, partition).values()]

    def forget(self) -> None:
        config = self.service(BACK).config
        forget(config, TableStorage.to_write(config.table_location, config.tables_writer), ["a"], is_applied=True)

    def check(self) -> None:
        """Require that everything is at east once, at the offsets of west, and was read once by each group."""
        world, application = self.world, self.world.application
        assert self.state().phase == "failed back"
        assert self.site.side == "east"
        world.come_to_rest()
        application.read_everything()
        assert application.misread == []
        wanted = Counter(record.value for record in application.visible())
        found = Counter[str]()
        for topic in application.topics(self.site, "east"):
            for partition in range(world.clusters["east"].partitions(topic)):
                here, there = (world.clusters[side].read(topic, partition) for side in ("east", "west"))
                assert {offset: here.get(offset) for offset in there} == there
                found.update(here.values())
        assert found == wanted
        for group in self.site.groups:
            letter = group[1]
            assert application.read[group] == wanted, letter


@contextmanager
def going_back(folder: Path, monkeypatch: pytest.MonkeyPatch, **setting: Any) -> Iterator[GoingBack]:
    with opened_world(folder, Setting(quiet="2 seconds", **setting)) as world:
        failures = list[MirrorError]()
        monkeypatch.setattr(world, "mend", lambda _service, error: failures.append(error))
        scene = GoingBack(world)
        scene.failures = failures
        yield scene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoingBack]:
    with going_back(tmp_path / "world", monkeypatch) as opened:
        yield opened


def test_the_way_back_brings_every_record_and_each_group_reads_it_once(scene: GoingBack) -> None:
    assert scene.back() is None
    scene.check()


def acting_at(scene: GoingBack, step: Step | WaveStep, act: Callable[[], object]) -> None:
    """Act once, at the begin of a step."""
    acts = [act]

    def at_step(begun: Step | WaveStep) -> None:
        if begun is step and acts:
            acts.pop()()

    scene.operator.at_step = at_step


def test_records_of_a_client_behind_the_point_of_no_return_are_named_with_a_command_that_copies_them(
    scene: GoingBack, capsys: pytest.CaptureFixture[str]
) -> None:
    west, east = (scene.world.clusters[side] for side in ("west", "east"))
    acting_at(scene, WaveStep.ADMIT_WRITERS, lambda: west.produce("a", 1, ["late-0", "late-1"]))
    assert scene.back() is None
    assert view.show_state(scene.state(), scene.files(), as_json=False), "it is no success"
    output = capsys.readouterr().out
    found = re.search(
        r"late writes: a-1 .* \(2 records\): .*`shallow-mirror redo (\S+) (\S+) (\d) (\d+) (\d+) --to (\S+)`", output
    )
    assert found is not None, output
    assert found[1] == str(scene.world.folder / BACK)
    request = RedoRequest(TopicPartition(found[2], int(found[3])), int(found[4]), int(found[5]), found[6])
    redo(redo_config(MirrorConfig.load(found[1]), request), request)
    assert list(east.read("late-writes.a", 1).values()) == ["late-0", "late-1"]
    assert not [sentence for sentence in scene.operator.sentences if "migrate late-writes" in sentence]


def test_records_that_come_behind_the_last_step_of_the_move_are_named_by_the_call_that_ends_the_way_back(
    scene: GoingBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill in front of the row that ends the way back."""

    def run_and_write(*arguments: Any) -> Any:
        state = run_migration(*arguments)
        scene.world.clusters["west"].produce("a", 1, ["late-0", "late-1"])
        return state

    monkeypatch.setattr(way_back, "run_migration", run_and_write)
    assert scene.back() is None
    (write,) = map(LateWrite.of, scene.state().done[Step.HAND_BACK]["late_writes"])
    assert (write.topic_partition, write.record_count) == (TopicPartition("a", 1), 2)


def test_a_group_that_begins_while_the_topics_come_back_is_named(scene: GoingBack, capsys: pytest.CaptureFixture[str]) -> None:
    west = scene.world.clusters["west"]
    acting_at(scene, WaveStep.STOP_WRITERS, lambda: west.commit_group("new", "a", 0, 1))
    assert scene.back() is None
    assert scene.state().done[Step.HAND_BACK]["left_groups"] == ["new"]
    assert view.show_state(scene.state(), scene.files(), as_json=False), "it is no success"
    assert "group new has committed its first offsets of these topics at west while they came back" in capsys.readouterr().out


@pytest.mark.parametrize("is_filled", [False, True], ids=["before the way back", "when the topics are filled"])
def test_a_topic_that_only_the_target_has_is_in_the_way_of_a_group_that_reads_it_until_it_is_excluded(
    scene: GoingBack, *, is_filled: bool
) -> None:
    west = scene.world.clusters["west"]

    def begin_topic() -> None:
        west.create_topic("bnew", 1)
        west.produce("bnew", 0, ["x", "y"])
        west.commit_group("ga", "bnew", 0, 1)

    if is_filled:
        acting_at(scene, Step.HAND_BACK, begin_topic)
    else:
        begin_topic()
    error = scene.back()
    assert isinstance(error, ConfigError), error
    (problem,) = error.problems
    assert problem.startswith("group ga reads bnew as well, of which west has the only log")
    assert f"exclude it in {scene.world.folder / BACK} (topics.exclude), and restart that mirror if it runs" in problem
    assert (Step.DELETE in scene.state().done) is is_filled
    scene.change_back(exclude=["bnew"])
    assert scene.back() is None, scene.world.events
    assert scene.state().phase == "failed back"
    assert scene.site.side == "east"
    assert "bnew" in west.topic_ids()


def test_what_has_failed_back_fails_over_no_more(scene: GoingBack) -> None:
    """A fail-over of the next mirror by the same file would do nothing."""
    assert scene.back() is None
    with pytest.raises(ConfigError, match=r"f has failed back at .*, and fails over no more: the next fail-over needs another"):
        fail_over(scene.files(), scene.operator, Options(clock=scene.world.wall_clock), despite_source=True)
    (problem,) = plan_failover(scene.files()).problems
    assert "fails over no more" in problem
    assert scene.back() is None


def require_named(scene: GoingBack, error: MirrorError | None) -> None:
    """Require that an error says how to go on, and that no writer goes to east before."""
    assert scene.site.side == "west"
    assert isinstance(error, ConfigError), error
    (problem,) = error.problems
    assert problem.startswith(f"a was deleted at east since mirror {scene.service(BACK).config.mirror} has begun to fill it")
    assert f"another mirror id, other tables and another checkpoint into {scene.world.folder / BACK}" in problem
    assert f"run `shallow-mirror failover back {scene.world.folder / FAILOVER}` again" in problem


@pytest.mark.parametrize(
    ("moment", "records"),
    [
        (Step.FILL, 3),
        (WaveStep.CATCH_UP, None),
        (WaveStep.STOP_WRITERS, 0),
        (WaveStep.COMMIT_GROUPS, None),
        (WaveStep.POINT_OF_NO_RETURN, 3),
        *(
            pytest.param(moment, records, marks=pytest.mark.long)
            for moment, records in ((Step.FILL, None), (WaveStep.STOP_WRITERS, 3), (WaveStep.POINT_OF_NO_RETURN, None))
        ),
    ],
)
def test_another_mirror_back_goes_on_where_a_refilled_topic_is_deleted(
    scene: GoingBack, moment: Step | WaveStep, records: int | None
) -> None:
    scene.gone_at(moment, records)
    require_named(scene, scene.back())
    require_named(scene, scene.back())
    scene.change_back("back-2")
    assert scene.back() is None, scene.world.events
    scene.check()
    kept = scene.kept()
    assert sorted(kept) == [f"of somebody {number}" for number in range(records or 0)]


@pytest.mark.parametrize(("moment", "remedy"), [(Step.FILL, "forget"), (WaveStep.COMMIT_GROUPS, "exclude")])
def test_other_remedies_that_the_mirror_back_names_lead_to_the_way_on(
    scene: GoingBack, moment: Step | WaveStep, remedy: str
) -> None:
    scene.gone_at(moment)
    require_named(scene, scene.back())
    if remedy == "forget":
        scene.forget()
    else:
        scene.change_back(exclude=["a"])
    require_named(scene, scene.back())
    scene.change_back("back-2")
    if remedy == "exclude":
        assert "mirror back-2 does not copy a (topics.include, topics.exclude)" in str(scene.back())
        scene.change_back("back-2", exclude=[])
    assert scene.back() is None, scene.world.events
    scene.check()


def test_a_topic_that_is_excluded_while_it_is_handed_back_is_to_be_copied_again(scene: GoingBack) -> None:
    scene.kill_at(WaveStep.STOP_WRITERS)
    scene.change_back(exclude=["a"])
    assert "mirror back-ab does not copy a (topics.include, topics.exclude): let it copy them" in str(scene.back())
    scene.change_back(exclude=[])
    assert scene.back() is None, scene.world.events
    scene.check()


def test_a_topic_that_is_being_handed_over_cannot_be_forgotten_and_the_way_on_is_named(scene: GoingBack) -> None:
    scene.gone_at(WaveStep.VERIFY_REST)
    require_named(scene, scene.back())
    if scene.service(BACK).is_running:
        scene.world.kill(scene.service(BACK))
    with pytest.raises(ConfigError, match=r"the last step of `shallow-mirror failover back FILE`, that command says"):
        scene.forget()


def test_a_mirror_back_that_has_run_takes_no_place(scene: GoingBack) -> None:
    scene.gone_at(WaveStep.STOP_WRITERS)
    require_named(scene, scene.back())
    scene.change_back("back-2")
    scene.kill_at(WaveStep.CATCH_UP)
    scene.change_back("back-ab")
    assert "mirror back-ab has run already: give it another mirror id and other tables" in str(scene.back())
    scene.change_back("back-3")
    assert scene.back() is None, scene.world.events
    scene.check()


def test_a_mirror_that_is_replaced_has_to_be_stopped_and_writes_nothing_more(scene: GoingBack) -> None:
    scene.isolate()
    scene.gone_at(WaveStep.STOP_WRITERS)
    require_named(scene, scene.back())
    former = scene.keep_former_running()
    scene.change_back("back-2")
    assert scene.back() is None, scene.world.events
    assert any("WAITS: stop the mirror back-ab, which is replaced" in event for event in scene.world.events)
    scene.check()
    former.is_wanted = True
    scene.world.start(former)
    scene.site.is_writing = True
    scene.world.let(60)
    scene.check()


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("moment", [Step.FILL, WaveStep.COMMIT_GROUPS])
def test_a_command_that_is_killed_while_a_mirror_back_is_replaced_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: Step | WaveStep, is_behind: bool
) -> None:
    with monkeypatch.context() as patch, going_back(tmp_path / "world", patch) as scene:
        scene.gone_at(moment, 3)
        require_named(scene, scene.back())
        scene.change_back("back-2")
        kills = 0
        for effect in range(1, 100):
            life = Life(kill_at=effect, is_behind=is_behind)
            assert scene.back(life) is None, (effect, scene.world.events)
            kills += life.is_over
            if scene.state().filled_by[-1]["mirror"] == "back-2":
                break
        assert kills > 4
        assert scene.back() is None, scene.world.events
        scene.check()
        assert sorted(scene.kept()) == [f"of somebody {number}" for number in range(3)]
