"""Token services of AWS, Azure and Google on this machine, which check what the real ones check, and what MSK's brokers check."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, parse_qsl, quote, urlsplit

import jwt
import pytest
from tests.security.certificates import Identity

Answer = tuple[int, Any]


class _Service:
    """Context manager. Answers requests with JSON, or with text. `holds`: requests wait for it, as those to a service that hangs."""

    def __init__(self, identity: Identity | None = None) -> None:
        self.requests: list[str] = []
        self.status = 200
        self.holds: threading.Event | None = None
        service = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                service.requests.append(self.path)
                if service.holds is not None:
                    service.holds.wait(30)
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, document = service.answer(self.command, self.path, headers, body)
                if service.status != 200:
                    status, document = service.status, {"error": "server_error"}
                sent = (document if isinstance(document, str) else json.dumps(document)).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(sent)), **service.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(sent)

            do_GET = do_POST = do_PUT = _serve  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.headers: dict[str, str] = {"Content-Type": "application/json"}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._scheme = "http"
        if identity is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity.certificate_file, identity.key_file)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: str) -> Answer:
        raise NotImplementedError

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.host}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.holds is not None:
            self.holds.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _query(path: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(path).query, strict_parsing=True).items()}


class AzureMetadata(_Service):
    """The metadata service of an Azure machine. Refuses requests without its header, and those of proxies.

    `tokens`: by resource. `client_ids`: identities of the machine besides its own.
    """

    def __init__(self, tokens: Mapping[str, Callable[[], str]], client_ids: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._tokens, self._client_ids = tokens, client_ids

    @property
    def token_url(self) -> str:
        return f"{self.url}/metadata/identity/oauth2/token"

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: str) -> Answer:
        if method != "GET" or headers.get("metadata") != "true" or "x-forwarded-for" in headers:
            return 400, {"error": "invalid_request", "error_description": "Required metadata header not specified"}
        if urlsplit(path).path != "/metadata/identity/oauth2/token":
            return 404, {"error": "not_found"}
        query = _query(path)
        if query.get("api-version") != "2018-02-01":
            return 400, {"error": "invalid_request"}
        if query.get("client_id", "") not in ("", *self._client_ids):
            return 400, {"error": "invalid_request", "error_description": "Identity not found"}
        issue = self._tokens.get(query.get("resource", ""))
        if issue is None:
            return 400, {"error": "invalid_resource"}
        return 200, {
            "access_token": issue(),
            "client_id": "x",
            "expires_in": "86399",
            "expires_on": str(int(time.time()) + 86_399),
            "resource": query["resource"],
            "token_type": "Bearer",
        }


class Entra(_Service):
    """Entra ID's token endpoint of one tenant: client credentials by federated assertion, for scopes that exist."""

    def __init__(
        self, identity: Identity, tenant: str, client_id: str, assertion_key: Any, tokens: Mapping[str, Callable[[], str]]
    ) -> None:
        super().__init__(identity)
        self._tenant, self._client_id, self._key, self._tokens = tenant, client_id, assertion_key, tokens

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: str) -> Answer:
        if method != "POST" or path != f"/{self._tenant}/oauth2/v2.0/token":
            return self._refused(400, "invalid_request", 90002)
        form = dict(parse_qsl(body, strict_parsing=True))
        if form["client_id"] != self._client_id:
            return self._refused(400, "unauthorized_client", 700016)
        if form["grant_type"] != "client_credentials":
            return self._refused(400, "unsupported_grant_type", 70003)
        if form["client_assertion_type"] != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer":
            return self._refused(401, "invalid_client", 7000218)
        try:
            jwt.decode(form["client_assertion"], self._key, algorithms=["RS256"], audience="api://AzureADTokenExchange")
        except jwt.InvalidTokenError:
            return self._refused(401, "invalid_client", 700024)
        issue = self._tokens.get(form["scope"])
        if issue is None:
            return self._refused(400, "invalid_resource", 500011)
        return 200, {"token_type": "Bearer", "expires_in": 3599, "ext_expires_in": 3599, "access_token": issue()}

    def _refused(self, status: int, error: str, number: int) -> Answer:
        text = f"AADSTS{number}: client {self._client_id} of tenant {self._tenant}"
        return status, {"error": error, "error_description": text, "error_codes": [number]}


class GoogleMetadata(_Service):
    """The metadata service of a machine of Google, with one service account."""

    def __init__(self, email: str) -> None:
        super().__init__()
        self._email = email
        self.issued: list[str] = []
        self.headers |= {"Metadata-Flavor": "Google"}

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: str) -> Answer:
        if headers.get("metadata-flavor") != "Google":
            return 403, "Missing Metadata-Flavor:Google header."
        parts = urlsplit(path)
        account = "/computeMetadata/v1/instance/service-accounts/"
        if parts.path == "/computeMetadata/v1/project/project-id":
            return 200, "some-project"
        if parts.path in (f"{account}default/token", f"{account}{self._email}/token"):
            scopes = parse_qs(parts.query).get("scopes", [""])[0].split(",")
            if scopes != ["https://www.googleapis.com/auth/cloud-platform"]:
                return 400, {"error": "invalid_scope"}
            self.issued.append(f"ya29.issued-{len(self.issued)}.by.the.machine")
            return 200, {"access_token": self.issued[-1], "expires_in": 3599, "token_type": "Bearer"}
        if parts.path in (f"{account}default/", f"{account}{self._email}/"):
            return 200, {"aliases": ["default"], "email": self._email, "scopes": []}
        return (200, "") if parts.path == "/" else (404, "not found")


def name_google_metadata(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let google-auth ask this service, in this process and in those that it starts."""
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, host)
    # It reads the first one when it is imported, which an earlier test may have done.
    monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", host)


class GoogleTokens(_Service):
    """Google's token endpoint for keys of service accounts: a JWT assertion with the right audience and scope."""

    def __init__(self, email: str, key: Any) -> None:
        super().__init__()
        self._email, self._key = email, key
        self.issued: list[str] = []

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: str) -> Answer:
        form = dict(parse_qsl(body, strict_parsing=True))
        if form["grant_type"] != "urn:ietf:params:oauth:grant-type:jwt-bearer":
            return 400, {"error": "unsupported_grant_type"}
        try:
            claims = jwt.decode(
                form["assertion"], self._key, algorithms=["RS256"], audience="https://oauth2.googleapis.com/token"
            )
        except jwt.InvalidTokenError as error:
            return 400, {"error": "invalid_grant", "error_description": f"Invalid JWT Signature. {error}"}
        if claims["iss"] != self._email or claims["scope"] != "https://www.googleapis.com/auth/cloud-platform":
            return 400, {"error": "invalid_scope"}
        self.issued.append(f"ya29.issued-{len(self.issued)}.by.key")
        return 200, {"access_token": self.issued[-1], "expires_in": 3599, "token_type": "Bearer"}


def google_problem(token: str, access_tokens: list[str], email: str) -> str | None:
    """Return why a broker of Google's would refuse a token; None where it would not."""
    parts = token.split(".")
    if len(parts) != 3 or "=" in token:
        return "not three parts without padding"
    header, claims, access = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode() for part in parts)
    if json.loads(header) != {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}:
        return "header"
    document = json.loads(claims)
    if document["iss"] != "Google" or document["scope"] != "kafka" or document["sub"] != email:
        return "claims"
    if not document["iat"] <= time.time() < document["exp"]:
        return "life"
    return None if access in access_tokens else "access token"


class Sts(_Service):
    """STS of one region: AssumeRole with a signature of that region, for roles that exist."""

    def __init__(self, keys: Mapping[str, str], region: str, roles: Mapping[str, tuple[str, str, str]]) -> None:
        super().__init__()
        self._keys, self._region, self._roles = keys, region, roles
        self.headers = {"Content-Type": "text/xml"}
        self.sessions: list[str] = []

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: str) -> Answer:
        form = dict(parse_qsl(body, strict_parsing=True))
        scope = re.search(r"Credential=(\w+)/(\d{8})/([\w-]+)/sts/aws4_request", headers["authorization"])
        if scope is None or scope[1] not in self._keys:
            return self._refused(403, "InvalidClientTokenId")
        if scope[3] != self._region or not self._is_signed(scope[1], headers, body):
            return self._refused(403, "SignatureDoesNotMatch")
        if form["Action"] != "AssumeRole" or form["RoleArn"] not in self._roles:
            return self._refused(403, "AccessDenied")
        self.sessions.append(form["RoleSessionName"])
        key, secret, token = self._roles[form["RoleArn"]]
        return 200, (
            '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
            f"<AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{token}</SessionToken>"
            "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
        )

    def _is_signed(self, key: str, headers: Mapping[str, str], body: str) -> bool:
        names = re.search(r"SignedHeaders=([^,]+)", headers["authorization"])
        signature = re.search(r"Signature=(\w+)", headers["authorization"])
        assert names is not None
        assert signature is not None
        listed = "".join(f"{name}:{headers[name].strip()}\n" for name in names[1].split(";"))
        canonical = f"POST\n/\n\n{listed}\n{names[1]}\n{hashlib.sha256(body.encode()).hexdigest()}"
        return _sigv4(self._keys[key], headers["x-amz-date"], self._region, "sts", canonical) == signature[1]

    @staticmethod
    def _refused(status: int, code: str) -> Answer:
        return (
            status,
            f"<ErrorResponse><Error><Code>{code}</Code><Message>secret words of {code}</Message></Error></ErrorResponse>",
        )


def _sigv4(secret: str, date_time: str, region: str, service: str, canonical: str) -> str:
    """Return the signature of a canonical request (AWS Signature Version 4)."""
    scope = f"{date_time[:8]}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date_time}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for part in (date_time[:8], region, service, "aws4_request", text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


def msk_problem(token: str, region: str, keys: Mapping[str, tuple[str, str]]) -> str | None:
    """Return why a broker of MSK would refuse a token; None where it would not.

    `keys`: (secret, session token) by access key. The signature is computed again from the parts of the URL.
    """
    if "=" in token:
        return "padding"
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    if (url.scheme, url.netloc, url.path) != ("https", f"kafka.{region}.amazonaws.com", "/"):
        return "host"
    query = dict(parse_qsl(url.query, strict_parsing=True))
    signature, user_agent = query.pop("X-Amz-Signature"), query.pop("User-Agent", "")
    key, date, *scope = query["X-Amz-Credential"].split("/")
    if scope != [region, "kafka-cluster", "aws4_request"] or not query["X-Amz-Date"].startswith(date):
        return "scope"
    if query["Action"] != "kafka-cluster:Connect" or query["X-Amz-Algorithm"] != "AWS4-HMAC-SHA256" or not user_agent:
        return "action"
    signed_at = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
    if query["X-Amz-Expires"] != "900" or not signed_at <= time.time() < signed_at + 900:
        return "expiry"
    secret, session = keys.get(key, ("", ""))
    if query.get("X-Amz-Security-Token", "") != session or query["X-Amz-SignedHeaders"] != "host":
        return "session"
    listed = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))
    canonical = f"GET\n/\n{listed}\nhost:{url.netloc}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    return None if _sigv4(secret, query["X-Amz-Date"], region, "kafka-cluster", canonical) == signature else "signature"


def google_key_file(path: Path, email: str, private_key_pem: str, token_url: str) -> Path:
    """Write the key of a service account as Google's console does."""
    document = {
        "type": "service_account",
        "project_id": "some-project",
        "private_key_id": "k1",
        "private_key": private_key_pem,
        "client_email": email,
        "client_id": "1",
        "token_uri": token_url,
    }
    path.write_text(json.dumps(document))
    return path
