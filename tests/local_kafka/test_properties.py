from __future__ import annotations

import base64
from pathlib import Path

from hypothesis import given, strategies as st

from shallow_mirror.local_kafka.properties import (
    Listener,
    logging_option,
    logging_text,
    member_properties,
    new_cluster_id,
    node_properties,
    properties_text,
    zookeeper_properties,
)


def test_changes_win_over_defaults() -> None:
    properties = node_properties("4.3.0", 1, 2, Path("/d"), {"num.io.threads": "8", "message.max.bytes": "7"})
    assert (properties["num.io.threads"], properties["message.max.bytes"]) == ("8", "7")


def test_a_node_votes_for_itself_and_listens_on_its_two_ports() -> None:
    properties = node_properties("4.3.0", 20001, 20002, Path("/d"), {})
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:20002"
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"


def test_a_listener_behind_a_proxy_advertises_the_proxys_port() -> None:
    behind, plain = Listener("BEHIND", "PLAINTEXT", advertised_port=7), Listener("PLAIN", "SSL")
    properties = node_properties("4.3.0", 1, 2, Path("/d"), {}, {behind: 3, plain: 4})
    assert properties["listeners"].endswith("BEHIND://127.0.0.1:3,PLAIN://127.0.0.1:4")
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1,BEHIND://127.0.0.1:7,PLAIN://127.0.0.1:4"


def test_before_kraft_a_node_registers_at_its_zookeeper() -> None:
    properties = node_properties("2.8.2", 20001, 20002, Path("/d"), {})
    assert properties["zookeeper.connect"] == "127.0.0.1:20002"
    assert properties["listeners"] == properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert not [key for key in properties if "controller" in key or key == "process.roles"]
    assert zookeeper_properties(20002, Path("/z"))["clientPort"] == "20002"


def test_share_groups_are_not_configured_before_they_existed() -> None:
    assert not [key for key in node_properties("3.9.2", 1, 2, Path("/d"), {}) if key.startswith("share.")]
    assert "share.coordinator.state.topic.min.isr" in node_properties("4.0.0", 1, 2, Path("/d"), {})


def test_of_three_nodes_everything_is_on_all_and_one_may_be_lost() -> None:
    properties = node_properties("4.3.0", 1, 2, Path("/d"), member_properties("4.3.0", 2, {1: 11, 2: 12, 3: 13}))
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13"
    assert {value for key, value in properties.items() if key.endswith("replication.factor")} == {"3"}
    assert {value for key, value in properties.items() if "min.isr" in key or key == "min.insync.replicas"} == {"2"}
    assert not [key for key in member_properties("3.9.2", 1, {1: 11}) if key.startswith("share.")]


def test_each_log4j_gets_its_own_language() -> None:
    assert "log4j.rootLogger=" in logging_text("3.9.2")
    assert "rootLogger.level=" in logging_text("4.3.0")
    assert logging_option("3.9.2", Path("/a b/l")) == "-Dlog4j.configuration=file:///a%20b/l"
    assert logging_option("4.3.0", Path("/a b/l")) == "-Dlog4j2.configurationFile=/a b/l"


def test_a_cluster_id_is_22_characters_of_16_bytes_and_no_option() -> None:
    for _ in range(300):
        cluster_id = new_cluster_id()
        assert len(cluster_id) == 22
        assert not cluster_id.startswith("-")
        assert len(base64.urlsafe_b64decode(cluster_id + "==")) == 16


def unescaped(line: str) -> tuple[str, str]:
    """Return what java.util.Properties.load makes of one line."""
    names = {"n": "\n", "r": "\r", "t": "\t"}
    parts, separated, characters = ["", ""], 0, iter(line)
    for character in characters:
        if character == "\\":
            following = next(characters)
            parts[separated] += names.get(following, following)
        elif character == "=" and not separated:
            separated = 1
        else:
            parts[separated] += character
    return parts[0], parts[1]


TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126) | st.sampled_from("\n\r\t\\"), min_size=1, max_size=30)


@given(key=TEXT, value=TEXT)
def test_what_is_written_is_what_java_reads(key: str, value: str) -> None:
    line = properties_text({key: value})
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert unescaped(line[:-1]) == (key, value)
