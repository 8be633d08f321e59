"""Folders of files as a topology: which clusters are one, which flows close a ring or feed a topic twice, and the picture."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs as runs
from tests.support.exit_codes import exit_code

from shallow_mirror.errors import ConfigError
from shallow_mirror.topology import Topology, build_svg, read_topology
from shallow_mirror.topology.flows import Flow, Node, build_topology, example_topics
from shallow_mirror.topology.label_places import Rect
from shallow_mirror.topology.topology_svg import arrows_of, box_places, labels_of


def cluster(name: str, servers: str | None = None) -> dict[str, Any]:
    return {"alias": name, "client": {"bootstrap.servers": servers or f"kafka.{name}:9092"}}


def write(folder: Path, name: str, source: str, target: str, include: list[str], /, **changes: Any) -> None:
    topics = {"include": include, **changes.pop("topics", {})}
    document = {
        "mirror": name,
        "source": cluster(source),
        "target": cluster(target),
        "topics": topics,
        "tables": f"tables/{name}",
    }
    (folder / f"{name}.yaml").write_text(json.dumps(document | changes), encoding="utf-8")


def rings(topology: Topology) -> list[set[str]]:
    return [{flow.name for flow in ring.flows} for ring in topology.rings]


def test_a_ring_and_a_topic_that_is_fed_twice_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source, target in (("a", "b"), ("b", "c"), ("c", "a")):
        write(tmp_path, f"{source}{target}", source, target, ["orders.*"])
    write(tmp_path, "bills-a", "a", "d", ["bills"])
    write(tmp_path, "bills-b", "b", "d", ["bills.*"])
    picture = tmp_path / "topology.svg"
    assert exit_code("topology", str(tmp_path), "--svg", str(picture)) == 1
    shown = capsys.readouterr().out
    assert "RING: a -> b -> c -> a, by ab, bc, ca: for example topic orders" in shown
    assert "FED TWICE: d, by bills-a, bills-b: for example topic bills" in shown
    root = ET.fromstring(picture.read_text(encoding="utf-8"))
    styles = [path.get("class") for path in root.iter("{http://www.w3.org/2000/svg}path")]
    assert (styles.count("ring"), styles.count("twice"), styles.count("flow")) == (3 + 1, 2 + 1, 1)  # with the legend


@pytest.mark.parametrize(
    "mirrors",
    [
        {"ab": {}, "ac": {"topics": {"target_name": "from-a.{topic}"}}, "bc": {"topics": {"target_name": "from-b.{topic}"}}},
        {"ac": {"topics": {"target_name": "{source}.{topic}"}}, "bc": {"topics": {"target_name": "{source}.{topic}"}}},
        {"ab": {"topics": {"target_name": "{source}.{topic}"}}, "ba": {"topics": {"target_name": "{source}.{topic}"}}},
    ],
    ids=["triangle", "fan-in", "both directions"],
)
def test_a_legal_topology_has_no_marks(tmp_path: Path, mirrors: dict[str, dict[str, Any]]) -> None:
    for name, changes in mirrors.items():
        write(tmp_path, name, name[0], name[1], [".*"], **dict(changes))
    topology = read_topology(tmp_path)
    assert (topology.rings, topology.fed_twice) == ((), ())


def test_names_that_grow_round_a_ring_of_three_are_a_ring(tmp_path: Path) -> None:
    for name in ("ab", "bc", "ca"):
        write(tmp_path, name, name[0], name[1], [".*"], topics={"target_name": "{source}.{topic}"})
    assert rings(read_topology(tmp_path)) == [{"ab", "bc", "ca"}]


def test_clusters_that_share_a_bootstrap_server_are_one(tmp_path: Path) -> None:
    write(tmp_path, "one", "a", "b", ["x"], target=cluster("b", "k1:9092, K2:9092"))
    write(tmp_path, "two", "c", "d", ["x"], source=cluster("west", "k2:9092"))
    assert sorted(node.title for node in read_topology(tmp_path).nodes) == ["a", "b/west", "d"]


def test_archives_and_restores_are_flows_and_other_files_are_passed_over(tmp_path: Path) -> None:
    archive = {"archive": "kept", "source": cluster("a"), "topics": {"include": ["x"]}, "objects": "objects", "tables": "tables"}
    restore = {
        "restore": "back",
        "archive": {"objects": "objects", "tables": "tables"},
        "target": cluster("b"),
        "tables": "r",
    }
    (tmp_path / "archive.yaml").write_text(json.dumps(archive), encoding="utf-8")
    (tmp_path / "restore.yml").write_text(json.dumps(restore), encoding="utf-8")
    (tmp_path / "other.yaml").write_text("groups: []", encoding="utf-8")
    for kind in ("migration", "failover"):
        (tmp_path / f"{kind}.yaml").write_text(json.dumps({kind: "m", "mirror": "mirror.yaml", "tables": "t"}), encoding="utf-8")
    document = read_topology(tmp_path).document()
    assert [(flow["kind"], flow["source"], flow["target"]) for flow in document["flows"]] == [
        ("archive", "a", "kept"),
        ("restore", "kept", "b"),
    ]


def test_a_topic_of_an_archive_is_fed_twice_also_by_the_topics_of_the_clusters() -> None:
    flow = partial(Flow, file="x.yaml", source_alias="a", include=(".*",), exclude=(), target_name="{topic}")
    flows = [
        flow(kind="archive", name="kept", source="a", target="archive"),
        flow(kind="restore", name="back", source="archive", target="b"),
        flow(kind="mirror", name="ab", source="a", target="b"),
    ]
    kinds = {"a": "cluster", "b": "cluster", "archive": "archive"}
    nodes = [Node(key=key, kind=kind, names=(key,), addresses=(key,)) for key, kind in kinds.items()]
    topology = build_topology(nodes, flows, {"a": ["orders"], "b": ["bills"]})
    assert topology.topics["back"] == ("orders",)
    assert [(fed.topic, [each.name for each in fed.flows]) for fed in topology.fed_twice] == [("orders", ["back", "ab"])]


def test_bad_folders_and_files_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no mirror file"):
        read_topology(tmp_path)
    with pytest.raises(ConfigError, match="is no folder"):
        read_topology(tmp_path / "none")
    (tmp_path / "bad.yaml").write_text("mirror: x\nsuorce: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.yaml: suorce: unknown key"):
        read_topology(tmp_path)


def test_names_with_markup_are_escaped_in_the_picture(tmp_path: Path) -> None:
    write(tmp_path, "ab", "a", "b", ["<b>&.*"])
    ET.fromstring(build_svg(read_topology(tmp_path)))


TOPOLOGIES: dict[str, list[tuple[str, str]]] = {
    "both directions": [("east", "west"), ("west", "east")],
    "ring of five": list(itertools.pairwise("abcdea")),
    "fan-in": [(name, "hub") for name in ("berlin", "paris", "rome", "madrid", "oslo", "wien", "bern", "prag")],
    "several between two": [("east", "west")] * 6,
    "every pair of four": list(itertools.permutations("abcd", 2)),
    "every pair of five": list(itertools.permutations("abcde", 2)),
    "to itself": [("a", "a"), ("a", "b")],
}


def topology_of(edges: list[tuple[str, str]]) -> Topology:
    names = dict.fromkeys(name for edge in edges for name in edge)
    nodes = [Node(key=name, kind="cluster", names=(name,), addresses=(f"kafka.{name}:9092",)) for name in names]
    flows = [
        Flow(
            kind="mirror",
            name=f"{source}-to-{target}-{number}",
            file="m.yaml",
            source=source,
            target=target,
            source_alias=source,
            include=(f"orders-{number}.*",),
            exclude=(),
            target_name="{source}.{topic}",
        )
        for number, (source, target) in enumerate(edges)
    ]
    return build_topology(nodes, flows, None)


@pytest.mark.parametrize("name", list(TOPOLOGIES))
def test_no_arrow_crosses_the_label_of_another_and_no_two_labels_meet(name: str) -> None:
    topology = topology_of(TOPOLOGIES[name])
    places = box_places(topology.nodes)
    arrows = arrows_of(topology.flows, places)
    labels = labels_of(arrows, places)
    boxes = [Rect(x, y, 168, 46) for x, y in places.values()]
    for arrow, label in itertools.product(arrows, labels):
        assert arrow.flow is label.flow or not label.place.is_crossed(arrow.points), (arrow.flow.name, label.flow.name)
    for first, second in itertools.combinations([label.place for label in labels] + boxes, 2):
        assert not first.meets(second)
    # The head of each arrow is seen, and each label lies on its own arrow.
    for arrow, label in zip(arrows, labels, strict=True):
        assert not any(other.place.holds(arrow.points[-1]) for other in labels)
        assert label.place.is_crossed(arrow.points)


def test_a_flow_without_room_for_its_label_has_a_number_and_a_line_below(tmp_path: Path) -> None:
    topology = topology_of(TOPOLOGIES["every pair of five"])
    places = box_places(topology.nodes)
    numbered = [label for label in labels_of(arrows_of(topology.flows, places), places) if label.number is not None]
    assert [label.number for label in numbered] == list(range(1, len(numbered) + 1))
    assert numbered
    texts = [text.text for text in ET.fromstring(build_svg(topology)).iter("{http://www.w3.org/2000/svg}text")]
    for label in numbered:
        assert str(label.number) in texts
        assert f"{label.number}: mirror {label.flow.name}: {label.flow.include[0]} as {{source}}.{{topic}}" in texts


@pytest.mark.parametrize("name", list(TOPOLOGIES))
def test_the_picture_holds_all_of_its_parts(name: str) -> None:
    root = ET.fromstring(build_svg(topology_of(TOPOLOGIES[name])))
    left, top, width, height = map(float, root.attrib["viewBox"].split())
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        assert left <= float(element.attrib["x"]) <= left + width
        assert top <= float(element.attrib["y"]) <= top + height


@pytest.mark.parametrize(
    ("pattern", "example"), [("orders", "orders"), ("orders.*", "orders"), ("a\\.b", "a.b"), (".*", "any-topic"), ("[ab]+", None)]
)
def test_a_pattern_has_an_example(pattern: str, example: str | None) -> None:
    assert example_topics([pattern]) == ([] if example is None else [example])


@pytest.mark.brokers
def test_with_connect_the_topics_are_those_of_the_clusters(two_clusters: Any, tmp_path: Path, topic_name: str) -> None:
    source, target = two_clusters
    runs.create_topic(source.bootstrap, topic_name)
    sides = {"source": cluster("east", source.bootstrap), "target": cluster("west", target.bootstrap)}
    pattern = f"{topic_name[:-1]}."
    write(tmp_path, "there", "east", "west", [pattern], **sides)
    by_name = cluster("east2", source.bootstrap.replace("127.0.0.1", "localhost"))
    write(tmp_path, "again", "east", "west", [pattern], source=by_name, target=cluster("west", target.bootstrap))
    topology = read_topology(tmp_path, is_connecting=True)
    assert topology.topics == {"there": (topic_name,), "again": (topic_name,)}
    assert [node.title for node in topology.nodes] == ["east/east2", "west"]
    assert [(fed.topic, len(fed.flows)) for fed in topology.fed_twice] == [(topic_name, 2)]
