"""A mirror of an earlier commit is killed, continued by today's code, and by the earlier code again: on real brokers.

The earlier code comes from the history of the checkout; without it the test is skipped.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.mirror_runs import (
    conf_file,
    create_topic,
    killed_at_last,
    open_transaction,
    read_values,
    topics_of,
    wait_for_markers,
    wait_for_run,
    write,
)
from tests.upgrade.released_code import ReleasedCode, has_commit

from shallow_mirror.config import MirrorConfig
from shallow_mirror.streaming.runs import Mirror
from shallow_mirror.verify import verify_mirror

pytestmark = [pytest.mark.long, pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(600)]

_COMMITS = [file.name.removeprefix("tables-").partition(".")[0] for file in sorted(Path(__file__).parent.glob("tables-*.json"))]


@pytest.fixture(params=_COMMITS)
def release(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> ReleasedCode:
    if not has_commit(repository, request.param):
        pytest.skip(f"the checkout has no commit {request.param}: git fetch --unshallow")
    return ReleasedCode.extract(repository, request.param, tmp_path / "code")


def run_and_kill(release: ReleasedCode, folder: Path, conf: Path, what: str, condition: Any) -> None:
    """Let the release mirror until the condition holds, and kill it at whatever point it is then."""
    with (folder / "stderr.txt").open("w", encoding="utf-8") as stderr:
        process = subprocess.Popen(
            release.command("run", str(conf)),
            cwd=folder,
            env=release.environment,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    with killed_at_last(process):
        wait_for_run(process, what, condition)
        os.killpg(process.pid, signal.SIGKILL)


def test_todays_code_continues_a_killed_mirror_of_the_release_before_and_that_one_today_s(
    release: ReleasedCode, two_clusters: Any, topic_name: str, spark: Any, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name)
    conf = conf_file(tmp_path, source, target, [topic_name])
    values = [f"record {number}" for number in range(200)]
    write(source, topic_name, values[:100])
    run_and_kill(
        release,
        tmp_path,
        conf,
        "its records",
        lambda: topic_name in topics_of(target) and len(read_values(target, topic_name)) > 50,
    )
    write(source, topic_name, values[100:150])
    with open_transaction(source, topic_name, values[150:160]):
        pass
    wait_for_markers(source, topic_name)

    Mirror(MirrorConfig.load(conf)).run(spark, available_now=True)
    assert read_values(target, topic_name) == values[:160]

    write(source, topic_name, values[160:])
    release.run(tmp_path, "run", str(conf), "--available-now")
    assert read_values(target, topic_name) == values

    Mirror(MirrorConfig.load(conf)).run(spark, available_now=True)
    report = verify_mirror(MirrorConfig.load(conf))
    assert report.is_equal, report
    assert read_values(target, topic_name) == values
