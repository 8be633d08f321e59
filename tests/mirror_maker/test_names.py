"""Names of MirrorMaker 2's topics and groups, and what a configuration has to say for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.exit_codes import exit_code
from tests.support.mirror_runs import conf_file

from shallow_mirror.errors import ConfigError
from shallow_mirror.mirror_maker.flows import flows_of
from shallow_mirror.mirror_maker.properties_file import parse
from shallow_mirror.mirror_maker.running.names import MirrorMakerNames, flow_between, names_of
from shallow_mirror.types import IsolationLevel

BASE = "clusters=east,west\neast.bootstrap.servers=e:1\nwest.bootstrap.servers=w:1\neast->west.enabled=true\n"
CONNECTOR = '{"source.cluster.alias": "east", "target.cluster.alias": "west", "source.cluster.bootstrap.servers": "e:1"}'


def names(text: str, **more: str) -> MirrorMakerNames:
    (flow,) = flows_of(parse(text, "mm2.properties"), "mm2.properties")
    return names_of(flow, "mm2.properties", **more)


def test_defaults_are_those_of_mirror_maker() -> None:
    assert names(BASE) == MirrorMakerNames(
        source="east",
        target="west",
        template="{source}.{topic}",
        offset_syncs="mm2-offset-syncs.west.internal",
        has_offset_syncs_at_target=False,
        connect_offsets="mm2-offsets.east.internal",
        worker_group="east-mm2",
        isolation=IsolationLevel.READ_UNCOMMITTED,
    )
    assert names(BASE).target_topic("orders") == "east.orders"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("offset-syncs.topic.location=target", "offset_syncs", "mm2-offset-syncs.east.internal"),
        ("offset-syncs.topic.location=target", "has_offset_syncs_at_target", True),
        ("replication.policy.separator=_", "offset_syncs", "mm2-offset-syncs_west_internal"),
        ("replication.policy.separator=_", "template", "{source}_{topic}"),
        (
            "replication.policy.separator=_\nreplication.policy.internal.topic.separator.enabled=false",
            "offset_syncs",
            "mm2-offset-syncs.west.internal",
        ),
        ("replication.policy.class=x.IdentityReplicationPolicy", "template", "{topic}"),
        ("west.group.id=mirrors", "worker_group", "mirrors"),
        ("west.offset.storage.topic=offsets", "connect_offsets", "offsets"),
        ("offset.storage.topic=offsets", "connect_offsets", "offsets"),
        ("east.consumer.isolation.level=read_committed", "isolation", IsolationLevel.READ_COMMITTED),
    ],
)
def test_a_configuration_changes_names(line: str, name: str, value: object) -> None:
    assert getattr(names(f"{BASE}{line}\n"), name) == value


def test_of_a_connect_cluster_topics_and_groups_of_workers_are_not_known() -> None:
    assert (names(CONNECTOR).connect_offsets, names(CONNECTOR).worker_group) == (None, None)
    assert names(CONNECTOR, connect_offsets="offsets").connect_offsets == "offsets"


def test_a_policy_of_ones_own_needs_a_template_that_names_topics() -> None:
    own = f"{BASE}replication.policy.class=com.example.Policy\n"
    with pytest.raises(ConfigError, match=r"com\.example\.Policy is a class of your own"):
        names(own)
    assert names(own, target_name="{topic}.copy").target_topic("orders") == "orders.copy"
    with pytest.raises(ConfigError, match=r"--target-name: 'copy' does not contain \{topic\}"):
        names(own, target_name="copy")


def test_a_mirror_file_with_other_aliases_is_refused() -> None:
    flows = flows_of(parse(BASE, "mm2.properties"), "mm2.properties")
    assert flow_between(flows, "east", "west", "mm2.properties") is flows[0]
    with pytest.raises(ConfigError, match=r"no enabled flow west->east, as .* but east->west: use the mirror file that"):
        flow_between(flows, "west", "east", "mm2.properties")


@pytest.mark.parametrize(
    ("properties", "arguments", "message"),
    [
        ("", (), "mm2.properties has neither `clusters`"),
        (BASE.replace("=true", "=false"), (), "no flow is enabled"),
        (f"{BASE}x=\\u00zz\n", (), "line 5: \\u needs four hexadecimal digits"),
        (BASE, ("--force",), "--force requires --apply"),
        (BASE, ("--target-name", "{topic}"), "names the topics of MirrorMaker 2 ('{topic}'): groups that read them keep"),
        (BASE, ("--group", "("), "--group: '(' is not a regular expression"),
    ],
)
def test_bad_input_is_answered_by_one_line_before_a_cluster_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], properties: str, arguments: tuple[str, ...], message: str
) -> None:
    conf = conf_file(tmp_path, "127.0.0.1:1", "127.0.0.1:1", ["orders"])
    file = tmp_path / "mm2.properties"
    file.write_text(properties, encoding="utf-8")
    assert exit_code("mm2", "groups", str(conf), str(file), *arguments) == 2
    assert message in capsys.readouterr().err
    assert exit_code("mm2", "groups", str(conf), str(tmp_path / "none.properties")) == 2
    assert "cannot read" in capsys.readouterr().err


def test_lag_needs_the_topic_of_a_connect_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = conf_file(tmp_path, "127.0.0.1:1", "127.0.0.1:1", ["orders"])
    file = tmp_path / "connector.json"
    file.write_text(CONNECTOR, encoding="utf-8")
    for command in ("lag", "check"):
        assert exit_code("mm2", command, str(conf), str(file)) == 2
        assert "offset.storage.topic with --offsets-topic" in capsys.readouterr().err
