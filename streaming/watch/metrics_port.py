"""Driver: the ports of this process that serve metrics and probes. Runs with the same `metrics.port` share one.

Imported only if `metrics.port` is set: `prometheus_client` comes with the extra `metrics`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shallow_mirror.config import MetricsSettings
from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.watch.health import ProbeResult, RunHealth, result_of_runs
from shallow_mirror.streaming.watch.metrics_server import listen, with_probes

_CLOSE_POLL_S = 0.1  # longest wait of `close` for the server thread


class RunRegistries(Collector):
    """The registries of the runs that share a port, served as one, and the metrics of the process. For any thread."""

    def __init__(self) -> None:
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        self._by_name: dict[str, CollectorRegistry] = {}

    def add(self, name: str, registry: CollectorRegistry) -> None:
        """Serve the metrics of a run. Raises ConfigError if a run of this name is served."""
        if name in self._by_name:
            raise ConfigError(f"metrics.port: this process already serves the metrics of a run with the name {name}")
        self._by_name = {**self._by_name, name: registry}  # replaced as a whole: a scrape may be reading the other one

    def remove(self, name: str) -> None:
        self._by_name = {other: registry for other, registry in self._by_name.items() if other != name}

    @property
    def has_runs(self) -> bool:
        return bool(self._by_name)

    def collect(self) -> Iterator[Metric]:
        """Return each family of metrics once, with the series of every run: the exposition format allows no second one."""
        families: dict[str, Metric] = {}
        for registry in (*self._by_name.values(), self._process):
            for family in registry.collect():
                merged = families.setdefault(family.name, family)
                if merged is not family:
                    merged.samples.extend(family.samples)
        yield from families.values()

    def restricted_registry(self, names: Iterable[str]) -> Collector:
        """Return the series with these names only, for the parameter `name[]` of a scrape."""
        return _SelectedSeries(self, frozenset(names))


class _SelectedSeries(Collector):
    def __init__(self, registries: RunRegistries, names: frozenset[str]) -> None:
        self._registries = registries
        self._names = names

    def collect(self) -> Iterator[Metric]:
        for family in self._registries.collect():
            family.samples = [sample for sample in family.samples if sample.name in self._names]
            if family.samples:
                yield family


class RunHealths:
    """The health of the runs that share a port: it is that of the process. For any thread."""

    def __init__(self) -> None:
        self._by_name: dict[str, RunHealth] = {}

    def add(self, name: str, health: RunHealth) -> None:
        self._by_name = {**self._by_name, name: health}  # replaced as a whole: a probe may be reading the other one

    def remove(self, name: str) -> None:
        self._by_name = {other: health for other, health in self._by_name.items() if other != name}

    def live(self) -> ProbeResult:
        return result_of_runs({name: health.live() for name, health in self._by_name.items()})

    def ready(self) -> ProbeResult:
        return result_of_runs({name: health.ready() for name, health in self._by_name.items()})


@dataclass(frozen=True, slots=True)
class _Port:
    """A port that is listened on, while at least one run is served."""

    registries: RunRegistries
    healths: RunHealths
    server: WSGIServer
    thread: threading.Thread

    @classmethod
    def listen(cls, host: str, port: int) -> _Port:
        """Raise ConfigError if the port is not available."""
        registries, healths = RunRegistries(), RunHealths()
        application = with_probes(make_wsgi_app(registries), healths.live, healths.ready)
        try:
            server = listen(application, host, port)
        except OSError as error:
            raise ConfigError(
                f"metrics.port: {host}:{port} cannot be listened on: {error.strerror or error}: choose another "
                "port, or end the process that uses it"
            ) from error
        thread = threading.Thread(target=server.serve_forever, args=(_CLOSE_POLL_S,), name="metrics server", daemon=True)
        thread.start()
        return cls(registries, healths, server, thread)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


_ports: dict[tuple[str, int], _Port] = {}
"""Of this process, by host and port."""
_lock = threading.Lock()


@contextmanager
def serving(name: str, registry: CollectorRegistry, health: RunHealth, settings: MetricsSettings) -> Iterator[None]:
    """Serve metrics and probes of a run while the block runs. Raises ConfigError if the port is not available."""
    assert settings.port is not None
    address = settings.host, settings.port
    with _lock:
        port = _ports.get(address) or _Port.listen(*address)
        port.registries.add(name, registry)
        port.healths.add(name, health)
        _ports[address] = port
    try:
        yield
    finally:
        with _lock:
            port.registries.remove(name)
            port.healths.remove(name)
            if not port.registries.has_runs:
                del _ports[address]
                port.close()
