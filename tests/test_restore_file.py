"""The example of a restore file, its JSON schema, and the cut that options of the command give."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from shallow_mirror.config import RestoreConfig
from shallow_mirror.config.restore_config import Cut, RestoreReadSettings, RestoreTopicSettings
from shallow_mirror.config.sections import MetricsSettings, RestoreGroupSettings, WriteSettings
from shallow_mirror.errors import ConfigError

CONF = Path(__file__).parent.parent / "conf"
EXAMPLE = CONF / "restore-example.yaml"
SECTIONS: dict[str, type[BaseModel]] = {
    "read": RestoreReadSettings,
    "topics": RestoreTopicSettings,
    "until": Cut,
    "write": WriteSettings,
    "groups": RestoreGroupSettings,
    "metrics": MetricsSettings,
}


def test_the_example_is_valid_and_says_the_defaults() -> None:
    example = RestoreConfig.load(EXAMPLE)
    for name, section in SECTIONS.items():
        default = RestoreTopicSettings(include=["orders.*"]) if section is RestoreTopicSettings else section()
        assert getattr(example, name) == default, name
    assert example.tables_writer == "auto"
    assert example.tables == str(CONF.parent.resolve() / "data/orders-back")
    assert example.checkpoint == f"{example.tables}/_state"
    assert example.archive.objects == str(CONF.parent.resolve() / "data/orders-backup-objects")


def test_the_example_has_every_key_with_a_comment() -> None:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    assert set(document) == set(RestoreConfig.model_fields)
    for name, section in SECTIONS.items():
        assert set(document[name]) == set(section.model_fields), name
    keys = [line for line in EXAMPLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    sections = {
        "archive:",
        "target:",
        "topics:",
        "read:",
        "write:",
        "storage:",
        "alias: west",
        "bootstrap.servers: 127.0.0.1:29092",
    }
    assert [line for line in keys if " # " not in line and line.strip() not in sections] == []


def test_tables_in_a_catalog_need_a_checkpoint() -> None:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")) | {"tables": {"schema": "main.restores"}}
    assert RestoreConfig.from_document(document, folder=CONF).tables == "catalog:main.restores"
    del document["checkpoint"]
    with pytest.raises(ConfigError, match="checkpoint: is missing; tables in a catalog have no folder that could hold it"):
        RestoreConfig.from_document(document, folder=CONF)


def test_options_replace_the_cut_of_the_file() -> None:
    example = RestoreConfig.load(EXAMPLE)
    by_offset = example.model_copy(update={"until": Cut(offsets={"orders": {0: 1}})})
    assert by_offset.with_cut().until == by_offset.until
    assert by_offset.with_cut(decision=7).until == Cut(decision=7)
    assert by_offset.with_cut(time="2026-05-01T12:00:00Z").until == Cut(time="2026-05-01T12:00:00Z")
    whole = by_offset.with_cut(is_whole_transactions=True)
    assert whole.until == Cut(offsets={"orders": {0: 1}}, whole_transactions=True)
    assert whole.with_cut(decision=7).until == Cut(decision=7, whole_transactions=True)
    chosen = by_offset.model_copy(update={"until": Cut(topic_ids={"orders": "an id"}, lineage=1)})
    assert chosen.with_cut(decision=7).until == Cut(decision=7, topic_ids={"orders": "an id"}, lineage=1)


@pytest.mark.parametrize("time", ["yesterday", "2026-05-01T12:00:00", "latest"])
def test_a_time_without_zone_and_no_time_are_refused(time: str) -> None:
    with pytest.raises(ConfigError, match="--until"):
        RestoreConfig.load(EXAMPLE).with_cut(time=time)


def test_an_option_replaces_the_offsets_of_the_file() -> None:
    example = RestoreConfig.load(EXAMPLE)
    assert not example.with_offsets(None).topics.preserves_offsets
    preserved = example.with_offsets("preserved")
    assert preserved.topics.is_preserved("any")
    assert preserved.topics.include == example.topics.include
    assert not preserved.with_offsets("translated").topics.is_preserved("any")
    with pytest.raises(ConfigError, match="--offsets: kept is neither preserved nor translated"):
        example.with_offsets("kept")


@pytest.mark.parametrize(
    ("section", "setting", "problem"),
    [
        ("write", {"on_refused": "quarantine"}, "quarantine leaves batches out"),
        ("topics", {"configs": "off"}, "configs: off creates target topics"),
    ],
)
def test_settings_that_exclude_preserved_offsets_are_refused(section: str, setting: dict[str, str], problem: str) -> None:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    document[section] |= setting
    with pytest.raises(ConfigError, match=f"--offsets preserved: .*{problem}"):
        RestoreConfig.from_document(document, folder=CONF).with_offsets("preserved")
    document["topics"]["offsets"] = {"orders.*": "preserved"}
    with pytest.raises(ConfigError, match=problem):
        RestoreConfig.from_document(document, folder=CONF)
