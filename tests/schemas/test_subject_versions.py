"""Schemas and subjects: when two are the same, and which context an id is of."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.schemas.subject_versions import Schema, SchemaReference, SubjectVersion, context_of, qualified

_RECORD = '{"type": "record", "name": "r", "fields": []}'
_REORDERED = '{"name":"r","fields":[],"type":"record"}'

_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def test_json_is_the_same_whatever_its_spaces_and_the_order_of_its_keys() -> None:
    assert Schema(text=_RECORD).is_same(Schema(text=_REORDERED))
    assert Schema(type="JSON", text=_RECORD).is_same(Schema(type="JSON", text=_REORDERED))


def test_the_order_of_a_list_counts() -> None:
    assert not Schema(text='["null", "int"]').is_same(Schema(text='["int", "null"]'))


def test_protobuf_is_compared_as_text() -> None:
    text = 'syntax = "proto3"; message M { int32 a = 1; }'
    assert Schema(type="PROTOBUF", text=text).is_same(Schema(type="PROTOBUF", text=text + "\n"))
    assert not Schema(type="PROTOBUF", text=text).is_same(Schema(type="PROTOBUF", text=text.replace(" int32", "  int32")))


@pytest.mark.parametrize(
    "other",
    [
        Schema(type="JSON", text=_RECORD),
        Schema(text=_RECORD, references=(SchemaReference("a", "b", 1),)),
        Schema(text=_RECORD, contract='{"metadata":{"properties":{"owner":"x"}}}'),
    ],
)
def test_another_type_reference_or_contract_is_another_schema(other: Schema) -> None:
    assert not Schema(text=_RECORD).is_same(other)


@pytest.mark.slow
@given(_json_values)
def test_every_json_value_is_the_same_as_itself_written_differently(value: object) -> None:
    assert Schema(text=json.dumps(value, indent=2)).is_same(Schema(text=json.dumps(value, sort_keys=True)))


def test_text_that_is_no_json_is_compared_as_it_is() -> None:
    assert Schema(text="{").is_same(Schema(text=" {"))
    deep = "[" * 100_000
    assert Schema(text=deep).is_same(Schema(text=deep + " "))


def test_a_schema_survives_the_registry() -> None:
    document = {
        "schema": _RECORD,
        "schemaType": "JSON",
        "references": [{"name": "a", "subject": "b", "version": 3}],
        "metadata": {"properties": {"owner": "x"}, "tags": {}, "sensitive": None},
        "ruleSet": {"domainRules": [{"name": "r"}]},
    }
    schema = Schema.from_document(document)
    assert Schema.from_document(schema.document()) == schema
    assert schema.document()["metadata"] == {"properties": {"owner": "x"}}


def test_the_version_that_registries_write_into_metadata_is_no_difference() -> None:
    """Confluent's own registry and others add it where a version was given."""
    written = {"schema": _RECORD, "metadata": {"properties": {"confluent:version": "3"}}}
    assert Schema.from_document(written) == Schema.from_document({"schema": _RECORD})


@pytest.mark.parametrize("document", [{}, {"schema": 3}, {"schema": "x", "references": [{"name": "a"}]}])
def test_what_is_no_schema_is_an_error(document: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError)):
        Schema.from_document(document)


def test_a_context_is_part_of_a_subject() -> None:
    assert context_of("orders-value") == ""
    assert context_of(":.payments:orders-value") == "payments"
    assert qualified("money", "payments") == ":.payments:money"
    assert qualified(":.other:money", "payments") == ":.other:money"
    assert qualified("money", "") == "money"


def test_references_are_in_the_context_of_their_referrer() -> None:
    schema = Schema(text=_RECORD, references=(SchemaReference("m", "money", 1),))
    assert SubjectVersion(subject=":.a:b", version=1, id=1, schema=schema).referenced_keys == ((":.a:money", 1),)
