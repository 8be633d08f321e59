"""The rules of a registry with import mode, that the copy relies on: of the strict one, and of a real one if there is one.

`SCHEMA_REGISTRY_URL=http://host:8081 pytest tests/fakes/test_schema_registry.py` runs the same against a real registry; it leaves a
few subjects there, whose names begin with `contract-`.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.registry_server import RegistryServer

_names = itertools.count(random.SystemRandom().randrange(1_000_000, 100_000_000))
"""Numbers for subjects and ids that nobody has used, also in a registry that is not empty."""

Response = tuple[int, Any]


class Api:
    """A registry by its URL."""

    def __init__(self, url: str, *, is_real: bool) -> None:
        self.is_real = is_real
        parts = urllib.parse.urlsplit(url)
        self._path = parts.path
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)

    def __call__(self, method: str, path: str, body: object = None) -> Response:
        """Return the document, or the registry's error code, behind the status."""
        content = None if body is None else json.dumps(body)
        self._connection.request(method, self._path + path, content, {"Content-Type": "application/vnd.schemaregistry.v1+json"})
        response = self._connection.getresponse()
        document = json.loads(response.read())
        return response.status, document["error_code"] if response.status >= 400 else document

    def close(self) -> None:
        self._connection.close()

    def register(self, subject: str, schema: str, **more: object) -> Response:
        return self("POST", f"/subjects/{subject}/versions", {"schema": schema, **more})

    def set_mode(self, subject: str, mode: str) -> None:
        assert self("PUT", f"/mode/{subject}?force=true", {"mode": mode}) == (200, {"mode": mode})


@pytest.fixture(params=["strict", *filter(None, [os.environ.get("SCHEMA_REGISTRY_URL")])])
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    with RegistryServer() as server:
        is_real = request.param != "strict"
        client = Api(request.param if is_real else server.url, is_real=is_real)
        yield client
        client.close()


@pytest.fixture
def subject() -> str:
    return f"contract-{next(_names)}"


def schema() -> str:
    """Return an Avro schema that no other test has."""
    return f'{{"type":"fixed","name":"f{next(_names)}","size":3}}'


def test_an_id_needs_import_mode(api: Api, subject: str) -> None:
    assert api.register(subject, schema(), id=next(_names), version=1) == (422, 42205)


def test_import_mode_needs_an_id(api: Api, subject: str) -> None:
    api.set_mode(subject, "IMPORT")
    assert api.register(subject, schema()) == (422, 42205)


def test_an_id_and_a_version_are_taken_in_import_mode_also_again(api: Api, subject: str) -> None:
    api.set_mode(subject, "IMPORT")
    text, schema_id = schema(), next(_names)
    for _ in range(2):
        status, document = api.register(subject, text, id=schema_id, version=4)
        assert (status, document["id"]) == (200, schema_id)
    assert api("GET", f"/subjects/{subject}/versions") == (200, [4])
    status, document = api("GET", f"/subjects/{subject}/versions/4")
    assert (document["id"], document["version"], json.loads(document["schema"])) == (schema_id, 4, json.loads(text))
    assert json.loads(api("GET", f"/schemas/ids/{schema_id}")[1]["schema"]) == json.loads(text)


def test_a_lower_version_may_come_later(api: Api, subject: str) -> None:
    api.set_mode(subject, "IMPORT")
    for version in (5, 2):
        assert api.register(subject, schema(), id=next(_names), version=version)[0] == 200
    assert api("GET", f"/subjects/{subject}/versions") == (200, [2, 5])


def test_one_schema_may_have_the_same_id_in_two_subjects(api: Api, subject: str) -> None:
    text, schema_id = schema(), next(_names)
    for name in (subject, f"{subject}-b"):
        api.set_mode(name, "IMPORT")
        assert api.register(name, text, id=schema_id, version=1)[0] == 200


def test_an_id_of_another_schema_is_refused(api: Api, subject: str) -> None:
    api.set_mode(subject, "IMPORT")
    schema_id = next(_names)
    api.register(subject, schema(), id=schema_id, version=1)
    assert api.register(subject, schema(), id=schema_id, version=2) == (422, 42205)


def test_compatibility_is_not_checked_in_import_mode(api: Api, subject: str) -> None:
    api.set_mode(subject, "IMPORT")
    for version, fields in ((1, []), (2, [{"name": "a", "type": "int"}])):
        text = json.dumps({"type": "record", "name": f"r{next(_names)}" if version == 1 else "s", "fields": fields})
        assert api.register(subject, text, id=next(_names), version=version)[0] == 200


def test_compatibility_is_checked_otherwise(api: Api, subject: str) -> None:
    name = f"r{next(_names)}"
    api("PUT", f"/config/{subject}", {"compatibility": "BACKWARD"})
    for status, fields in ((200, []), (409, [{"name": "a", "type": "int"}])):
        assert api.register(subject, json.dumps({"type": "record", "name": name, "fields": fields}))[0] == status


def test_an_unknown_reference_is_refused_also_in_import_mode(api: Api, subject: str) -> None:
    api.set_mode(subject, "IMPORT")
    text = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "price", "type": f"Money{next(_names)}"}]})
    references = [{"name": "Money", "subject": f"{subject}-money", "version": 1}]
    assert api.register(subject, text, id=next(_names), version=1, references=references) == (422, 42201)


def test_a_deleted_version_keeps_its_id_and_is_listed_on_request(api: Api, subject: str) -> None:
    text = schema()
    _, document = api.register(subject, text)
    assert api("DELETE", f"/subjects/{subject}/versions/1") == (200, 1)
    assert api("GET", f"/subjects/{subject}/versions") == (404, 40401)
    assert api("GET", f"/subjects/{subject}/versions?deleted=true") == (200, [1])
    assert subject in api("GET", "/subjects?deleted=true")[1]
    assert api("GET", f"/subjects/{subject}/versions/1?deleted=true")[1]["id"] == document["id"]
    assert api("GET", f"/schemas/ids/{document['id']}")[0] == 200
    assert api("DELETE", f"/subjects/{subject}/versions/1")[0] == 404


def test_a_version_may_be_deleted_in_import_mode_but_not_while_it_is_referred_to(api: Api, subject: str) -> None:
    money, order = f"{subject}-money", f"{subject}-order"
    name = f"Money{next(_names)}"
    for each in (money, order):
        api.set_mode(each, "IMPORT")
    api.register(money, json.dumps({"type": "record", "name": name, "fields": []}), id=next(_names), version=1)
    text = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "price", "type": name}]})
    references = [{"name": name, "subject": money, "version": 1}]
    assert api.register(order, text, id=next(_names), version=1, references=references)[0] == 200
    assert api("DELETE", f"/subjects/{money}/versions/1") == (422, 42206)
    assert api("DELETE", f"/subjects/{order}/versions/1") == (200, 1)
    assert api("DELETE", f"/subjects/{money}/versions/1") == (200, 1)


def test_import_mode_with_force_leaves_what_is_deleted(api: Api, subject: str) -> None:
    api.register(subject, schema())
    api("DELETE", f"/subjects/{subject}/versions/1")
    api.set_mode(subject, "IMPORT")
    assert api("GET", f"/subjects/{subject}/versions?deleted=true") == (200, [1])


def test_a_subject_in_mode_readonly_takes_nothing(api: Api, subject: str) -> None:
    api.set_mode(subject, "READONLY")
    assert api.register(subject, schema()) == (422, 42205)
    assert api("DELETE", f"/mode/{subject}")[0] == 200


def test_a_mode_of_a_subject_is_its_own_until_it_is_deleted(api: Api, subject: str) -> None:
    registry_mode = api("GET", "/mode")[1]
    assert api("GET", f"/mode/{subject}") == (404, 40409)
    assert api("GET", f"/mode/{subject}?defaultToGlobal=true") == (200, registry_mode)
    api.set_mode(subject, "IMPORT")
    assert api("GET", f"/mode/{subject}") == (200, {"mode": "IMPORT"})
    assert api("GET", "/mode") == (200, registry_mode)
    assert api("DELETE", f"/mode/{subject}")[0] == 200
    assert api("GET", f"/mode/{subject}") == (404, 40409)
    assert api("DELETE", f"/mode/{subject}")[0] == 404


def test_a_compatibility_level_of_a_subject_is_its_own(api: Api, subject: str) -> None:
    assert api("GET", f"/config/{subject}") == (404, 40408)
    assert api("PUT", f"/config/{subject}", {"compatibility": "FULL"})[0] == 200
    assert api("GET", f"/config/{subject}")[1]["compatibilityLevel"] == "FULL"
    assert api("PUT", f"/config/{subject}", {"compatibility": "nonsense"}) == (422, 42203)


def test_what_does_not_exist_has_its_codes(api: Api, subject: str) -> None:
    assert api("GET", f"/subjects/{subject}/versions/1")[0] == 404
    assert api("GET", f"/schemas/ids/{next(_names)}") == (404, 40403)


def test_ids_of_contexts_are_their_own(api: Api, subject: str) -> None:
    if api.is_real and api("GET", "/subjects?subjectPrefix=:.none:") != (200, []):
        pytest.skip("this registry has no contexts")
    schema_id, inside = next(_names), urllib.parse.quote(f":.{subject}:{subject}", safe="")
    texts = schema(), schema()
    for name, text in zip((subject, inside), texts, strict=True):
        api.set_mode(name, "IMPORT")
        assert api.register(name, text, id=schema_id, version=1)[0] == 200
    context = urllib.parse.quote(f":.{subject}:", safe="")
    assert json.loads(api("GET", f"/schemas/ids/{schema_id}")[1]["schema"]) == json.loads(texts[0])
    assert json.loads(api("GET", f"/schemas/ids/{schema_id}?subject={context}")[1]["schema"]) == json.loads(texts[1])
    assert f":.{subject}:{subject}" in api("GET", "/subjects?deleted=true")[1]
