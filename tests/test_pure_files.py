"""Files whose first line says "Pure:" do no I/O and know no clock, and neither does what they import."""

from __future__ import annotations

import ast

import grimp
from tests.support.doors import doors, imports_of, modules, source_of

FORBIDDEN = ["socket", "ssl", "threading", "time", "random", "logging", "pyspark", "delta", "deltalake", "confluent_kafka"]


def _is_pure(module: str) -> bool:
    source = modules()[module].read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").startswith("Pure:")


def _graph() -> grimp.ImportGraph:
    """Return who imports what, where a door is what is imported through it."""
    graph = grimp.build_graph("shallow_mirror", include_external_packages=True)
    for door in doors():
        for module in graph.find_modules_directly_imported_by(door) - {"shallow_mirror.lazy_names"}:
            graph.remove_import(importer=door, imported=module)
    for importer, path in modules().items():
        for found in imports_of(path) if importer not in doors() else ():
            if found.module in doors():
                graph.add_import(importer=importer, imported=source_of(found))
    return graph


def test_pure_files_reach_nothing_that_does_io_or_knows_a_clock() -> None:
    graph = _graph()
    pure = {module for module in graph.modules if module.split(".")[0] == "shallow_mirror" and _is_pure(module)}
    assert len(pure) > 100, "the first lines are found"
    chains = [
        " -> ".join(graph.find_shortest_chain(module, forbidden) or ())
        for forbidden in FORBIDDEN
        if forbidden in graph.modules
        for module in sorted(graph.find_downstream_modules(forbidden) & pure)
    ]
    assert not chains
