"""The example of an archive file, and its JSON schema."""

from __future__ import annotations

from pathlib import Path

import yaml

from shallow_mirror.config import ArchiveConfig
from shallow_mirror.config.archive_config import ArchiveReadSettings
from shallow_mirror.config.sections import MetricsSettings, SourceTopicSettings

CONF = Path(__file__).parent.parent / "conf"
EXAMPLE = CONF / "archive-example.yaml"


def test_the_example_is_valid_and_says_the_defaults() -> None:
    example = ArchiveConfig.load(EXAMPLE)
    assert example.read == ArchiveReadSettings()
    assert example.metrics == MetricsSettings()
    assert example.topics == SourceTopicSettings(include=["orders.*"])
    for name in ("object_bytes", "retention", "tables_writer", "on_error", "storage", "trigger"):
        assert getattr(example, name) == ArchiveConfig.model_fields[name].get_default(call_default_factory=True), name
    assert example.tables == str(CONF.parent.resolve() / "data/orders-backup")
    assert example.checkpoint == f"{example.tables}/_spark"


def test_the_example_has_every_key_with_a_comment() -> None:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert set(document) == set(ArchiveConfig.model_fields)
    for name, section in (("read", ArchiveReadSettings), ("topics", SourceTopicSettings), ("metrics", MetricsSettings)):
        assert set(document[name]) == set(section.model_fields), name
    keys = [line for line in EXAMPLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    sections = {"source:", "topics:", "read:", "storage:", "alias: east", "bootstrap.servers: 127.0.0.1:19092"}
    assert [line for line in keys if " # " not in line and line.strip() not in sections] == []


def test_the_retention_of_the_comment_is_valid() -> None:
    (line,) = [line for line in EXAMPLE.read_text(encoding="utf-8").splitlines() if line.startswith("retention:")]
    written = line.partition("# ")[2].rpartition(": first pattern")[0]
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")) | {"retention": yaml.safe_load(written)}
    (rule,) = ArchiveConfig.from_document(document, folder=CONF).retention.values()
    assert (rule.keep_s, rule.keep_bytes) == (30 * 86_400, 100_000_000_000)
