"""Which faults are injected at which steps, into what kind of mirror; and how many rounds of each kind are a long run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults import process_faults, steps
from tests.faults.mirror_process import SPARK, WITHOUT_SPARK
from tests.faults.rounds import Fault, Scene
from tests.faults.steps import Step

from shallow_mirror.local_kafka.node import start_clusters, stop_clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """`open`: a scene in a folder, by the name of its mirror and a seed. It is opened again after a round that failed."""

    name: str
    engine: str
    rounds: int
    cases: Sequence[tuple[Fault, Step]]
    open: Callable[[Path, str, int], AbstractContextManager[Scene]]


@dataclass(frozen=True, slots=True)
class PlainScene:
    """Two single-node clusters that are never harmed."""

    engine: str

    @contextmanager
    def __call__(self, folder: Path, name: str, seed: int) -> Iterator[Scene]:
        nodes = start_clusters(folder / "clusters", 2)
        try:
            with Scene(
                folder / "mirror",
                nodes[0].bootstrap,
                nodes[1].bootstrap,
                name=name,
                engine=self.engine,
                seed=seed,
                checks_meanwhile=True,
            ) as scene:
                yield scene
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

ALL = (KILLS, SPARK_KILLS)
