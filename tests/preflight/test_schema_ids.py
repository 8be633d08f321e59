"""Which keys and values look as if they carried schema ids, and what both registries know of them."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.registry_server import RegistryFault, RegistryServer
from tests.preflight.conftest import Planned
from tests.support.record_batches import batch, marker, record

from shallow_mirror.preflight import PreflightReport
from shallow_mirror.preflight.findings import Level
from shallow_mirror.preflight.schema_check import SchemaUse
from shallow_mirror.preflight.schema_ids import MOST_BATCHES, MOST_RECORDS, SchemaIdSampler, schema_id_of
from shallow_mirror.preflight.view import lines_behind


class Registries:
    """Both registries, and the check of the clusters' topics with them."""

    def __init__(self, planned: Planned, source: RegistryServer, target: RegistryServer) -> None:
        self.planned, self.source, self.target = planned, source, target

    def check(self) -> PreflightReport:
        return self.planned.check(schemas={"source": {"url": self.source.url}, "target": {"url": self.target.url}})


@pytest.fixture
def registries(planned: Planned) -> Iterator[Registries]:
    with RegistryServer() as source, RegistryServer() as target:
        yield Registries(planned, source, target)


def prefixed(schema_id: int, content: bytes = b"xy") -> bytes:
    return b"\0" + schema_id.to_bytes(4) + content


def of_records(base_offset: int, *fields: tuple[bytes | None, bytes | None], attributes: int = 0) -> bytes:
    payload = b"".join(record(number, key, value) for number, (key, value) in enumerate(fields))
    return batch(base_offset, len(fields), payload=payload, attributes=attributes)


def warnings(report: PreflightReport, level: Level = Level.DOUBT) -> list[str]:
    """Return the findings, but for those about the strict clusters."""
    findings = [finding for finding in report.findings if finding.level is level]
    return [f"{finding.subject}: {finding.what}" for finding in findings if not finding.subject.startswith("cluster ")]


@pytest.mark.parametrize(
    ("content", "schema_id"),
    [(None, None), (b"", None), (b"\0\0\0\0", None), (b"\1\0\0\0\7", None), (b"\0\0\0\1\7", 263), (b"\0\0\0\0\7text", 7)],
)
def test_an_id_is_a_byte_0_and_four_more(content: bytes | None, schema_id: int | None) -> None:
    assert schema_id_of(None if content is None else memoryview(content)) == schema_id


def test_keys_and_values_are_reported_apart(registries: Registries) -> None:
    for schema in ('"int"', '"long"'):
        registries.source.rules.register(f"s{schema}", {"schema": schema})
        registries.target.rules.register(f"s{schema}", {"schema": schema})
    registries.planned.topic("orders")
    fields = [(prefixed(1), prefixed(2)), (prefixed(1), None), (prefixed(1), prefixed(2))]
    registries.planned.source.seed(("orders", 0), of_records(0, *fields))
    report = registries.check()
    assert report.schema_uses == (
        SchemaUse(topic="orders", field="key", sampled=3, with_ids=3, ids=(1,), missing=(), different=()),
        SchemaUse(topic="orders", field="value", sampled=2, with_ids=2, ids=(2,), missing=(), different=()),
    )
    assert warnings(report) == []
    lines = lines_behind(report)
    assert lines[lines.index("schema ids:") :][:3] == [
        "schema ids:",
        "  orders: 3 of 3 keys sampled: ids 1; the target's registry has the same",
        "  orders: 2 of 2 values sampled: ids 2; the target's registry has the same",
    ]
    assert json.loads(json.dumps(report.document()))["schema_ids"][1]["with_ids"] == 2
    assert registries.target.changes() == registries.source.changes() == []


def test_ids_that_the_target_lacks_or_has_as_another_schema_are_warnings(registries: Registries) -> None:
    for number, schema in enumerate(('"int"', '"long"', '"bytes"')):
        registries.source.rules.register(f"s{number}", {"schema": schema})
    registries.target.rules.register("s0", {"schema": '"int"'})
    registries.target.rules.register("other", {"schema": '"string"'})
    registries.planned.topic("orders")
    registries.planned.source.seed(("orders", 0), of_records(0, *((None, prefixed(number)) for number in (1, 2, 3))))
    report = registries.check()
    assert report.is_fine
    assert warnings(report) == [
        "values of orders: the target's registry lacks schema ids that they carry (3): run `shallow-mirror schemas CONF --apply`",
        "values of orders: the target's registry has other schemas with ids that they carry (2): consumers would misread them",
    ]


def test_payloads_that_begin_like_an_id_by_chance_are_no_warning(registries: Registries) -> None:
    registries.source.rules.register("s", {"schema": '"int"'})
    registries.planned.topic("orders")
    fields = [(None, prefixed(1)), (None, b"text"), (None, b"more text"), (None, prefixed(77))]
    registries.planned.source.seed(("orders", 0), of_records(0, *fields))
    report = registries.check()
    (use,) = report.schema_uses
    assert (use.with_ids, use.is_likely) == (1, False)
    assert "so probably by chance" in str(use)
    assert warnings(report) == []


def test_topics_without_ids_are_not_listed(registries: Registries) -> None:
    registries.planned.topic("orders")
    registries.planned.source.seed(("orders", 0), of_records(0, (b"key", b"value"), (None, None)))
    assert registries.check().schema_uses == ()


def test_each_id_is_looked_up_once(registries: Registries) -> None:
    registries.source.rules.register("s", {"schema": '"int"'})
    for topic in ("a", "b"):
        registries.planned.topic(topic)
        registries.planned.source.seed((topic, 0), of_records(0, (prefixed(1), prefixed(1)), (prefixed(9), None)))
    registries.check()
    assert Counter(registries.source.requests) == {("GET", "/schemas/ids/1"): 1, ("GET", "/schemas/ids/9"): 1}
    assert registries.target.requests == [("GET", "/schemas/ids/1")]


def test_what_readers_do_not_see_is_not_opened(registries: Registries) -> None:
    registries.source.rules.register("s", {"schema": '"int"'})
    registries.planned.topic("orders")
    aborted = batch(0, 1, payload=record(0, None, prefixed(1)), producer_id=7, producer_epoch=0, base_sequence=0, attributes=16)
    registries.planned.source.seed(("orders", 0), aborted, marker(1, 0, 7), of_records(2, (None, b"text")))
    assert registries.check().schema_uses == ()


def test_a_registry_that_cannot_be_asked_is_not_known(registries: Registries) -> None:
    registries.planned.topic("orders")
    registries.planned.source.seed(("orders", 0), of_records(0, (None, prefixed(1))))
    registries.source.faults.append(RegistryFault("GET", "/", 401))
    report = registries.check()
    assert report.is_fine
    (unknown,) = warnings(report, Level.UNKNOWN)
    assert unknown.startswith("schema ids: could not be checked: schema registry of east at ")


def test_batches_that_cannot_be_opened_are_counted(registries: Registries) -> None:
    registries.planned.topic("orders")
    registries.planned.source.seed(("orders", 0), batch(0, 1, payload=b"not zstd", attributes=4), batch(1, 1, payload=b"\x7f"))
    assert warnings(registries.check(), Level.UNKNOWN) == [
        "source topic orders: 2 batches could not be opened to look for schema ids: batches that are damaged or too large when opened"
    ]


def test_the_missing_library_of_a_codec_is_named(registries: Registries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    registries.planned.topic("orders")
    registries.planned.source.seed(("orders", 0), batch(0, 1, payload=b"zstd", attributes=4))
    (unknown,) = warnings(registries.check(), Level.UNKNOWN)
    assert unknown.startswith("source topic orders: 1 batch could not be opened to look for schema ids: ")
    assert "rebuild" in unknown


def test_without_registries_nothing_is_opened(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("a batch was opened")

    monkeypatch.setattr(SchemaIdSampler, "_look_at", fail)
    planned.topic("orders")
    planned.source.seed(("orders", 0), of_records(0, (None, prefixed(1))))
    assert planned.check().schema_uses == ()


def test_a_sample_is_small(registries: Registries) -> None:
    registries.source.rules.register("s", {"schema": '"int"'})
    registries.planned.topic("orders")
    many = [(None, prefixed(1))] * (MOST_RECORDS + 50)
    registries.planned.source.seed(("orders", 0), *(of_records(number * len(many), *many) for number in range(40)))
    (use,) = registries.check().schema_uses
    assert use.sampled == use.with_ids <= MOST_BATCHES * MOST_RECORDS
    assert use.sampled % MOST_RECORDS == 0


def test_the_topic_of_a_registry_is_a_warning(planned: Planned) -> None:
    planned.topic("_schemas")
    planned.topic("orders")
    assert [sentence for sentence in warnings(planned.check()) if "_schemas" in sentence] == [
        "source topic _schemas: is the storage of a Schema Registry: exclude it (topics.exclude), unless a registry at the target is "
        "to read it, which does not write"
    ]
