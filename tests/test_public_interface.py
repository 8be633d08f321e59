"""The public interface: what `shallow_mirror` exports, how it is imported, and that the reference lists it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shallow_mirror
from shallow_mirror import errors

_HEAVY = ("pyspark", "deltalake", "confluent_kafka", "kafka", "pyarrow", "pydantic")


@pytest.mark.parametrize("name", [name for name in shallow_mirror.__all__ if name != "__version__"])
def test_every_exported_name_is_imported_from_its_module(name: str) -> None:
    value = getattr(shallow_mirror, name)
    assert getattr(value, "__name__", name) == name


def test_type_checkers_and_the_running_module_see_the_same_names(repository: Path) -> None:
    tree = ast.parse((repository / "src/shallow_mirror/__init__.py").read_text(encoding="utf-8"))
    (typing_block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed_imports = {alias.name for node in typing_block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {*typed_imports, "__version__"} == set(shallow_mirror.__all__)


def test_every_error_class_is_exported() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.MirrorError)}
    assert classes <= set(shallow_mirror.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'shallow_mirror' has no attribute 'nothing'"):
        _ = getattr(shallow_mirror, "nothing")  # noqa: B009


def test_importing_the_package_imports_neither_spark_nor_a_client() -> None:
    program = f"import shallow_mirror, sys; print([name for name in {_HEAVY!r} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"
