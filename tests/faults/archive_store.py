"""An archive whose objects are in an S3 server: which faults are injected at which steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.archive_rounds import ArchiveScene
from tests.faults.archive_steps import ANSWERED, BETWEEN, DECIDED, IN_DELETION, LAST_STORED, PRODUCED, STORED
from tests.faults.mirror_process import WITHOUT_SPARK
from tests.faults.process_faults import KillAll, KillDriver
from tests.faults.rounds import Scene
from tests.faults.steps import Step
from tests.faults.store_faults import ENVIRONMENT, HarmedRequests, KilledWithLostResponse, StoreOfScene, StoreStopped
from tests.object_store.servers import BUCKET
from tests.object_store.store_proxy import Harm, StoreFault

from shallow_mirror.local_kafka import start_clusters, stop_clusters


@dataclass(frozen=True, slots=True)
class ArchiveStoreScene:
    """One cluster that is never harmed, objects in an S3 server behind a proxy, tables in a folder."""

    @contextmanager
    def __call__(self, folder: Path, name: str, seed: int) -> Iterator[Scene]:
        with ExitStack() as opened:
            nodes = start_clusters(folder / "clusters", 1)
            opened.callback(stop_clusters, nodes)
            store = opened.enter_context(StoreOfScene.running(folder))
            yield opened.enter_context(
                ArchiveScene(
                    folder / "archive",
                    nodes[0].bootstrap,
                    "",
                    name=name,
                    engine=WITHOUT_SPARK,
                    groups={"storage": {"options": store.options}},
                    seed=seed,
                    environment=dict(ENVIRONMENT),
                    more=store.more,
                    source_node=nodes[0],
                    location=f"s3://{BUCKET}/{name}",
                    objects_folder=store.server.folder / BUCKET / name,
                )
            )


def _put(harm: Harm, count: int | None = 1) -> StoreFault:
    return StoreFault(harm=harm, method="PUT", count=count)


CASES: list[tuple[HarmedRequests | StoreStopped | KilledWithLostResponse | KillAll | KillDriver, Step]] = [
    (HarmedRequests(_put(Harm.ANSWER_503, 3)), BETWEEN),
    (HarmedRequests(_put(Harm.ANSWER_503, None), 5.0), BETWEEN),
    (HarmedRequests(_put(Harm.ANSWER_500)), BETWEEN),
    (HarmedRequests(_put(Harm.CUT)), BETWEEN),
    (HarmedRequests(_put(Harm.CUT, 6)), BETWEEN),
    (HarmedRequests(_put(Harm.LOSE_RESPONSE)), BETWEEN),
    (HarmedRequests(_put(Harm.LOSE_RESPONSE, 6)), BETWEEN),
    (HarmedRequests(_put(Harm.HIDE_RESPONSE)), BETWEEN),
    (HarmedRequests(_put(Harm.HIDE_RESPONSE, 6)), BETWEEN),
    (HarmedRequests(_put(Harm.HANG, None), 3.0), BETWEEN),
    (HarmedRequests(_put(Harm.FORGET)), BETWEEN),
    (HarmedRequests(_put(Harm.FORGET, None), 3.0), BETWEEN),
    (HarmedRequests(_put(Harm.SHORTEN)), BETWEEN),
    (HarmedRequests(_put(Harm.ANSWER_403, None), 3.0), BETWEEN),
    (HarmedRequests(StoreFault(harm=Harm.ANSWER_503, method="POST", path="delete", count=4)), IN_DELETION[0]),
    (HarmedRequests(StoreFault(harm=Harm.LOSE_RESPONSE, method="POST", path="delete", count=4)), IN_DELETION[0]),
    (StoreStopped(4.0), BETWEEN),
    (StoreStopped(4.0), PRODUCED),
    (StoreStopped(4.0), STORED),
    (StoreStopped(4.0), IN_DELETION[0]),
    (KilledWithLostResponse(), BETWEEN),
    *((KillAll(), step) for step in (PRODUCED, STORED, LAST_STORED, ANSWERED, DECIDED, *IN_DELETION)),
    *((KillDriver(), step) for step in (PRODUCED, STORED, ANSWERED)),
]
