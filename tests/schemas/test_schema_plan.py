"""What is registered, and what is a conflict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.schemas.test_registration_order import version

from shallow_mirror.schemas import Schema, SchemaId
from shallow_mirror.schemas.schema_plan import (
    GLOBAL,
    LevelChange,
    RegistryContents,
    SchemaPlan,
    TargetContents,
    plan_schemas,
)
from shallow_mirror.schemas.subject_versions import SubjectVersion

_A1, _A2 = version("a", 1, 1), version("a", 2, 2)
_EMPTY = TargetContents(
    versions=(),
    compatibility={GLOBAL: "BACKWARD"},
    modes={},
    ids={},
    referenced=frozenset(),
    modes_in_force={GLOBAL: "READWRITE"},
)


def _source(*versions: SubjectVersion) -> RegistryContents:
    return RegistryContents(versions=versions, compatibility={GLOBAL: "BACKWARD"}, modes={})


def _reasons(plan: SchemaPlan) -> list[str]:
    return [f"{conflict.version}: {conflict.reason}" for conflict in plan.conflicts]


def test_an_empty_target_gets_every_version() -> None:
    plan = plan_schemas(_source(_A1, _A2), _EMPTY)
    assert (plan.to_register, plan.present, plan.conflicts) == ((_A1, _A2), (), ())
    assert not plan.is_complete


def test_nothing_is_to_do_where_the_target_has_the_same() -> None:
    assert plan_schemas(_source(_A1, _A2), replace(_EMPTY, versions=(_A1, _A2))).is_complete


def test_only_new_versions_are_registered() -> None:
    plan = plan_schemas(_source(_A1, _A2), replace(_EMPTY, versions=(_A1,)))
    assert (plan.to_register, plan.present) == ((_A2,), (_A1,))


def test_a_version_with_another_schema_is_a_conflict() -> None:
    plan = plan_schemas(_source(_A1), replace(_EMPTY, versions=(replace(_A1, schema=Schema(text='"other"')),)))
    assert _reasons(plan) == ["a version 1: the target has version 1 with id 1 and another schema"]
    assert plan.to_register == ()


def test_a_version_with_another_id_is_a_conflict_although_its_schema_is_the_same() -> None:
    plan = plan_schemas(_source(_A1), replace(_EMPTY, versions=(replace(_A1, id=7),)))
    assert _reasons(plan) == ["a version 1: the target has version 1 with id 7 and the same schema"]


def test_an_id_with_another_schema_is_a_conflict() -> None:
    plan = plan_schemas(_source(_A1), replace(_EMPTY, ids={SchemaId("", 1): Schema(text='"other"')}))
    assert _reasons(plan) == ["a version 1: the target has another schema with id 1"]


def test_an_id_with_the_same_schema_under_another_subject_is_none() -> None:
    assert plan_schemas(_source(_A1), replace(_EMPTY, ids={SchemaId("", 1): _A1.schema})).to_register == (_A1,)


def test_ids_of_other_contexts_are_no_conflict() -> None:
    assert not plan_schemas(_source(_A1), replace(_EMPTY, ids={SchemaId("east", 1): Schema(text='"other"')})).conflicts


def test_a_reference_to_what_neither_is_selected_nor_at_the_target_is_named() -> None:
    referrer = version("order", 1, 5, ("money", 2))
    plan = plan_schemas(_source(referrer), _EMPTY)
    assert _reasons(plan) == [
        "order version 1: it refers to money version 2, which is not selected (schemas.include) nor at the target"
    ]
    assert not plan_schemas(_source(referrer), replace(_EMPTY, referenced=frozenset({("money", 2)}))).conflicts


def test_all_conflicts_are_named_at_once() -> None:
    target = replace(_EMPTY, versions=(replace(_A1, id=7),), ids={SchemaId("", 2): Schema(text='"other"')})
    assert len(plan_schemas(_source(_A1, _A2), target).conflicts) == 2


def test_deleted_versions_are_registered_and_deleted_in_the_reverse_order() -> None:
    money = replace(version("money", 1, 1), is_deleted=True)
    order = replace(version("order", 1, 2, ("money", 1)), is_deleted=True)
    plan = plan_schemas(_source(order, money), _EMPTY)
    assert (plan.to_register, plan.to_delete) == ((money, order), (order, money))


@pytest.mark.parametrize("is_deleted_at_source", [True, False])
def test_a_deletion_on_one_side_is_only_noted(is_deleted_at_source: bool) -> None:
    source, target = replace(_A1, is_deleted=is_deleted_at_source), replace(_A1, is_deleted=not is_deleted_at_source)
    plan = plan_schemas(_source(source), replace(_EMPTY, versions=(target,)))
    assert plan.is_complete
    where = "at the source, not at the target" if is_deleted_at_source else "at the target, not at the source"
    assert [note.reason for note in plan.notes] == [f"deleted {where}: left as it is"]


@pytest.mark.parametrize("is_deleted_at_source", [True, False])
def test_what_an_earlier_run_was_about_to_delete_is_deleted_where_the_source_has_deleted_it(is_deleted_at_source: bool) -> None:
    source = replace(_A1, is_deleted=is_deleted_at_source)
    plan = plan_schemas(_source(source), replace(_EMPTY, versions=(_A1,)), undeleted={_A1.key})
    assert plan.to_delete == ((source,) if is_deleted_at_source else ())
    assert (plan.is_complete, plan.notes) == (not is_deleted_at_source, ())


@pytest.mark.parametrize(
    ("levels", "changes"),
    [
        ("all", {GLOBAL: "FULL", "a": "NONE"}),
        ("subjects", {"a": "NONE"}),
        ("off", {}),
    ],
)
def test_compatibility_levels_follow_the_setting(levels: str, changes: dict[str, str]) -> None:
    source = replace(_source(_A1), compatibility={GLOBAL: "FULL", "a": "NONE"})
    plan = plan_schemas(source, replace(_EMPTY, versions=(_A1,)), levels=levels)
    assert {change.subject: change.after for change in plan.levels} == changes


def test_a_level_that_only_the_target_has_stays() -> None:
    target = replace(_EMPTY, versions=(_A1,), compatibility={GLOBAL: "BACKWARD", "a": "FULL"})
    assert plan_schemas(_source(_A1), target).is_complete


def test_another_level_of_the_target_is_replaced() -> None:
    source = replace(_source(_A1), compatibility={"a": "FULL"})
    plan = plan_schemas(source, replace(_EMPTY, versions=(_A1,), compatibility={"a": "NONE"}))
    assert plan.levels == (LevelChange(subject="a", before="NONE", after="FULL"),)


def test_only_the_mode_readonly_of_a_subject_is_copied() -> None:
    source = replace(_source(_A1), modes={"a": "READONLY", "b": "IMPORT", "c": "READWRITE"})
    assert plan_schemas(source, _EMPTY).to_freeze == ("a",)
    assert plan_schemas(source, replace(_EMPTY, modes={"a": "READONLY"}, versions=(_A1,))).is_complete


@pytest.mark.parametrize("mode", ["READONLY", "READONLY_OVERRIDE", "FORWARD"])
def test_subjects_that_may_not_change_are_named(mode: str) -> None:
    assert plan_schemas(_source(_A1), replace(_EMPTY, modes_in_force={"a": mode})).read_only == ("a",)
    assert plan_schemas(_source(_A1), replace(_EMPTY, versions=(_A1,), modes_in_force={"a": mode})).read_only == ()
