"""Faults of an object store: requests that a proxy harms, and a server that is stopped for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.gate import PausedProcess
from tests.faults.process_faults import EndsByItself
from tests.faults.rounds import PATIENCE_S, RoundFailedError, Scene
from tests.object_store.servers import SECRET_KEY, StoreProxy, StoreServer, options_for
from tests.object_store.store_proxy import Harm, StoreFault

_QUICK = {"timeout": "2s", "retry_timeout": "2s", "max_retries": "1", "backoff_config.init_backoff": "10ms"}
"""Requests fail sooner than by default, so that a round ends."""

ENVIRONMENT = {"STORE_SECRET_KEY": SECRET_KEY}
"""Of processes that reach the store."""


@dataclass(frozen=True, slots=True)
class StoreOfScene:
    """In the scene's `more` by this class's name."""

    server: StoreServer
    proxy: StoreProxy

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[StoreOfScene]:
        """Yield an S3 server behind a proxy, with its files below `folder`."""
        os.environ |= ENVIRONMENT
        with ExitStack() as opened:
            server = StoreServer(folder / "store" / "objects")
            opened.callback(server.stop)
            server.start()
            proxy = StoreProxy(server, folder)
            opened.callback(proxy.stop)
            proxy.start()
            yield cls(server, proxy)

    @property
    def options(self) -> dict[str, str]:
        """Return `storage.options` that lead through the proxy."""
        return options_for(self.proxy.endpoint, **_QUICK)

    @property
    def more(self) -> dict[str, Any]:
        """Return what a scene needs so that faults find the store."""
        return {type(self).__name__: self}

    @staticmethod
    def of(scene: Scene) -> StoreOfScene:
        store = scene.more[StoreOfScene.__name__]
        assert isinstance(store, StoreOfScene)
        return store


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

    def repair(self, scene: Scene) -> None:
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

    def repair(self, scene: Scene) -> None:
        time.sleep(self.seconds)
        StoreOfScene.of(scene).server.start()


@dataclass(frozen=True, slots=True)
class KilledWithLostResponse(EndsByItself):
    """A write is applied, its response is lost, and everything is killed before the next request asks. `path` as in `StoreFault`."""

    name: str = "object store: answer of a PUT lost, then SIGKILL"
    path: str = ""

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        HarmedRequests(self._fault).inject(scene, paused)

    def repair(self, scene: Scene) -> None:
        HarmedRequests(self._fault).repair(scene)
        scene.running_or_ended().kill()

    @property
    def _fault(self) -> StoreFault:
        return StoreFault(harm=Harm.LOSE_RESPONSE, method="PUT", path=self.path)
