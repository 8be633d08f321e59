"""What the monitor of a running mirror makes of rows in `controls`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.sinks.two_strict_clusters import LIMITS

from shallow_mirror.broker.cluster.topic_presence import Missing
from shallow_mirror.checkpoints.ledger import Recorded, RunIdentity, version_of
from shallow_mirror.checkpoints.logs.runs import Problem
from shallow_mirror.checkpoints.logs.topics import ControlRow, Controls, TopicControls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import FencedError, MirrorError, OlderTablesError, RetriableError
from shallow_mirror.sinks import RoutedTopic
from shallow_mirror.sinks.kafka.targets.settings import SourcePolicies, TopicConfigSync
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.runs import idle_map, topic_monitor
from shallow_mirror.streaming.runs.idle_map import IdleMap
from shallow_mirror.streaming.runs.run_controls import RunControls
from shallow_mirror.streaming.runs.topic_monitor import TopicMonitor


class Cycles:
    """`may_copy`: whether what was taken back may be copied."""

    def __init__(self, may_copy: Callable[[], bool]) -> None:
        self._may_copy = may_copy
        self.requested: list[Collection[str]] = []

    registered_at = ("orders",)

    def exempt(self, topics: frozenset[str], returned: frozenset[str]) -> None: ...

    def may_copy_again(self, returned: Collection[str]) -> bool:
        self.requested.append(returned)
        return self._may_copy()


def raise_unreachable() -> bool:
    raise RetriableError("BROKER_NOT_AVAILABLE", "the source does not answer")


class Newest:
    """Notes of the newest row. `is_answering`: the target does."""

    def __init__(self) -> None:
        self.is_answering = True
        self.noted: list[tuple[str, str]] = []
        self.refused: list[OlderTablesError] = []

    def require_in(self, read: Callable[[], TopicControls]) -> TopicControls:
        if self.refused:
            raise self.refused.pop()
        return read()

    def keep(self, rows: Sequence[ControlRow], topics: Sequence[str]) -> bool:
        assert topics == ("orders",)
        if self.refused:
            raise self.refused.pop()
        if self.is_answering and rows:
            self.noted.append((rows[-1].action, rows[-1].topic))
        return self.is_answering


def recorded(epoch: int, number: int = 0, run_id: str = "own") -> Recorded:
    return Recorded(version=version_of(epoch, number), run=RunIdentity(run_id=run_id, host="host", pid=1, started_at_ms=0))


def monitored(
    table: Controls,
    paused_path: Path,
    cycles: Cycles,
    newest: Newest | None = None,
    controls: RunControls | None = None,
    looks: IdleMap | None = None,
    hidden: frozenset[str] = frozenset(),
) -> TopicMonitor:
    config: Any = SimpleNamespace()
    targets: Any = SimpleNamespace(hidden=hidden)
    given: Any = cycles
    notes: Any = Newest() if newest is None else newest
    held: Any = SimpleNamespace()
    return TopicMonitor(
        config,
        targets,
        (),
        controls or RunControls(table),
        paused_path,
        idle_map=IdleMap(TableStorage("unused"), "m", lambda: recorded(1)) if looks is None else looks,
        cycles=given,
        newest=notes,
        held=held,
        positions=dict,
        report=lambda _: None,
    )


def test_a_hand_over_is_confirmed_once_a_plan_was_made_without_the_topic(tmp_path: Path) -> None:
    controls, paused_path = Controls.open(str(tmp_path)), tmp_path / "paused.json"
    monitor = monitored(controls, paused_path, Cycles(lambda: True))
    monitor._read_controls()
    before = planner_state.read_paused_topics(paused_path).revision
    assert before is not None
    controls.add("hand-over", ["orders"])
    for revision in (None, before):  # the micro-batch that was planned before still runs
        if revision is not None:
            planner_state.write_planned_revision(paused_path, revision)
        monitor._read_controls()
        assert controls.read().requested.keys() == {"orders"}
    paused = planner_state.read_paused_topics(paused_path)
    assert paused.topics == {"orders"}
    assert paused.revision is not None
    planner_state.write_planned_revision(paused_path, paused.revision)
    monitor._read_controls()
    assert controls.read().handed_over.keys() == {"orders"}


def test_a_hand_over_is_confirmed_once_the_target_has_a_note_of_it(tmp_path: Path) -> None:
    """Without, a start with tables that lack the hand-over would copy the topic again."""
    controls, paused_path, newest = Controls.open(str(tmp_path)), tmp_path / "paused.json", Newest()
    monitor = monitored(controls, paused_path, Cycles(lambda: True), newest)
    controls.add("hand-over", ["orders"])
    newest.is_answering = False
    monitor._read_controls()
    planner_state.write_planned_revision(paused_path, planner_state.read_paused_topics(paused_path).revision or "")
    monitor._read_controls()
    assert controls.read().requested.keys() == {"orders"}
    newest.is_answering = True
    monitor._read_controls()
    assert newest.noted == [("hand-over", "orders")]
    assert controls.read().handed_over.keys() == {"orders"}


@pytest.mark.parametrize(
    ("may_copy", "left"),
    [(lambda: True, set()), (lambda: False, {"orders"}), (raise_unreachable, {"orders"})],
    ids=["no other mirror copies it", "another mirror copies it", "the source does not answer"],
)
def test_a_topic_that_was_taken_back_is_planned_only_where_no_other_mirror_brings_it_back(
    tmp_path: Path, may_copy: Callable[[], bool], left: set[str]
) -> None:
    controls, paused_path, cycles = Controls.open(str(tmp_path)), tmp_path / "paused.json", Cycles(may_copy)
    monitor = monitored(controls, paused_path, cycles)
    controls.add("hand-over", ["orders"])
    monitor._read_controls()
    assert planner_state.read_paused_topics(paused_path).topics == {"orders"}
    assert cycles.requested == []
    controls.add("take-back", ["orders"])
    monitor._read_controls()
    assert cycles.requested == [{"orders"}]
    assert planner_state.read_paused_topics(paused_path).topics == left


def test_a_topic_that_was_taken_back_is_not_planned_while_its_target_is_not_prepared(tmp_path: Path) -> None:
    """The target was hidden when the attempt began."""
    controls, paused_path = Controls.open(str(tmp_path)), tmp_path / "paused.json"
    monitor = monitored(controls, paused_path, Cycles(lambda: True), hidden=frozenset({"orders"}))
    for action in ("hand-over", "take-back"):
        controls.add(action, ["orders"])
        monitor._read_controls()
        assert planner_state.read_paused_topics(paused_path).topics == {"orders"}


def test_a_pause_that_cannot_be_passed_to_the_planner_is_passed_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    controls, folder = Controls.open(str(tmp_path)), tmp_path / "temp"
    monitor = monitored(controls, folder / "paused", Cycles(lambda: True))
    controls.add("pause", ["a"])
    folder.write_text("a file", encoding="utf-8")
    monitor._read_controls()
    assert "paused topics stay paused" in caplog.text
    folder.unlink()
    monitor._read_controls()
    assert planner_state.read_paused_topics(folder / "paused").topics == {"a"}


def test_a_table_that_is_away_or_older_resumes_no_topic(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tables, paused_path = tmp_path / "tables", tmp_path / "paused.json"
    table = Controls.open(str(tables))
    controls = RunControls(table)
    monitor = monitored(table, paused_path, Cycles(lambda: True), controls=controls)
    table.add("pause", ["a"])
    older = shutil.copytree(tables, tmp_path / "older")
    table.add("pause", ["b"])
    monitor._read_controls()
    newest = tables.rename(tmp_path / "newest")
    monitor._read_controls()
    assert "it has no rows, of 2 rows that were read" in caplog.text
    assert planner_state.read_paused_topics(paused_path).topics == {"a", "b"}
    controls.require_running()
    shutil.copytree(older, tables)
    monitor._read_controls()
    assert planner_state.read_paused_topics(paused_path).topics == {"a", "b"}
    with pytest.raises(OlderTablesError, match=r"is row 1 \(pause of a\), but this run has read row 2 \(pause of b\)"):
        controls.require_running()
    shutil.rmtree(tables)
    newest.rename(tables)
    assert controls.read().paused.keys() == {"a", "b"}


def test_a_note_of_a_newer_row_ends_the_run_unless_the_row_was_added_since(tmp_path: Path) -> None:
    table = Controls.open(str(tmp_path))
    newest, controls = Newest(), RunControls(table)
    monitor = monitored(table, tmp_path / "paused.json", Cycles(lambda: True), newest, controls)
    error = OlderTablesError("row 1", "the target notes row 2")
    newest.refused = [error]
    monitor._read_controls()
    controls.require_running()
    newest.refused = [error, error]
    monitor._read_controls()
    with pytest.raises(OlderTablesError, match="the target notes row 2"):
        controls.require_running()


def test_a_mirror_that_was_failed_over_ends_also_where_it_has_nothing_to_copy(tmp_path: Path) -> None:
    table = Controls.open(str(tmp_path))
    controls = RunControls(table)
    monitor = monitored(table, tmp_path / "paused.json", Cycles(lambda: True), controls=controls)
    monitor._read_controls()
    controls.require_running()
    table.add("fail-over", ["orders"])
    monitor._read_controls()
    with pytest.raises(FencedError, match="a fail-over has ended this mirror"):
        controls.require_running()


class Follower:
    """The sync of settings: the topics that each look left out."""

    def __init__(self) -> None:
        self.left_out: list[set[str]] = []

    def sync(self, missing: Collection[str], deadline: Any) -> dict[str, tuple[str, ...]]:
        self.left_out.append(set(missing))
        return {}


def test_settings_of_a_topic_that_was_handed_over_are_not_followed_any_more(tmp_path: Path) -> None:
    """The reverse mirror follows them in the other direction: two mirrors would set each other's values for ever."""
    controls, follower = Controls.open(str(tmp_path)), Follower()
    monitor = monitored(controls, tmp_path / "paused.json", Cycles(lambda: True))
    given: Any = follower
    for action, left_out in (("pause", set()), ("hand-over", {"orders"}), ("take-back", set())):
        controls.add(action, ["orders"])  # type: ignore[arg-type]
        monitor._read_controls()
        monitor._follow(given, {"gone"}, monitor._deadline())
        assert follower.left_out[-1] == {"gone", *left_out}


class Looks:
    """The comparison of settings: the topics that each look left out, and whether it was due."""

    def __init__(self) -> None:
        self.looks: list[tuple[set[str], bool]] = []
        self.error: MirrorError | None = None

    def look(self, _target: Any, not_written: Collection[str], _deadline: Any, *, is_due: bool) -> None:
        self.looks.append((set(not_written), is_due))
        if self.error is not None:
            raise self.error


def test_settings_of_topics_that_are_not_copied_are_not_compared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    controls = Controls.open(str(tmp_path))
    monitor = monitored(controls, tmp_path / "paused.json", Cycles(lambda: True))
    looks: Any = Looks()
    unused: Any = None
    monitor._look_at_idle_settings(unused, is_due=True)  # a mirror without preserved topics
    monitor._idle_settings = looks
    for action, paused in (("pause", {"orders"}), ("resume", set()), ("hand-over", {"orders"})):
        controls.add(action, ["orders"])  # type: ignore[arg-type]
        monitor._read_controls()
        monitor._look_at_idle_settings(unused, is_due=False)
        assert looks.looks[-1] == (paused, False)
    monitor._missing, monitor._gone = frozenset({"deleted"}), frozenset({"gone"})
    looks.error = RetriableError("NOTE_NOT_WRITTEN", "the disk is full")
    monitor._look_at_idle_settings(unused, is_due=True)
    assert looks.looks[-1] == ({"orders", "deleted", "gone"}, True)
    assert "settings of preserved target topics cannot be compared: NOTE_NOT_WRITTEN" in caplog.text


def test_settings_are_compared_with_the_topics_and_suspected_ones_each_time_the_controls_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, looks = list[str](), Looks()
    monitor = monitored(Controls.open(str(tmp_path)), tmp_path / "paused.json", Cycles(lambda: True))
    given: Any = looks
    monitor._idle_settings = given
    client = SimpleNamespace(client=None)
    monitor._config = SimpleNamespace(  # type: ignore[assignment]
        source=client,
        target=client,
        topics=SimpleNamespace(discovery_s=60.0, configs="off", preserves_offsets=False),
        table_location=SimpleNamespace(is_read_by_spark=False),
    )
    monkeypatch.setattr(topic_monitor, "CONTROLS_EVERY_S", 0.0)
    monkeypatch.setattr(topic_monitor, "Cluster", lambda _, **__: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(monitor, "_targets", SimpleNamespace(names=dict))
    monkeypatch.setattr(monitor, "_cycles", SimpleNamespace(check_while_running=lambda _: None))
    monkeypatch.setattr(monitor, "_look_at_map", lambda: None)
    monkeypatch.setattr(monitor, "_check_topics", lambda *_: steps.append("topics"))

    def read_controls() -> None:
        steps.append("controls")
        if len(looks.looks) == 2:
            monitor._stop.set()

    monkeypatch.setattr(monitor, "_read_controls", read_controls)
    monitor._run()
    assert [is_due for _, is_due in looks.looks] == [True, False, False]
    assert steps == ["controls", "topics", "controls", "controls"]


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        (recorded(2, 4), None),
        (recorded(2, 6), None),
        (recorded(2, 2), OlderTablesError),
        (recorded(1, 4, "former"), OlderTablesError),
        (recorded(3, 0, "later"), FencedError),
        (recorded(2, 4, "another copy"), FencedError),
    ],
    ids=["unchanged", "just decided", "older", "of a former run", "taken over", "diverged"],
)
def test_a_mirror_without_work_ends_once_its_map_is_exchanged_or_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newest: Recorded, expected: type[MirrorError] | None
) -> None:
    opened: list[bool] = []

    def open_map(*_: object, counts_rows: bool = True, **__: object) -> Any:
        opened.append(counts_rows)
        return SimpleNamespace(recorded=lambda: newest)

    monkeypatch.setattr(idle_map, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(idle_map, "OffsetMap", SimpleNamespace(open=open_map))
    own = [recorded(2, 2), recorded(2, 4), recorded(2, 4)]
    controls = RunControls(Controls.open(str(tmp_path)))
    looks = IdleMap(TableStorage(str(tmp_path)), "m", lambda: own.pop(0))
    monitor = monitored(controls.table, tmp_path / "paused.json", Cycles(lambda: True), controls=controls, looks=looks)
    monitor._look_at_map()
    monitor._look_at_map()
    assert not opened, "a run that decides notices by itself"
    monitor._look_at_map()
    assert opened == [False], "once, and without a count of the rows"
    if expected is None:
        controls.require_running()
    else:
        with pytest.raises(expected):
            controls.require_running()


class Deletions:
    """Of `orders`, whose target topic is deleted at the second look, and `users`, whose target topic is kept."""

    def __init__(self) -> None:
        self.without_target: frozenset[str] = frozenset()
        self.looks = 0

    def follow(self, *_: object) -> dict[str, str]:
        self.looks += 1
        self.without_target = frozenset({"orders"} if self.looks > 1 else ())
        return {"orders": f"orders: look {self.looks}", "users": "users: kept"}


def looking_at_topics(folder: Path, problems: list[Problem], deletions: Deletions | None = None) -> TopicMonitor:
    """Return the monitor of a mirror that copies `orders` and `users`."""
    route = RoutedTopic(target_topic="copy", target_topic_id="id", limits=LIMITS)
    nothing: Any = SimpleNamespace(rings_of_others={}, left_out={}, release=lambda *_: {})
    config: Any = SimpleNamespace(topics=SimpleNamespace(is_included=lambda _: True), checkpoint=str(folder / "checkpoint"))
    unused: Any = None
    return TopicMonitor(
        config,
        SimpleNamespace(routes={"orders": route}, stamping=SimpleNamespace(sentences=dict)),  # type: ignore[arg-type]
        ("orders", "users"),
        unused,
        folder / "paused.json",
        idle_map=unused,
        cycles=nothing,
        newest=unused,
        held=nothing,
        positions=dict,
        report=problems.append,
        deletions=deletions,  # type: ignore[arg-type]
    )


def topics_state(folder: Path) -> planner_state.TopicsState:
    state = planner_state.read_state(planner_state.topics_state_path(str(folder / "checkpoint")), planner_state.TopicsState)
    assert state is not None
    return state


def test_a_topic_is_deleted_once_more_than_one_broker_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has only just started may not list a topic yet."""
    missing, gone, asked = ["users"], dict[str, str](), list[set[str]]()

    def ask(_cluster: object, ids: Mapping[str, str], _deadline: object) -> dict[str, str]:
        if "copy" not in ids:
            asked.append(set(ids))
        return {name: now for name, now in gone.items() if name in ids}

    monkeypatch.setattr(topic_monitor, "missing_topics", lambda *_: Missing(gone=tuple(missing)))
    monkeypatch.setattr(topic_monitor, "gone_topics", ask)
    problems, unused = list[Problem](), cast(Any, None)
    monitor = looking_at_topics(tmp_path, problems)
    monitor._check_topics(unused, unused, None)
    assert (problems, topics_state(tmp_path).gone) == ([], ())
    gone["users"] = ""
    for _ in range(2):
        monitor._check_topics(unused, unused, None)
        assert [problem.text for problem in problems] == ["source topic users was deleted: its copies stay on the target"]
        assert topics_state(tmp_path).gone == ("users",)
    missing.clear()
    monitor._check_topics(unused, unused, None)
    assert topics_state(tmp_path).gone == ()
    assert asked == [{"users"}, {"users"}, set(), set()], "of a topic that is known to be deleted one broker is asked"


def test_a_target_topic_that_the_mirror_has_deleted_is_no_problem_and_has_no_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_monitor, "missing_topics", lambda *_: Missing(gone=("orders", "users")))
    gone = {"orders": "", "users": ""}
    monkeypatch.setattr(topic_monitor, "gone_topics", lambda *_: gone)
    problems = list[Problem]()
    monitor = looking_at_topics(tmp_path, problems, Deletions())
    unused: Any = None
    monitor._check_topics(unused, unused, None)
    gone["copy"] = ""
    monitor._check_topics(unused, unused, None)
    assert [problem.text for problem in problems] == ["orders: look 1", "users: kept"]
    state = topics_state(tmp_path)
    assert (state.problems, state.topics) == (
        ("orders: look 2", "users: kept"),
        {"orders: look 2": "orders", "users: kept": "users"},
    )
    assert state.followed == ("orders", "users")


@pytest.mark.parametrize(
    ("configs", "preserves", "follower"),
    [
        ("sync", True, TopicConfigSync),
        ("create", True, SourcePolicies),
        ("off", True, SourcePolicies),
        ("create", False, type(None)),
    ],
)
def test_policies_of_preserved_topics_are_compared_where_settings_are_not_followed(
    tmp_path: Path, configs: str, preserves: bool, follower: type
) -> None:
    monitor = monitored(Controls.open(str(tmp_path)), tmp_path / "paused.json", Cycles(lambda: True))
    monitor._config.topics = SimpleNamespace(configs=configs, preserves_offsets=preserves)  # type: ignore[assignment]
    unused: Any = None
    assert type(monitor._follower(unused, unused)) is follower
