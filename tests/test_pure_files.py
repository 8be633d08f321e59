"""Files whose first line says "Pure:" do no I/O and know no clock, and neither does what they import."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp

import shallow_mirror

FORBIDDEN = ["socket", "ssl", "threading", "time", "random", "logging", "pyspark", "delta", "deltalake", "confluent_kafka"]

_ROOT = Path(shallow_mirror.__file__).parent


def _is_pure(module: str) -> bool:
    path = _ROOT.joinpath(*module.split(".")[1:])
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(source.read_text())) or "").startswith("Pure:")


def test_pure_files_reach_nothing_that_does_io_or_knows_a_clock() -> None:
    graph = grimp.build_graph("shallow_mirror", include_external_packages=True)
    pure = {module for module in graph.modules if module.split(".")[0] == "shallow_mirror" and _is_pure(module)}
    assert len(pure) > 100, "the first lines are found"
    chains = [
        " -> ".join(graph.find_shortest_chain(module, forbidden) or ())
        for forbidden in FORBIDDEN
        if forbidden in graph.modules
        for module in sorted(graph.find_downstream_modules(forbidden) & pure)
    ]
    assert not chains
