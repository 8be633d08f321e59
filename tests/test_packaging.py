from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import grimp
import pytest
from mypy.main import process_options
from tests.support.wheels import ROOT_PACKAGES, build_wheel

from shallow_mirror.version import __version__


def modules_of(folder: Path, package: str) -> set[str]:
    """Dotted names of all modules below a folder; symbolic links are not followed."""
    modules = set()
    for file in folder.rglob("*.py"):
        parts = [package, *file.relative_to(folder).with_suffix("").parts]
        modules.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return modules


@pytest.fixture(scope="module")
def modules(repository: Path) -> set[str]:
    """Return what the folders hold, the root's three packages under their import names."""
    links = [repository / "src" / "shallow_mirror" / name for name in ROOT_PACKAGES]
    assert all(link.is_symlink() and link.is_dir() for link in links)
    own = repository / "src" / "shallow_mirror"
    modules = {
        name for name in modules_of(own, "shallow_mirror") if name.split(".")[1:2] not in [[each] for each in ROOT_PACKAGES]
    }
    for name in ROOT_PACKAGES:
        modules |= modules_of(repository / name, f"shallow_mirror.{name}")
    return modules


@pytest.fixture(scope="module")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a wheel."""
    return build_wheel(repository, tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> set[str]:
    """File names in a wheel."""
    return set(zipfile.ZipFile(built).namelist())


@pytest.mark.thorough
def test_the_wheel_holds_every_module_and_no_other(wheel: set[str], modules: set[str]) -> None:
    in_wheel = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in wheel if name.endswith(".py")}
    assert in_wheel == modules


@pytest.mark.thorough
def test_the_wheel_holds_the_root_folders_as_parts_of_the_package_and_nothing_beside_it(wheel: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"shallow_mirror"}
    assert all(f"shallow_mirror/{name}/__init__.py" in wheel for name in ROOT_PACKAGES)


@pytest.mark.thorough
def test_the_wheel_is_typed_and_carries_its_licence(wheel: set[str]) -> None:
    assert "shallow_mirror/py.typed" in wheel
    assert {Path(name).name for name in wheel if "/licenses/" in name} == {"LICENSE", "NOTICE"}


@pytest.mark.thorough
def test_the_wheel_holds_the_files_that_init_writes(wheel: set[str], repository: Path) -> None:
    starter_files = repository / "src" / "shallow_mirror" / "starter-files"
    wanted = {path for pattern in ("*", "kubernetes/*", "systemd/*") for path in starter_files.glob(pattern) if path.is_file()}
    assert len(wanted) > len(list(starter_files.iterdir()))
    in_wheel = {name for name in wheel if name.startswith("shallow_mirror/starter-files/")}
    assert in_wheel == {f"shallow_mirror/starter-files/{path.relative_to(starter_files)}" for path in wanted}


@pytest.mark.thorough
def test_every_module_every_help_and_init_work_from_a_wheel_in_a_new_environment(
    built: Path, repository: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    # The packages that the wheel needs are those of this environment. A path in a .pth file is added as it is: the editable
    # installation in it, which is itself a .pth file, is not.
    paths = {"base": str(environment), "platbase": str(environment)}
    site_packages = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    (site_packages / "pinned.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    python, programs = environment / "bin" / "python", environment / "bin"
    install = [
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([sys.executable, *install, str(built)], cwd=tmp_path, timeout=120, check=True)
    shown = subprocess.run([programs / "shallow-mirror", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout == f"shallow-mirror {__version__}\n"
    check = [str(python), "-I", str(repository / ".ci" / "check_installed.py"), str(tmp_path / "init")]
    checked = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    conf = repository / "conf"
    assert {path.name for path in (tmp_path / "init").rglob("*.json")} == {path.name for path in conf.glob("*.json")}


def test_mypy_checks_every_module(repository: Path, modules: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    sources, options = process_options([])
    assert {source.module for source in sources if source.module.split(".")[0] not in ("benchmarks", "tests")} == modules
    assert options.disallow_untyped_defs


def test_import_linter_checks_every_module(modules: set[str]) -> None:
    graph = grimp.build_graph("shallow_mirror", cache_dir=None)
    assert graph.modules == modules


@pytest.mark.parametrize("name", ROOT_PACKAGES)
def test_a_root_folder_cannot_be_imported_under_its_bare_name(repository: Path, name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=repository, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert f"ImportError: import shallow_mirror.{name}, not {name}" in ended.stderr


@pytest.mark.parametrize("name", ROOT_PACKAGES)
def test_a_root_folder_is_imported_as_part_of_the_package_from_anywhere(tmp_path: Path, name: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", f"import shallow_mirror.{name}"], cwd=tmp_path, timeout=60, check=True)
