from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import latency, run
from benchmarks.corpora import CORPORA
from benchmarks.go_program import GoBuildError
from benchmarks.link import Link
from benchmarks.peer_listeners import FAR_NAME, NAME, Access, PeerListeners, TlsFiles
from benchmarks.peers.peer import Job
from benchmarks.running_mirror import client_properties
from benchmarks.running_relay import Relay, running_relay

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.local_kafka.jars import KAFKA_VERSION
from shallow_mirror.local_kafka.properties import node_properties


def test_without_options_clusters_are_near_and_connections_plain() -> None:
    assert run.parsed([]).links == [Link()]
    assert latency.parsed([]).links == [Link()]
    assert str(Link()) == ""


@pytest.mark.parametrize(
    ("far", "sides", "text"),
    [
        ("source", ("source",), "source 80 ms away, TLS"),
        ("target", ("target",), "target 80 ms away, TLS"),
        ("both", ("source", "target"), "source and target 80 ms away, TLS"),
    ],
)
def test_options_say_how_far_which_cluster_is(far: str, sides: tuple[str, ...], text: str) -> None:
    (link,) = run.parsed(["--rtt-ms", "80", "--far", far, "--tls"]).links
    assert link == Link(rtt_ms=80, far=far, tls=True)
    assert link.far_sides == sides
    assert str(link) == text


def test_near_and_far_take_turns_in_one_call() -> None:
    links = run.parsed(["--rtt-ms", "80", "--far", "none,target,source"]).links
    assert links == [Link(), Link(rtt_ms=80, far="target"), Link(rtt_ms=80, far="source")]


def test_a_path_with_and_without_delay_takes_turns_in_one_call() -> None:
    links = run.parsed(["--rtt-ms", "0,80", "--far", "none,target"]).links
    assert links == [Link(), Link(far="target"), Link(rtt_ms=80, far="target")]
    assert str(links[1]) == "target 0 ms away"


def test_brokers_have_a_listener_for_each_link_of_one_call(tmp_path: Path) -> None:
    files = TlsFiles.made_in(tmp_path / "certificates")
    relays = {"target": Relay(7, None)}  # type: ignore[arg-type]
    plain, encrypted = PeerListeners(relays, None), PeerListeners(relays, files)
    assert [(each.name, each.advertised_port) for each in plain.of("target")] == [(FAR_NAME, 7)]
    assert plain.of("source") == ()
    assert [(each.name, each.advertised_port) for each in encrypted.of("target")] == [(NAME, None), (FAR_NAME, 7)]
    assert [each.name for each in encrypted.of("source")] == [NAME]


def test_latency_is_measured_near_and_far_in_one_call() -> None:
    links = latency.parsed(["--rtt-ms", "80", "--far", "target", "--tls"]).links
    assert links == [Link(tls=True), Link(rtt_ms=80, far="target", tls=True)]
    assert latency.parsed(["--tls"]).links == [Link(tls=True)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rtt-ms", "80"], "given together"),
        (["--far", "target"], "given together"),
        (["--rtt-ms", "-1", "--far", "target"], "less than 0"),
        (["--rtt-ms", "80,-1", "--far", "target"], "less than 0"),
        (["--rtt-ms", "80", "--far", "nowhere"], "invalid choice"),
    ],
)
def test_options_without_sense_are_errors(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    for program in (run, latency):
        with pytest.raises(SystemExit) as ended:
            program.parsed(arguments)
        assert ended.value.code == 2
        assert reason in capsys.readouterr().err


def test_without_distance_and_encryption_peers_use_the_plain_listeners() -> None:
    assert PeerListeners({}, None).of("source") == ()


def test_with_tls_a_broker_has_a_listener_of_tls_1_3_alone(tmp_path: Path) -> None:
    files = TlsFiles.made_in(tmp_path / "certificates")
    (listener,) = PeerListeners({}, files).of("source")
    properties = node_properties(KAFKA_VERSION, 1, 2, tmp_path, {}, {listener: 3})
    assert properties["listeners"].endswith(f"{NAME}://127.0.0.1:3")
    assert properties["listener.security.protocol.map"].endswith(f"{NAME}:SSL")
    assert properties["listener.name.peers.ssl.enabled.protocols"] == "TLSv1.3"
    assert "PRIVATE KEY" in files.keystore.read_text()


def test_the_mirror_accepts_the_properties_of_an_encrypted_cluster_and_checks_its_host_name(tmp_path: Path) -> None:
    files = TlsFiles.made_in(tmp_path / "certificates")
    config = ClientConfig.from_properties(client_properties("127.0.0.1:1", files.ca))
    assert config.uses_tls
    assert config.value("ssl.endpoint.identification.algorithm") != "none"
    assert not ClientConfig.from_properties(client_properties("127.0.0.1:1", None)).uses_tls


def test_programs_get_the_certificate_authority_only_where_connections_are_encrypted(tmp_path: Path) -> None:
    def told(ca_file: Path | None) -> dict[str, object]:
        job = Job(CORPORA["zstd-big"], Access("s:1", "t:2", ca_file), "topic", "alias", {0: 5}, tmp_path)
        told: dict[str, object] = json.loads(job.as_json())
        return told

    assert "ca" not in told(None)
    assert {"source": "s:1", "target": "t:2", "ca": "/ca.pem"}.items() <= told(Path("/ca.pem")).items()


def test_without_go_there_is_no_relay_and_the_error_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHALLOW_MIRROR_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GoBuildError, match="relay needs the Go toolchain"), running_relay(80):
        raise AssertionError("a relay runs")
