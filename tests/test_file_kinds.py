"""Every command takes some kinds of files of settings, and says of the others which command takes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from shallow_mirror.cli import app, main
from shallow_mirror.commands.file_kinds import KINDS_OF_COMMANDS, FileKind, load_mirror_or_restore
from shallow_mirror.config import MirrorConfig, RestoreConfig

CONF = Path(__file__).parent.parent / "conf"
EXAMPLES = {
    FileKind.MIRROR: CONF / "example.yaml",
    FileKind.ARCHIVE: CONF / "archive-example.yaml",
    FileKind.RESTORE: CONF / "restore-example.yaml",
    FileKind.MIGRATION: CONF / "migration-example.yaml",
    FileKind.FAILOVER: CONF / "failover-example.yaml",
}
OTHER_ARGUMENTS = {
    "translate": ["orders", "0", "41"],
    "pause": ["orders"],
    "forget": ["orders"],
    "resume": ["orders"],
    "redo": ["orders", "0", "1", "2", "--to", "copy"],
    "quarantine export": ["folder"],
    **{f"mm2 {name}": ["mm2.properties"] for name in ("lag", "check", "groups")},
}


def refusal(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error of a command that ends with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), str(path), *OTHER_ARGUMENTS.get(command, [])])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_every_command_that_reads_a_file_of_settings_is_registered() -> None:
    def names(prefix: str, group: typer.core.TyperGroup) -> set[str]:
        found: set[str] = set()
        for name, command in group.commands.items():
            if isinstance(command, typer.core.TyperGroup):
                found |= names(f"{prefix}{name} ", command)
            elif {"conf", "file"} & {parameter.name for parameter in command.params}:
                found.add(f"{prefix}{name}")
        return found

    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert names("", group) == KINDS_OF_COMMANDS.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "kind"),
    [(command, kind) for command, kinds in KINDS_OF_COMMANDS.items() for kind in FileKind if kind not in kinds],
)
def test_a_file_of_another_kind_is_refused_in_one_line(command: str, kind: FileKind, capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(command, EXAMPLES[kind], capsys)
    assert f"{EXAMPLES[kind].name} is {kind.title_with_article}" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "kind", "hint"),
    [
        ("status", FileKind.ARCHIVE, "is an archive file: use `shallow-mirror archive status`"),
        ("archive status", FileKind.RESTORE, "is a restore file: use `shallow-mirror status`"),
        ("run", FileKind.RESTORE, "is a restore file: use `shallow-mirror restore`"),
        ("restore", FileKind.MIRROR, "is a mirror file: use `shallow-mirror run`"),
        ("preflight", FileKind.RESTORE, "is a restore file: use `shallow-mirror restore --dry-run`"),
        ("recover", FileKind.ARCHIVE, "`shallow-mirror recover` needs a mirror file or a restore file"),
        ("groups", FileKind.RESTORE, "is a restore file; `shallow-mirror groups` needs a mirror file"),
    ],
)
def test_the_error_names_the_command_for_this_kind(
    command: str, kind: FileKind, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hint in refusal(command, EXAMPLES[kind], capsys)


def test_a_file_is_loaded_by_its_kind() -> None:
    assert isinstance(load_mirror_or_restore(EXAMPLES[FileKind.MIRROR], "status"), MirrorConfig)
    assert isinstance(load_mirror_or_restore(EXAMPLES[FileKind.RESTORE], "status"), RestoreConfig)


def test_a_file_that_names_nothing_has_the_problems_of_the_first_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("topics: {include: [orders]}", encoding="utf-8")
    assert "mirror: is missing" in refusal("status", path, capsys)
    assert "cannot read the mirror file or restore file" in refusal("status", tmp_path / "absent.yaml", capsys)
