"""The mirror under `spark-submit`, from the wheel alone, with the lines that docs/how-to/spark-submit.md shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.submit.spark_home import Installed, ended, install, log_text, python_of, standalone, started, wait_until_said
from tests.support.mirror_runs import conf_file, config, create_topic, is_settled, read_values, wait_for, write

from shallow_mirror.local_kafka import delta_jars

PARTITIONS = 4
MANY_SLOTS = {"slot_bytes": 1 << 10, "request_bytes": 1}
DELTA_PACKAGE = "--packages io.delta:delta-spark_4.2_2.13:4.4.0"


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(repository, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def shown(repository: Path) -> list[str]:
    """Commands of the page, each on one line."""
    page = (repository / "docs" / "how-to" / "spark-submit.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture(scope="module")
def catch_up_line(shown: list[str]) -> str:
    (line,) = (line for line in shown if line.startswith("spark-submit") and line.endswith("--available-now"))
    return line


def optional_settings(repository: Path) -> list[str]:
    """`name=value` of those that the page calls optional."""
    page = (repository / "docs" / "how-to" / "spark-submit.md").read_text(encoding="utf-8")
    settings = re.findall(r"^\| `(spark\.[^`]+=[^`]+)` \(optional\)", page, re.MULTILINE)
    assert len(settings) == 3
    return settings


def conf_in(folder: Path, two_clusters: Any, topic: str, **groups: Any) -> Path:
    """`conf/mine.yaml` of a user, with a slot for each partition that has data."""
    (folder / "conf").mkdir()
    settings = {"write": MANY_SLOTS, "tables": str(folder / "tables"), **groups}
    made = conf_file(
        folder / "conf", two_clusters.source.bootstrap, two_clusters.target.bootstrap, [re.escape(topic)], **settings
    )
    return made.rename(folder / "conf" / "mine.yaml")


def fill(bootstrap: str, topic: str, what: str) -> None:
    for partition in range(PARTITIONS):
        write(bootstrap, topic, [f"{what} {partition} {number}" for number in range(50)], partition)


def read_all(bootstrap: str, topic: str) -> list[list[str]]:
    return [read_values(bootstrap, topic, partition) for partition in range(PARTITIONS)]


def test_the_script_is_alone_in_its_folder_and_shadows_no_other_module() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "shallow_mirror.spark_submit"], capture_output=True, text=True, timeout=60, check=True
    )
    names = {module.stem for module in Path(run.stdout.strip()).parent.glob("*.py")} - {"__init__", "__main__"}
    assert names == {"shallow_mirror_main"}
    assert not names & sys.stdlib_module_names


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_slots_run_on_executors_and_everything_arrives(
    installed: Installed, catch_up_line: str, two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    create_topic(two_clusters.source.bootstrap, topic_name, PARTITIONS)
    fill(two_clusters.source.bootstrap, topic_name, "value")
    conf_in(tmp_path, two_clusters, topic_name)
    log = tmp_path / "submit.log"
    with started(installed, catch_up_line, tmp_path, log, {"MASTER": "local-cluster[2,1,1024]"}) as process:
        assert ended(process, log) == 0, log_text(log)[-4000:]
    assert read_all(two_clusters.target.bootstrap, topic_name) == read_all(two_clusters.source.bootstrap, topic_name)
    executors = (installed.home / "work").glob("app-*/*/stderr")
    assert any("Running task" in log_text(executor) for executor in executors)


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_standalone_cluster_runs_a_mirror_with_tables_through_spark_until_it_is_stopped(
    repository: Path, installed: Installed, shown: list[str], two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name, PARTITIONS)
    fill(source, topic_name, "first")
    conf_in(tmp_path, two_clusters, topic_name, tables_writer="spark")
    (with_delta,) = (line for line in shown if DELTA_PACKAGE in line)
    options = " ".join(f"--conf {setting}" for setting in optional_settings(repository))
    with_jars = with_delta.replace(DELTA_PACKAGE, f"--jars {','.join(str(jar) for jar in delta_jars())} {options}")
    with standalone(installed, tmp_path, workers=2) as master:
        log = tmp_path / "submit-1.log"
        with started(installed, with_jars, tmp_path, log, {"MASTER": master}) as process:
            wait_until_said("micro-batch 2:", process, log)
            fill(source, topic_name, "second")
            wait_until_said("micro-batch 3:", process, log)
            python_of(process).terminate()
            assert ended(process, log) == 0, log_text(log)[-4000:]
        fill(source, topic_name, "third")
        log = tmp_path / "submit-2.log"
        with started(installed, f"{with_jars} --available-now", tmp_path, log, {"MASTER": master}) as process:
            assert ended(process, log) == 0, log_text(log)[-4000:]
    assert read_all(target, topic_name) == read_all(source, topic_name)
    hosts = {path.parent.parent.parent.name for path in tmp_path.glob("work-*/app-*/*/stderr")}
    assert hosts == {"work-1", "work-2"}


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_killed_spark_submit_leaves_what_the_next_one_resolves(
    installed: Installed, catch_up_line: str, two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    create_topic(source, topic_name, PARTITIONS)
    fill(source, topic_name, "first")
    conf = conf_in(tmp_path, two_clusters, topic_name)
    log, master = tmp_path / "submit.log", {"MASTER": "local-cluster[2,1,1024]"}
    with started(installed, catch_up_line.removesuffix(" --available-now"), tmp_path, log, master) as process:
        wait_until_said("micro-batch 2:", process, log)
        driver = python_of(process)
        process.terminate()
        assert ended(process, log) == 143
        wait_for("the end of the driver's Python", lambda: not driver.is_running())
    fill(source, topic_name, "second")
    with started(installed, catch_up_line, tmp_path, log, master) as process:
        assert ended(process, log) == 0, log_text(log)[-4000:]
    assert read_all(target, topic_name) == read_all(source, topic_name)
    assert is_settled(config(tmp_path, source, target, [re.escape(topic_name)], tables=str(conf.parent.parent / "tables")))


@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_workers_without_the_package_end_it_with_one_sentence(
    installed: Installed, catch_up_line: str, two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    create_topic(two_clusters.source.bootstrap, topic_name, PARTITIONS)
    conf_in(tmp_path, two_clusters, topic_name)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    (site,) = (bare / "lib").glob("python3*/site-packages")
    for name in ("pyspark", "py4j", "numpy", "pandas", "pyarrow", "pytz", "dateutil", "six.py", "tzdata"):
        actual = Path(sys.modules["psutil"].__file__ or "").parent.parent / name
        if actual.exists():
            (site / name).symlink_to(actual)
    log = tmp_path / "submit.log"
    line = catch_up_line.replace("$PYSPARK_PYTHON", str(installed.python))
    pythons = {"PYSPARK_DRIVER_PYTHON": str(installed.python), "PYSPARK_PYTHON": str(bare / "bin" / "python")}
    with started(installed, line, tmp_path, log, {"MASTER": "local[2]", **pythons}) as process:
        assert ended(process, log) == 2, log_text(log)[-4000:]
    (sentence,) = re.findall(r"^ConfigError: (.*)$", log_text(log), re.MULTILINE)
    assert "the Python of Spark's workers cannot run the tasks: No module named 'shallow_mirror'" in sentence
    assert "PYSPARK_PYTHON" in sentence


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_wrong_mirror_file_ends_spark_submit_with_2(installed: Installed, catch_up_line: str, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text("mirror: one\n", encoding="utf-8")
    log = tmp_path / "submit.log"
    with started(installed, catch_up_line, tmp_path, log, {"MASTER": "local[1]"}) as process:
        assert ended(process, log) == 2
    assert "source: is missing" in log_text(log)
