"""Driver: requests with JSON to one HTTP server, over one connection: bounded in time, size and number of attempts.

The standard library is enough for the dozen requests of a Schema Registry. The client of confluent-kafka would bring httpx,
authlib, attrs and cachetools, caches what must be read again here, and hides the status of a refusal.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from shallow_mirror.broker.auth import ca_file_context, secrets
from shallow_mirror.config.schema_settings import RegistrySettings
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

_TIMEOUT_S = 15.0
_MAX_RESPONSE_BYTES = 64 << 20
_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
"""Between attempts. All requests of this package may be repeated: each states what should be, with its id and version."""
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_TOO_MANY_REQUESTS = 429

Method = Literal["GET", "PUT", "POST", "DELETE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonResponse:
    """A response. `is_json`: whether the body is JSON, which `document` then holds."""

    status: int
    document: Any
    is_json: bool

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def error_code(self) -> int:
        """Return the registry's own code, such as 40401; 0 if there is none."""
        code = self.document.get("error_code") if isinstance(self.document, dict) else None
        return code if isinstance(code, int) else 0

    @property
    def message(self) -> str:
        """Return the registry's sentence in one line, or else the status."""
        text = self.document.get("message") if isinstance(self.document, dict) else None
        return " ".join(str(text).split())[:500] if text else f"HTTP status {self.status}"


class JsonClient:
    """`name` is how messages call the server, `section` its settings: schemas.source or schemas.target."""

    def __init__(
        self, settings: RegistrySettings, *, name: str, section: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        assert settings.url is not None
        self.name, self.section = name, section
        self._settings, self._sleep = settings, sleep
        self._url = urllib.parse.urlsplit(settings.url.rstrip("/"))
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(self, method: Method, path: str, body: object = None) -> JsonResponse:
        """Return the response.

        Raises ConfigError (credentials, permissions, TLS, not an API), RetriableError after all attempts.
        """
        for pause_s in _PAUSES_S:
            try:
                return self._attempt(method, path, body)
            except RetriableError:
                self._sleep(pause_s)
        return self._attempt(method, path, body)

    def _attempt(self, method: Method, path: str, body: object) -> JsonResponse:
        try:
            response = self._exchange(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from None
        if response.status >= 500 or response.status == _TOO_MANY_REQUESTS:
            raise RetriableError("REGISTRY_UNAVAILABLE", f"{self.name} answers with an error: {response.message}. Check its log")
        self._require_api(response)
        return response

    def _exchange(self, method: Method, path: str, body: object) -> JsonResponse:
        if self._connection is None:
            self._connection = self._connect()
        content = None if body is None else json.dumps(body).encode()
        self._connection.request(method, self._url.path + path, content, self._headers(has_body=content is not None))
        response = self._connection.getresponse()
        payload = response.read(_MAX_RESPONSE_BYTES + 1)
        if len(payload) > _MAX_RESPONSE_BYTES:
            self.close()
            raise ConfigError(
                f"{self.name}: a response is larger than {_MAX_RESPONSE_BYTES >> 20} MiB: correct {self.section}.url"
            )
        try:
            document, is_json = json.loads(payload), True
        except (ValueError, RecursionError):
            document, is_json = None, False
        return JsonResponse(status=response.status, document=document, is_json=is_json)

    def _connect(self) -> http.client.HTTPConnection:
        assert self._url.hostname is not None
        if self._url.scheme == "http":
            return http.client.HTTPConnection(self._url.hostname, self._url.port, timeout=_TIMEOUT_S)
        context = ca_file_context(f"{self.section}.ca_file", self._settings.ca_file)
        return http.client.HTTPSConnection(self._url.hostname, self._url.port, timeout=_TIMEOUT_S, context=context)

    def _headers(self, *, has_body: bool) -> dict[str, str]:
        headers = {"Accept": f"{_CONTENT_TYPE}, application/json"}
        if has_body:
            headers["Content-Type"] = _CONTENT_TYPE
        if self._settings.username:
            login = f"{self._settings.username}:{self._secret('password', self._settings.password)}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        if self._settings.token:
            headers["Authorization"] = f"Bearer {self._secret('token', self._settings.token)}"
        return headers

    def _secret(self, key: str, reference: str) -> str:
        try:
            value = secrets.resolve(reference)
        except ConfigError as error:
            raise ConfigError([f"{self.section}.{key}: {problem}" for problem in error.problems]) from None
        if not value or not value.isprintable():
            raise ConfigError(f"{self.section}.{key}: {reference} is empty, or holds a line break")
        return value

    def _require_api(self, response: JsonResponse) -> None:
        """Raise ConfigError for a response that only other settings or permissions can change."""
        if response.status == 401:
            raise ConfigError(
                f"{self.name} rejects the credentials (401): correct {self.section}.username and password, or token"
            )
        if response.status == 403:
            raise ConfigError(
                f"{self.name} forbids a request ({response.message}): give the user of {self.section} the permission for it"
            )
        if 300 <= response.status < 400:
            raise ConfigError(f"{self.name} redirects to another address: set {self.section}.url to the final one")
        if response.is_success and not response.is_json:
            raise ConfigError(
                f"{self.name} answers without JSON, unlike a Schema Registry: correct {self.section}.url, with its path"
            )

    def _unreachable(self, error: Exception) -> MirrorError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return ConfigError(
                f"the certificate of the {self.name} is not accepted ({error.verify_message}): set {self.section}.ca_file"
            )
        if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
            return ConfigError(f"{self.name} does not use TLS: begin {self.section}.url with http://, or use another port")
        reason = str(error) or type(error).__name__
        return RetriableError(
            "REGISTRY_UNREACHABLE",
            f"cannot reach the {self.name}: {reason}. Check that it runs and that this machine reaches it ({self.section}.url)",
        )
