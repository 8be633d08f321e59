"""Writers that only an ACL stops, on brokers with an authorizer; and topics that move in two waves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import KafkaException, Producer
from tests.groups.group_runs import consume, member
from tests.migration.application import Application
from tests.migration.migrations import Operator, Scene, scene
from tests.support import mirror_runs as runs
from tests.support.guarded_clusters import ANNA, PASSWORD, Guarded, client, guarded_pair, super_user

from shallow_mirror.broker.admin.access import Acl, AclOperation, ResourceKind, ResourcePattern
from shallow_mirror.config import MirrorConfig
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.migration import Options, Phase, WaitsForOutsideError, abort, read_state, roll_back, run_migration, view

pytestmark = [pytest.mark.brokers, pytest.mark.long, pytest.mark.timeout(400)]

__all__ = ["guarded_pair"]


def write_as_anna(node: LocalKafka, topic: str, value: str) -> str | None:
    """Return the name of the error; None: the record was written."""
    settings = {**client(node, ANNA, PASSWORD), "message.timeout.ms": 10_000, "log_level": 0}
    errors: list[str | None] = []
    producer = Producer(settings)
    try:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(None if error is None else error.name()))
    except KafkaException as error:
        return str(error.args[0].name())
    producer.flush(20)
    return errors[0]


def write_when_permitted(node: LocalKafka, topic: str, value: str) -> None:
    """Write a record once the brokers know the ACLs that were changed before."""
    runs.wait_for("a written record", lambda: write_as_anna(node, topic, value) is None)


@pytest.fixture
def anna_writes(guarded_pair: Guarded, topic_name: str) -> Iterator[str]:
    """Return a topic that anna may write to on both clusters."""
    allow = Acl(ResourcePattern(ResourceKind.TOPIC, topic_name), f"User:{ANNA}", AclOperation.WRITE)
    runs.create_topic(guarded_pair.source.bootstrap, topic_name)
    for node in guarded_pair:
        assert super_user(node).create([allow]) == {}
    yield topic_name
    for node in guarded_pair:
        super_user(node).delete([acl for acl in super_user(node).read() if acl.pattern.name == topic_name])


def denies(node: LocalKafka, topic: str) -> list[Acl]:
    return [acl for acl in super_user(node).read() if acl.is_deny and acl.pattern.name == topic]


def test_acls_stop_the_writers_and_an_abort_or_a_rollback_takes_them_away(
    guarded_pair: Guarded, anna_writes: str, tmp_path: Path
) -> None:
    topic, group = anna_writes, f"{anna_writes}.group"

    def denied_line(side: str, end: str) -> str:
        return f"  Deny ACLs created at the {side}: WRITE of {topic} by User:{ANNA}: {end}"

    writers = {"stop": "deny", "principals": [f"User:{ANNA}"], "quiet": "1 second"}
    with (
        scene(tmp_path, guarded_pair, [topic], [group], writers=writers, reverse={"start": "conductor"}) as made,
        Application(topic, 1, []) as application,
    ):
        application.writers.clear()
        for number in range(3):
            write_when_permitted(guarded_pair.source, topic, f"{number}")
        consume(guarded_pair.source.bootstrap, group, topic, 1, 2)
        made.start_forward()
        operator = Operator(application, {})
        operator.says = operator.lines.append  # type: ignore[method-assign,assignment]
        operator.waits = lambda outside: operator.lines.append(outside.request)  # type: ignore[method-assign]
        options = Options(launch=made.launch)
        with pytest.raises(WaitsForOutsideError):
            _until_denied(made, operator, guarded_pair, topic)
        assert write_as_anna(guarded_pair.source, topic, "denied") == "TOPIC_AUTHORIZATION_FAILED"
        assert denied_line("source", "`migrate abort` deletes them") in status_lines(made)
        abort(made.files(), operator, options)
        assert read_state(made.files()).waves["all"].phase is Phase.AT_SOURCE
        assert denies(guarded_pair.source, topic) == []
        assert not any("Deny" in line for line in status_lines(made))
        write_when_permitted(guarded_pair.source, topic, "3")

        assert run_migration(made.files(), operator, options).waves["all"].phase is Phase.MOVED
        assert write_as_anna(guarded_pair.source, topic, "late") == "TOPIC_AUTHORIZATION_FAILED"
        assert denied_line("source", "a rollback deletes them") in status_lines(made)
        write_when_permitted(guarded_pair.target, topic, "4")
        assert consume(guarded_pair.target.bootstrap, group, topic, 1, 1) == ["2"]
        assert roll_back(made.files(), operator, options=options).waves["all"].phase is Phase.RETURNED
        assert denies(guarded_pair.source, topic) == []
        assert len(denies(guarded_pair.target, topic)) == 1
        left = denied_line("target", "no command deletes them, `kafka-acls.sh --remove` does")
        assert left in status_lines(made)
        write_when_permitted(guarded_pair.source, topic, "5")
        assert consume(guarded_pair.source.bootstrap, group, topic, 1) == ["3", "4", "5"]


def status_lines(made: Scene) -> list[str]:
    return view.state_text(read_state(made.files()), "m").splitlines()


def _until_denied(made: Scene, operator: Operator, guarded_pair: Guarded, topic: str) -> None:
    """Run until the ACLs are there and a group that is active keeps the conductor from going further."""
    with member(guarded_pair.source.bootstrap, f"{topic}.group", topic) as consumer:
        while not consumer.assignment():
            consumer.poll(0.1)
        run_migration(made.files(), operator, Options(waits=False))


def test_topics_move_in_waves_with_a_reverse_mirror_each(two_clusters: Any, topic_name: str, tmp_path: Path) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    topics = [f"{topic_name}-{number}" for number in range(2)]
    waves = [
        {"name": f"wave-{number}", "topics": [topic], "groups": [f"{topic}.group"], "reverse": f"reverse-{number}.yaml"}
        for number, topic in enumerate(topics)
    ]
    for number, topic in enumerate(topics):
        runs.create_topic(source, topic, 3)
        runs.write(source, topic, [f"{number}-{value}" for value in range(5)])
        consume(source, f"{topic}.group", topic, 3, 2)
        backward = runs.document(target, source, [topic], tables=f"backward-{number}")
        backward["source"]["alias"], backward["target"]["alias"] = "west", "east"
        (tmp_path / f"reverse-{number}.yaml").write_text(yaml.safe_dump(backward), encoding="utf-8")
        MirrorConfig.load(tmp_path / f"reverse-{number}.yaml")
    with (
        scene(tmp_path, two_clusters, topics, [], waves=waves, reverse={"start": "conductor"}) as made,
        Application(topics[0], 3, []) as application,
    ):
        application.writers.clear()
        made.start_forward()
        settings = made.files().mirror
        runs.wait_for("both topics", lambda: len(runs.positions(settings)) == 6)
        operator = Operator(application, {})
        operator.says = operator.lines.append  # type: ignore[method-assign,assignment]
        options = Options(launch=made.launch)
        moved = run_migration(made.files(), operator, options)
        assert [wave.phase for wave in moved.waves.values()] == [Phase.MOVED, Phase.MOVED]
        for number, topic in enumerate(topics):
            runs.write(target, topic, [f"{number}-new"])
            assert len(consume(target, f"{topic}.group", topic, 3, 2)) == 2
        back = roll_back(made.files(), operator, options=options)
        assert [wave.phase for wave in back.waves.values()] == [Phase.RETURNED, Phase.RETURNED]
        for number, topic in enumerate(topics):
            left = consume(source, f"{topic}.group", topic, 3)
            assert len(left) == 2
            assert f"{number}-new" in left
        assert read_state(made.files()).under_way is None
