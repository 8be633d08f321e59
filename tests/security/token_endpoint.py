"""A token endpoint of OAuth 2.0 on this machine, whose tokens a broker verifies by its public key.

Clients authenticate by Basic, in the form, or by a signed assertion; assertions are verified by PyJWT.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

AUDIENCE, ISSUER = "kafka", "https://tokens.example.org"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


def _url64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _number64(number: int) -> str:
    return _url64(number.to_bytes((number.bit_length() + 7) // 8, "big"))


class TokenEndpoint:
    """Context manager. `clients`: secrets by client id, which is the principal. `lives_for_s`: of the next tokens."""

    def __init__(self, folder: Path, clients: Mapping[str, str]) -> None:
        self.clients, self.lives_for_s = dict(clients), 600
        self.issued: list[str] = []
        self.scopes: list[str] = []
        self.requests: list[dict[str, str]] = []
        self.accepts: tuple[str, ...] = ("basic", "post", "assertion")
        self.keys: dict[str, Any] = {}
        """Public keys of those that sign assertions, by `iss`."""
        self._used_ids: set[str] = set()
        self.status, self.says_token, self.says_lifetime = 200, True, True
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = self._key.public_key().public_numbers()
        jwk = {"kty": "RSA", "kid": "k", "use": "sig", "alg": "RS256", "n": _number64(public.n), "e": _number64(public.e)}
        self.jwks_file = folder / "jwks.json"
        self.jwks_file.write_text(json.dumps({"keys": [jwk]}))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/token"

    def token(self, client_id: str, **claims: Any) -> str:
        now = int(time.time())
        payload = {"sub": client_id, "iat": now, "exp": now + self.lives_for_s, "iss": ISSUER, "aud": AUDIENCE, "scope": "mirror"}
        payload |= claims
        parts = [_url64(json.dumps(section).encode()) for section in ({"alg": "RS256", "kid": "k", "typ": "JWT"}, payload)]
        signature = self._key.sign(".".join(parts).encode(), padding.PKCS1v15(), hashes.SHA256())
        self.issued.append(".".join([*parts, _url64(signature)]))
        return self.issued[-1]

    def authenticated(self, form: Mapping[str, str], header: str | None) -> str:
        """Return the principal. Raises KeyError, ValueError, InvalidTokenError; also where a client authenticates twice."""
        if form["grant_type"] == JWT_BEARER:
            if "client_secret" in form or header is not None:
                self._client_of_secret(form, header)
            return str(self._verified(form["assertion"], self.url)["sub"])
        if form["grant_type"] != "client_credentials":
            raise ValueError("unsupported_grant_type")
        if "client_assertion" not in form:
            return self._client_of_secret(form, header)
        if header is not None or "client_secret" in form or "assertion" not in self.accepts:
            raise ValueError("invalid_request")
        if form["client_assertion_type"] != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer":
            raise ValueError("client_assertion_type")
        claims = self._verified(form["client_assertion"], self.url)
        if not claims["iss"] == claims["sub"] == form["client_id"]:
            raise ValueError("iss and sub")
        if claims["jti"] in self._used_ids:
            raise ValueError("replayed")
        self._used_ids.add(claims["jti"])
        return form["client_id"]

    def _client_of_secret(self, form: Mapping[str, str], header: str | None) -> str:
        if (header is not None) == ("client_secret" in form):
            raise ValueError("exactly one way to authenticate")
        if header is None:
            kind, client_id, secret = "post", form["client_id"], form["client_secret"]
        else:
            named = base64.b64decode(header.removeprefix("Basic ")).decode()
            kind, (client_id, secret) = "basic", map(urllib.parse.unquote_plus, named.split(":"))
        if kind not in self.accepts or self.clients[client_id] != secret:
            raise ValueError("secret")
        return client_id

    def _verified(self, assertion: str, audience: str) -> dict[str, Any]:
        issuer = jwt.decode(assertion, options={"verify_signature": False})["iss"]
        required: Any = {"require": ["exp", "iat", "nbf", "iss", "sub", "aud"]}
        return dict(jwt.decode(assertion, self.keys[issuer], algorithms=["RS256", "ES256"], audience=audience, options=required))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = dict(urllib.parse.parse_qsl(body, strict_parsing=True))
                endpoint.requests.append(form)
                if self.path != "/token":
                    return self._respond(404, {"error": "not_found"})
                if endpoint.status != 200:
                    return self._respond(endpoint.status, {})
                try:
                    client_id = endpoint.authenticated(form, self.headers.get("Authorization"))
                except (KeyError, ValueError, jwt.InvalidTokenError) as error:
                    described = {"error": "invalid_client", "error_description": f"not {form} {error}"}
                    return self._respond(401, described)
                endpoint.scopes.append(form.get("scope", ""))
                token = endpoint.token(client_id, **({"aud": form["audience"]} if "audience" in form else {}))
                document = {"access_token": token} if endpoint.says_token else {}
                return self._respond(200, document | ({"expires_in": endpoint.lives_for_s} if endpoint.says_lifetime else {}))

            def _respond(self, status: int, document: Any) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
