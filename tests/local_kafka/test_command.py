from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.command import run_local_kafka


def test_no_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one cluster"):
        run_local_kafka(0, "4.3.0", None)


@pytest.mark.brokers
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_stops_the_brokers_and_deletes_the_temporary_folder(tmp_path: Path, number: signal.Signals) -> None:
    script = "from shallow_mirror.local_kafka.command import run_local_kafka as run; run(1, '4.3.0', None)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, text=True) as command:
        assert command.stdout is not None
        line = command.stdout.readline()
        children = psutil.Process(command.pid).children(recursive=True)
        assert line.startswith("cluster 1: 127.0.0.1:")
        assert len(children) == 2
        assert len(list(tmp_path.iterdir())) == 1
        command.send_signal(number)
        assert command.wait(30) == 0
    assert not [child for child in children if child.is_running()]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.brokers
@pytest.mark.long
def test_a_cluster_may_have_several_brokers(tmp_path: Path) -> None:
    script = f"from pathlib import Path; from shallow_mirror.local_kafka.command import run_local_kafka as run; run(1, '4.3.0', Path({str(tmp_path)!r}), 3)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stdout.readline().count("127.0.0.1:") == 3
        children = psutil.Process(command.pid).children(recursive=True)
        assert len(children) == 6
        command.send_signal(signal.SIGTERM)
        assert command.wait(40) == 0
    assert not [child for child in children if child.is_running()]


@pytest.mark.brokers
def test_a_broker_that_ends_by_itself_ends_the_command_with_its_log(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from shallow_mirror.local_kafka.command import run_local_kafka
run_local_kafka(1, "4.3.0", Path({str(tmp_path)!r}))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert command.stdout.readline().startswith("cluster 1: ")
        jvm = [child for child in psutil.Process(command.pid).children(recursive=True) if "kafka.Kafka" in child.cmdline()]
        jvm[0].kill()
        assert command.wait(30) == 1
        output = command.stderr.read()
    assert " exited. The end of its log" in output
    assert "Kafka Server started" in output
    assert (tmp_path / "cluster-1" / "data" / "meta.properties").is_file()
