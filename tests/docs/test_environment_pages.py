"""The pages about environments: their mirror files are short and valid, and their other properties exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from shallow_mirror.broker.auth import KNOWN
from shallow_mirror.config import MirrorConfig

PAGES = ("confluent-cloud", "amazon-msk", "event-hubs", "google-managed-kafka", "aiven", "strimzi", "cloudera")


def blocks(repository: Path, page: str) -> list[str]:
    text = (repository / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_a_mirror_file_of_a_page_is_valid_and_has_twelve_lines(
    page: str, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_SECRET", "s")
    mirror, *_ = blocks(repository, page)
    assert len(mirror.splitlines()) <= 12
    assert MirrorConfig.model_validate(yaml.safe_load(mirror)).mirror == "orders"


@pytest.mark.parametrize("page", [*PAGES, "security"])
def test_other_properties_of_a_page_exist(page: str, repository: Path) -> None:
    names: set[Any] = set()
    for block in blocks(repository, page)[1:]:
        names |= set(yaml.safe_load(block))
    assert names - set(KNOWN) == set()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_was_tested(page: str, repository: Path) -> None:
    text = (repository / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    assert "## What was tested" in text
    assert "| **no** |" in text
