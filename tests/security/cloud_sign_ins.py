"""Everything that clients need to get tokens of each method on this machine, in processes that only have its environment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.security.fake_clouds import AzureMetadata, GoogleMetadata, Sts, google_problem, msk_problem
from tests.security.token_endpoint import TokenEndpoint
from tests.security.token_gate import TokenGate

GATED = ("aws_msk_iam", "google")
"""Methods whose tokens are no JWT: a broker needs a `TokenGate` for them."""

ABSENT = (
    *("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"),
    *("AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PATH", "IDENTITY_ENDPOINT"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "NO_GCE_CHECK"),
)
"""Variables that lead to credentials of this machine."""

_EMAIL = "mirror@some-project.iam.gserviceaccount.com"
_ACCESS_KEY, _SECRET_KEY = "AKIDOFTHEMIRROR", "5ecret/key+of=the-mirror"
_REGION, _ROLE = "eu-west-1", "arn:aws:iam::123456789012:role/mirror"
_ROLE_KEY, _ROLE_SECRETS = "ASIAOFTHEROLE", ("5ecret/of+the=role", "session//token==")
_RESOURCE = "api://kafka"
_SECRET_VARIABLE = "OAUTH_CLIENT_SECRET"
_DATABRICKS = '''"""The module of a runtime of Databricks that executors import, with a service credential of Azure."""

import os

from azure.identity import ManagedIdentityCredential


def getServiceCredentialsProvider(name):
    with open({calls!r}, "a", encoding="utf-8") as file:
        file.write(f"{{os.getpid()}}\\n")
    return {{"kafka": ManagedIdentityCredential()}}[name]
'''


class CloudSignIns:
    """Context manager. Clients need `environment`, and none of the variables ABSENT.

    `tokens`: issues the JWTs of a principal, which has a secret there. It runs.
    """

    def __init__(self, folder: Path, tokens: TokenEndpoint, principal: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._tokens, self._principal = folder, tokens, principal
        self._stack = ExitStack()
        self._azure = AzureMetadata({_RESOURCE: self._jwt})
        self._google = GoogleMetadata(_EMAIL)
        self._sts = Sts({_ACCESS_KEY: _SECRET_KEY}, _REGION, {_ROLE: (_ROLE_KEY, *_ROLE_SECRETS)})
        self._problems: dict[str, Callable[[str], str | None]] = {
            "aws_msk_iam": lambda token: msk_problem(token, _REGION, {_ROLE_KEY: _ROLE_SECRETS}),
            "google": lambda token: google_problem(token, self._google.issued, _EMAIL),
        }
        self._calls = folder / "databricks-calls"
        module = folder / "modules" / "databricks" / "service_credentials.py"
        module.parent.mkdir(parents=True)
        module.write_text(_DATABRICKS.format(calls=str(self._calls)), encoding="utf-8")
        self._token_file = folder / "token"

    def __enter__(self) -> Self:
        for service in (self._azure, self._google, self._sts):
            self._stack.enter_context(service)
        self._token_file.write_text(self._jwt(), encoding="utf-8")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def environment(self) -> dict[str, str]:
        none = str(self._folder / "none")
        return {
            "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET_KEY,
            "AWS_CONFIG_FILE": none,
            "AWS_SHARED_CREDENTIALS_FILE": none,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL_STS": self._sts.url,
            "AZURE_POD_IDENTITY_AUTHORITY_HOST": self._azure.url,
            "CLOUDSDK_CONFIG": str(self._folder),
            "GCE_METADATA_HOST": self._google.host,
            "GCE_METADATA_IP": self._google.host,
            "PYTHONPATH": str(self._folder / "modules"),
            _SECRET_VARIABLE: self._tokens.clients[self._principal],
        }

    def properties(self, method: str) -> dict[str, str]:
        """Return client properties without the address. `method`: one of librdkafka's and ours, or `file`."""
        own: dict[str, dict[str, str]] = {
            "aws_msk_iam": {"config": f"region={_REGION} role.arn={_ROLE}"},
            "azure": {"scope": f"{_RESOURCE}/.default"},
            "google": {},
            "databricks": {"config": "credential=kafka", "scope": f"{_RESOURCE}/.default"},
            "oidc": {
                "token.endpoint.url": self._tokens.url,
                "client.id": self._principal,
                "client.secret": f"${{env:{_SECRET_VARIABLE}}}",
                "scope": "mirror",
            },
            "file": {"token.endpoint.url": self._token_file.as_uri()},
        }
        return {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc" if method == "file" else method,
        } | {f"sasl.oauthbearer.{name}": value for name, value in own[method].items()}

    def gate(self, method: str) -> TokenGate:
        """Return a gate for tokens of one of GATED, which runs as long as this."""
        return self._stack.enter_context(TokenGate(self._problems[method]))

    @property
    def databricks_processes(self) -> set[int]:
        """Return ids of processes that asked for a service credential."""
        return {int(line) for line in self._calls.read_text(encoding="utf-8").splitlines()}

    def _jwt(self) -> str:
        return self._tokens.token(self._principal)
