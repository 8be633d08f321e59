"""Hooks of mkdocs: the navigation, and the reference pages that are generated from the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import navigation
from api_page import api_page
from batches_page import batches_page
from commands_page import commands_page
from errors_page import errors_page
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from settings_page import ARCHIVE_FILE, FAILOVER_FILE, MIGRATION_FILE, MIRROR_FILE, RESTORE_FILE
from tables_page import tables_page

ROOT = Path(__file__).resolve().parent.parent.parent

GENERATED = {
    "reference/settings.md": MIRROR_FILE.page,
    "reference/archive-settings.md": ARCHIVE_FILE.page,
    "reference/restore-settings.md": RESTORE_FILE.page,
    "reference/migration-settings.md": MIGRATION_FILE.page,
    "reference/failover-settings.md": FAILOVER_FILE.page,
    "reference/commands.md": commands_page,
    "reference/python.md": api_page,
    "reference/tables.md": tables_page,
    "reference/kafka-batches.md": batches_page,
    "reference/errors.md": errors_page,
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = navigation.nav_of(Path(config.docs_dir), GENERATED)
    return config


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    for path, made in GENERATED.items():
        files.append(File.generated(config, path, content=made(ROOT)))
    return files
