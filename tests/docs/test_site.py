"""The site as `make docs` builds it, and the Markdown it is made of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

import shallow_mirror
from shallow_mirror import errors
from shallow_mirror.config import ArchiveConfig, FailoverConfig, MigrationConfig, MirrorConfig, RestoreConfig
from shallow_mirror.errors import MirrorError

pytestmark = pytest.mark.thorough

SOURCES = ("docs", "mkdocs.yml", "conf", "checkpoints", "src", "streaming", "sinks")
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")


def build(folder: Path, into: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--config-file",
        str(folder / "mkdocs.yml"),
        "--site-dir",
        str(into),
    ]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", **NO_NETWORK}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.fixture(scope="module")
def site(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    ended = build(repository, folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))


def test_every_page_of_docs_is_in_the_navigation(site: Path, repository: Path) -> None:
    navigation = (site / "index.html").read_text(encoding="utf-8")
    pages = [
        page.relative_to(repository / "docs").with_suffix(".html").as_posix() for page in (repository / "docs").rglob("*.md")
    ]
    assert pages
    assert [page for page in pages if f'href="{page}"' not in navigation and page != "index.html"] == []


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe)[^>]*src=\"?https?:|<link[^>]*rel=\"?(?:stylesheet|preconnect)[^>]*https?:|@import url\(\"?https?:"
    )
    assert [page.name for page in site.rglob("*.html") if loading.search(page.read_text(encoding="utf-8"))] == []


def test_settings_are_all_there_with_a_meaning_from_the_example(site: Path, repository: Path) -> None:
    text = text_of(site / "reference" / "settings.html")
    groups: dict[str, Any] = {name: field.annotation for name, field in MirrorConfig.model_fields.items()}
    keys = [f"{name}.{key}" for name, group in groups.items() if hasattr(group, "model_fields") for key in group.model_fields]
    assert [key for key in keys if key not in text and not key.endswith(".properties")] == []
    example = (repository / "conf" / "example.yaml").read_text(encoding="utf-8")
    (meaning,) = re.findall(r"^  slots: \d+ +# (.+)$", example, re.MULTILINE)
    assert meaning in text
    assert "integer, 1 to 1000" in text


@pytest.mark.parametrize(
    ("page", "model", "example"),
    [
        ("settings", MirrorConfig, "example.yaml"),
        ("archive-settings", ArchiveConfig, "archive-example.yaml"),
        ("restore-settings", RestoreConfig, "restore-example.yaml"),
        ("migration-settings", MigrationConfig, "migration-example.yaml"),
        ("failover-settings", FailoverConfig, "failover-example.yaml"),
    ],
)
def test_every_setting_has_a_type_a_default_and_a_meaning(
    site: Path, repository: Path, page: str, model: type[BaseModel], example: str
) -> None:
    rows = rows_of_table(site / "reference" / f"{page}.html")
    assert [row for row in rows if not all(row)] == []
    keys = [row[0] for row in rows]
    assert [key for key in keys_of(model) if key not in keys] == []
    document = yaml.safe_load((repository / "conf" / example).read_text(encoding="utf-8"))
    assert set(document) == {key.partition(".")[0].removesuffix("[]") for key in keys}


@pytest.mark.parametrize("page", ["settings", "archive-settings", "restore-settings", "migration-settings", "failover-settings"])
def test_every_setting_has_an_anchor_and_its_section_a_heading(site: Path, page: str) -> None:
    text = (site / "reference" / f"{page}.html").read_text(encoding="utf-8")
    keys = [row[0] for row in rows_of_table(site / "reference" / f"{page}.html")]
    anchors = re.findall(r'id="([^"]+)"', text)
    assert [key for key in keys if anchors.count(key.replace("[]", "")) != 1] == []
    sections = {key.partition(".")[0].removesuffix("[]") for key in keys if "." in key}
    assert [section for section in sections if f'<h2 id="{section}"' not in text] == []
    assert len(keys) == len(set(keys))


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from keys_of(section, f"{key}.")
        else:
            yield key


def rows_of_table(page: Path) -> list[tuple[str, ...]]:
    """Return the cells of all tables of a page, without their headers."""
    tables = re.findall(r"<table>(.*?)</table>", page.read_text(encoding="utf-8"), re.DOTALL)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for table in tables for row in table.split("<tr>")]
    return [tuple(re.sub(r"<[^>]+>", "", cell).strip() for cell in row) for row in rows if row]


def test_bytes_and_durations_have_their_unit(site: Path) -> None:
    kinds = {key: kind for key, kind, *_ in rows_of_table(site / "reference" / "archive-settings.html")}
    assert kinds["object_bytes"] == "integer of bytes, 1048576 to 34359738368"
    assert kinds["trigger"] == "duration"
    assert kinds["groups.interval"] == "duration or off"
    assert kinds["retention.PATTERN.keep_bytes"] == "integer of bytes, at least 1 or null"


def test_every_command_is_there(site: Path) -> None:
    text = text_of(site / "reference" / "commands.html")
    shown = subprocess.run(
        [sys.executable, "-m", "shallow_mirror.cli", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    names = re.findall(r"^[│| ]+([a-z][a-z-]+)  ", shown.stdout, re.MULTILINE)
    assert "run" in names
    assert [name for name in names if f"shallow-mirror {name}" not in text] == []


def test_every_exported_name_is_in_the_reference_of_the_python_interface(site: Path) -> None:
    listed = text_of(site / "reference" / "python.html") + text_of(site / "reference" / "errors.html")
    assert "verify_mirror" in listed
    assert [name for name in shallow_mirror.__all__ if name != "__version__" and name not in listed] == []


def test_the_reference_of_the_python_interface_explains_fields(site: Path) -> None:
    assert "filler_count: Offsets of these that fillers took." in text_of(site / "reference" / "python.html")


def test_described_columns_exist(repository: Path, site: Path) -> None:
    described = yaml.safe_load((repository / "docs" / "site" / "columns.yaml").read_text(encoding="utf-8"))
    text = (site / "reference" / "tables.html").read_text(encoding="utf-8")
    for table, columns in described.items():
        assert f'id="{table}"' in text
        assert [name for name in columns if name != "about" and f"<code>{name}</code>" not in text] == []


def test_every_error_has_a_remedy(site: Path) -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MirrorError)]
    names = [kind.__name__ for kind in kinds if kind is not MirrorError]
    remedies = (site / "reference" / "error-remedies.html").read_text(encoding="utf-8")
    listed = (site / "reference" / "errors.html").read_text(encoding="utf-8")
    assert [name for name in names if f'id="{name.lower()}"' not in remedies] == []
    assert [name for name in names if f"<code>{name}</code>" not in listed] == []


@pytest.fixture(scope="module")
def changed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Return the build of a copy with a new guide, a broken link, and an error without a remedy."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        if (repository / name).is_dir():
            shutil.copytree(repository / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(repository / name, folder / name)
    (folder / "docs" / "how-to" / "zebra.md").write_text("# Zebra\n\n[nowhere](no-such-page.md)\n", encoding="utf-8")
    remedies = folder / "docs" / "reference" / "error-remedies.md"
    remedies.write_text(remedies.read_text(encoding="utf-8").replace("### SparkLostError", "### Spark is gone"), encoding="utf-8")
    return build(folder, folder / "out")


def test_a_broken_link_ends_the_build(changed: subprocess.CompletedProcess[str]) -> None:
    assert changed.returncode == 1
    assert "no-such-page.md" in changed.stdout + changed.stderr


def test_an_error_without_a_remedy_ends_the_build(changed: subprocess.CompletedProcess[str]) -> None:
    assert "error-remedies.md#sparklosterror" in changed.stdout + changed.stderr


def test_a_new_page_needs_no_entry_in_the_navigation(changed: subprocess.CompletedProcess[str]) -> None:
    assert "not included" not in changed.stdout + changed.stderr


# --- the Markdown itself


def markdown_files(repository: Path) -> list[Path]:
    return [*repository.glob("*.md"), *(repository / "docs").rglob("*.md")]


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_of_pages_outside_of_the_site_lead_to_files_and_headings(repository: Path) -> None:
    names = (
        "settings",
        "archive-settings",
        "restore-settings",
        "migration-settings",
        "failover-settings",
        "commands",
        "python",
        "tables",
        "errors",
    )
    generated = {repository / "docs" / "reference" / f"{name}.md" for name in names}
    broken = []
    for page in repository.glob("*.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
            path, _, anchor = target.partition("#")
            file = page.parent / path
            if "://" in target or file in generated:
                continue
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def test_prose_wraps_at_100_columns(repository: Path) -> None:
    wide = [
        f"{page.relative_to(repository)}: {line}"
        for page in markdown_files(repository)
        for line in without_code(page.read_text(encoding="utf-8")).splitlines()
        if len(line) > 100 and not line.startswith("|")
    ]
    assert wide == []


def test_the_readme_fits_on_three_screens(repository: Path) -> None:
    assert len((repository / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_files_and_folders_that_pages_name_exist(repository: Path) -> None:
    folders = ("src", "streaming", "sinks", "checkpoints", "benchmarks", "tests", "docs")
    paths = [f"/{file.relative_to(repository)}" for folder in folders for file in (repository / folder).rglob("*.py")]
    missing = []
    for page in markdown_files(repository):
        text = page.read_text(encoding="utf-8")
        made_by_readers = re.findall(r"Save the \w+ one as `([\w.-]+\.py)`", text)
        missing += [
            f"{page.relative_to(repository)}: {name}"
            for name in re.findall(r"`([\w/.-]+\.py)`", text)
            if name not in made_by_readers and not any(path.endswith(f"/{name}") for path in paths)
        ]
        missing += [
            f"{page.relative_to(repository)}: {name}"
            for name in re.findall(r"`((?:src|tests|streaming|sinks|checkpoints|benchmarks|conf|notebooks)/[\w/-]+)`", text)
            if not (repository / name).exists()
        ]
    assert missing == []


def test_pages_that_code_and_settings_name_exist(repository: Path) -> None:
    folders = ("src", "streaming", "sinks", "checkpoints", "conf", "notebooks", "benchmarks", "tests")
    files = [
        file for folder in folders for suffix in ("py", "yaml", "ipynb") for file in (repository / folder).rglob(f"*.{suffix}")
    ]
    named = {(file, page) for file in files for page in re.findall(r"docs/[a-z/-]+\.md", file.read_text(encoding="utf-8"))}
    assert named
    assert sorted(f"{file.name}: {page}" for file, page in named if not (repository / page).exists()) == []
