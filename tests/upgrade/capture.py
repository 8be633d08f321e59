"""Capture tables and Spark checkpoints that a commit writes: `.venv/bin/python -m tests.upgrade.capture COMMIT`, from the root.

The commit's own code mirrors, archives and restores on real brokers, and reads what it has written: both go into this folder, as
an archive of files and as a JSON file. Run it for each release, and keep the files of the one before (docs/design/releasing.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support.mirror_runs import create_topic, open_transaction, wait_for_markers, write
from tests.upgrade import contents
from tests.upgrade.contents import (
    ARCHIVE,
    ARCHIVE_OBJECTS,
    ARCHIVE_TABLES,
    MIRROR,
    MIRROR_TABLES,
    NARROW,
    ORDERS,
    PAYMENTS,
    RESTORE,
    RESTORE_TABLES,
)
from tests.upgrade.released_code import ReleasedCode

from shallow_mirror.local_kafka import start_clusters, stop_clusters

FOLDER = Path(__file__).parent
_LEFT_OUT = ("_spark.log", "_spark.log4j2.properties", "_warehouse")


def mirror_document(source: str, target: str) -> dict[str, Any]:
    return {
        "mirror": MIRROR,
        "source": {"alias": "east", "client": {"bootstrap.servers": source}},
        "target": {"alias": "west", "client": {"bootstrap.servers": target}},
        "topics": {"include": [ORDERS, PAYMENTS, NARROW]},
        "write": {"on_refused": "quarantine", "slots": 2},
        "groups": {"sync": "10 seconds"},
        "tables": MIRROR_TABLES,
        "trigger": "0 seconds",
    }


def archive_document(source: str) -> dict[str, Any]:
    return {
        "archive": ARCHIVE,
        "source": {"alias": "east", "client": {"bootstrap.servers": source}},
        "topics": {"include": [ORDERS, PAYMENTS, NARROW]},
        "objects": ARCHIVE_OBJECTS,
        "tables": ARCHIVE_TABLES,
        "trigger": "0 seconds",
    }


def restore_document(target: str) -> dict[str, Any]:
    return {
        "restore": RESTORE,
        "archive": {"tables": ARCHIVE_TABLES, "objects": ARCHIVE_OBJECTS, "alias": "east"},
        "target": {"alias": "west", "client": {"bootstrap.servers": target}},
        "topics": {"include": [".*"], "target_name": "restored.{topic}"},
        "tables": RESTORE_TABLES,
    }


def write_files(folder: Path, source: str, target: str) -> None:
    """Write the mirror file, the archive file and the restore file of the scenario into `folder`."""
    documents = {
        "mirror": mirror_document(source, target),
        "archive": archive_document(source),
        "restore": restore_document(target),
    }
    for name, document in documents.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def write_first_records(source: str) -> None:
    """Write to topics that exist: committed and aborted transactions, a batch that the target refuses, offsets of a group."""
    write(source, ORDERS, [f"order {number}" for number in range(40)], 0)
    write(source, ORDERS, [f"order {number}" for number in range(30)], 1)
    with open_transaction(source, PAYMENTS, ["paid 1", "paid 2"]):
        pass
    _abort_transaction(source, PAYMENTS, ["never paid"])
    write(source, NARROW, ["x" * 5_000])
    write(source, NARROW, ["fits"])
    _commit_group(source, "billing", {(ORDERS, 0): 25, (PAYMENTS, 0): 2})
    wait_for_markers(source, PAYMENTS)


def write_further_records(source: str) -> None:
    write(source, ORDERS, [f"later order {number}" for number in range(10)], 0)
    with open_transaction(source, PAYMENTS, ["paid 3"]):
        pass
    wait_for_markers(source, PAYMENTS)


def create_topics(source: str, target: str) -> None:
    create_topic(source, ORDERS, 2)
    create_topic(source, PAYMENTS)
    create_topic(source, NARROW)
    create_topic(target, NARROW, settings={"max.message.bytes": "1000"})


def _abort_transaction(bootstrap: str, topic: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"aborting-writer-of-{topic}", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    producer.abort_transaction(30)


def _commit_group(bootstrap: str, group: str, offsets: dict[tuple[str, int], int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, "log_level": 0})
    try:
        consumer.commit(offsets=[TopicPartition(*at, offset) for at, offset in offsets.items()], asynchronous=False)
    finally:
        consumer.close()


def run_release(release: ReleasedCode, folder: Path, source: str, target: str) -> None:
    """Let the release mirror twice, with a pause of a topic in between, verify, archive and restore."""
    write_files(folder, source, target)
    create_topics(source, target)
    write_first_records(source)
    release.run(folder, "run", "mirror.yaml", "--available-now")
    release.run(folder, "pause", "mirror.yaml", NARROW)
    write_further_records(source)
    release.run(folder, "run", "mirror.yaml", "--available-now")
    release.run(folder, "verify", "mirror.yaml")
    release.run(folder, "archive", "run", "archive.yaml", "--available-now")
    release.run(folder, "restore", "restore.yaml")


def capture(commit: str) -> None:
    """Write the files of a commit into this folder."""
    repository = FOLDER.parent.parent
    short = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "--short=7", commit], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-capture-") as name:
        folder = Path(name)
        release = ReleasedCode.extract(repository, commit, folder / "code")
        state = folder / "state"
        state.mkdir()
        nodes = start_clusters(folder / "kafka", 2)
        try:
            run_release(release, state, nodes[0].bootstrap, nodes[1].bootstrap)
        finally:
            stop_clusters(nodes)
        written = release.run_script(state, Path(contents.__file__), str(state))
        (FOLDER / f"tables-{short}.json").write_text(json.dumps(json.loads(written)) + "\n", encoding="utf-8")
        with tarfile.open(FOLDER / f"tables-{short}.tar.xz", "w:xz") as archive:
            archive.add(state, arcname=".", filter=_without_owner)


def _without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return the entry without what identifies a machine; None for logs and for what a run writes anew."""
    if Path(entry.name).name in _LEFT_OUT:
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    capture(sys.argv[1])
