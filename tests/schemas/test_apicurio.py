"""A real registry as the source, and as a target that has no import mode; real brokers hold the records."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TwoClusters
from tests.fakes.registry_server import RegistryServer
from tests.schemas.apicurio import ApicurioRegistry
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import create_topic
from tests.support.one_batch import one_batch_producer

from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.preflight import preflight_mirror
from shallow_mirror.schemas import copy_schemas

pytestmark = pytest.mark.long

_MONEY = '{"type":"record","name":"Money","fields":[{"name":"cents","type":"long"}]}'
_ORDER = '{"type":"record","name":"Order","fields":[{"name":"price","type":"Money"}]}'
_REFERENCE = [{"name": "Money", "subject": "money", "version": 1}]


@pytest.fixture(scope="module")
def apicurio(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApicurioRegistry]:
    """Return a registry with references, three kinds of schemas, and a deleted version."""
    with ApicurioRegistry(tmp_path_factory.mktemp("apicurio")) as registry:
        registry.register("left-out", '"bytes"')
        registry.register("money", _MONEY)
        registry.register("orders-value", '{"type":"record","name":"Order","fields":[]}')
        registry.register("orders-value", _ORDER, references=_REFERENCE)
        registry.register("people/ü", '{"type": "object", "properties": {"a": {"type": "string"}}}', schemaType="JSON")
        registry.register("proto", 'syntax = "proto3"; package p; message M { int32 a = 1; }', schemaType="PROTOBUF")
        registry.request("DELETE", "/subjects/orders-value/versions/1")
        registry.request("PUT", "/config/money", {"compatibility": "FULL"})
        yield registry


def _config(folder: Path, source: str, target: str, **changes: Any) -> MirrorConfig:
    schemas = {"source": {"url": source}, "target": {"url": target}, "exclude": ["left-out"]}
    return runs.config(folder, "127.0.0.1:1", "127.0.0.1:2", ["orders"], schemas=schemas, **changes)


def test_what_a_real_registry_has_is_copied_with_equal_ids(apicurio: ApicurioRegistry, tmp_path: Path) -> None:
    with RegistryServer() as target:
        config = _config(tmp_path, apicurio.url, target.url)
        report = copy_schemas(config, is_applied=True)
        assert report.is_done, report.document()
        assert copy_schemas(config).is_done
        for subject in ("money", "orders-value", "people/ü", "proto"):
            for stored in target.rules.of_subject(subject, deleted=True):
                expected = apicurio.request("GET", f"/schemas/ids/{stored.id}")
                assert _parsed(stored.document["schema"]) == _parsed(expected["schema"])
                assert stored.document.get("references", []) == expected.get("references", [])
        assert [stored.is_deleted for stored in target.rules.of_subject("orders-value", deleted=True)] == [True, False]
        assert (target.rules.levels["money"], target.rules.modes) == ("FULL", {"": "READWRITE"})
        assert target.rules.of_subject("left-out", deleted=True) == []


def test_a_real_registry_without_import_mode_is_refused_and_stays_as_it_is(apicurio: ApicurioRegistry, tmp_path: Path) -> None:
    before = apicurio.request("GET", "/subjects?deleted=true")
    with RegistryServer() as source:
        source.rules.modes["new"] = "IMPORT"
        source.rules.register("new", {"schema": '"double"', "id": 10_000})
        config = _config(tmp_path, source.url, apicurio.url)
        assert not copy_schemas(config).is_done
        with pytest.raises(ConfigError, match=re.escape("has no import mode (GET /mode: not found), and without it ids")):
            copy_schemas(config, is_applied=True)
    assert apicurio.request("GET", "/subjects?deleted=true") == before


def test_a_url_without_the_path_of_the_api_is_named(apicurio: ApicurioRegistry, tmp_path: Path) -> None:
    url = apicurio.url.partition("/apis")[0]
    with RegistryServer() as target, pytest.raises(ConfigError, match=r"correct schemas.source.url, with"):
        copy_schemas(_config(tmp_path, url, target.url))


@pytest.mark.brokers
def test_preflight_finds_the_ids_of_real_records_and_a_copy_ends_its_warnings(
    apicurio: ApicurioRegistry, two_clusters: TwoClusters, topic_name: str, tmp_path: Path
) -> None:
    order_id = int(apicurio.request("GET", "/subjects/orders-value/versions/2")["id"])
    source = two_clusters.source.bootstrap
    create_topic(source, topic_name)
    for codec in ("none", "gzip", "lz4", "zstd", "snappy"):
        producer = one_batch_producer(source, topic_name, **{"compression.type": codec})
        for number in range(20):
            producer.produce(topic_name, struct.pack(">bi", 0, order_id) + b"\x02", f"key {number}", partition=0)
        assert producer.flush(30) == 0
    with RegistryServer() as target:
        schemas = {"source": {"url": apicurio.url}, "target": {"url": target.url}}
        config = runs.config(tmp_path, source, two_clusters.target.bootstrap, [topic_name], schemas=schemas)
        before = preflight_mirror(config)
        (use,) = before.schema_uses
        assert (use.topic, use.field, use.ids, use.missing) == (topic_name, "value", (order_id,), (order_id,))
        assert use.sampled == use.with_ids == 40
        assert [finding.subject for finding in before.findings if "lacks schema ids" in finding.what] == [
            f"values of {topic_name}"
        ]
        assert copy_schemas(config, is_applied=True).is_done
        (use,) = preflight_mirror(config).schema_uses
        assert (use.missing, use.different) == ((), ())


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
