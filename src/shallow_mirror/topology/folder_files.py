"""For the cli: the mirror, archive and restore files of a folder as clusters and flows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import named_cluster
from shallow_mirror.config import ArchiveConfig, MirrorConfig, RestoreConfig
from shallow_mirror.config.config_file import read_yaml
from shallow_mirror.config.sections import ClusterSettings
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.routing import names_source, own_targets_pattern
from shallow_mirror.topology.flows import Flow, Node, Topology, build_topology

Config = MirrorConfig | ArchiveConfig | RestoreConfig
_KINDS: Mapping[str, type[MirrorConfig] | type[ArchiveConfig] | type[RestoreConfig]] = {
    "mirror": MirrorConfig,
    "restore": RestoreConfig,
    "archive": ArchiveConfig,
}
"""By the key that names the flow; a restore file also has the key `archive`."""
_CONDUCTED = frozenset({"migration", "failover"})
"""Keys of files that name mirror files, with the key `mirror` as well."""
_TIMEOUT_MS = 30_000.0


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a flow. `client` None: an archive."""

    alias: str
    addresses: frozenset[str]
    client: ClientConfig | None


def read_topology(folder: Path, *, is_connecting: bool = False) -> Topology:
    """Return the topology of a folder. With `is_connecting`, topics and cluster ids are read from the clusters.

    Raises ConfigError with every problem of the files, or if there are none; RetriableError if a cluster does not answer.
    """
    configs = _read_folder(folder)
    ends = [end for _, config in configs for end in _ends(config)]
    ids: dict[frozenset[str], str] = {}
    topics: dict[str, tuple[str, ...]] = {}
    if is_connecting:
        for end in ends:
            if end.client is not None and end.addresses not in ids:
                cluster_id, names = _ask(end)
                ids[end.addresses] = cluster_id
                topics[cluster_id] = names
    keys = _keys(ends, ids)
    nodes = _nodes(ends, keys)
    flows = [_flow(name, config, keys) for name, config in configs]
    known = {keys[addresses]: topics[cluster_id] for addresses, cluster_id in ids.items()} if is_connecting else None
    return build_topology(nodes, flows, known)


def _read_folder(folder: Path) -> list[tuple[str, Config]]:
    """Return the files of flows, in order of their names; other YAML files are passed over."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is no folder")
    configs: list[tuple[str, Config]] = []
    problems: list[str] = []
    for path in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        try:
            document = read_yaml(path, "file")
            keys = document.keys() if isinstance(document, Mapping) else ()
            kind = next((kind for kind in _KINDS if kind in keys and _CONDUCTED.isdisjoint(keys)), None)
            if kind is not None:
                configs.append((path.name, _KINDS[kind].from_document(document, folder=path.resolve().parent)))
        except ConfigError as error:
            problems += [f"{path.name}: {problem}" for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    if not configs:
        raise ConfigError(f"{folder}: has no mirror file, archive file or restore file (*.yaml, *.yml)")
    return configs


def _ends(config: Config) -> tuple[_End, _End]:
    """Return the source and the target of a flow."""
    match config:
        case MirrorConfig():
            return _cluster_end(config.source), _cluster_end(config.target)
        case ArchiveConfig():
            return _cluster_end(config.source), _archive_end(config.archive, config.tables)
        case RestoreConfig():
            return _archive_end("archive", config.archive.tables), _cluster_end(config.target)


def _cluster_end(cluster: ClusterSettings) -> _End:
    client = cluster.client
    servers = client.value("bootstrap.servers").split(",")
    return _End(cluster.alias, frozenset(server.strip().lower() for server in servers), client)


def _archive_end(name: str, tables: str) -> _End:
    return _End(name, frozenset({tables}), None)


def _ask(end: _End) -> tuple[str, tuple[str, ...]]:
    assert end.client is not None
    deadline = Deadline.after_ms(_TIMEOUT_MS, time.monotonic)
    with closing(Cluster(end.client)) as cluster, named_cluster(f"cluster {end.alias}"):
        return cluster.cluster_id(deadline), tuple(sorted(cluster.metadata(None, deadline).topics))


def _keys(ends: Sequence[_End], ids: Mapping[frozenset[str], str]) -> dict[frozenset[str], str]:
    """Return the key of the node for each set of addresses: those that share an address, or a cluster id, are one node."""
    groups: list[set[frozenset[str]]] = []
    for addresses in dict.fromkeys(end.addresses for end in ends):
        same = [group for group in groups if any(_is_same(addresses, other, ids) for other in group)]
        groups = [group for group in groups if group not in same]
        groups.append({addresses}.union(*same))
    return {addresses: min(min(other) for other in group) for group in groups for addresses in group}


def _is_same(left: frozenset[str], right: frozenset[str], ids: Mapping[frozenset[str], str]) -> bool:
    if left in ids and right in ids:
        return ids[left] == ids[right]
    return not left.isdisjoint(right)


def _nodes(ends: Sequence[_End], keys: Mapping[frozenset[str], str]) -> list[Node]:
    nodes = []
    for key in dict.fromkeys(keys[end.addresses] for end in ends):
        members = [end for end in ends if keys[end.addresses] == key]
        names = {end.alias for end in members}
        is_archive = members[0].client is None
        names -= {"archive"} if is_archive and len(names) > 1 else set()
        nodes.append(
            Node(
                key=key,
                kind="archive" if is_archive else "cluster",
                names=tuple(sorted(names)),
                addresses=tuple(sorted({address for end in members for address in end.addresses})),
            )
        )
    return nodes


def _flow(file: str, config: Config, keys: Mapping[frozenset[str], str]) -> Flow:
    source, target = _ends(config)
    kind, name = next((kind, getattr(config, kind)) for kind, model in _KINDS.items() if isinstance(config, model))
    target_name = "{topic}" if isinstance(config, ArchiveConfig) else config.topics.target_name
    return Flow(
        kind=kind,
        name=name,
        file=file,
        source=keys[source.addresses],
        target=keys[target.addresses],
        source_alias=source.alias,
        include=tuple(config.topics.include),
        exclude=(*config.topics.exclude, *(_own_excludes(config, keys) if isinstance(config, MirrorConfig) else ())),
        target_name=target_name,
    )


def _own_excludes(config: MirrorConfig, keys: Mapping[frozenset[str], str]) -> Iterator[str]:
    """Yield the names that a mirror leaves out without a setting: its own target topics, and copies from its target."""
    source, target = _ends(config)
    if keys[source.addresses] == keys[target.addresses]:
        yield own_targets_pattern(config.topics.target_name, config.source.alias)
    elif names_source(config.topics.target_name):
        yield own_targets_pattern(config.topics.target_name, config.target.alias)
