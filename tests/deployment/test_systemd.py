"""The systemd units, by systemd's own checks and by what the mirror does. They are not started here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.deployment.manifests import MIRROR_FILE, load_mirror
from typer.main import get_command

from shallow_mirror.cli import app
from shallow_mirror.commands.mirror_files import SUFFIXES
from shallow_mirror.commands.options import EXIT_CONFIG, EXIT_FENCED, EXIT_RECOVER

UNITS = ("shallow-mirror.service", "shallow-mirror@.service", "shallow-mirrors.service")
MOST_EXPOSURE = 2.0
"""Of systemd-analyze security, which rates from 0 to 10."""


def settings(unit: Path) -> dict[str, str]:
    """Return the settings of a unit; none of those that are tested is repeated."""
    lines = unit.read_text(encoding="utf-8").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines if re.match(r"[A-Z]\w+=", line))}


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest, repository: Path) -> Path:
    return repository / "conf" / "systemd" / str(request.param)


@pytest.fixture
def installed(unit: Path, tmp_path: Path) -> Path:
    """Return a copy that starts a program of this machine: systemd-analyze looks for it."""
    copy = tmp_path / unit.name
    text = unit.read_text(encoding="utf-8")
    copy.write_text(text.replace("/opt/shallow-mirror/bin/shallow-mirror", shutil.which("true") or ""), encoding="utf-8")
    return copy


def test_all_units_have_the_same_settings_but_for_what_they_run(repository: Path) -> None:
    single, template, several = (settings(repository / "conf" / "systemd" / name) for name in UNITS)
    for other, subject in ((template, "%i"), (several, "mirrors")):
        assert other.pop("ExecStart").replace(subject, "mirror").removesuffix(".yaml") == single["ExecStart"].removesuffix(
            ".yaml"
        )
        assert other.pop("EnvironmentFile").replace(subject, "mirror") == single["EnvironmentFile"]
        assert other | {name: single[name] for name in ("Description", "ExecStart", "EnvironmentFile")} == single


def test_a_unit_restarts_after_errors_that_may_pass_and_after_no_others(unit: Path) -> None:
    values = settings(unit)
    assert (values["Restart"], values["StartLimitIntervalSec"]) == ("on-failure", "0")
    assert values["RestartPreventExitStatus"].split() == [str(code) for code in (EXIT_CONFIG, EXIT_FENCED, EXIT_RECOVER)]


def test_a_stop_reaches_the_mirror_alone_and_has_time_for_the_micro_batch_that_runs(unit: Path, repository: Path) -> None:
    values = settings(unit)
    assert values["KillMode"] == "mixed"
    mirror = load_mirror(repository)
    assert int(values["TimeoutStopSec"]) * 1000 > mirror.write.transaction_timeout_ms


def test_the_command_exists(unit: Path, repository: Path) -> None:
    program, command, path = settings(unit)["ExecStart"].split()
    assert program == "/opt/shallow-mirror/bin/shallow-mirror"
    assert path.startswith("/etc/shallow-mirror/")
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert commands[command].make_context(command, [str(repository / "conf" / "kubernetes" / MIRROR_FILE)])


def test_the_unit_of_several_mirrors_names_a_folder(repository: Path) -> None:
    path = Path(settings(repository / "conf" / "systemd" / UNITS[-1])["ExecStart"].split()[-1])
    assert path.suffix not in SUFFIXES


def test_systemd_accepts_the_unit(installed: Path) -> None:
    ended = _analyze("verify", str(installed))
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")


def test_a_setting_that_is_misspelt_would_be_found(installed: Path) -> None:
    installed.write_text(installed.read_text(encoding="utf-8").replace("KillMode=", "KilMode="), encoding="utf-8")
    assert "KilMode" in _analyze("verify", str(installed)).stderr


def test_the_service_is_confined(installed: Path) -> None:
    ended = _analyze("security", "--offline=true", "--no-pager", str(installed))
    (exposure,) = re.findall(r"exposure level for \S+: ([\d.]+)", ended.stdout)
    assert float(exposure) <= MOST_EXPOSURE, ended.stdout


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: it is in Debian's package systemd")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)
