"""A target that only its mirror may write to, on brokers with an authorizer, until a move or a fail-over lets others write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.migration.application import Application
from tests.migration.migrations import Operator, scene
from tests.migration.test_deny_and_waves import denies, write_as_anna, write_when_permitted
from tests.support import mirror_runs as runs
from tests.support.guarded_clusters import ANNA, MIRROR, PASSWORD, Guarded, client, guarded_pair, super_user

from shallow_mirror.broker.admin.access import Acl, AclOperation, PatternKind, ResourceKind, ResourcePattern
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.migration import Options, Phase, roll_back, run_migration
from shallow_mirror.migration.steps import Step

pytestmark = [pytest.mark.brokers, pytest.mark.long, pytest.mark.timeout(300)]

__all__ = ["guarded_pair"]

OWN = f"User:{MIRROR}"


def acls_of_mirror(topic: str) -> list[Acl]:
    """Return what the user of a mirror needs on its target, with Alter on the cluster for `acls.read_only`."""
    on_cluster = [AclOperation.DESCRIBE, AclOperation.ALTER, AclOperation.IDEMPOTENT_WRITE]
    return [
        Acl(ResourcePattern(ResourceKind.TOPIC, topic, PatternKind.PREFIXED), OWN, AclOperation.ALL),
        Acl(ResourcePattern(ResourceKind.TRANSACTIONAL_ID, "m-", PatternKind.PREFIXED), OWN, AclOperation.ALL),
        Acl(ResourcePattern(ResourceKind.GROUP, "*"), OWN, AclOperation.ALL),
        *(Acl(ResourcePattern(ResourceKind.CLUSTER, "kafka-cluster"), OWN, operation) for operation in on_cluster),
    ]


def read_only(path: Path, node: LocalKafka, password_file: Path) -> None:
    """Let the mirror of a file sign in at its target, and keep that read-only."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["target"]["client"] = client(node, MIRROR, f"${{file:{password_file}}}")
    document["acls"] = {"read_only": True}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")


class Writer(Operator):
    """Writes as anna: to the source until the writers have to stop, and to the other cluster as soon as the conductor says so."""

    def __init__(self, application: Application, nodes: Mapping[str, LocalKafka], topic: str) -> None:
        super().__init__(application, {})
        self._nodes, self._topic = nodes, topic
        self.going_to = "west"
        self.refused: list[str | None] = []

    def done(self, wave: str, step: Step, detail: Mapping[str, Any]) -> None:
        super().done(wave, step, detail)
        if step is Step.POINT_OF_NO_RETURN:  # nobody was told to write yet
            self.refused.append(write_as_anna(self._nodes[self.going_to], self._topic, "early"))

    def says(self, sentence: str) -> None:
        self.lines.append(sentence)
        if "NOW: point the writers" in sentence:
            assert write_as_anna(self._nodes[sentence.rsplit(" ", 1)[1]], self._topic, "now") is None


def test_only_the_mirror_writes_to_the_target_until_a_move_lets_others_write_and_its_rollback_does_the_same(
    guarded_pair: Guarded, topic_name: str, tmp_path: Path
) -> None:
    password_file = tmp_path / "password"
    password_file.write_text(PASSWORD, encoding="utf-8")
    anna = Acl(ResourcePattern(ResourceKind.TOPIC, topic_name), f"User:{ANNA}", AclOperation.WRITE)
    created = [anna, *acls_of_mirror(topic_name)]
    runs.create_topic(guarded_pair.source.bootstrap, topic_name)
    try:
        for node in guarded_pair:
            assert super_user(node).create(created) == {}
        with (
            scene(tmp_path, guarded_pair, [topic_name], [], reverse={"start": "conductor"}) as made,
            Application(topic_name, 1, []) as application,
        ):
            read_only(made.mirror_file, guarded_pair.target, password_file)
            read_only(made.reverse_file, guarded_pair.source, password_file)
            write_when_permitted(guarded_pair.source, topic_name, "first")
            made.start_forward()
            runs.wait_for("the Deny ACL", lambda: denies(guarded_pair.target, topic_name))
            runs.wait_for(
                "obedience", lambda: write_as_anna(guarded_pair.target, topic_name, "x") == "TOPIC_AUTHORIZATION_FAILED"
            )
            write_when_permitted(guarded_pair.source, topic_name, "second")
            runs.wait_for("the copy", lambda: len(runs.read_values(guarded_pair.target.bootstrap, topic_name)) == 2)

            writer = Writer(application, {"east": guarded_pair.source, "west": guarded_pair.target}, topic_name)
            options = Options(launch=made.launch)
            assert run_migration(made.files(), writer, options).waves["all"].phase is Phase.MOVED
            assert denies(guarded_pair.target, topic_name) == []
            runs.wait_for("the Deny ACL of the reverse mirror", lambda: denies(guarded_pair.source, topic_name))
            writer.going_to = "east"
            assert roll_back(made.files(), writer, options=options).waves["all"].phase is Phase.RETURNED
            assert denies(guarded_pair.source, topic_name) == []
        assert writer.refused == ["TOPIC_AUTHORIZATION_FAILED"] * 2
        assert runs.read_values(guarded_pair.source.bootstrap, topic_name) == ["first", "second", "now", "now"]
    finally:
        for node in guarded_pair:
            super_user(node).delete([acl for acl in super_user(node).read() if acl in created or acl.pattern.name == topic_name])
