"""Runs of one process share the port of their metrics, each with its own label."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families
from tests.support.probes import probe

from shallow_mirror.config import MetricsSettings
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.ports import free_ports
from shallow_mirror.streaming.watch.health import HealthLimits, RunHealth
from shallow_mirror.streaming.watch.metrics import Metrics
from shallow_mirror.streaming.watch.metrics_port import serving


def registry_of(mirror: str) -> CollectorRegistry:
    return Metrics(mirror, 2, version="1", source="east", target="west").registry


def new_health() -> RunHealth:
    return RunHealth(HealthLimits(live_s=600, ready_s=60))


def scrape(settings: MetricsSettings, parameters: str = "") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{settings.port}/metrics{parameters}", timeout=10) as response:
        text: str = response.read().decode()
    return text


@pytest.mark.slow
def test_a_port_serves_the_metrics_and_is_free_again_afterwards() -> None:
    settings = MetricsSettings(port=free_ports(1)[0])
    for _ in range(2):
        with serving("m", registry_of("m"), new_health(), settings):
            exposition = scrape(settings)
        assert 'shallow_mirror_info{mirror="m",source="east",target="west",version="1"} 1.0' in exposition
        assert exposition.count("\nprocess_resident_memory_bytes ") == 1
    with socket.socket() as freed:
        freed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        freed.bind(("127.0.0.1", settings.port))


def test_a_port_that_another_process_uses_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = MetricsSettings(port=taken.getsockname()[1])
        with (
            pytest.raises(ConfigError, match=rf"metrics.port: 127.0.0.1:{settings.port} cannot be listened on: .*in use"),
            serving("m", registry_of("m"), new_health(), settings),
        ):
            pass


def test_runs_share_a_port_and_each_family_appears_once_with_the_series_of_all() -> None:
    settings = MetricsSettings(port=free_ports(1)[0])
    with serving("a", registry_of("a"), new_health(), settings):
        with serving("b", registry_of("b"), new_health(), settings):
            exposition = scrape(settings)
            families = {family.name: family for family in text_string_to_metric_families(exposition)}
            assert exposition.count("# TYPE shallow_mirror_micro_batches_total ") == 1
            assert [sample.labels["mirror"] for sample in families["shallow_mirror_info"].samples] == ["a", "b"]
            assert len(families["process_open_fds"].samples) == 1
            selected = scrape(settings, "?name[]=shallow_mirror_records_total")
            assert [line for line in selected.splitlines() if not line.startswith("#")] == [
                'shallow_mirror_records_total{mirror="a"} 0.0',
                'shallow_mirror_records_total{mirror="b"} 0.0',
            ]
        assert 'mirror="b"' not in scrape(settings)
        assert 'shallow_mirror_info{mirror="a"' in scrape(settings)


def test_two_runs_of_one_name_cannot_share_a_port_and_the_first_stays() -> None:
    settings = MetricsSettings(port=free_ports(1)[0])
    with serving("m", registry_of("m"), new_health(), settings):
        with (
            pytest.raises(ConfigError, match="already serves the metrics of a run with the name m"),
            serving("m", registry_of("m"), new_health(), settings),
        ):
            pass
        assert 'shallow_mirror_info{mirror="m"' in scrape(settings)


def test_series_of_a_run_are_not_changed_by_a_scrape() -> None:
    settings = MetricsSettings(port=free_ports(1)[0])
    registry = CollectorRegistry()
    Counter("shallow_mirror_records", "Copied", ["mirror"], registry=registry).labels("a").inc(3)
    with serving("a", registry, new_health(), settings), serving("b", registry_of("b"), new_health(), settings):
        assert scrape(settings).count('shallow_mirror_records_total{mirror="a"} 3.0') == 1
        assert scrape(settings).count('shallow_mirror_records_total{mirror="b"} 0.0') == 1


def test_a_process_is_ready_when_all_of_its_runs_are_and_says_which_are_not() -> None:
    settings = MetricsSettings(port=free_ports(1)[0])
    port, ready = settings.port or 0, new_health()
    ready.on_take_over()
    ready.on_progress()
    with serving("a", registry_of("a"), ready, settings):
        assert probe(port, "readyz") == (200, "ready\n")
        with serving("b", registry_of("b"), new_health(), settings):
            assert probe(port, "readyz") == (503, "a: ready\nb: not ready: waits for: start\n")
            assert probe(port, "healthz") == (200, "a: live\nb: live\n")
        assert probe(port, "readyz") == (200, "ready\n")


def test_a_host_that_does_not_exist_is_a_clear_error() -> None:
    settings = MetricsSettings(port=free_ports(1)[0], host="no-such-host.invalid")
    with (
        pytest.raises(ConfigError, match=r"no-such-host\.invalid:\d+ cannot be listened on"),
        serving("m", registry_of("m"), new_health(), settings),
    ):
        pass
