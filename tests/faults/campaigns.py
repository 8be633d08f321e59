"""Which faults are injected at which steps, into what kind of mirror; and how many rounds of each kind are a long run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import (
    archive_steps,
    archive_store,
    broker_faults,
    network_faults,
    preserved_offsets,
    process_faults,
    several_mirrors,
    sink_faults,
    steps,
    storage_faults,
    table_store,
    three_brokers,
)
from tests.faults.archive_rounds import PlainArchiveScene
from tests.faults.archive_store import ArchiveStoreScene
from tests.faults.mirror_process import LOCAL_CLUSTER, SPARK, WITHOUT_SPARK
from tests.faults.network_faults import TARGET, NetworkScene
from tests.faults.restore_rounds import PlainRestoreScene
from tests.faults.rounds import Fault, Scene
from tests.faults.sink_scene import PlainSinkScene
from tests.faults.steps import Step
from tests.faults.table_store import TableStoreScene

from shallow_mirror.local_kafka import start_clusters, stop_clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """`open`: a scene in a folder, by the name of its mirror and a seed. It is opened again after a round that failed.

    `least_bytes_per_s`: what writers have to reach for a round to be of use; less is reported.
    """

    name: str
    engine: str
    rounds: int
    cases: Sequence[tuple[Fault, Step]]
    open: Callable[[Path, str, int], AbstractContextManager[Scene]]
    needs_root: bool = False
    least_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlainScene:
    """Two single-node clusters that are never harmed."""

    engine: str
    groups: Mapping[str, Any] = field(default_factory=dict)
    has_movable_clock: bool = False
    has_small_disk: bool = False
    keeps_offsets: bool = False

    @contextmanager
    def __call__(self, folder: Path, name: str, seed: int) -> Iterator[Scene]:
        nodes = start_clusters(folder / "clusters", 2)
        try:
            with ExitStack() as opened:
                scene = Scene(
                    folder / "mirror",
                    nodes[0].bootstrap,
                    nodes[1].bootstrap,
                    name=name,
                    engine=self.engine,
                    groups=self.groups,
                    seed=seed,
                    checks_meanwhile=True,
                    keeps_offsets=self.keeps_offsets,
                )
                if self.has_movable_clock:
                    scene.environment |= process_faults.movable_clock(scene.folder)
                if self.has_small_disk:
                    opened.enter_context(storage_faults.small_disk(scene.tables))
                yield opened.enter_context(scene)
        finally:
            stop_clusters(nodes)


KILL = process_faults.KillAll()
KILLS = Campaign(
    name="kills",
    engine=WITHOUT_SPARK,
    rounds=500,
    cases=[(fault, step) for fault in (KILL, process_faults.KillDriver()) for step in steps.ALL],
    open=PlainScene(WITHOUT_SPARK),
)
SPARK_KILLS = Campaign(
    name="spark-kills",
    engine=SPARK,
    rounds=60,
    cases=[
        *((KILL, step) for step in steps.ALL),
        *((process_faults.KillDriver(), step) for step in (steps.PRODUCED, steps.ANSWERED, steps.DECIDED, steps.ENDED[0])),
        *((process_faults.KillJvm(), step) for step in (steps.PRODUCED, steps.DECIDED, steps.ENDED[1], steps.RETURNED)),
        *((process_faults.KillWorker(), step) for step in steps.IN_TASKS),
    ],
    open=PlainScene(SPARK),
)

SHORT_TRANSACTION_MS = 10_000
SUSPENSIONS = Campaign(
    name="suspensions",
    engine=WITHOUT_SPARK,
    rounds=40,
    cases=[
        (process_faults.Suspend(SHORT_TRANSACTION_MS / 1000 + 3), step)
        for step in (steps.PRODUCED, steps.LAST_RECEIPT, steps.ANSWERED, steps.DECIDED, *steps.ENDED, *steps.IN_RECOVERY[:3])
    ],
    open=PlainScene(WITHOUT_SPARK, {"write": {"transaction_timeout_ms": SHORT_TRANSACTION_MS}}),
)
CLOCKS = Campaign(
    name="clocks",
    engine=WITHOUT_SPARK,
    rounds=40,
    cases=[
        (process_faults.MoveClock(seconds), step)
        for seconds in (100_000.0, -100_000.0)
        for step in (steps.OWNER_CHECKED, steps.PRODUCED, steps.DECIDED, steps.ENDED[0])
    ],
    open=PlainScene(WITHOUT_SPARK, has_movable_clock=True),
)
STORAGE = Campaign(
    name="storage",
    engine=WITHOUT_SPARK,
    rounds=48,
    cases=[
        (fault, step)
        for fault in (storage_faults.DiskFull(), storage_faults.ReadOnlyMap())
        for step in (steps.OWNER_CHECKED, steps.LAST_RECEIPT, steps.ANSWERED, steps.DECIDED, steps.ENDED[0], steps.RETURNED)
    ],
    open=PlainScene(WITHOUT_SPARK, has_small_disk=True),
    needs_root=True,
)

CHECKPOINTS = Campaign(
    name="checkpoints",
    engine=SPARK,
    rounds=12,
    cases=[
        (fault, step)
        for fault in (storage_faults.CheckpointDeleted(), storage_faults.CheckpointOfThePast())
        for step in (steps.PRODUCED, steps.DECIDED, steps.RETURNED, steps.COMMITTED)
    ],
    open=PlainScene(SPARK),
)
EXECUTORS = Campaign(
    name="executors",
    engine=LOCAL_CLUSTER,
    rounds=12,
    cases=[
        *((process_faults.KillExecutor(), step) for step in (steps.INITIALISED, steps.PRODUCED, steps.RECEIPT)),
        *((KILL, step) for step in (steps.PRODUCED, steps.DECIDED)),
    ],
    open=PlainScene(LOCAL_CLUSTER),
)

NETWORK = Campaign(
    name="network",
    engine=WITHOUT_SPARK,
    rounds=8 * len(network_faults.CASES),
    cases=network_faults.CASES,
    open=NetworkScene(WITHOUT_SPARK),
)
FAR = Campaign(
    name="far",
    engine=WITHOUT_SPARK,
    rounds=200,
    cases=[*network_faults.CASES, *((fault, step) for fault in (KILL, process_faults.KillDriver()) for step in steps.ALL)],
    open=NetworkScene(WITHOUT_SPARK, target_delay_s=network_faults.FAR_DELAY_S),
)
SPARK_NETWORK = Campaign(
    name="spark-network",
    engine=SPARK,
    rounds=len(network_faults.CASES),
    cases=network_faults.CASES,
    open=NetworkScene(SPARK),
)
ONLY_BROKER = Campaign(
    name="only-broker",
    engine=WITHOUT_SPARK,
    rounds=100,
    cases=broker_faults.ONLY_BROKER,
    open=NetworkScene(WITHOUT_SPARK, checks_meanwhile=False),
)
ONE_OF_THREE = Campaign(
    name="one-of-three",
    engine=WITHOUT_SPARK,
    rounds=100,
    cases=broker_faults.ONE_OF_THREE,
    open=NetworkScene(WITHOUT_SPARK, target_brokers=3, checks_meanwhile=False),
)
THREE_BROKERS = Campaign(
    name="three-brokers",
    engine=WITHOUT_SPARK,
    rounds=2 * len(three_brokers.CASES),
    cases=three_brokers.CASES,
    open=three_brokers.ThreeBrokerScene(WITHOUT_SPARK),
    least_bytes_per_s=three_brokers.LEAST_BYTES_PER_S,
)
AWAY = Campaign(
    name="away",
    engine=WITHOUT_SPARK,
    rounds=12,
    cases=broker_faults.away(30),
    open=NetworkScene(WITHOUT_SPARK, checks_meanwhile=False),
)
TEN_MINUTES_AWAY = Campaign(
    name="ten-minutes-away",
    engine=WITHOUT_SPARK,
    rounds=4,
    cases=[
        (fault, step)
        for fault, step in broker_faults.away(600)
        if step is (steps.DECIDED if fault.side == TARGET else steps.PRODUCED)
    ],
    open=NetworkScene(WITHOUT_SPARK, checks_meanwhile=False),
)

ARCHIVE_KILLS = Campaign(
    name="archive-kills",
    engine=WITHOUT_SPARK,
    rounds=150,
    cases=[
        *((fault, step) for fault in (KILL, process_faults.KillDriver()) for step in archive_steps.ALL),
        *((process_faults.KillTask(), step) for step in archive_steps.IN_TASKS),
    ],
    open=PlainArchiveScene(),
)
ARCHIVE_STORE = Campaign(
    name="archive-store",
    engine=WITHOUT_SPARK,
    rounds=3 * len(archive_store.CASES),
    cases=archive_store.CASES,
    open=ArchiveStoreScene(),
)
TABLE_STORE = Campaign(
    name="table-store",
    engine=WITHOUT_SPARK,
    rounds=2 * len(table_store.CASES),
    cases=table_store.CASES,
    open=TableStoreScene(),
)
RESTORE_KILLS = Campaign(
    name="restore-kills",
    engine=WITHOUT_SPARK,
    rounds=80,
    cases=[(fault, step) for fault in (KILL, process_faults.KillDriver()) for step in steps.ALL],
    open=PlainRestoreScene(),
)
RESTORE_PRESERVED = Campaign(
    name="restore-preserved",
    engine=WITHOUT_SPARK,
    rounds=60,
    cases=[(fault, step) for fault in (KILL, process_faults.KillDriver()) for step in preserved_offsets.STEPS],
    open=PlainRestoreScene(keeps_offsets=True),
)

PRESERVED_KILLS = Campaign(
    name="preserved-kills",
    engine=WITHOUT_SPARK,
    rounds=100,
    cases=preserved_offsets.KILLS,
    open=PlainScene(WITHOUT_SPARK, preserved_offsets.GROUPS, keeps_offsets=True),
)
PRESERVED_NETWORK = Campaign(
    name="preserved-network",
    engine=WITHOUT_SPARK,
    rounds=100,
    cases=preserved_offsets.NETWORK,
    open=NetworkScene(WITHOUT_SPARK, groups=preserved_offsets.GROUPS, keeps_offsets=True),
)
PRESERVED_BROKERS = Campaign(
    name="preserved-brokers",
    engine=WITHOUT_SPARK,
    rounds=100,
    cases=preserved_offsets.ONE_OF_THREE,
    open=NetworkScene(
        WITHOUT_SPARK,
        target_brokers=3,
        checks_meanwhile=False,
        groups=preserved_offsets.GROUPS,
        keeps_offsets=True,
        properties=preserved_offsets.QUICK_ELECTIONS,
    ),
)
PRESERVED_MIRRORS = Campaign(
    name="preserved-mirrors",
    engine=WITHOUT_SPARK,
    rounds=100,
    cases=several_mirrors.CASES,
    open=PlainScene(WITHOUT_SPARK, preserved_offsets.GROUPS, keeps_offsets=True),
)

SINK_BROKERS = Campaign(
    name="sink-brokers",
    engine=WITHOUT_SPARK,
    rounds=200,
    cases=sink_faults.CASES,
    open=PlainSinkScene(WITHOUT_SPARK),
)
SINK_SPARK = Campaign(
    name="sink-spark",
    engine=SPARK,
    rounds=20,
    cases=[
        *((KILL, step) for step in steps.ALL),
        *((process_faults.KillJvm(), step) for step in (steps.PRODUCED, steps.DECIDED, steps.RETURNED)),
        *((process_faults.KillWorker(), step) for step in steps.IN_TASKS),
        *sink_faults.CHECKPOINTS,
    ],
    open=PlainSinkScene(SPARK),
)

ALL = (
    PRESERVED_KILLS,
    PRESERVED_NETWORK,
    PRESERVED_BROKERS,
    PRESERVED_MIRRORS,
    KILLS,
    SPARK_KILLS,
    CHECKPOINTS,
    EXECUTORS,
    SUSPENSIONS,
    CLOCKS,
    STORAGE,
    TABLE_STORE,
    NETWORK,
    FAR,
    SPARK_NETWORK,
    ONLY_BROKER,
    ONE_OF_THREE,
    THREE_BROKERS,
    AWAY,
    TEN_MINUTES_AWAY,
    ARCHIVE_KILLS,
    ARCHIVE_STORE,
    RESTORE_KILLS,
    RESTORE_PRESERVED,
    SINK_BROKERS,
    SINK_SPARK,
)
