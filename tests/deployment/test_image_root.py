"""The image as far as it can be tested without a container engine: its file system, its user, its entry point, a real mirror.

Needs root, debootstrap, and the network: Debian's packages, PyPI and Maven Central.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deployment.image_root import ImageRoot, Mount, build_image_root, require_tools
from tests.support.mirror_runs import (
    PATIENCE_S,
    create_topic,
    document,
    killed_at_last,
    read_values,
    topics_of,
    wait_for_run,
    write,
)
from tests.support.probes import probe

from shallow_mirror.local_kafka.ports import free_ports

pytestmark = [pytest.mark.long, pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(1800)]


def has_values(bootstrap: str, topic: str, expected: list[str]) -> bool:
    return topic in topics_of(bootstrap) and read_values(bootstrap, topic) == expected


@pytest.fixture(scope="module")
def image(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> ImageRoot:
    require_tools()
    folder = tmp_path_factory.mktemp("image")
    command = [
        sys.executable,
        str(repository / ".ci" / "release.py"),
        "--snapshot",
        "--no-install",
        "--dist",
        str(folder / "dist"),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    built = build_image_root(folder / "built", repository, folder / "dist")
    # A layer of an image has whole seconds: what the cache is found by must not depend on parts of them.
    (folder / "root").mkdir()
    layer = subprocess.run(["tar", "-C", str(built.folder), "--format=gnu", "-c", "."], stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-C", str(folder / "root"), "-x", "-p"], input=layer, check=True)
    built.folder = folder / "root"
    return built


@contextmanager
def mirror_in(image: ImageRoot, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the mirror file in `folder` as Kubernetes would: a read-only root, the state on a volume, /tmp in memory."""
    state = folder / "state"
    state.mkdir(exist_ok=True)
    os.chown(state, *(int(part) for part in image.user.split(":")))
    mounts = [
        Mount("/etc/shallow-mirror", folder / "conf", is_read_only=True),
        Mount("/var/lib/shallow-mirror", state),
        Mount("/tmp", None),
    ]
    command = image.command([*image.entry_point, "run", "/etc/shallow-mirror/mirror.yaml", *options], mounts, is_read_only=True)
    with (folder / "stderr.txt").open("w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            command,
            env={**image.environment, "TINI_SUBREAPER": "1"},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    with killed_at_last(process):
        yield process


def test_the_image_mirrors_answers_probes_stops_on_sigterm_and_continues(
    image: ImageRoot, two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target, port = two_clusters.source.bootstrap, two_clusters.target.bootstrap, free_ports(1)[0]
    create_topic(source, topic_name)
    write(source, topic_name, ["a", "b"])
    settings = document(
        source, target, [topic_name], tables="/var/lib/shallow-mirror/tables", metrics={"port": port, "host": "0.0.0.0"}
    )
    (tmp_path / "conf").mkdir(mode=0o755)
    (tmp_path / "conf" / "mirror.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for values, expected in ((["c"], ["a", "b", "c"]), (["d"], ["a", "b", "c", "d"])):
        with mirror_in(image, tmp_path, "--log-format", "json") as process:
            wait_for_run(process, "a mirror that is live", lambda: probe(port, "healthz")[0] == 200)
            wait_for_run(process, "a mirror that is ready", lambda: probe(port, "readyz")[0] == 200)
            write(source, topic_name, values)
            has_copied = partial(has_values, target, topic_name, expected)
            wait_for_run(process, f"the records up to {expected[-1]}", has_copied)
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, (tmp_path / "stderr.txt").read_text(encoding="utf-8")
        log = (tmp_path / "stderr.txt").read_text(encoding="utf-8")
        assert "archive of Spark's classes" not in log, "that of the image is used"
        assert '"level": "ERROR"' not in log
    assert (tmp_path / "state" / "tables" / "offset_map" / "_delta_log").is_dir()


def test_errors_of_an_operator_have_their_exit_code_in_the_image_too(image: ImageRoot, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir(mode=0o755)
    (tmp_path / "conf" / "mirror.yaml").write_text("mirror: m\n", encoding="utf-8")
    with mirror_in(image, tmp_path) as process:
        assert process.wait(PATIENCE_S) == 2


def test_spark_starts_with_deltas_jars_and_without_network(image: ImageRoot) -> None:
    code = (
        "from pathlib import Path; from shallow_mirror import delta_jars, local_session; "
        "spark = local_session('offline', delta_jars=delta_jars(), log_file=Path('/tmp/offline/spark.log')); "
        "print('rows', spark.range(3).count()); spark.stop()"
    )
    output = image.run(["/opt/shallow-mirror/bin/python", "-c", code], network=False)
    assert "rows 3" in output.splitlines()
