"""`init`: files to begin with, which are accepted as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from shallow_mirror import cli
from shallow_mirror.config import ArchiveConfig, FailoverConfig, GroupSettings, MigrationConfig, MirrorConfig, RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.starter_files import StarterKind, write_starter_files

CONFIGS: dict[StarterKind, Any] = {
    StarterKind.MIRROR: MirrorConfig,
    StarterKind.ARCHIVE: ArchiveConfig,
    StarterKind.RESTORE: RestoreConfig,
    StarterKind.MIGRATION: MigrationConfig,
    StarterKind.FAILOVER: FailoverConfig,
}


def test_a_mirror_file_and_its_schema_are_written_without_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(["init"])
    assert end.value.code == 0
    assert capsys.readouterr().out.split() == ["mirror.yaml", "mirror.schema.json"]
    assert MirrorConfig.load("mirror.yaml").tables == str(tmp_path / "orders-east-west")


def test_a_new_mirror_synchronizes_groups_and_follows_their_commits_if_it_may(tmp_path: Path) -> None:
    settings, _ = write_starter_files([StarterKind.MIRROR], tmp_path)
    groups = MirrorConfig.load(settings).groups
    assert (groups.sync_s, groups.follow, groups.is_followed) == (30.0, "auto", True)
    assert groups.model_copy(update={"sync": "off"}) == GroupSettings()


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_settings_are_accepted_and_fit_the_schema_beside_them(kind: StarterKind, tmp_path: Path) -> None:
    settings, schema = write_starter_files([*CONFIGS, kind], tmp_path)[2 * list(CONFIGS).index(kind) :][:2]
    CONFIGS[kind].load(settings)
    jsonschema.validate(yaml.safe_load(settings.read_text(encoding="utf-8")), json.loads(schema.read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", [kind for kind in StarterKind if kind not in CONFIGS])
def test_other_files_are_those_of_conf(kind: StarterKind, tmp_path: Path, repository: Path) -> None:
    written = write_starter_files([kind], tmp_path)
    assert written
    for path in written:
        assert path.read_bytes() == (repository / "conf" / path.relative_to(tmp_path)).read_bytes()


def test_a_file_that_was_changed_is_overwritten_only_by_force(tmp_path: Path) -> None:
    settings, schema = write_starter_files([StarterKind.MIRROR], tmp_path)
    assert write_starter_files([StarterKind.MIRROR], tmp_path) == []
    settings.write_text("mirror: mine\n", encoding="utf-8")
    schema.unlink()
    with pytest.raises(ConfigError, match=r"mirror\.yaml exists with another content: --force"):
        write_starter_files([StarterKind.MIRROR], tmp_path)
    assert not schema.exists()
    assert write_starter_files([StarterKind.MIRROR], tmp_path, is_forced=True) == [settings, schema]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write to .*file/sub: Not a directory"):
        write_starter_files([StarterKind.MIRROR], tmp_path / "file" / "sub")
