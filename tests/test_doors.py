"""Rooms with doors are entered through them: what doors export, and who imports what from where."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from tests.support.doors import ROOT, doors, imports_of, modules, room, source_of

MOST_NAMES = 20

_ROOMS = {room(door) for door in doors()}


def _is_about(file: Path, module: str) -> bool:
    """Return whether a file of tests is named after a module."""
    return f"{file.stem}_".startswith(f"test_{module.rpartition('.')[2]}_")


def test_the_large_rooms_have_doors() -> None:
    assert {"broker", "checkpoints", "sinks", "streaming", "wire"} <= _ROOMS


@pytest.mark.parametrize("door", sorted(doors()))
def test_a_door_exports_few_names_of_its_room_and_none_is_hidden_by_a_module(door: str) -> None:
    exported = doors()[door]
    assert 0 < len(exported) <= MOST_NAMES
    opened = import_module(door)
    for name, module in exported.items():
        assert room(module) == room(door)
        assert f"{door}.{name}" not in modules() or module == door, f"importing the module {name} would hide the name"
        whole = f"{module}.{name}"
        assert getattr(opened, name) is (import_module(whole) if whole in modules() else getattr(import_module(module), name))
    assert set(exported) <= set(dir(opened))
    with pytest.raises(AttributeError, match=f"module '{door}' has no attribute 'nothing'"):
        _ = opened.nothing


def test_modules_of_other_rooms_import_through_the_door_and_modules_of_the_room_do_not() -> None:
    wrong = []
    for importer, path in modules().items():
        if importer in doors():
            continue
        for found in imports_of(path):
            is_inside = room(found.module) == room(importer)
            is_through_a_door = found.name in doors().get(found.module, {})
            is_submodule = f"{found.module}.{found.name}" in modules()
            if room(found.module) in _ROOMS and is_through_a_door == is_inside and not (is_inside and is_submodule):
                wrong.append(f"{path}:{found.line}: {found.name} from {found.module}")
    assert not wrong


def test_tests_and_benchmarks_import_exported_names_through_the_door(repository: Path) -> None:
    exported = {(module, name) for names in doors().values() for name, module in names.items()}
    files = [file for folder in ("tests", "benchmarks") for file in sorted((repository / folder).rglob("*.py"))]
    wrong = [
        f"{file}:{found.line}: {found.name} from {found.module}"
        for file in files
        for found in imports_of(file)
        if (found.module, found.name) in exported and found.module not in doors() and not _is_about(file, source_of(found))
    ]
    assert files
    assert not wrong


def test_importing_a_door_imports_no_module_behind_it() -> None:
    program = f"import importlib, sys\nfor name in {sorted(doors())!r}: importlib.import_module(name)\nprint(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = set(ended.stdout.split()) & modules().keys()
    assert {name for name in imported if modules()[name].name != "__init__.py"} <= {
        "shallow_mirror.lazy_names",
        "shallow_mirror.version",
    }


def test_doors_open_in_a_zip_file_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as packed:
        for path in modules().values():
            packed.write(path, path.relative_to(ROOT.parent))
    program = (
        "from shallow_mirror.wire import crc32c; import shallow_mirror; print(crc32c(b'123456789'), shallow_mirror.__file__)"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, 'package.zip'); {program}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    value, file = ended.stdout.split()
    assert int(value) == 0xE3069283
    assert "package.zip" in file
