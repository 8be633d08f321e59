"""Mirrors between the clusters of two realms, in a process of their own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.kerberos.conftest import TwoRealms
from tests.support.mirror_runs import PATIENCE_S, conf_file, create_topic, read_values

PARTITIONS = 4


def mirror_file(folder: Path, realms: TwoRealms, topic: str, listener: str, **of_source: str) -> Path:
    """Return the file of a mirror whose target topic exists: it is created without security."""
    create_topic(realms.source.node.bootstrap, topic, PARTITIONS)
    create_topic(realms.target.node.bootstrap, topic, PARTITIONS)
    source = {"alias": "east", "client": realms.source.properties(listener, **of_source)}
    target = {"alias": "west", "client": realms.target.properties(listener)}
    topics = {"target_name": "{topic}"}
    return conf_file(folder, "", "", [topic], source=source, target=target, topics=topics, write={"slots": 2})


def wait_until_copied(process: subprocess.Popen[str], realms: TwoRealms, topic: str, values: list[str]) -> None:
    """Twice as patient as other waits: Spark starts, beside three JVMs of the tests."""
    give_up_at = time.monotonic() + 2 * PATIENCE_S
    while read_values(realms.target.node.bootstrap, topic) != values:
        assert process.poll() is None, f"the mirror ended with {process.returncode}"
        assert time.monotonic() < give_up_at, "nothing was copied"
        time.sleep(0.2)
