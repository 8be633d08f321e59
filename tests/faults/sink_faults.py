"""Faults of queries with DataFrame sinks: lost and older checkpoints, second runs, and decided transactions that are aborted."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field

from tests.fakes.raw_client import RawClient
from tests.faults.broker_faults import IN_TASKS_AND_AFTER, Blow, OnlyBroker, wait_until
from tests.faults.gate import PausedProcess
from tests.faults.network_faults import TARGET, Network
from tests.faults.process_faults import EndsByItself, KillAll, KillDriver, KillTask
from tests.faults.rounds import Fault, Scene
from tests.faults.several_mirrors import OlderRun
from tests.faults.sink_scene import SinkScene, end_of
from tests.faults.steps import (
    ALL,
    COMMITTED,
    DECIDED,
    ENDED,
    IN_MICRO_BATCH,
    IN_RECOVERY,
    IN_TASKS,
    PRODUCED,
    RETURNED,
    SLOTS,
    Step,
)

from shallow_mirror import WrittenRecords


def _of_sinks(scene: Scene) -> SinkScene:
    assert isinstance(scene, SinkScene)
    return scene


@dataclass(frozen=True, slots=True)
class CheckpointLost:
    """A new query is refused, until it begins where the table says, and follows the lost one."""

    name: str = "SIGKILL, and the checkpoint of the query deleted"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        scene.running().kill()

    def repair(self, scene: Scene) -> None:
        sinks = _of_sinks(scene)
        kept = sinks.first_checkpoint.rename(sinks.folder / "kept")
        sinks.refused("of another query")
        shutil.rmtree(sinks.first_checkpoint)
        kept.rename(sinks.first_checkpoint)
        newest = WrittenRecords.open(str(sinks.tables / sinks.name), name=sinks.name).newest()
        recorded_end = end_of(newest["source_offsets"][0].as_py().splitlines()[-1])
        sinks.lose_checkpoint(newest["query_id"][0].as_py(), recorded_end)


@dataclass(frozen=True, slots=True)
class CheckpointFromBackup:
    """A checkpoint without its last two micro-batches is refused, until the newest one is there again."""

    name: str = "SIGKILL, and an older checkpoint of the query"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        scene.running().kill()

    def repair(self, scene: Scene) -> None:
        sinks = _of_sinks(scene)
        checkpoint = sinks.first_checkpoint
        newest = shutil.copytree(checkpoint, sinks.folder / "newest")
        last = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
        for log in ("offsets", "commits"):
            for batch_id in (last - 1, last):
                for path in (checkpoint / log / str(batch_id), checkpoint / log / f".{batch_id}.crc"):
                    path.unlink(missing_ok=True)
        sinks.rows += 1  # the source has more by now, so that a micro-batch of the same id ends elsewhere
        sinks.write_conf()
        sinks.refused("its checkpoint is older than the tables")
        shutil.rmtree(checkpoint)
        newest.rename(checkpoint)
        sinks.write_conf()


@dataclass(slots=True)
class SecondRun:
    """A second process takes over both names, with copies of the checkpoints; then the first one continues."""

    name: str = "a second run of the same names takes over"
    older: OlderRun | None = field(default=None, init=False)

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        taken_over = f"of sink {scene.name} took over"
        self.older = OlderRun.supersede(scene)
        wait_until(scene, "a second run", lambda: taken_over in scene.running_or_ended().log())

    def repair(self, scene: Scene) -> None:
        assert self.older is not None
        self.older.require_fenced()


@dataclass(frozen=True, slots=True)
class DecidedAborted(EndsByItself):
    """What a transaction timeout does to a decided transaction: the other ones of its micro-batch are committed later."""

    name: str = "SIGKILL, and the transaction of one slot aborted"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        scene.running().kill()
        network = Network.of(scene)
        with RawClient(network.clusters[TARGET].bootstrap) as client:
            client.initialised(f"{scene.name}-{network.rng.randrange(SLOTS)}")


KILLS: list[tuple[Fault, Step]] = [(fault, step) for fault in (KillAll(), KillDriver()) for step in ALL]
CHECKPOINTS: list[tuple[Fault, Step]] = [
    (fault, step)
    for fault in (CheckpointLost(), CheckpointFromBackup())
    for step in (PRODUCED, DECIDED, ENDED[0], RETURNED, COMMITTED)
]
CASES: list[tuple[Fault, Step]] = [
    *KILLS,
    *((KillTask(), step) for step in IN_TASKS),
    *((OnlyBroker(TARGET, blow), step) for blow in (Blow.KILL, Blow.STOP) for step in (*IN_TASKS_AND_AFTER, *IN_RECOVERY)),
    *CHECKPOINTS,
    *((SecondRun(), step) for step in IN_MICRO_BATCH),
    *((DecidedAborted(), step) for step in (DECIDED, *ENDED)),
]
