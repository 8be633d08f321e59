"""The operation of an archive whose table and objects are on a real S3 server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.object_store.servers import Store, options_for
from tests.object_store.store_proxy import Harm, StoreFault
from tests.support.archives import NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.ledger import EVERY_STATE, ArchiveTable
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.archive.rebuild import rebuild
from shallow_mirror.operations.archive.status import gather_archive_status
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.sinks.archive.expiry import DeletionFailedError

DAY_MS = 86_400_000


def config_on(store: Store, folder: Path, **changes: str) -> ArchiveConfig:
    quick = {"timeout": "5s", "retry_timeout": "2s", "max_retries": "1", "backoff_config.init_backoff": "10ms"}
    return archive_config(
        folder,
        objects=f"{store.location}/objects",
        tables=f"{store.location}/tables",
        checkpoint=str(folder / "_spark"),
        retention={"orders": {"keep": "7 days"}},
        storage={"options": options_for(store.proxy.endpoint, **{**quick, **changes})},
    )


def written(config: ArchiveConfig) -> ArchiveOfTest:
    archive = ArchiveOfTest(config)
    archive.archive({ORDERS: [batch(0, 10)]})
    archive.now_ms += 5 * DAY_MS
    archive.archive({ORDERS: [batch(10, 10)]})
    return archive


def test_an_archive_on_a_store_is_verified_cleaned_expired_and_rebuilt(store: Store, tmp_path: Path) -> None:
    config = config_on(store, tmp_path)
    archive = written(config)
    (orphan,) = archive.write({ORDERS: [batch(20, 1)]})
    following = ArchiveOfTest(config)
    report = verify_archive(config, is_deep=True)
    assert (report.is_equal, report.object_count, sum(report.findings.counts.values())) == (True, 2, 1)
    assert clean(config, older_than_s=0).object_count == 0  # no row has its offset yet
    following.archive({ORDERS: [batch(20, 1)]})
    assert clean(config, older_than_s=0).object_count == 1
    assert orphan.stored is not None
    assert archive.store.size(orphan.stored.object_name) is None

    new = config.model_copy(update={"tables": f"{store.location}/new"})
    assert rebuild(config, new.tables).row_count == 3
    assert verify_archive(new, is_deep=True).is_equal

    assert expire(config, takes_over=True, now_ms=lambda: NOW_MS + 8 * DAY_MS).object_count == 1
    states = [row.state for row in ArchiveTable.open(config.table_location).segments(states=EVERY_STATE)]
    assert states == [SegmentState.DELETE_SEGMENT_FINISHED, *[SegmentState.COPY_SEGMENT_FINISHED] * 2]
    assert verify_archive(config, is_deep=True).findings.counts == {}
    again = config.model_copy(update={"tables": f"{store.location}/again"})
    assert rebuild(config, again.tables).row_count == 3
    rebuilt = [row.state for row in ArchiveTable.open(again.table_location).segments(states=EVERY_STATE)]
    assert rebuilt == states


def test_a_deletion_that_the_store_does_not_do_is_repeated(store: Store, tmp_path: Path) -> None:
    config = config_on(store, tmp_path)
    written(config)
    with (
        store.proxy.faulty(StoreFault(harm=Harm.ANSWER_503, path=r"[?&]delete")),
        pytest.raises(DeletionFailedError, match="Remedy"),
    ):
        expire(config, takes_over=True, now_ms=lambda: NOW_MS + 8 * DAY_MS)
    assert verify_archive(config).is_equal
    assert expire(config, takes_over=True, now_ms=lambda: NOW_MS + 8 * DAY_MS).object_count == 1


COMMANDS: list[Callable[[ArchiveConfig], object]] = [verify_archive, clean, expire, gather_archive_status]


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_credentials_are_named_with_their_remedy(
    store: Store, tmp_path: Path, command: Callable[[ArchiveConfig], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(config_on(store, tmp_path))
    monkeypatch.setenv("STORE_SECRET_KEY", "wrong")
    with pytest.raises(ConfigError, match="check the credentials and their permissions"):
        command(config_on(store, tmp_path))


@pytest.mark.parametrize("command", [verify_archive, clean])
def test_wrong_credentials_for_the_objects_alone_are_a_config_error(
    store: Store, tmp_path: Path, command: Callable[[ArchiveConfig], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_on(store, tmp_path).model_copy(update={"tables": str(tmp_path / "tables")})
    written(config)
    monkeypatch.setenv("STORE_SECRET_KEY", "wrong")
    with pytest.raises(ConfigError, match="check the credentials and their permissions"):
        command(config)
