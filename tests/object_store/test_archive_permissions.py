"""Commands of an archive on a bucket that refuses single operations, or all of them: one line, an exit code, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.strict_broker import StrictCluster
from tests.object_store.servers import Store, options_for
from tests.object_store.store_proxy import Harm, StoreFault
from tests.support import restore_runs
from tests.support.archives import CLUSTER_ID, ORDERS, ArchiveOfTest, archive_document
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.ledger import TopicDescription
from shallow_mirror.cli import main
from shallow_mirror.config import ArchiveConfig

DAY_MS = 86_400_000
REMEDY = "check the credentials and their permissions"


class Commands:
    """An archive whose objects are on the store and whose tables are in a folder; its older object has expired by now."""

    def __init__(self, folder: Path, store: Store, cluster: StrictCluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys, self._cluster = folder, capsys, cluster
        quick = {"timeout": "5s", "retry_timeout": "2s", "max_retries": "1", "backoff_config.init_backoff": "10ms"}
        self._storage = {"options": options_for(store.proxy.endpoint, **quick)}
        document = archive_document(
            source={"alias": "east", "client": {"bootstrap.servers": cluster.bootstrap}},
            objects=f"{store.location}/objects",
            retention={"orders": {"keep_bytes": 1}},
            storage=self._storage,
        )
        self.config = ArchiveConfig.from_document(document, folder=folder)
        self.archive = ArchiveOfTest(self.config)
        self.archive.archive({ORDERS: [batch(0, 10)]})
        self.archive.archive({ORDERS: [batch(10, 10)]})
        self.archive.describe(TopicDescription(topic="orders", topic_id=ORDERS.topic_id, partitions=1, configs={}))
        self._write("archive.yaml", document)
        self._write("restore.yaml", restore_runs.document(self.config, cluster.bootstrap, storage=self._storage))

    def _write(self, name: str, document: dict[str, Any]) -> None:
        (self._folder / name).write_text(yaml.safe_dump(document), encoding="utf-8")

    def __call__(self, command: str) -> tuple[int, str]:
        """Return the exit code, and what it printed with the errors last."""
        line = ["archive", *command.split(), str(self._folder / "archive.yaml")]
        if command == "restore":
            line = ["restore", "--dry-run", str(self._folder / "restore.yaml")]
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(line)
        out, error = self._capsys.readouterr()
        assert "Traceback" not in error
        assert isinstance(ended.value.code, int)
        return ended.value.code, out + error


@pytest.fixture
def commands(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    with StrictCluster(cluster_id=CLUSTER_ID) as cluster:
        yield Commands(tmp_path, store, cluster, capsys)


READ, LIST, PUT = "GET /[^?]*batches", r"GET .*list-type=2", "PUT "
DELETE = "POST .*delete"


@pytest.mark.parametrize(
    ("command", "refused", "code", "works"),
    [
        ("verify", LIST, 2, "every object is what its rows say"),
        ("verify", READ, 2, "every object is what its rows say"),
        ("clean --older-than 0s", LIST, 2, "removed: 1 object and"),
        ("clean --older-than 0s", DELETE, 2, "removed: 1 object and"),
        ("expire --take-over", DELETE, 1, "expired: 2 objects, 2 rows"),
        ("run --available-now", PUT, 2, ""),
        ("run --available-now", LIST, 2, ""),
        ("run --available-now", DELETE, 2, ""),
        ("restore", "HEAD ", 2, "checked without a problem"),
    ],
)
def test_an_operation_that_the_bucket_refuses_is_named_with_its_remedy(
    commands: Commands, store: Store, command: str, refused: str, code: int, works: str
) -> None:
    commands.archive.write({ORDERS: [batch(20, 1)]})
    ArchiveOfTest(commands.config).archive({ORDERS: [batch(20, 1)]})
    method, _, path = refused.partition(" ")
    with store.proxy.faulty(StoreFault(harm=Harm.ANSWER_403, method=method, path=path)):
        ended, text = commands(command)
        assert store.proxy.hits() > 0
    assert (ended, REMEDY in text) == (code, True), text
    assert "403" in text
    if not works:
        return  # this command would start Spark
    ended, text = commands(command)
    assert (ended, works in text) == (0, True), text
    assert commands("verify --deep")[0] == 0


@pytest.mark.parametrize("command", ["verify", "clean", "restore", "run --available-now"])
def test_wrong_credentials_are_named_and_right_ones_work(
    commands: Commands, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("STORE_SECRET_KEY", "wrong")
        ended, text = commands(command)
    assert (ended, REMEDY in text) == (2, True), text
    if not command.startswith("run"):
        assert commands(command)[0] == 0
