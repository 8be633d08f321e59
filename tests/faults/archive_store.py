"""Faults of the object store of an archive: requests that a proxy harms, and a server that is stopped for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.archive_rounds import ArchiveScene
from tests.faults.archive_steps import ANSWERED, BETWEEN, DECIDED, IN_DELETION, LAST_STORED, PRODUCED, STORED
from tests.faults.gate import PausedProcess
from tests.faults.mirror_process import WITHOUT_SPARK
from tests.faults.process_faults import EndsByItself, KillAll, KillDriver
from tests.faults.rounds import PATIENCE_S, RoundFailedError, Scene
from tests.faults.steps import Step
from tests.object_store.servers import BUCKET, SECRET_KEY, StoreProxy, StoreServer, options_for
from tests.object_store.store_proxy import Harm, StoreFault

from shallow_mirror.local_kafka.node import start_clusters, stop_clusters

QUICK = {"timeout": "2s", "retry_timeout": "2s", "max_retries": "1", "backoff_config.init_backoff": "10ms"}
"""Requests fail sooner than by default, so that a round ends."""


@dataclass(frozen=True, slots=True)
class StoreOfScene:
    """In the scene's `more` by this class's name."""

    server: StoreServer
    proxy: StoreProxy

    @staticmethod
    def of(scene: Scene) -> StoreOfScene:
        store = scene.more[StoreOfScene.__name__]
        assert isinstance(store, StoreOfScene)
        return store


@dataclass(frozen=True, slots=True)
class ArchiveStoreScene:
    """One cluster that is never harmed, objects in an S3 server behind a proxy, tables in a folder."""

    @contextmanager
    def __call__(self, folder: Path, name: str, seed: int) -> Iterator[Scene]:
        os.environ["STORE_SECRET_KEY"] = SECRET_KEY
        with ExitStack() as opened:
            nodes = start_clusters(folder / "clusters", 1)
            opened.callback(stop_clusters, nodes)
            server = StoreServer(folder / "store" / "objects")
            opened.callback(server.stop)
            server.start()
            proxy = StoreProxy(server, folder)
            opened.callback(proxy.stop)
            proxy.start()
            yield opened.enter_context(
                ArchiveScene(
                    folder / "archive",
                    nodes[0].bootstrap,
                    "",
                    name=name,
                    engine=WITHOUT_SPARK,
                    groups={"storage": {"options": options_for(proxy.endpoint, **QUICK)}},
                    seed=seed,
                    environment={"STORE_SECRET_KEY": SECRET_KEY},
                    more={StoreOfScene.__name__: StoreOfScene(server, proxy)},
                    source_node=nodes[0],
                    location=f"s3://{BUCKET}/{name}",
                    objects_folder=server.folder / BUCKET / name,
                )
            )


@dataclass(frozen=True, slots=True)
class HarmedRequests:
    """Requests behind the step meet `fault`; it ends `seconds` after the first one did."""

    fault: StoreFault
    seconds: float = 0.0

    @property
    def name(self) -> str:
        how_long = f" for {self.seconds:.0f} s" if self.seconds else ""
        return f"object store: {self.fault.method} {self.fault.harm.value}{how_long}"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        StoreOfScene.of(scene).proxy.inject(self.fault)

    def heal(self, scene: Scene) -> None:
        proxy = StoreOfScene.of(scene).proxy
        give_up_at = time.monotonic() + PATIENCE_S
        while proxy.hits() == 0:
            if time.monotonic() > give_up_at:
                raise RoundFailedError(f"{self.name}: no request met it:\n{scene.running_or_ended().log()[-4000:]}")
            time.sleep(0.05)
        time.sleep(self.seconds)
        proxy.clear()


@dataclass(frozen=True, slots=True)
class StoreStopped:
    """The server is gone for some seconds."""

    seconds: float

    @property
    def name(self) -> str:
        return f"object store: stopped for {self.seconds:.0f} s"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        StoreOfScene.of(scene).server.stop()

    def heal(self, scene: Scene) -> None:
        time.sleep(self.seconds)
        StoreOfScene.of(scene).server.start()


@dataclass(frozen=True, slots=True)
class KilledWithLostAnswer(EndsByItself):
    """An object is applied, its answer is lost, and everything is killed before anybody asks again."""

    name: str = "object store: answer of a PUT lost, then SIGKILL"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        StoreOfScene.of(scene).proxy.inject(StoreFault(harm=Harm.LOSE_ANSWER, method="PUT"))

    def heal(self, scene: Scene) -> None:
        HarmedRequests(StoreFault(harm=Harm.LOSE_ANSWER, method="PUT")).heal(scene)
        scene.running_or_ended().kill()


def _put(harm: Harm, count: int | None = 1) -> StoreFault:
    return StoreFault(harm=harm, method="PUT", count=count)


CASES: list[tuple[HarmedRequests | StoreStopped | KilledWithLostAnswer | KillAll | KillDriver, Step]] = [
    (HarmedRequests(_put(Harm.ANSWER_503, 3)), BETWEEN),
    (HarmedRequests(_put(Harm.ANSWER_503, None), 5.0), BETWEEN),
    (HarmedRequests(_put(Harm.ANSWER_500)), BETWEEN),
    (HarmedRequests(_put(Harm.CUT)), BETWEEN),
    (HarmedRequests(_put(Harm.CUT, 6)), BETWEEN),
    (HarmedRequests(_put(Harm.LOSE_ANSWER)), BETWEEN),
    (HarmedRequests(_put(Harm.LOSE_ANSWER, 6)), BETWEEN),
    (HarmedRequests(_put(Harm.HIDE_ANSWER)), BETWEEN),
    (HarmedRequests(_put(Harm.HIDE_ANSWER, 6)), BETWEEN),
    (HarmedRequests(_put(Harm.HANG, None), 3.0), BETWEEN),
    (HarmedRequests(StoreFault(harm=Harm.ANSWER_503, method="POST", path="delete", count=4)), IN_DELETION[0]),
    (HarmedRequests(StoreFault(harm=Harm.LOSE_ANSWER, method="POST", path="delete", count=4)), IN_DELETION[0]),
    (StoreStopped(4.0), BETWEEN),
    (StoreStopped(4.0), PRODUCED),
    (StoreStopped(4.0), STORED),
    (StoreStopped(4.0), IN_DELETION[0]),
    (KilledWithLostAnswer(), BETWEEN),
    *((KillAll(), step) for step in (PRODUCED, STORED, LAST_STORED, ANSWERED, DECIDED, *IN_DELETION)),
    *((KillDriver(), step) for step in (PRODUCED, STORED, ANSWERED)),
]
