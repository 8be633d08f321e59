"""All peers, in the order in which they take turns."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.names import known_names
from benchmarks.peers.confluent_loop import ConfluentLoop
from benchmarks.peers.franz_go import FranzGo
from benchmarks.peers.mirrormaker2 import MirrorMaker2
from benchmarks.peers.peer import Peer
from benchmarks.peers.shallow_mirror import PRESERVED_SETTINGS, ShallowMirror
from benchmarks.peers.spark_kafka import SparkKafka

OURS = "shallow-mirror"

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        ShallowMirror(OURS),
        ShallowMirror("shallow-mirror-through-spark", {"read": {"transfer": "through-spark"}}),
        ShallowMirror("shallow-mirror-delta-spark", {"tables_writer": "spark"}),
        ShallowMirror("shallow-mirror-one-slot", {"write": {"slots": 1}}),
        ShallowMirror("shallow-mirror-loop", {"micro_batches": "loop"}),
        ShallowMirror("shallow-mirror-coalescing", {"write": {"coalesce_bytes": "auto"}}),
        ShallowMirror("shallow-mirror-preserved", {"topics": {"offsets": {".*": "preserved"}}}, PRESERVED_SETTINGS),
        MirrorMaker2(exactly_once=False),
        MirrorMaker2(exactly_once=True),
        SparkKafka(),
        ConfluentLoop(),
        FranzGo(),
    )
}


def chosen_peers(names: Sequence[str]) -> list[Peer]:
    """Raise ConfigError with every name that is not a peer."""
    return [PEERS[name] for name in known_names("peer", names, PEERS)]
