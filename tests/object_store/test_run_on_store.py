"""`shallow-mirror run` with its tables on an object store that goes away in the middle, between real brokers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.object_store.servers import Store, options_for
from tests.object_store.store_proxy import Harm, StoreFault
from tests.support.mirror_runs import conf_file, create_topic, read_values, wait_for, wait_for_run, write

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.runs import read_problems
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.types import SourcePartition

pytestmark = pytest.mark.brokers

COMMITS = r"offset_map/_delta_log/\d{20}\.json"
QUICK = {"timeout": "2s", "retry_timeout": "1s", "max_retries": "1"}


@contextmanager
def mirror(conf: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`shallow-mirror run CONF` with `tests.faults.without_spark` in Spark's place; its log is beside the mirror file."""
    log = conf.with_suffix(".log")
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "tests.object_store.mirror_main", "run", str(conf)], stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def positions(config: MirrorConfig) -> dict[SourcePartition, int]:
    return {source: position.offset for source, position in OffsetMap.open(config.table_location).positions().items()}


def has_copied(config: MirrorConfig, count: int) -> bool:
    try:
        return list(positions(config).values()) == [count]
    except ConfigError:
        return False  # no map yet


@pytest.mark.parametrize("harm", [Harm.ANSWER_503, Harm.HIDE_RESPONSE])
def test_a_mirror_waits_for_its_store_and_continues_by_itself(
    harm: Harm, store: Store, source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path
) -> None:
    """503: nothing is applied. A hidden response: the decision is applied, and the run cannot know."""
    ends = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(ends[0], topic_name)
    write(ends[0], topic_name, ["a", "b"])
    conf = conf_file(
        tmp_path, *ends, [topic_name], tables=store.location, checkpoint=str(tmp_path / "spark"),
        storage={"options": options_for(store.proxy.endpoint, **QUICK)},
    )  # fmt: skip
    config = MirrorConfig.load(conf)
    with mirror(conf) as process:
        wait_for_run(process, "the first copy", lambda: has_copied(config, 2))
        method, path = ("PUT", COMMITS) if harm is Harm.HIDE_RESPONSE else ("", "")
        store.proxy.inject(StoreFault(harm=harm, method=method, path=path))
        write(ends[0], topic_name, ["c", "d"])
        if harm is Harm.HIDE_RESPONSE:  # commits happen, their responses do not: reading says so
            wait_for_run(process, "the second copy", lambda: has_copied(config, 4))
        else:
            wait_for_run(process, "a report", lambda: b"next attempt in" in conf.with_suffix(".log").read_bytes())
        wait_for_run(process, "some refused requests", lambda: store.proxy.hits() > 3)
        store.proxy.clear()
        write(ends[0], topic_name, ["e"])
        wait_for_run(process, "the last copy", lambda: has_copied(config, 5))
        process.terminate()
        assert process.wait(60) == 0
    assert read_values(ends[1], topic_name) == ["a", "b", "c", "d", "e"]
    rows = [row for row in OffsetMap.open(config.table_location).settled_rows().to_pylist() if row["record_count"]]
    assert sum(row["record_count"] for row in rows) == 5
    if harm is Harm.ANSWER_503:
        problems = read_problems(TableStorage(config.table_location).best_effort_tables(), 1)
        assert any("503 SlowDown" in problem.problem.text for problem in problems)
    log = conf.with_suffix(".log").read_text()
    assert "Traceback" not in log
    assert "\x1b[31m" not in log


def test_a_mirror_does_not_begin_on_a_store_that_ignores_conditional_writes(
    store: Store, source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path
) -> None:
    ends = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(ends[0], topic_name)
    conf = conf_file(
        tmp_path, *ends, [topic_name], tables=store.location, checkpoint=str(tmp_path / "spark"),
        storage={"options": options_for(store.proxy.endpoint, **QUICK)},
    )  # fmt: skip
    with (
        store.proxy.faulty(StoreFault(harm=Harm.REPLACE, method="PUT", path=r"_delta_log/\d{20}\.json")),
        mirror(conf) as process,
    ):
        wait_for("its end", lambda: process.poll() is not None)
    assert process.returncode == 2
    assert "ignores conditional writes" in conf.with_suffix(".log").read_text()
    assert store.files() == []
