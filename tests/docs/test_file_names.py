"""Files and folders that the documentation names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PAGES = [*sorted(_ROOT.glob("docs/**/*.md")), _ROOT / "README.md", _ROOT / "CONTRIBUTING.md"]
_NAME = re.compile(r"`([\w/.-]+\.py|(?:src|tests|streaming|sinks|checkpoints|conf|benchmarks|notebooks)/[\w/.-]*)`")
_PLACES = ("", "src/shallow_mirror", "tests")
_EXAMPLES = {"create_topic.py"}
"""Files of users."""


@pytest.fixture(scope="module")
def file_names() -> set[str]:
    folders = ("src", "streaming", "sinks", "checkpoints", "tests", "benchmarks", "conf", "notebooks", "docs")
    return {path.name for folder in folders for path in (_ROOT / folder).rglob("*.py")}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_files_that_a_page_names_exist(page: Path, file_names: set[str]) -> None:
    names = {name for name in _NAME.findall(page.read_text()) if name not in _EXAMPLES}
    missing = [
        name
        for name in sorted(names)
        if not any((_ROOT / place / name).exists() for place in _PLACES) and not ("/" not in name and name in file_names)
    ]
    assert not missing
