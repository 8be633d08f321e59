"""A mirror whose tables are in an S3 server: which faults are injected at which steps.

The server keeps objects as files, so that the checker reads the tables as a folder, whatever happens to requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults import steps
from tests.faults.mirror_process import WITHOUT_SPARK
from tests.faults.process_faults import KillAll, KillDriver
from tests.faults.rounds import Fault, Scene
from tests.faults.steps import Step
from tests.faults.store_faults import ENVIRONMENT, HarmedRequests, KilledWithLostResponse, StoreOfScene, StoreStopped
from tests.object_store.servers import BUCKET
from tests.object_store.store_proxy import Harm, StoreFault

from shallow_mirror.local_kafka import start_clusters, stop_clusters

COMMITS = r"offset_map/_delta_log/\d{20}\.json"
"""The path of the commits that decide."""


@dataclass(frozen=True, slots=True)
class TableStoreScene:
    """Two clusters that are never harmed, and tables in an S3 server behind a proxy."""

    @contextmanager
    def __call__(self, folder: Path, name: str, seed: int) -> Iterator[Scene]:
        with ExitStack() as opened:
            nodes = start_clusters(folder / "clusters", 2)
            opened.callback(stop_clusters, nodes)
            store = opened.enter_context(StoreOfScene.running(folder))
            yield opened.enter_context(
                Scene(
                    folder / "mirror",
                    nodes[0].bootstrap,
                    nodes[1].bootstrap,
                    name=name,
                    engine=WITHOUT_SPARK,
                    groups={"storage": {"options": store.options}},
                    seed=seed,
                    environment=dict(ENVIRONMENT),
                    more=store.more,
                    tables_uri=f"s3://{BUCKET}/{name}",
                    tables_folder=store.server.folder / BUCKET / name,
                )
            )


_WRITES = (Harm.ANSWER_503, Harm.CUT, Harm.LOSE_RESPONSE, Harm.HIDE_RESPONSE)


def _commit(harm: Harm, count: int | None = 1) -> HarmedRequests:
    return HarmedRequests(StoreFault(harm=harm, method="PUT", path=COMMITS, count=count))


CASES: list[tuple[Fault, Step]] = [
    # The commit of the decision, and those that settle it.
    *((_commit(harm, count), step) for step in (steps.ANSWERED, steps.SETTLED) for harm in _WRITES for count in (1, 6)),
    *((KilledWithLostResponse(path=COMMITS), step) for step in (steps.ANSWERED, steps.SETTLED)),
    # Every request.
    *(
        (HarmedRequests(StoreFault(harm=harm, count=None), seconds), step)
        for harm, seconds in ((Harm.ANSWER_503, 5.0), (Harm.ANSWER_500, 5.0), (Harm.HANG, 3.0))
        for step in (steps.OWNER_CHECKED, steps.ANSWERED, steps.DECIDED, steps.RETURNED)
    ),
    *((StoreStopped(4.0), step) for step in (steps.OWNER_CHECKED, steps.PRODUCED, steps.ANSWERED, steps.DECIDED, steps.SETTLED)),
    *((fault, step) for fault in (KillAll(), KillDriver()) for step in steps.ALL),
]
