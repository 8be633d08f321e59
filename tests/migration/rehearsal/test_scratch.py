"""The mirrors of a rehearsal have the settings of the real ones, for names of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import mirror_runs as runs

from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles
from shallow_mirror.migration.rehearsal.scratch import Scratch, write_files

PREFIX = "migrate-rehearsal-0123abcd"


def written(folder: Path, topics: dict[str, Any], **settings: Any) -> MigrationFiles:
    forward = runs.document("s:1", "t:1", [".*"], topics=topics, **settings)
    wave = {"name": "all", "topics": ["orders", "bills"]}
    migration = {"migration": "m", "mirror": "mirror.yaml", "waves": [wave], "tables": "moves"}
    for name, document in (("mirror", forward), ("migration", migration)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return MigrationFiles(MigrationConfig.load(folder / "migration.yaml"))


def scratch_of(files: MigrationFiles, folder: Path, *topics: str) -> Scratch:
    return Scratch(
        prefix=PREFIX,
        folder=folder / "scratch",
        topics=topics,
        groups=["billing"],
        target_name=files.mirror.topics.target_name,
        source_alias=files.mirror.source.alias,
    )


def rehearsed(files: MigrationFiles, folder: Path) -> tuple[Scratch, MigrationFiles]:
    scratch = scratch_of(files, folder, "orders", "bills")
    return scratch, write_files(files, files.config.waves[0], scratch)


def test_every_topic_keeps_the_mode_of_its_offsets_and_its_rate(tmp_path: Path) -> None:
    files = written(tmp_path, {"offsets": {"ord.*": "preserved", ".*": "translated"}, "bytes_per_second": {"bills": 1_000_000}})
    scratch, copy = rehearsed(files, tmp_path)
    topics = copy.mirror.topics
    assert [topics.is_preserved(scratch.topic(name)) for name in ("orders", "bills")] == [True, False]
    assert topics.bytes_per_second == {re.escape(scratch.topic("bills")): 1_000_000}
    assert all(topics.is_included(scratch.topic(name)) for name in ("orders", "bills"))
    assert not topics.is_included("orders")


def test_settings_that_reach_beyond_the_scratch_names_are_left_out_and_the_others_kept(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "groups": {"sync": "5 seconds", "exclude": ["billing"]},
        "acls": {"sync": "1 minute"},
        "quotas": {"sync": "1 minute"},
        "metrics": {"port": 9000},
        "write": {"on_refused": "quarantine", "slots": 3},
        "on_error": "isolate",
    }
    _, copy = rehearsed(written(tmp_path, {}, **settings), tmp_path)
    mirror: MirrorConfig = copy.mirror
    assert (mirror.acls.sync_s, mirror.quotas.sync_s, mirror.metrics.port) == (None, None, None)
    assert (mirror.write.on_refused, mirror.write.slots, mirror.on_error) == ("quarantine", 3, "isolate")
    assert mirror.groups.sync == "5 seconds"
    assert mirror.groups.is_included(f"{PREFIX}.billing")
    assert not mirror.groups.is_included("billing")


def test_copies_are_named_as_those_of_the_mirror(tmp_path: Path) -> None:
    scratch, copy = rehearsed(written(tmp_path, {"target_name": "{source}.{topic}"}), tmp_path)
    assert scratch.copy("orders") == f"east.{PREFIX}.orders"
    assert copy.mirror.topics.target_name == "{source}.{topic}"


@pytest.mark.parametrize(("length", "problems"), [(222, 0), (223, 1)])
def test_a_name_that_becomes_too_long_is_a_problem_before_anything_is_created(tmp_path: Path, length: int, problems: int) -> None:
    assert len(scratch_of(written(tmp_path, {}), tmp_path, "a" * length).name_problems()) == problems
