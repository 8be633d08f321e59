"""A world on two real clusters, which many worlds share one after the other: each has topics, groups and mirrors of its own."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from tests.operators.checker import Row
from tests.operators.lives import Life
from tests.operators.real_cluster import RealCluster
from tests.operators.real_run import RunOrder, RunStuckError, performed
from tests.operators.world import During, FindingError, TablesCopy, World

from shallow_mirror.errors import MirrorError

_STAY_S = 6.0
"""How long a run lasts that stays: commands are read every three seconds."""
_SPARK = "_spark"
"""Folder of the Spark checkpoint in that of the tables."""


class RealWorld(World):
    source: RealCluster
    target: RealCluster

    def __init__(self, folder: Path, source: str, target: str, suffix: str) -> None:
        super().__init__(folder, suffix)
        self.source, self.target = RealCluster(source, suffix), RealCluster(target, suffix)
        self._copies = itertools.count()
        self._read: dict[Path, tuple[Sequence[str], Sequence[Row]]] = {}
        """Names in the log of a table, and its rows."""

    def rows_in(self, tables: Any) -> Sequence[Row]:
        table = Path(tables, "offset_map")
        if not (table / "_delta_log").is_dir():
            return ()
        version = sorted(path.name for path in (table / "_delta_log").iterdir())
        kept, rows = self._read.get(table, ((), ()))
        if kept != version:
            rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
            self._read[table] = version, rows
        return rows

    def ended_by(self, life: Life, during: During, patience_s: float) -> MirrorError | None:
        order = RunOrder(
            document=self.document,
            folder=self.folder,
            life=life,
            events_at=frozenset(during),
            stay_s=_STAY_S if patience_s else 0.0,
        )
        try:
            return performed(order, lambda request: during[request]())
        except RunStuckError as stuck:
            raise FindingError(str(stuck)) from stuck

    def has_tables(self) -> bool:
        return Path(self.config.tables, "offset_map", "_delta_log").is_dir()

    def copied_tables(self, *, with_checkpoint: bool) -> TablesCopy:
        copy = self.folder / "copies" / str(next(self._copies))
        shutil.copytree(self.config.tables, copy, ignore=None if with_checkpoint else shutil.ignore_patterns(_SPARK))
        checkpoint = copy / _SPARK
        return TablesCopy(self.settings.number, copy, checkpoint if checkpoint.exists() else None)

    def put_back(self, copy: TablesCopy) -> None:
        folder = Path(self.config.tables)
        for path in folder.iterdir():
            if path.name != _SPARK or copy.checkpoint is not None:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(copy.tables, folder, dirs_exist_ok=True)
        self._read.clear()  # the log of other rows may have the same names

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.config.checkpoint, ignore_errors=True)

    def idle(self, seconds: float) -> None:
        """Do nothing: the clocks of brokers cannot be moved."""


@contextmanager
def opened_real_world(folder: Path, source: str, target: str, suffix: str) -> Iterator[RealWorld]:
    """Yield a world on clusters at these addresses. Its topics, groups and files are deleted at the end."""
    folder.mkdir(parents=True)
    world = RealWorld(folder, source, target, suffix)
    try:
        yield world
    finally:
        for txn in list(world.open_txns):
            world.end_txn(txn, is_commit=False)
        for cluster in (world.source, world.target):
            cluster.delete_everything()
        shutil.rmtree(folder)
