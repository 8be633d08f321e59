"""A virtual environment with the wheel and nothing else of this checkout, and Spark as the pip package has it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
from tests.support.wheels import build_wheel

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
PATIENCE_S = 400.0
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass(frozen=True, slots=True)
class Installed:
    """`home` is SPARK_HOME, `scratch` what Spark leaves on the side, `site` where the wheel is."""

    python: Path
    site: Path
    home: Path
    scratch: Path

    @property
    def environment(self) -> dict[str, str]:
        inherited = {
            name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG", "PATH", "SHALLOW_MIRROR_CACHE") if name in os.environ
        }
        return {
            **inherited,
            "PATH": f"{self.python.parent}:{self.home / 'bin'}:{inherited['PATH']}",
            "PYSPARK_PYTHON": str(self.python),
            "SPARK_HOME": str(self.home),
            "SPARK_CONF_DIR": str(self.home / "conf"),
            "SPARK_LOCAL_DIRS": str(self.scratch),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(self.scratch),
        }


def install(repository: Path, folder: Path) -> Installed:
    """Install the wheel; its dependencies come from the tests' environment, by a path that processes no editable installation."""
    wheel = build_wheel(repository, folder / "build")
    made = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True, timeout=60)
    (site,) = (made / "lib").glob("python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(made / "bin" / "python"),
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--no-deps", "--no-index", "--ignore-installed", str(wheel)], check=True, timeout=120)
    home, scratch = folder / "spark", folder / "scratch"
    scratch.mkdir()
    (home / "conf").mkdir(parents=True)
    for entry in Path(pyspark.__path__[0]).iterdir():
        if entry.name in ("bin", "jars"):
            (home / entry.name).symlink_to(entry)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": _QUICK,
        "spark.executor.extraJavaOptions": _QUICK,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    lines = "".join(f"{name} {value}\n" for name, value in defaults.items())
    (home / "conf" / "spark-defaults.conf").write_text(lines, encoding="utf-8")
    return Installed(made / "bin" / "python", site, home, scratch)


@contextmanager
def started(
    installed: Installed, command: str, folder: Path, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a line of the shell; whatever it started is gone at the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env={**installed.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for child in left:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.wait()


def ended(process: subprocess.Popen[bytes], log: Path) -> int:
    """Its exit code. A process that does not end is an error with the end of its log."""
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"did not end:\n{log_text(log)[-4000:]}") from None


def wait_until_said(text: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Several JVMs start on a machine that may be busy: more patience than elsewhere."""
    give_up_at = time.monotonic() + PATIENCE_S
    while text not in log_text(log):
        assert process.poll() is None, f"ended before it said {text!r}:\n{log_text(log)[-4000:]}"
        assert time.monotonic() < give_up_at, f"never said {text!r}:\n{log_text(log)[-4000:]}"
        time.sleep(0.2)


def log_text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def python_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    """Return the driver of what `spark-submit` runs."""
    children = psutil.Process(process.pid).children()
    (driver,) = (child for child in children if any("shallow_mirror_main.py" in argument for argument in _arguments_of(child)))
    return driver


def _arguments_of(process: psutil.Process) -> list[str]:
    """None of a process that has ended already."""
    try:
        return list(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


@contextmanager
def standalone(installed: Installed, folder: Path, workers: int) -> Iterator[str]:
    """Start a master and workers of one core each; yield its address."""
    log = folder / "master.log"
    spark_class = str(installed.home / "bin" / "spark-class")
    master = f"{spark_class} org.apache.spark.deploy.master.Master --host 127.0.0.1 --port 0 --webui-port 0"
    with started(installed, master, folder, log) as process:
        wait_until_said("Starting Spark master at ", process, log)
        match = _MASTER.search(log_text(log))
        assert match is not None
        with _workers(installed, folder, match[1], workers):
            yield match[1]


@contextmanager
def _workers(installed: Installed, folder: Path, master: str, workers: int) -> Iterator[None]:
    if workers == 0:
        yield
        return
    log = folder / f"worker-{workers}.log"
    command = (
        f"{installed.home}/bin/spark-class org.apache.spark.deploy.worker.Worker --host 127.0.0.1 --cores 1 --memory 1g "
        f"--webui-port 0 --work-dir {folder / f'work-{workers}'} {master}"
    )
    with started(installed, command, folder, log) as process, _workers(installed, folder, master, workers - 1):
        wait_until_said("Successfully registered with master", process, log)
        yield
