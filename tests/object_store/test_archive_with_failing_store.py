"""An archive whose store forgets, shortens, refuses, keeps versions, lists late, or has a full disk. No broker."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.strict_broker import StrictCluster
from tests.faults.storage_faults import may_mount, small_disk
from tests.object_store.servers import BUCKET, SECRET_KEY, Store, StoreServer, options_for
from tests.object_store.store_proxy import Harm, StoreFault
from tests.support import archive_runs
from tests.support.archives import ORDERS, ArchiveOfTest, archive_config
from tests.support.mirror_runs import wait_for
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.archive.findings import FindingKind
from shallow_mirror.operations.archive.verify import verify_archive

TOPIC = "orders"
QUICK = {"timeout": "5s", "retry_timeout": "1s", "max_retries": "1", "backoff_config.init_backoff": "10ms"}

pytestmark = pytest.mark.thorough


@dataclass
class RunningArchive:
    """`written`: batches of the source so far, of one record each."""

    config: ArchiveConfig
    process: subprocess.Popen[bytes]
    cluster: StrictCluster
    log_file: Path
    written: int = 0

    def write(self, payload: bytes = b"value") -> None:
        self.cluster.seed((TOPIC, 0), batch(self.written, payload=payload))
        self.written += 1

    def archived(self) -> int:
        with contextlib.suppress(ConfigError):  # no table yet
            return sum(position.offset for position in ArchiveTable.open(self.config.table_location).positions().values())
        return -1

    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8")

    def wait_for(self, what: str, is_there: Callable[[], bool]) -> None:
        wait_for(what, lambda: self.process.poll() is not None or is_there())
        assert self.process.poll() is None, self.log()[-4000:]

    def wait_until_archived(self) -> None:
        self.wait_for(f"{self.written} records in the archive", lambda: self.archived() == self.written)

    def wait_for_report(self, message: str) -> None:
        """Wait for a line about another attempt. Until then nothing is decided, and each such line has the message."""
        seen = len(self.log())

        def lines() -> list[str]:
            return [line for line in self.log()[seen:].splitlines() if "next attempt in" in line]

        self.wait_for("a report", lambda: bool(lines()))
        assert all(re.search(f"{message}.*Remedy: ", line) for line in lines()), self.log()[seen:]
        assert self.archived() == self.written - 1
        assert (self.committed() or 0) < self.written

    def committed(self) -> int | None:
        """Return the position that Kafka's tools see at the source; None where there is none."""
        with self.cluster.lock:
            found = self.cluster.groups.offsets.get((f"{self.config.archive}.archived", (TOPIC, 0)))
        return None if found is None else found.offset

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0, self.log()[-4000:]


@contextmanager
def source() -> Iterator[StrictCluster]:
    with StrictCluster() as cluster:
        cluster.create_topic(TOPIC)
        yield cluster


@contextmanager
def running(cluster: StrictCluster, folder: Path, **settings: Any) -> Iterator[RunningArchive]:
    """Run an archive for the block, which begins when all that the source has is archived."""
    document = archive_runs.document(cluster.bootstrap, [TOPIC], **settings)
    conf = folder / "archive.yaml"
    conf.write_text(yaml.safe_dump(document), encoding="utf-8")
    log_file = folder / "archive.log"
    with log_file.open("wb") as log:
        command = [sys.executable, "-m", "tests.object_store.mirror_main", "archive", "run", str(conf)]
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "TMPDIR": str(folder)})
    try:
        written = len(cluster.log(TOPIC).data())
        archive = RunningArchive(ArchiveConfig.load(conf), process, cluster, log_file, written)
        archive.write()
        archive.wait_until_archived()
        yield archive
    finally:
        process.kill()
        process.wait()


def settings_on(store: Store, folder: Path, **changes: Any) -> Mapping[str, Any]:
    return {
        "objects": f"{store.location}/objects",
        "tables": str(folder / "tables"),
        "storage": {"options": options_for(store.proxy.endpoint, **QUICK)},
        **changes,
    }


BATCHES = r"\.batches"


def test_an_archive_decides_nothing_that_the_store_does_not_have_and_continues_when_it_is_well_again(
    store: Store, tmp_path: Path
) -> None:
    cases = [
        (Harm.FORGET, "did not keep .* it confirmed that the object is complete, and there is no such object now"),
        (Harm.ANSWER_403, "the store refuses to write .*403 AccessDenied"),
    ]
    settings = settings_on(store, tmp_path, groups={"archived_position": "100 ms"})
    with source() as cluster, running(cluster, tmp_path, **settings) as archive:
        for harm, message in cases:
            with store.proxy.faulty(StoreFault(harm=harm, method="PUT", path=r"\.batches")):
                archive.write()
                archive.wait_for_report(message)
            archive.wait_until_archived()
            archive.wait_for("the position as an offset of a group", lambda: archive.committed() == archive.written)
        archive.write()
        archive.wait_until_archived()
        archive.stop()
        assert archive.committed() == archive.written
    clean(archive.config, older_than_s=0)
    require_every_record(archive)


def require_every_record(archive: RunningArchive) -> None:
    report = verify_archive(archive.config, is_deep=True)
    assert (report.is_equal, report.findings.counts, report.object_count) == (True, {}, archive.written)
    assert "Traceback" not in archive.log()


@pytest.mark.parametrize("harm", [Harm.ANSWER_403, pytest.param(Harm.FORGET, marks=pytest.mark.long)])
def test_a_store_that_deletes_nothing_keeps_no_record_from_being_archived(store: Store, tmp_path: Path, harm: Harm) -> None:
    """Where it says so, the deletion is repeated; where it lies, `clean` finds the objects."""
    settings = settings_on(store, tmp_path, retention={TOPIC: {"keep_bytes": 1}})
    with source() as cluster:
        with running(cluster, tmp_path, **settings) as archive:
            archive.write()
            archive.wait_until_archived()
            archive.stop()
        # The test of the start deletes its object; what comes then is the expiry.
        with (
            store.proxy.faulty(StoreFault(harm=harm, method="POST", path="[?&]delete", skip=1)),
            running(cluster, tmp_path, **settings) as archive,
        ):
            assert store.proxy.hits() == 1
            archive.stop()
    if harm is Harm.ANSWER_403:
        assert re.search(r"expired objects were not deleted, this is tried again later: .*403.*Remedy: ", archive.log())
        assert expire(archive.config).object_count == 2
    else:
        assert verify_archive(archive.config).findings.counts == {FindingKind.ORPHAN: 1}
        assert clean(archive.config, older_than_s=0).object_count == 1
        assert expire(archive.config).object_count == 1
    archive.written = 1
    require_every_record(archive)


def test_a_bucket_that_keeps_versions_is_like_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_SECRET_KEY", SECRET_KEY)
    server = StoreServer(tmp_path / "store" / "objects", versions=tmp_path / "store" / "versions")
    server.start()
    try:
        archive = ArchiveOfTest(
            archive_config(
                tmp_path,
                objects=f"s3://{BUCKET}/objects",
                retention={"orders": {"keep_bytes": 1}},
                storage={"options": options_for(server.endpoint)},
            )
        )
        archive.archive({ORDERS: [batch(0, 10)]})
        archive.write({ORDERS: [batch(10, 10)]})
        archive = ArchiveOfTest(archive.config)
        (row,) = archive.archive({ORDERS: [batch(10, 10)]})
        assert clean(archive.config, older_than_s=0).object_count == 1
        assert expire(archive.config, takes_over=True).object_count == 1
        assert row.stored is not None
        names = [info.name for info in archive.store.list() if info.name.endswith(".batches")]
        assert names == [row.stored.object_name]
        assert len([path for path in (tmp_path / "store" / "versions").rglob("*") if path.is_file()]) >= 2
        assert verify_archive(archive.config, is_deep=True).findings.counts == {}
    finally:
        server.stop()


def test_a_listing_that_lacks_what_is_new_harms_nothing(store: Store, tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path, **settings_on(store, tmp_path)))
    for start in (0, 10, 20):
        archive.archive({ORDERS: [batch(start, 10)]})
    with store.proxy.faulty(StoreFault(harm=Harm.LIST_LATE, method="GET", path="list-type")):
        assert verify_archive(archive.config, is_deep=True).findings.counts == {}
        with pytest.raises(ConfigError, match="no run has recorded yet that the objects belong to this table"):
            clean(archive.config, older_than_s=0)
        with pytest.raises(ConfigError, match="does not list an object that was just written"):
            archive.store.probe()
    assert verify_archive(archive.config).is_equal


needs_mounts = pytest.mark.skipif(not may_mount(), reason="mounts a small file system, which only root may")


@needs_mounts
@pytest.mark.parametrize("part", [pytest.param("objects", marks=pytest.mark.long), "tables"])
def test_an_archive_on_a_full_disk_waits_for_space_and_continues(tmp_path: Path, part: str) -> None:
    folder = tmp_path / part
    with small_disk(folder, 4 << 20), source() as cluster:
        settings = {name: str(tmp_path / name) for name in ("objects", "tables")}
        with running(cluster, tmp_path, **settings, checkpoint=str(tmp_path / "spark")) as archive:
            filler = folder / "filler"
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1 << 12))
            archive.write(bytes(64 << 10))
            archive.wait_for_report("No space left on device")
            filler.unlink()
            archive.wait_until_archived()
            archive.stop()
        clean(archive.config, older_than_s=0)
        require_every_record(archive)
