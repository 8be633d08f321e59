"""Settings of preserved target topics that are changed while the mirror runs and the topics are idle at the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import Life
from tests.operators.surroundings import world_of_two_topics

from shallow_mirror.checkpoints.logs.runs import CountedProblem, ProblemKind, read_problems
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError, IncompleteRunError, MirrorError, TopicSettingsError
from shallow_mirror.streaming.planning import planner_state, read_left_out
from shallow_mirror.streaming.runs import mirror_query

pytestmark = pytest.mark.usefixtures("without_logging")

_CHANGES = (
    ("message.timestamp.type", "LogAppendTime", "CreateTime"),
    ("cleanup.policy", "compact,delete", "delete"),
    ("compression.type", "lz4", "producer"),
    ("message.timestamp.before.max.ms", "3600000", str((1 << 63) - 1)),
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWorld]:
    monkeypatch.setattr(mirror_query, "FOLLOW_MS", 0.0)  # tasks that read on do so by the clock of the machine
    with world_of_two_topics(tmp_path / "world") as opened:
        opened.settings.offsets = "preserved"
        assert opened.run(Life()) is None
        yield opened


def _isolate(world: FakeWorld) -> None:
    world._configs[world.settings.key()] = world.config.model_copy(update={"on_error": "isolate"})


def _set(world: FakeWorld, value: str, name: str = "message.timestamp.type", topic: str = "a") -> Callable[[], None]:
    return lambda: world.target.set_config(topic, name, value)


def _stay(world: FakeWorld, *while_idle: Callable[[], None]) -> MirrorError | None:
    """Run the mirror until all of this has happened, and for a look more."""
    world.while_idle, world.patience_s = list(while_idle), 20.0 * (len(while_idle) + 1)
    return world.run(Life())


def _nothing() -> None: ...


def _left_out(world: FakeWorld) -> dict[str, str]:
    return {left.source.topic: left.reason for left in read_left_out(planner_state.left_out_path(world.config.checkpoint))}


def _left_out_problems(world: FakeWorld) -> list[CountedProblem]:
    problems = read_problems(TableStorage(world.config.table_location).best_effort_tables(), 2)
    return [entry for entry in problems if entry.problem.kind is ProblemKind.LEFT_OUT]


def _values(world: FakeWorld, topic: str) -> int:
    return len(world.target.read(topic, 0))


@pytest.mark.parametrize(("name", "value", "before"), _CHANGES)
def test_a_change_ends_the_run_without_a_record_that_shows_it(world: FakeWorld, name: str, value: str, before: str) -> None:
    error = _stay(world, _set(world, value, name), _nothing, _nothing)
    assert isinstance(error, TopicSettingsError)
    assert error.topics == ("a",)
    assert f"target topic a has {name}={value}" in str(error)
    assert (
        "once the topic is as before (with on_error: isolate it continues by itself), and then run `shallow-mirror verify CONF`"
        in str(error)
    )
    assert len(world.while_idle) == 1, "two looks have shown it"
    world.target.set_config("a", name, before)
    assert _stay(world, lambda: world.produce("a", 0, 1), _nothing) is None
    assert _values(world, "a") == 2


@pytest.mark.parametrize(("name", "value", "before"), _CHANGES)
def test_with_isolate_the_topic_is_left_out_until_the_setting_is_back_and_others_continue(
    world: FakeWorld, name: str, value: str, before: str
) -> None:
    _isolate(world)
    left_out = list[dict[str, str]]()
    error = _stay(
        world,
        _set(world, value, name),
        _nothing,
        lambda: left_out.append(_left_out(world)),
        lambda: world.produce("b", 0, 1),
        lambda: left_out.append(_left_out(world)),
        _set(world, before, name),
        lambda: left_out.append(_left_out(world)),
        lambda: world.produce("a", 0, 1),
        _nothing,
    )
    assert error is None
    assert [set(topics) for topics in left_out] == [{"a"}, {"a"}, set()]
    assert f"target topic a has {name}={value}" in left_out[0]["a"]
    assert (_values(world, "a"), _values(world, "b")) == (2, 2)
    assert [(entry.problem.topic, entry.problem.error_name) for entry in _left_out_problems(world)] == [
        ("a", "TopicSettingsError")
    ]


def test_its_next_record_is_left_out_for_the_same_reason_and_reported_once(world: FakeWorld) -> None:
    _isolate(world)
    left_out = list[dict[str, str]]()
    error = _stay(
        world,
        _set(world, "LogAppendTime"),
        _nothing,
        lambda: left_out.append(_left_out(world)),
        lambda: world.produce("a", 0, 1),
        lambda: left_out.append(_left_out(world)),
        _set(world, "CreateTime"),
        *[_nothing] * 20,  # a slot tries it again after some time
        lambda: left_out.append(_left_out(world)),
    )
    assert error is None
    assert [set(topics) for topics in left_out] == [{"a"}, {"a"}, set()]
    assert left_out[0] == left_out[1]
    assert _values(world, "a") == 2
    assert [entry.occurrences for entry in _left_out_problems(world)] == [1]


def test_one_answer_with_an_older_setting_ends_nothing(world: FakeWorld) -> None:
    """Any broker answers, and one may not know yet what another one has told the start."""
    assert _stay(world, _set(world, "LogAppendTime"), _set(world, "CreateTime"), _nothing) is None


@pytest.mark.parametrize("action", ["pause", "hand-over"])
def test_a_topic_that_the_mirror_does_not_copy_may_get_any_setting(world: FakeWorld, action: str) -> None:
    """Its target topic is the business of the applications that a migration has moved there."""
    assert (
        _stay(
            world,
            lambda: world.controls().add(action, ["a"]),  # type: ignore[arg-type]
            _set(world, "LogAppendTime"),
            _nothing,
            _nothing,
        )
        is None
    )


def test_a_topic_that_is_handed_over_between_two_looks_does_not_end_the_run(world: FakeWorld) -> None:
    def change_and_hand_over() -> None:
        world.controls().add("hand-over", ["a"])  # after the controls were read
        world.target.set_config("a", "message.timestamp.type", "LogAppendTime")

    assert _stay(world, change_and_hand_over, _nothing, _nothing) is None


def test_another_topic_of_the_name_is_no_changed_setting(world: FakeWorld) -> None:
    def recreate() -> None:
        world.delete_target_topic("a")
        world.target.create_topic("a", 1)  # without the settings of a preserved topic

    assert _stay(world, recreate, _nothing, _nothing) is None


@pytest.mark.parametrize(("name", "value", "before"), _CHANGES)
def test_with_isolate_a_start_leaves_out_a_topic_that_was_changed_before_it(
    world: FakeWorld, name: str, value: str, before: str
) -> None:
    _isolate(world)
    world.target.set_config("a", name, value)
    for topic in ("a", "b"):
        world.produce(topic, 0, 1)
    left_out = list[dict[str, str]]()
    error = _stay(
        world,
        lambda: left_out.append(_left_out(world)),
        _nothing,
        _set(world, before, name),
        *[_nothing] * 20,  # a slot tries it again after some time
        lambda: left_out.append(_left_out(world)),
    )
    assert error is None
    assert [set(topics) for topics in left_out] == [{"a"}, set()]
    assert f"target topic a has {name}={value}" in left_out[0]["a"]
    assert (_values(world, "a"), _values(world, "b")) == (2, 2)
    assert [entry.occurrences for entry in _left_out_problems(world)] == [1]


def test_a_run_up_to_the_log_ends_names_an_idle_topic_that_was_changed_before_it(world: FakeWorld) -> None:
    _isolate(world)
    world.target.set_config("a", "message.timestamp.type", "LogAppendTime")
    world.produce("b", 0, 1)
    error = world.run(Life())
    assert isinstance(error, IncompleteRunError)
    assert "left out: a-0 (target topic a has message.timestamp.type=LogAppendTime" in str(error)
    assert _values(world, "b") == 2
    world.target.set_config("a", "message.timestamp.type", "CreateTime")
    assert world.run(Life()) is None


def test_without_isolate_such_a_start_is_refused(world: FakeWorld) -> None:
    world.target.set_config("a", "message.timestamp.type", "LogAppendTime")
    world.produce("b", 0, 1)
    assert isinstance(world.run(Life()), ConfigError)
    assert _values(world, "b") == 1


@pytest.mark.parametrize("isolates", [False, True])
@pytest.mark.parametrize(("name", "value", "before"), _CHANGES)
def test_a_topic_that_was_handed_over_may_get_any_setting_before_a_start(
    world: FakeWorld, name: str, value: str, before: str, isolates: bool
) -> None:
    if isolates:
        _isolate(world)
    world.controls().add("hand-over", ["a"])
    world.target.set_config("a", name, value)
    world.produce("b", 0, 1)
    assert world.run(Life()) is None
    assert _values(world, "b") == 2
