"""Pure: the flows of a configuration of MirrorMaker 2, and the properties that count for each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shallow_mirror.errors import ConfigError
from shallow_mirror.mirror_maker.java_patterns import split_list

_ALIAS = re.compile(r"[A-Za-z0-9._-]+")
_CLIENTS = ("consumer.", "producer.", "admin.")
_OF_WORKERS = ("offset.storage.", "config.storage.", "status.storage.")
"""Properties of workers that need no alias in front."""
_OF_FLOW = re.compile(r"(.+?)->(.+?)\.(.+)")


@dataclass(slots=True)
class Flow:
    """One direction of copying, by the aliases of its clusters."""

    source: str
    target: str
    properties: Mapping[str, str]
    """All of the file."""
    used: set[str] = field(default_factory=set)
    """Names of the file that were asked for."""

    @property
    def name(self) -> str:
        return f"{self.source}-{self.target}"

    def connector(self, *names: str) -> str | None:
        """Return a property of the connectors by any of its names: that of the flow before that of all flows."""
        return self._first(*(f"{prefix}{name}" for prefix in (f"{self.source}->{self.target}.", "") for name in names))

    def worker(self, name: str) -> str | None:
        """Return a property of the Connect workers. Those of MirrorMaker 2 itself read it with the target's alias in front."""
        return self._first(f"{self.target}.{name}", *([name] if name.startswith(_OF_WORKERS) else []))

    def client(self, alias: str, name: str) -> str | None:
        """Return a property of the clients of a cluster: of the one that reads or writes records before those of all."""
        return self._first(*(f"{prefix}{name}" for prefix in self._client_prefixes(alias)))

    def client_names(self, alias: str) -> Iterator[str]:
        """Yield the names of what is said for the clients of a cluster, without its prefixes."""
        prefixes = self._client_prefixes(alias)[:-1]
        for full in self.properties:
            prefix = next((prefix for prefix in prefixes if full.startswith(prefix)), None)
            name = full.removeprefix(prefix or "")
            if prefix is not None and not name.startswith(_CLIENTS):
                yield name

    def _client_prefixes(self, alias: str) -> tuple[str, ...]:
        side, client = ("source", "consumer") if alias == self.source else ("target", "producer")
        flow = f"{self.source}->{self.target}."
        return (
            f"{flow}{side}.{client}.",
            f"{flow}{client}.",
            f"{flow}{side}.cluster.",
            f"{alias}.{client}.",
            f"{alias}.",
            f"{side}.{client}.",
            f"{side}.cluster.",
            "",
        )

    def _first(self, *names: str) -> str | None:
        for name in names:
            if name in self.properties:
                self.used.add(name)
                return self.properties[name].strip()
        return None


def flows_of(properties: Mapping[str, str], where: str) -> list[Flow]:
    """Return the flows that are enabled, or the one of a connector. Raises ConfigError if there is none."""
    if "clusters" not in properties:
        return [_flow_of_connector(properties, where)]
    aliases = split_list(properties["clusters"])
    illegal = next((alias for alias in aliases if not _ALIAS.fullmatch(alias)), None)
    if illegal is not None:
        raise ConfigError(
            f"{where}: clusters: {illegal!r} cannot name a cluster in a mirror file: letters, digits, '.', '_' and '-' only; "
            "rename it in a copy of the file (the alias is part of topic names: see replication.policy.class)"
        )
    flows, unknown = [], []
    for name, value in properties.items():
        match = _OF_FLOW.fullmatch(name)
        if match is None or match[3] != "enabled" or value.strip().lower() != "true":
            continue
        unknown += [alias for alias in match.group(1, 2) if alias not in aliases]
        flows.append(Flow(match[1], match[2], properties))
    if unknown:
        raise ConfigError(f"{where}: {unknown[0]} is not in clusters = {', '.join(aliases)}: correct the one or the other")
    if not flows:
        example = "->".join(aliases[:2]) if len(aliases) > 1 else "east->west"
        raise ConfigError(f"{where}: no flow is enabled: it needs a line such as {example}.enabled = true")
    return flows


def _flow_of_connector(properties: Mapping[str, str], where: str) -> Flow:
    if "source.cluster.bootstrap.servers" not in properties:
        raise ConfigError(
            f"{where} has neither `clusters`, as a file of connect-mirror-maker.sh, nor `source.cluster.bootstrap.servers`, as a "
            "configuration of MirrorSourceConnector: name one of these"
        )
    source, target = (properties.get(f"{side}.cluster.alias", side).strip() for side in ("source", "target"))
    return Flow(source, target, properties)
