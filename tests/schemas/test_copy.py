"""Copies between two strict registries."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.fakes.registry_server import RegistryFault, RegistryServer
from tests.schemas.registry_pair import MONEY, ORDER, Pair, fill

from shallow_mirror.cli import main
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.schemas import importer, view as schemas_view
from shallow_mirror.schemas.copy import SchemaReport, copy_schemas


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with RegistryServer() as source, RegistryServer() as target:
        yield Pair(source, target, tmp_path)


def _shown(report: SchemaReport) -> str:
    console = Console(file=io.StringIO(), width=200)
    schemas_view.show(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_target_has_the_same_versions_ids_levels_and_deletions(pair: Pair) -> None:
    fill(pair.source.rules)
    report = pair.copy()
    assert report.is_done
    assert pair.target.rules.versions == pair.source.rules.versions
    assert pair.target.rules.levels == pair.source.rules.levels
    assert pair.target.rules.modes == {"": "READWRITE"}
    assert pair.history().unfinished() == []


def test_nothing_is_written_without_apply(pair: Pair) -> None:
    fill(pair.source.rules)
    report = pair.copy(is_applied=False)
    assert not report.is_done
    assert len(report.plan.to_register) == 4
    assert pair.target.changes() == []
    assert "do it with --apply" in _shown(report)
    assert not (pair.folder / "tables").exists()


def test_a_second_run_writes_nothing_and_a_third_only_what_is_new(pair: Pair) -> None:
    fill(pair.source.rules)
    pair.copy()
    before = len(pair.target.changes())
    assert pair.copy().is_done
    assert len(pair.target.changes()) == before
    pair.source.rules.register("orders-value-2", {"schema": '"long"'})
    report = pair.copy()
    assert [str(version) for version in report.plan.to_register] == ["orders-value-2 version 2"]
    assert pair.target.rules.versions == pair.source.rules.versions


def test_the_rest_of_the_registry_stays_in_its_mode(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    seen: list[str] = []
    pair.target.before_request = lambda method, path: (
        seen.append(pair.target.rules.mode_in_force("b")) if method == "POST" else None
    )
    pair.copy()
    assert seen == ["READWRITE"]


@pytest.mark.slow
def test_what_is_deleted_at_the_target_is_not_purged_by_import_mode(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.copy()
    pair.target.rules.delete("a", 1, permanently=False)
    pair.source.rules.register("a", {"schema": '"long"'})
    report = pair.copy()
    assert report.is_done
    assert pair.target.rules.versions["a", 1].is_deleted
    assert "deleted at the target, not at the source: left as it is" in _shown(report)


def test_conflicts_are_named_and_nothing_is_written(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.source.rules.register("b", {"schema": '"long"'})
    pair.target.rules.register("a", {"schema": '"string"'})
    pair.target.rules.register("c", {"schema": '"bytes"'})
    changes = len(pair.target.changes())
    report = pair.copy()
    assert not report.is_done
    assert len(pair.target.changes()) == changes
    shown = _shown(report)
    assert "the target has version 1 with id 1 and another schema" in shown
    assert "the target has another schema with id 2" in shown
    assert "nothing was written" in shown


def test_subjects_are_selected_by_pattern(pair: Pair) -> None:
    fill(pair.source.rules)
    pair.copy(include=["orders-.*", "money"], exclude=["orders-value-2"])
    assert pair.target.rules.subjects(deleted=True) == ["money", "orders-value"]


@pytest.mark.slow
def test_a_reference_outside_of_the_selection_is_a_conflict_until_the_target_has_it(pair: Pair) -> None:
    fill(pair.source.rules)
    report = pair.copy(include=["orders-value"])
    assert "it refers to money version 1, which is not selected" in report.plan.conflicts[0].reason
    pair.copy(include=["money"])
    assert pair.copy(include=["orders-value"]).is_done


def test_a_selection_of_nothing_is_an_error(pair: Pair) -> None:
    with pytest.raises(ConfigError, match=re.escape("has no subject that schemas.include ['x'] selects")):
        pair.copy(include=["x"])


def test_contexts_keep_their_own_ids(pair: Pair) -> None:
    for subject in ("a", ":.pay:a", ":.pay:b/ü"):
        pair.source.rules.register(subject, {"schema": f'{{"type":"fixed","name":"f","size":{len(subject)}}}'})
    pair.source.rules.register(":.pay:c", {"schema": '"int"', "references": [{"name": "r", "subject": "a", "version": 1}]})
    assert pair.copy().is_done
    assert pair.target.rules.versions == pair.source.rules.versions


def test_incompatible_versions_are_copied_because_the_source_has_them(pair: Pair) -> None:
    pair.source.rules.levels[""] = "NONE"
    pair.source.rules.register("a", {"schema": '{"type":"record","name":"r","fields":[]}'})
    pair.source.rules.register("a", {"schema": MONEY})
    pair.source.rules.levels[""] = "BACKWARD"
    assert pair.copy().is_done


def test_readonly_subjects_of_the_source_become_readonly(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.source.rules.set_mode("a", "READONLY", force=False)
    assert pair.copy().is_done
    assert pair.target.rules.modes == {"": "READWRITE", "a": "READONLY"}
    assert pair.copy().is_done


def test_modes_of_subjects_are_set_back_to_what_they_were(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.target.rules.modes["a"] = "READWRITE"
    pair.copy()
    assert pair.target.rules.modes["a"] == "READWRITE"


def test_a_registry_in_import_mode_stays_in_it(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.target.rules.modes[""] = "IMPORT"
    assert pair.copy().is_done
    assert pair.target.rules.modes == {"": "IMPORT"}
    assert not [path for method, path in pair.target.changes() if "/mode" in path]


def test_an_old_registry_without_deletion_of_modes_gets_the_mode_set(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.target.rules.deletes_modes = False
    assert pair.copy().is_done
    assert pair.target.rules.modes == {"": "READWRITE", "a": "READWRITE"}


@pytest.mark.parametrize("mode", ["READONLY", "READONLY_OVERRIDE"])
def test_a_target_in_mode_readonly_is_refused_before_anything_is_written(pair: Pair, mode: str) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.target.rules.modes[""] = mode
    with pytest.raises(
        ConfigError, match=r"is in mode READONLY for what has to change \(a\): nothing was written. Set READWRITE"
    ):
        pair.copy()
    assert pair.target.changes() == []


def test_a_registry_without_modes_is_refused_before_anything_is_written(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.source.rules.has_modes = pair.target.rules.has_modes = False
    with pytest.raises(ConfigError, match="has no import mode"):
        pair.copy()
    assert pair.target.changes() == []
    assert not pair.copy(is_applied=False).is_done


def test_a_registry_that_forbids_changes_of_modes_is_refused(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.target.rules.mutable_modes = False
    with pytest.raises(ConfigError, match=r"Mode changes are not allowed\): allow changes of modes \(Confluent: mode.mutability"):
        pair.copy()
    assert pair.target.rules.versions == {}


def test_a_registry_that_ignores_ids_is_noticed_at_the_first_one(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.source.rules.register("b", {"schema": '"long"'})
    pair.source.rules.delete("a", 1, permanently=False)
    pair.source.rules.delete("a", 1, permanently=True)
    pair.source.rules.register("c", {"schema": '"bytes"'})
    pair.target.rules.ignores_ids = True
    with pytest.raises(ConfigError, match="has registered b version 1 with id 1 instead of 2"):
        pair.copy()
    assert pair.target.rules.subjects(deleted=True) == ["b"]
    assert pair.target.rules.modes == {"": "READWRITE"}


@pytest.mark.slow
def test_a_failure_sets_the_modes_back_and_the_next_run_continues(pair: Pair) -> None:
    fill(pair.source.rules)
    pair.target.faults.append(RegistryFault("POST", "/subjects/orders-value/", 500))
    with pytest.raises(RetriableError, match=r"answers with an error: Error in the backend data store. Check its log"):
        pair.copy()
    assert pair.target.rules.modes == {"": "READWRITE"}
    assert pair.target.rules.subjects(deleted=True) == ["money"]
    pair.target.faults.clear()
    assert pair.copy().is_done
    assert pair.target.rules.versions == pair.source.rules.versions


@pytest.mark.slow
def test_a_registry_that_is_lost_meanwhile_is_set_back_by_the_next_run(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.source.rules.register("b", {"schema": '"long"'})
    pair.target.before_request = _lost_after(pair.target, "POST")
    with pytest.raises(ConfigError, match=r"a, b may still be in mode IMPORT .* run `shallow-mirror schemas CONF --apply` again"):
        pair.copy()
    assert pair.target.rules.modes == {"": "READWRITE", "a": "IMPORT", "b": "IMPORT"}
    pair.target.before_request = lambda method, path: None
    report = pair.copy(is_applied=False)
    assert [left.subject for left in report.leftovers] == ["a", "b"]
    assert "a, b: left in mode IMPORT by a run on" in _shown(report)
    assert "that did not end, which --apply sets back" in _shown(report)
    assert pair.copy().is_done
    assert pair.target.rules.modes == {"": "READWRITE"}


def test_a_version_that_the_source_has_deleted_is_deleted_although_another_one_fails(pair: Pair) -> None:
    fill(pair.source.rules)
    pair.target.faults.append(RegistryFault("POST", "/subjects/orders-value-2/", 500))
    with pytest.raises(RetriableError, match="Error in the backend data store"):
        pair.copy()
    assert pair.target.rules.versions["orders-value", 1].is_deleted
    pair.target.faults.clear()
    assert pair.copy().is_done
    assert pair.target.rules.versions == pair.source.rules.versions


def test_a_killed_run_is_noticed_by_the_next_one_which_knows_the_mode_before(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.source.rules.register("b", {"schema": '"long"'})
    pair.target.rules.modes["a"] = "READWRITE"
    pair.history().begin({"a": "READWRITE", "b": None})
    pair.target.rules.modes |= {"a": "IMPORT", "b": "IMPORT"}
    report = pair.copy(include=["a"])
    assert report.done is not None
    assert report.done.restored == ("a", "b")
    assert pair.target.rules.modes == {"": "READWRITE", "a": "READWRITE"}
    assert pair.history().unfinished() == []


@pytest.mark.parametrize("is_applied_at_once", [True, False])
def test_a_version_that_a_killed_run_was_about_to_delete_is_deleted_by_the_next_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, is_applied_at_once: bool
) -> None:
    fill(pair.source.rules)
    with monkeypatch.context() as killing:
        killing.setattr(importer, "_delete", _killed)
        killing.setattr(importer, "_set_back", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            pair.copy()
    assert not pair.target.rules.versions["orders-value", 1].is_deleted
    if not is_applied_at_once:
        shown = pair.copy(is_applied=False)
        assert not shown.is_done
        assert [version["subject"] for version in shown.document()["to_delete"]] == ["orders-value"]
    assert pair.copy().is_done
    assert pair.target.rules.versions == pair.source.rules.versions
    assert pair.history().undeleted() == frozenset()
    assert pair.target.rules.modes == {"": "READWRITE"}


def test_a_version_that_a_failed_one_refers_to_is_deleted_by_the_next_run(pair: Pair) -> None:
    pair.source.rules.register("money", {"schema": MONEY})
    references = [{"name": "Money", "subject": "money", "version": 1}]
    pair.source.rules.register("orders-value", {"schema": ORDER, "references": references})
    for subject in ("orders-value", "money"):
        pair.source.rules.delete(subject, 1, permanently=False)
    pair.target.faults.append(RegistryFault("POST", "/subjects/orders-value/", 500))
    with pytest.raises(RetriableError, match="Error in the backend data store"):
        pair.copy()
    assert not pair.target.rules.versions["money", 1].is_deleted
    pair.target.faults.clear()
    assert pair.copy().is_done
    assert pair.target.rules.versions == pair.source.rules.versions
    assert pair.history().undeleted() == frozenset()


def test_a_mode_that_another_client_has_reset_is_left(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    pair.copy()
    pair.history().begin({"a": None})
    pair.target.rules.modes["a"] = "READONLY"
    assert pair.copy().is_done
    assert pair.target.rules.modes["a"] == "READONLY"


def test_requests_are_repeated_when_a_registry_is_busy(pair: Pair) -> None:
    fill(pair.source.rules)
    for method in ("GET", "PUT", "POST", "DELETE"):
        pair.target.faults.append(RegistryFault(method, "/", 503, times=2))
        pair.source.faults.append(RegistryFault(method, "/", 429, times=2))
    assert pair.copy().is_done
    assert pair.target.rules.versions == pair.source.rules.versions


def test_every_lost_connection_is_survived(pair: Pair) -> None:
    """Every third request is cut before the registry acts on it."""
    fill(pair.source.rules)
    pair.target.before_request = _cut_every(3)
    assert pair.copy().is_done
    assert pair.target.rules.versions == pair.source.rules.versions
    assert pair.target.rules.modes == {"": "READWRITE"}


def test_the_document_has_everything(pair: Pair) -> None:
    fill(pair.source.rules)
    document = json.loads(json.dumps(pair.copy().document()))
    assert document["is_done"] is True
    assert document["registered"][0] == {"subject": "money", "version": 1, "id": 2, "type": "AVRO", "deleted": False}
    assert document["compatibility"] == [{"subject": "orders-value", "before": None, "after": "NONE"}]


def test_the_command_exits_with_1_while_schemas_are_missing(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    conf = pair.folder / "mirror.yaml"
    conf.write_text(json.dumps(pair.document()), encoding="utf-8")
    codes = []
    for arguments in (["schemas", str(conf)], ["schemas", str(conf), "--apply"], ["schemas", str(conf), "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        codes.append(ended.value.code)
    assert codes == [1, 0, 0]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["present"] == 1


def test_a_look_needs_no_spark_with_any_writer_of_the_tables(pair: Pair) -> None:
    pair.source.rules.register("a", {"schema": '"int"'})
    config = MirrorConfig.from_document({**pair.document(), "tables_writer": "spark"}, folder=pair.folder)
    assert not copy_schemas(config).is_done


def test_a_mirror_file_without_registries_is_an_error(pair: Pair) -> None:
    document = pair.document()
    del document["schemas"]
    config = MirrorConfig.from_document(document, folder=pair.folder)
    with pytest.raises(ConfigError, match=re.escape("schemas.source.url and schemas.target.url: are missing")):
        copy_schemas(config)


def _killed(*_arguments: Any) -> None:
    raise KeyboardInterrupt


def _lost_after(server: RegistryServer, method: str) -> Any:
    """Return a hook that ends every connection from the first request of a method on."""
    is_lost = False

    def end(this_method: str, path: str) -> None:
        nonlocal is_lost
        is_lost = is_lost or this_method == method
        if is_lost:
            raise ConnectionResetError

    return end


def _cut_every(number: int) -> Any:
    count = 0

    def cut(method: str, path: str) -> None:
        nonlocal count
        count += 1
        if count % number == 0:
            raise ConnectionResetError

    return cut
