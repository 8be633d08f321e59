"""Several runs of one mirror at the same time, on the same tables: older ones that send behind the newest one's back; and a
mirror with tables of its own that is started on the same target."""

from __future__ import annotations

import enum
import itertools
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import psutil
import yaml
from tests.faults import mirror_process
from tests.faults.broker_faults import wait_for_progress
from tests.faults.gate import PausedProcess
from tests.faults.mirror_process import MirrorProcess, survivors
from tests.faults.process_faults import EndsByItself
from tests.faults.rounds import BETWEEN_MICRO_BATCHES, PATIENCE_S, Fault, RoundFailedError, Scene
from tests.faults.steps import ANSWERED, DECIDED, OWNER_CHECKED, PLANNED, PRODUCED, RETURNED, Step

_SLICES = 60
_RUNS_S, _STOPS_S = 0.03, 0.15
_GONE_WITHIN_S = 30.0
_POLL_S = 0.05

FENCED = "FencedError"
REFUSED = ("is not new", "the tables are new, but the target knows the transactional id")
"""Of a target that has records; of an id that another mirror uses, or a refused start of the same one has used."""


class Stopped(enum.Enum):
    """What of an older run is stopped by SIGSTOP while newer ones run."""

    NOTHING = "held at one step"
    TASKS = "its tasks stopped"
    ALL = "all of it stopped"


@dataclass(frozen=True, slots=True)
class OlderRun:
    """A run that a newer one has superseded, with its processes of that moment."""

    run: MirrorProcess
    processes: list[psutil.Process]

    @classmethod
    def supersede(cls, scene: Scene) -> OlderRun:
        """Start a newer run beside the scene's."""
        processes = scene.running().everything()
        return cls(scene.supersede(), processes)

    def require_fenced(self) -> None:
        """Wait until it has ended because a newer run has taken over, and nothing is left of it. Raises RoundFailedError."""
        code = self.run.wait(PATIENCE_S)
        if code is None or FENCED not in self.run.log():
            raise RoundFailedError(f"an older run was not fenced (exit code {code}):\n{self.run.log()[-4000:]}")
        left = survivors(self.processes, _GONE_WITHIN_S)
        if left:
            raise RoundFailedError(f"an older run has left processes behind: {[process.pid for process in left]}")


def _require_fenced(older: Iterable[OlderRun]) -> None:
    for run in older:
        run.require_fenced()


def _processes(run: MirrorProcess, stopped: Stopped) -> list[psutil.Process]:
    if stopped is Stopped.NOTHING:
        return []
    everything = run.everything()
    return everything if stopped is Stopped.ALL else everything[1:]


@dataclass(slots=True)
class OlderContinues:
    """Older runs are stopped at a step; a newer one takes over and copies; then they continue, at the same time as it.

    `count`: how many older ones there are, each of which has taken over from the one before.
    """

    stopped: Stopped
    count: int = 1
    older: list[OlderRun] = field(default_factory=list, init=False)

    @property
    def name(self) -> str:
        return f"{self.count + 1} runs at once: {_older(self.count)} ({self.stopped.value}) behind the newest one's back"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        self.older = []
        stopped: list[psutil.Process] = []
        for number in range(self.count):
            # Only the first one is held at a step as well.
            how = Stopped.ALL if number and self.stopped is Stopped.NOTHING else self.stopped
            own = _processes(scene.running(), how)
            mirror_process.kill(own, signal.SIGSTOP)
            stopped += own
            self.older.append(OlderRun.supersede(scene))
            wait_for_progress(scene)
        mirror_process.kill(stopped, signal.SIGCONT)

    def repair(self, scene: Scene) -> None:
        _require_fenced(self.older)


@dataclass(slots=True)
class OlderInSlices:
    """An older run continues for moments only, in which it sends, while the newer one copies: it is there for seconds."""

    name: str = "2 runs at once: the older one continues in slices of 30 ms"
    older: list[OlderRun] = field(default_factory=list, init=False)

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        older = scene.running()
        own = older.everything()
        mirror_process.kill(own, signal.SIGSTOP)
        self.older = [OlderRun.supersede(scene)]
        wait_for_progress(scene)
        paused.release()
        for _ in range(_SLICES):
            mirror_process.kill(own, signal.SIGCONT)
            time.sleep(_RUNS_S)
            if older.exit_code is not None:
                break
            mirror_process.kill(own, signal.SIGSTOP)
            time.sleep(_STOPS_S)
        mirror_process.kill(own, signal.SIGCONT)

    def repair(self, scene: Scene) -> None:
        _require_fenced(self.older)


@dataclass(slots=True)
class StartedAtOnce:
    """Newer runs start while the older one copies at full speed; nothing is held. Each start fences those before it."""

    count: int
    older: list[OlderRun] = field(default_factory=list, init=False)

    @property
    def name(self) -> str:
        return f"{self.count + 1} runs at once: {self.count} started while an older one copies"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        paused.release()
        self.older = [OlderRun.supersede(scene) for _ in range(self.count)]

    def repair(self, scene: Scene) -> None:
        """Wait for the run that took over last, which is not always the one that was started last."""
        last = scene.running_or_ended()
        runs = [*self.older, OlderRun(last, last.everything())]
        give_up_at = time.monotonic() + PATIENCE_S
        while len(alive := [older.run for older in runs if older.run.exit_code is None]) > 1:
            if time.monotonic() > give_up_at:
                raise RoundFailedError(f"{len(alive)} runs neither ended nor were fenced:\n{alive[0].log()[-4000:]}")
            time.sleep(_POLL_S)
        _require_fenced(older for older in runs if older.run not in alive)
        scene.mirror = alive[0] if alive else None


@dataclass(slots=True)
class NewerKilled:
    """A newer run takes over, copies and is killed; its tasks may live on for a moment. The older one continues behind it, is
    fenced by the take-over of a dead one, and a third one starts."""

    with_its_tasks: bool
    older: list[OlderRun] = field(default_factory=list, init=False)

    @property
    def name(self) -> str:
        killed = "mirror" if self.with_its_tasks else "driver"
        return f"2 runs at once: SIGKILL of the newer {killed}, the older one continues"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        own = scene.running().everything()
        mirror_process.kill(own, signal.SIGSTOP)
        self.older = [OlderRun.supersede(scene)]
        wait_for_progress(scene)
        mirror_process.kill(own, signal.SIGCONT)
        newer = scene.running()
        (newer.kill if self.with_its_tasks else newer.kill_driver)()

    def repair(self, scene: Scene) -> None:
        _require_fenced(self.older)


@dataclass(slots=True)
class OlderKilled(EndsByItself):
    """An older run continues behind the newer one's back, and is killed while it does."""

    name: str = "2 runs at once: SIGKILL of the older one while it continues"
    after_s: float = 0.05

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        older = scene.running()
        own = older.everything()
        mirror_process.kill(own, signal.SIGSTOP)
        scene.supersede()
        wait_for_progress(scene)
        paused.release()
        mirror_process.kill(own, signal.SIGCONT)
        time.sleep(self.after_s)
        older.kill()


@dataclass(frozen=True, slots=True)
class OtherTables(EndsByItself):
    """A mirror of the same topics with tables of its own, and so with other producer ids. It has to be refused."""

    has_same_id: bool

    @property
    def name(self) -> str:
        return f"a mirror with {'the same' if self.has_same_id else 'another'} id and other tables, on the same target"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        paused.release()
        folder = scene.folder / f"other-{time.monotonic_ns()}"
        document = yaml.safe_load(scene.conf.read_text(encoding="utf-8"))
        document |= {"tables": str(folder / "tables"), "checkpoint": str(folder / "checkpoint")}
        if not self.has_same_id:
            document["mirror"] += "-other"
        folder.mkdir()
        conf = folder / "mirror.yaml"
        conf.write_text(yaml.safe_dump(document), encoding="utf-8")
        other = scene.start_beside(conf)
        code = other.wait(PATIENCE_S)
        if code in (None, 0) or not any(reason in other.log() for reason in REFUSED):
            raise RoundFailedError(f"a mirror with other tables was not refused (exit code {code}):\n{other.log()[-4000:]}")


def _older(count: int) -> str:
    return "the older one" if count == 1 else f"{count} older ones"


STEPS = (PLANNED, OWNER_CHECKED, PRODUCED, ANSWERED, DECIDED, RETURNED)

CASES: list[tuple[Fault, Step]] = [
    *((OlderContinues(stopped, count), step) for stopped, count in itertools.product(Stopped, (1, 2)) for step in STEPS),
    *((OlderInSlices(), step) for step in STEPS),
    *((StartedAtOnce(count), step) for count in (1, 2) for step in (PLANNED, PRODUCED, ANSWERED)),
    *((NewerKilled(with_its_tasks), step) for with_its_tasks in (True, False) for step in (PRODUCED, ANSWERED, DECIDED)),
    *((OlderKilled(), step) for step in (PLANNED, PRODUCED, ANSWERED)),
    *((OtherTables(has_same_id), step) for has_same_id in (True, False) for step in (BETWEEN_MICRO_BATCHES, PRODUCED)),
]
