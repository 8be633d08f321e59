"""On brokers with an authorizer: which permissions a migration needs, and that a plan names each that is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.groups.group_runs import consume, member
from tests.migration.application import Application
from tests.migration.migrations import Operator, Scene, left_of_rehearsals, scene
from tests.support import mirror_runs as runs
from tests.support.console_entry import console
from tests.support.guarded_clusters import MIRROR, PASSWORD, Guarded, client, guarded_pair, super_user

from shallow_mirror.broker.admin.access import Acl, AclEffect, AclOperation, PatternKind, ResourceKind, ResourcePattern
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.migration import (
    Options,
    Phase,
    WaitsForOutsideError,
    abort,
    plan_migration,
    read_state,
    rehearse,
    roll_back,
    run_migration,
)

pytestmark = [pytest.mark.brokers, pytest.mark.long, pytest.mark.timeout(600)]

__all__ = ["guarded_pair"]

SHOP = "User:shop"
CLUSTER = ResourcePattern(ResourceKind.CLUSTER, "kafka-cluster")


@dataclass(slots=True)
class Permitted:
    """A migration whose files name a user with few permissions; its mirrors run as a user with all of them."""

    made: Scene
    clusters: Guarded
    operator: Operator
    group: str

    @property
    def topic(self) -> str:
        return self.made.topics[0]

    @property
    def options(self) -> Options:
        """Return options with which a reverse mirror is started as the other user, from the file beside."""
        return Options(launch=lambda file, log, more: self.made.launch(str(Path(file).with_name("reverse.yaml")), log, more))

    def plan_problems(self) -> list[str]:
        (wave,) = plan_migration(self.made.files()).waves
        return list(wave.problems)


def needed(permitted: Permitted) -> dict[str, list[Acl]]:
    """Return the ACLs of docs/reference/acls.md for a migration with a way back, by side."""
    topic, group = ResourcePattern(ResourceKind.TOPIC, permitted.topic), ResourcePattern(ResourceKind.GROUP, permitted.group)
    files = permitted.made.files()
    operations = (AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS)
    shared = [*(allow(topic, operation) for operation in operations), allow(group, AclOperation.READ)]
    return {
        side: [
            *shared,
            allow(ResourcePattern(ResourceKind.TRANSACTIONAL_ID, f"{mirror}-", PatternKind.PREFIXED), AclOperation.WRITE),
            allow(ResourcePattern(ResourceKind.GROUP, f"{mirror}-", PatternKind.PREFIXED), AclOperation.READ),
        ]
        for side, mirror in (("source", files.reverses["all"].mirror), ("target", files.mirror.mirror))
    }


def allow(pattern: ResourcePattern, operation: AclOperation) -> Acl:
    return Acl(pattern, f"User:{MIRROR}", operation, AclEffect.ALLOW)


def grant(node: LocalKafka, acls: Sequence[Acl]) -> None:
    assert super_user(node).create(acls) == {}
    runs.wait_for("the ACLs", lambda: set(acls) <= super_user(node).read())


def revoke(node: LocalKafka, acls: Sequence[Acl]) -> None:
    assert super_user(node).delete(acls) == {}
    runs.wait_for("the end of the ACLs", lambda: not set(acls) & super_user(node).read())


@contextmanager
def without(node: LocalKafka, acl: Acl) -> Iterator[None]:
    revoke(node, [acl])
    try:
        yield
    finally:
        grant(node, [acl])


@contextmanager
def granted(node: LocalKafka, acls: Sequence[Acl]) -> Iterator[None]:
    grant(node, acls)
    try:
        yield
    finally:
        revoke(node, acls)


def describing_instead_of(acl: Acl) -> list[Acl]:
    """Return what lets a user see a resource without what he is granted on it otherwise."""
    if acl.pattern.match is PatternKind.PREFIXED:
        return []
    return [allow(acl.pattern, AclOperation.DESCRIBE)]


@pytest.fixture
def permitted(guarded_pair: Guarded, topic_name: str, tmp_path: Path) -> Iterator[Permitted]:
    source, target = guarded_pair
    group = f"{topic_name}.group"
    runs.create_topic(source.bootstrap, topic_name)
    runs.write(source.bootstrap, topic_name, ["1", "2", "3"])
    consume(source.bootstrap, group, topic_name, 1, 2)
    password = tmp_path / "password"
    password.write_text(PASSWORD, encoding="utf-8")
    with (
        scene(tmp_path, guarded_pair, [topic_name], [group], reverse={"start": "conductor"}) as made,
        Application(topic_name, 1, []) as application,
    ):
        application.writers.clear()
        made.start_forward()
        operator = Operator(application, {})
        operator.says = operator.lines.append  # type: ignore[method-assign,assignment]
        permitted = Permitted(made, guarded_pair, operator, group)
        as_user(made, made.mirror_file, (source, target), password)
        as_user(made, made.reverse_file, (target, source), password)
        document = yaml.safe_load(made.file.read_text(encoding="utf-8"))
        document["mirror"], document["waves"][0]["reverse"] = "user-mirror.yaml", "user-reverse.yaml"
        made.file.write_text(yaml.safe_dump(document), encoding="utf-8")
        acls = needed(permitted)
        for side, node in guarded_pair._asdict().items():
            grant(node, acls[side])
        yield permitted
    for node in guarded_pair:
        own = [acl for acl in super_user(node).read() if acl.principal in (f"User:{MIRROR}", SHOP)]
        revoke(node, own)


def as_user(made: Scene, file: Path, nodes: tuple[LocalKafka, LocalKafka], password: Path) -> None:
    """Write a mirror file for the same mirror as the user with few permissions."""
    document: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    for side, node in zip(("source", "target"), nodes, strict=True):
        document[side]["client"] = client(node, MIRROR, f"${{file:{password}}}")
    (made.folder / f"user-{file.name}").write_text(yaml.safe_dump(document), encoding="utf-8")


def test_a_plan_names_each_permission_that_is_missing(permitted: Permitted) -> None:
    assert permitted.plan_problems() == []
    for side, acls in needed(permitted).items():
        node: LocalKafka = getattr(permitted.clusters, side)
        for acl in acls:
            with without(node, acl), granted(node, describing_instead_of(acl)):
                problems = permitted.plan_problems()
            sides = (f"{side} topic", {"source": "cluster east", "target": "cluster west"}[side])
            named = [problem for problem in problems if acl.pattern.name in problem and any(name in problem for name in sides)]
            assert any(f"grant {acl.operation}" in problem for problem in named), (acl, problems)
    assert permitted.plan_problems() == []


def test_a_plan_names_topics_and_groups_that_the_cluster_hides(permitted: Permitted) -> None:
    source = permitted.clusters.source
    for name, right in ((permitted.topic, "Read on topic"), (permitted.group, "Describe on group")):
        hidden = [acl for acl in needed(permitted)["source"] if acl.pattern.name == name]
        revoke(source, hidden)
        assert any(f"grant {right} {name}" in problem for problem in permitted.plan_problems()), permitted.plan_problems()
        grant(source, hidden)
    assert permitted.plan_problems() == []


def test_a_migration_with_these_permissions_moves_and_comes_back(permitted: Permitted) -> None:
    moved = run_migration(permitted.made.files(), permitted.operator, permitted.options)
    assert moved.waves["all"].phase is Phase.MOVED
    target, source = permitted.clusters.target.bootstrap, permitted.clusters.source.bootstrap
    runs.write(target, permitted.topic, ["4"])
    committing = allow(ResourcePattern(ResourceKind.GROUP, permitted.group), AclOperation.READ)
    with without(permitted.clusters.source, committing), pytest.raises(ConfigError, match="grant Read on group"):
        roll_back(permitted.made.files(), permitted.operator, options=permitted.options)
    assert read_state(permitted.made.files()).waves["all"].phase is Phase.MOVED
    back = roll_back(permitted.made.files(), permitted.operator, options=permitted.options)
    assert back.waves["all"].phase is Phase.RETURNED
    assert consume(source, permitted.group, permitted.topic, 1, 2) == ["3", "4"]


def test_a_permission_that_is_revoked_on_the_way_is_named_and_the_move_continues_with_it(permitted: Permitted) -> None:
    made, clusters = permitted.made, permitted.clusters
    options = Options(waits=False, launch=permitted.options.launch)
    with member(clusters.source.bootstrap, permitted.group, permitted.topic) as consumer:
        while not consumer.assignment():
            consumer.poll(0.1)
        with pytest.raises(WaitsForOutsideError, match="stop the consumers"):
            run_migration(made.files(), permitted.operator, options)
    committing = allow(ResourcePattern(ResourceKind.GROUP, permitted.group), AclOperation.READ)
    with without(clusters.target, committing), pytest.raises((WaitsForOutsideError, ConfigError)) as stopped:
        run_migration(made.files(), permitted.operator, options)
    seen = stopped.value.outside.seen if isinstance(stopped.value, WaitsForOutsideError) else str(stopped.value)
    assert permitted.group in seen
    assert "GROUP_AUTHORIZATION_FAILED: grant" in seen
    assert "\n" not in seen
    assert run_migration(made.files(), permitted.operator, options).waves["all"].phase is Phase.MOVED
    assert consume(clusters.target.bootstrap, permitted.group, permitted.topic, 1, 1) == ["3"]


def test_denying_writers_needs_alter_on_the_cluster_from_the_plan_to_the_abort_and_to_the_rollback(permitted: Permitted) -> None:
    made, source = permitted.made, permitted.clusters.source
    deny_writers(made)
    describing, altering = allow(CLUSTER, AclOperation.DESCRIBE), allow(CLUSTER, AclOperation.ALTER)
    assert any("grant Describe on the cluster" in problem for problem in permitted.plan_problems())
    grant(source, [describing])
    assert any("grant Alter on the cluster" in problem for problem in permitted.plan_problems())
    grant(source, [altering])
    assert permitted.plan_problems() == []
    options = Options(waits=False, launch=permitted.options.launch)
    with member(source.bootstrap, permitted.group, permitted.topic) as consumer:
        while not consumer.assignment():
            consumer.poll(0.1)
        with pytest.raises(WaitsForOutsideError, match="stop the consumers"):
            run_migration(made.files(), permitted.operator, options)
    with without(source, altering), pytest.raises(ConfigError, match=r"deleting ACLs: .*grant Alter on the cluster"):
        abort(made.files(), permitted.operator, options)
    assert read_state(made.files()).waves["all"].phase is Phase.MOVING
    abort(made.files(), permitted.operator, options)
    assert read_state(made.files()).waves["all"].phase is Phase.AT_SOURCE
    assert denies(source) == []

    assert run_migration(made.files(), permitted.operator, options).waves["all"].phase is Phase.MOVED
    assert len(denies(source)) == 1
    grant(permitted.clusters.target, [describing, altering])
    with without(source, altering), pytest.raises(ConfigError, match=r"Alter on the cluster: .* that the move has created"):
        roll_back(made.files(), permitted.operator, options=options)
    assert roll_back(made.files(), permitted.operator, options=options).waves["all"].phase is Phase.RETURNED
    assert denies(source) == []


def denies(node: LocalKafka) -> list[Acl]:
    return [acl for acl in super_user(node).read() if acl.effect is AclEffect.DENY]


def deny_writers(made: Scene) -> None:
    """Let the migration stop its writers by ACLs."""
    document = yaml.safe_load(made.file.read_text(encoding="utf-8"))
    document["writers"] |= {"stop": "deny", "principals": [SHOP]}
    made.file.write_text(yaml.safe_dump(document), encoding="utf-8")


def scratch_permissions() -> list[Acl]:
    """Return what a rehearsal needs on its topics, groups and transactional ids."""
    acls = []
    for kind, operations in (
        (ResourceKind.TOPIC, ("READ", "WRITE", "DESCRIBE_CONFIGS", "CREATE", "DELETE")),
        (ResourceKind.GROUP, ("READ", "DELETE")),
        (ResourceKind.TRANSACTIONAL_ID, ("WRITE",)),
    ):
        pattern = ResourcePattern(kind, "migrate-rehearsal-", PatternKind.PREFIXED)
        acls += [allow(pattern, AclOperation[operation]) for operation in operations]
    return acls


def test_a_rehearsal_names_all_missing_permissions_before_it_creates_anything(permitted: Permitted) -> None:
    made, clusters = permitted.made, permitted.clusters
    done = console("migrate", "rehearse", str(made.file))
    assert done.code == 2, done.lines
    for side in ("source", "target"):
        for grants in ("Read, DescribeConfigs, Write, Create, Delete on topic", "Read on group", "Delete on group"):
            assert any(f"{side} cluster" in line and f"grant {grants}" in line for line in done.stderr.splitlines()), grants
    assert left_of_rehearsals(clusters.source.bootstrap) == left_of_rehearsals(clusters.target.bootstrap) == []
    assert read_state(made.files()).rehearsals == ()
    for node in clusters:
        grant(node, scratch_permissions())
    report = rehearse(made.files(), permitted.operator, options=Options(launch=made.launch))
    assert report.left == []
    assert left_of_rehearsals(clusters.source.bootstrap) == left_of_rehearsals(clusters.target.bootstrap) == []


def test_a_rehearsal_with_denied_writers_deletes_the_acls_of_its_topics(permitted: Permitted) -> None:
    made = permitted.made
    deny_writers(made)
    for node in permitted.clusters:
        grant(node, scratch_permissions())
    grant(permitted.clusters.source, [allow(CLUSTER, AclOperation.ALTER)])
    with pytest.raises(ConfigError, match=r"target cluster .*: grant Alter on the cluster: needed for a rehearsal"):
        rehearse(made.files(), permitted.operator, options=Options(launch=made.launch))
    grant(permitted.clusters.target, [allow(CLUSTER, AclOperation.ALTER)])
    assert rehearse(made.files(), permitted.operator, options=Options(launch=made.launch)).left == []
    assert denies(permitted.clusters.source) == denies(permitted.clusters.target) == []
