"""The strict Schema Registry of `schema_registry` behind HTTP, with faults that a test plans."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.fakes.local_http import LocalHttpServer
from tests.fakes.schema_registry import Refusal, RegistryRules


@dataclass
class RegistryFault:
    """A status instead of the response, for the next `times` requests of `method` whose path begins with `path`."""

    method: str
    path: str
    status: int
    times: int = 1_000_000
    body: str = '{"error_code": 50001, "message": "Error in the backend data store"}'


class RegistryServer(LocalHttpServer):
    """`rules` may be changed at any time. `requests`: method and path of each. `before_request` may raise to end a connection.

    `page_items`: most items of a list in a response; None: a registry without pages, which ignores `offset`.
    """

    def __init__(
        self, rules: RegistryRules | None = None, *, login: str = "", token: str = "", certificate_and_key: Path | None = None
    ) -> None:
        self.rules = rules or RegistryRules()
        self.login, self.token = login, token
        self.requests: list[tuple[str, str]] = []
        self.faults: list[RegistryFault] = []
        self.page_items: int | None = None
        self.before_request: Callable[[str, str], None] = lambda method, path: None
        super().__init__(_handler_of(self), certificate_and_key)

    def changes(self) -> list[tuple[str, str]]:
        """Return the requests that were to change something."""
        return [(method, path) for method, path in self.requests if method != "GET"]

    def is_permitted(self, authorization: str | None) -> bool:
        if self.login:
            return authorization == f"Basic {base64.b64encode(self.login.encode()).decode()}"
        return not self.token or authorization == f"Bearer {self.token}"

    def planned_fault(self, method: str, path: str) -> RegistryFault | None:
        for fault in self.faults:
            if fault.times > 0 and method == fault.method and path.startswith(fault.path):
                fault.times -= 1
                return fault
        return None


def _handler_of(server: RegistryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            server.requests.append((self.command, self.path))
            try:
                server.before_request(self.command, self.path)
            except ConnectionError:
                self.close_connection = True
                return
            fault = server.planned_fault(self.command, self.path)
            if fault is not None:
                self._send(fault.status, fault.body.encode())
            elif not server.is_permitted(self.headers.get("Authorization")):
                self._send(401, b"<html>Unauthorized</html>")
            else:
                self._send(*_result(server.rules, self.command, self.path, body, server.page_items))

        do_GET = do_PUT = do_POST = do_DELETE = _respond  # noqa: N815 - names of http.server

        def _send(self, status: int, payload: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: Any) -> None:
            return None

    return Handler


def _result(rules: RegistryRules, method: str, path: str, body: bytes, page_items: int | None) -> tuple[int, bytes]:
    url = urllib.parse.urlsplit(path)
    parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
    query = dict(urllib.parse.parse_qsl(url.query))
    try:
        result = _routed(rules, method, parts, query, json.loads(body) if body else {})
        if isinstance(result, list) and page_items is not None:
            offset = int(query.get("offset", 0))
            result = result[offset : offset + page_items]
    except Refusal as refusal:
        return refusal.status, json.dumps({"error_code": refusal.code, "message": refusal.message}).encode()
    return 200, json.dumps(result).encode()


def _routed(rules: RegistryRules, method: str, parts: list[str], query: dict[str, str], body: dict[str, Any]) -> Any:
    deleted, subject = query.get("deleted") == "true", parts[1] if len(parts) > 1 else ""
    match method, parts:
        case "GET", ["subjects"]:
            return rules.subjects(deleted=deleted)
        case "GET", ["subjects", _, "versions"]:
            return rules.version_numbers(subject, deleted=deleted)
        case "GET", ["subjects", _, "versions", number]:
            stored = rules.version(subject, int(number), deleted=deleted)
            return {"subject": subject, "version": stored.version, "id": stored.id, **stored.document}
        case "POST", ["subjects", _, "versions"]:
            return rules.register(subject, body)
        case "DELETE", ["subjects", _, "versions", number]:
            return rules.delete(subject, int(number), permanently=query.get("permanent") == "true")
        case "GET", ["schemas", "ids", schema_id]:
            return rules.schema(int(schema_id), query.get("subject", "").strip(":"))
        case "GET", ["config", *_]:
            return {"compatibilityLevel": rules.level(subject)}
        case "PUT", ["config", *_]:
            rules.set_level(subject, body["compatibility"])
            return body
        case "GET", ["mode", *_]:
            return {"mode": rules.mode(subject, in_force=query.get("defaultToGlobal") == "true" or not subject)}
        case "PUT", ["mode", *_]:
            rules.set_mode(subject, body["mode"], force=query.get("force") == "true")
            return body
        case "DELETE", ["mode", *_]:
            return {"mode": rules.delete_mode(subject)}
    raise Refusal(404, 404, "HTTP 404 Not Found")
