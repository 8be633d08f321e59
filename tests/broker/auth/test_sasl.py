"""What follows where a broker refuses credentials."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.deadlines import deadline

from shallow_mirror.broker.auth import ClientConfig, sasl
from shallow_mirror.broker.auth.oauth import RenewedToken
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.errors import AuthenticationError, RetriableError

CONFIG = ClientConfig.from_properties(
    {
        "bootstrap.servers": "x:1",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": "some_module:some_function",
    }
)


class Broker:
    """Accepts some tokens."""

    def __init__(self, *accepted: str) -> None:
        self.accepted = set(accepted)
        self.seen: list[str] = []

    def call(self, _connection: Any, api: str, _deadline: Any, **fields: Any) -> Any:
        if api == "SaslHandshake":
            return SimpleNamespace(error_code=0, mechanisms=["OAUTHBEARER"])
        self.seen.append(fields["auth_bytes"].decode().split("Bearer ")[1].rstrip("\x01"))
        is_accepted = self.seen[-1] in self.accepted
        return SimpleNamespace(
            error_code=0 if is_accepted else sasl.SASL_AUTHENTICATION_FAILED,
            error_message=None if is_accepted else "invalid signature",
            auth_bytes=b"",
            session_lifetime_ms=1_000,
        )


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker("token 1")
    monkeypatch.setattr(sasl, "call", broker.call)
    return broker


def test_a_kept_token_that_is_refused_is_replaced_and_a_new_one_that_is_refused_is_an_error(broker: Broker) -> None:
    """It was revoked, or the keys of its issuer were replaced: the next token may be accepted."""
    issued: list[str] = []

    def issue() -> Token:
        issued.append(f"token {len(issued) + 1}")
        return Token(issued[-1], 3_600.0)

    tokens = RenewedToken("an issuer", issue, lambda: RetriableError("LATE", "late"), now_s=lambda: 0.0)
    connection: Any = SimpleNamespace(transport=SimpleNamespace(peer="x:1"))

    def authenticate() -> int:
        return sasl.authenticate(connection, CONFIG, tokens, deadline(5_000))

    assert authenticate() == authenticate() == 1_000
    broker.accepted = {"token 2"}
    with pytest.raises(RetriableError, match=r"refused the token .* requested before; a new one is requested: invalid signature"):
        authenticate()
    assert authenticate() == 1_000
    broker.accepted = set()
    with pytest.raises(RetriableError):
        authenticate()
    with pytest.raises(AuthenticationError, match="invalid signature"):
        authenticate()
    assert broker.seen == ["token 1", "token 1", "token 1", "token 2", "token 2", "token 3"]


def test_of_several_connections_with_a_kept_token_none_ends_the_mirror(broker: Broker) -> None:
    """They are opened side by side: the first one has dropped the token when the second one is refused."""
    numbers = iter(range(1, 9))
    tokens = RenewedToken(
        "an issuer", lambda: Token(f"token {next(numbers)}", 3_600.0), lambda: RetriableError("LATE", "late"), now_s=lambda: 0.0
    )
    connection: Any = SimpleNamespace(transport=SimpleNamespace(peer="x:1"))
    kept = tokens.token(deadline(5_000))
    broker.accepted = set()
    refuse = broker.call

    def refuse_behind_another(connection: Any, api: str, within: Any, **fields: Any) -> Any:
        tokens.drop(kept)
        return refuse(connection, api, within, **fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sasl,
            "call",
            lambda *given, **fields: (refuse_behind_another if given[1] == "SaslAuthenticate" else refuse)(*given, **fields),
        )
        with pytest.raises(RetriableError):
            sasl.authenticate(connection, CONFIG, tokens, deadline(5_000))
