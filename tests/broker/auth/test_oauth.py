from __future__ import annotations

import socket
import threading
import time
import urllib.error
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.security.token_endpoint import TokenEndpoint
from tests.support.deadlines import deadline

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.auth.oauth import RenewedToken, token_source
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

USUAL = {"bootstrap.servers": "x:1", "security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}


def token(within_ms: float = 5_000, **properties: Any) -> Token:
    given = USUAL | {f"sasl.oauthbearer.{name}".replace("__", "."): value for name, value in properties.items()}
    return token_source(ClientConfig.from_properties(given, allows_literal_secrets=True)).token(deadline(within_ms))


def from_endpoint(endpoint: TokenEndpoint, **others: str) -> Token:
    given: dict[str, Any] = {
        "method": "oidc",
        "token__endpoint__url": endpoint.url,
        "client__id": "me",
        "client__secret": "s:e/c+r=t",
        **others,
    }
    return token(**given)


def from_callable(name: str, config: str) -> Token:
    given = USUAL | {"oauth_cb": name, "sasl.oauthbearer.config": config}
    return token_source(ClientConfig.from_properties(given, allows_literal_secrets=True)).token(deadline(5_000))


@pytest.mark.slow
def test_the_endpoint_is_asked_with_id_secret_and_scope(tmp_path: Path) -> None:
    with TokenEndpoint(tmp_path, {"me": "s:e/c+r=t"}) as endpoint:
        actual = from_endpoint(endpoint, scope="a b", extensions="one=1, two=2")
        assert [actual.value] == endpoint.issued
        assert endpoint.scopes == ["a b"]
        assert actual.extensions == {"one": "1", "two": "2"}
        assert 590 < actual.expires_at_s - time.time() <= 600
        assert actual.value not in repr(actual)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "secret", "kind", "message"),
    [
        (200, "wrong", ConfigError, r"returned no token \(401 invalid_client\): correct sasl\.oauthbearer\.client\.id"),
        (503, "s:e/c+r=t", RetriableError, "answered 503"),
        (429, "s:e/c+r=t", RetriableError, "answered 429"),
        (404, "s:e/c+r=t", ConfigError, r"correct sasl\.oauthbearer\.token\.endpoint\.url"),
        (302, "s:e/c+r=t", ConfigError, r"returned no token \(302\)"),
    ],
)
def test_an_endpoint_that_gives_none_is_explained_without_the_secret(
    status: int, secret: str, kind: type[MirrorError], message: str, tmp_path: Path
) -> None:
    with TokenEndpoint(tmp_path, {"me": "s:e/c+r=t"}) as endpoint:
        endpoint.status = status
        with pytest.raises(kind, match=message) as caught:
            from_endpoint(endpoint, client__secret=secret)
        assert secret not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://host/token", "nowhere", "http://host:port/"])
def test_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.token\.endpoint\.url: .*(is not a URL|must begin with)"):
        token(method="oidc", token__endpoint__url=url, client__id="me", client__secret="s")


@pytest.mark.slow
def test_a_token_may_name_its_end_itself_and_a_response_without_any_is_no_token(tmp_path: Path) -> None:
    with TokenEndpoint(tmp_path, {"me": "s:e/c+r=t"}) as endpoint:
        endpoint.says_lifetime = False
        assert 590 < from_endpoint(endpoint).expires_at_s - time.time() <= 600
        endpoint.says_token = False
        with pytest.raises(ConfigError, match="answered without a token"):
            from_endpoint(endpoint)


def test_an_endpoint_that_is_unreachable_may_come_back(tmp_path: Path) -> None:
    with TokenEndpoint(tmp_path, {}) as endpoint:
        url = endpoint.url
    with pytest.raises(RetriableError, match="TOKEN_ENDPOINT_UNREACHABLE: cannot reach the token endpoint"):
        token(method="oidc", token__endpoint__url=url, client__id="me", client__secret="s")


@pytest.mark.slow
def test_an_endpoint_that_is_silent_is_given_up_in_time_and_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/token"
        with pytest.raises(RetriableError, match=r"TOKEN_ENDPOINT_UNREACHABLE: cannot reach the token endpoint .*timed out"):
            token(500, method="oidc", token__endpoint__url=url, client__id="me", client__secret="s")


def test_an_endpoint_without_tls_is_said_where_https_is_set() -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:
        port = plain.getsockname()[1]
        answering = threading.Thread(target=_respond_in_plain_text, args=(plain,))
        answering.start()
        with pytest.raises(ConfigError, match=f"does not use TLS: use http://127.0.0.1:{port}/token"):
            token(method="oidc", token__endpoint__url=f"https://127.0.0.1:{port}/token", client__id="me", client__secret="s")
        answering.join()


def _respond_in_plain_text(server: socket.socket) -> None:
    peer, _ = server.accept()
    with peer:
        peer.recv(1 << 16)
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_a_token_is_used_while_its_provider_hangs_and_waited_for_when_it_is_about_to_end() -> None:
    now, answers, asked = [0.0], threading.Event(), []

    def fetch() -> Token:
        asked.append(now[0])
        assert len(asked) == 1 or answers.wait(30)
        return Token(f"t{len(asked)}", now[0] + 100)

    kept = RenewedToken("x", fetch, lambda: RetriableError("LATE", ""), now_s=lambda: now[0])
    assert kept.token(deadline()).value == "t1"
    for now[0] in (79.0, 80.0, 94.0):
        assert kept.token(deadline(0)).value == "t1"
    now[0] = 95.0
    with pytest.raises(RetriableError, match="LATE"):
        kept.token(deadline(0))
    answers.set()
    assert kept.token(deadline()).value == "t2"
    assert len(asked) == 2


def given_token(config: str) -> tuple[str, float, str, dict[str, str]]:
    return f"token for {config}", 5e9, "me", {"more": "1"}


class ResponseError(OSError):
    """As those of requests, which are OSErrors, too."""

    def __init__(self, status: int) -> None:
        self.response = SimpleNamespace(status_code=status)


def raising(config: str) -> tuple[str, float]:
    kind, _, status = config.partition(" ")
    if kind == "urllib":
        raise urllib.error.HTTPError("http://x", int(status), f"token=abc {config}", Message(), None)
    if kind == "requests":
        raise ResponseError(int(status))
    raise {"away": ConnectionError, "late": TimeoutError, "broken": RuntimeError}[kind](f"token=abc {config}")


def returning(config: str) -> Any:
    return {
        "text": "abc",
        "nothing": None,
        "alone": ("abc",),
        "time": ("abc", "5e9"),
        "bytes": (b"abc", 5e9),
        "extensions": ("abc", 5e9, "me", None),
    }[config]


def taking_nothing() -> None:
    pass


def hanging(config: str) -> tuple[str, float]:
    _released.wait(30)
    return "at last", 5e9


_released = threading.Event()
NO_FUNCTION = "abc"


@pytest.mark.parametrize(
    ("name", "config", "kind", "message"),
    [
        ("nowhere.at.all:f", "x", ConfigError, r"nowhere\.at\.all:f cannot be imported on this machine: install nowhere"),
        ("needs_more:f", "x", ConfigError, "cannot be imported on this machine: install a_library_of_theirs"),
        ("is_broken:f", "x", ConfigError, "is_broken raised RuntimeError while it was imported"),
        (f"{__name__}:zzz", "x", ConfigError, f"{__name__} has no function zzz: correct its name$"),
        (f"{__name__}:rasing", "x", ConfigError, r"has no function rasing: did you mean raising\?"),
        (f"{__name__}:NO_FUNCTION", "x", ConfigError, "has no function NO_FUNCTION"),
        (f"{__name__}:raising", "away", RetriableError, "OAUTH_CB_FAILED: .*raised ConnectionError"),
        (f"{__name__}:raising", "late", RetriableError, "OAUTH_CB_FAILED: .*raised TimeoutError"),
        (f"{__name__}:raising", "broken", ConfigError, "raised RuntimeError instead of returning"),
        (f"{__name__}:taking_nothing", "x", ConfigError, "raised TypeError instead of returning"),
        (f"{__name__}:returning", "text", ConfigError, r"returned str instead of \(token, seconds since the epoch"),
        (f"{__name__}:returning", "nothing", ConfigError, "returned None instead of"),
        (f"{__name__}:returning", "alone", ConfigError, r"returned \(str\) instead of"),
        (f"{__name__}:returning", "time", ConfigError, r"returned \(str, str\) instead of"),
        (f"{__name__}:returning", "bytes", ConfigError, r"returned \(bytes, float\) instead of"),
        (f"{__name__}:returning", "extensions", ConfigError, r"returned \(str, float, str, None\) instead of"),
    ],
)
def test_a_callable_that_gives_none_is_explained_without_its_words(
    name: str, config: str, kind: type[MirrorError], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import a_library_of_theirs")
    (tmp_path / "is_broken.py").write_text("raise RuntimeError('abc')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(kind, match=message) as caught:
        from_callable(name, config)
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize("library", ["urllib", "requests"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, ConfigError),
        (403, ConfigError),
        (404, ConfigError),
        (408, RetriableError),
        (429, RetriableError),
        (503, RetriableError),
    ],
)
def test_a_status_that_a_callable_met_says_whether_to_wait(library: str, status: int, kind: type[MirrorError]) -> None:
    with pytest.raises(kind, match=rf"raised \w+Error \({status}\)") as caught:
        from_callable(f"{__name__}:raising", f"{library} {status}")
    assert "abc" not in str(caught.value)


def test_a_callable_that_hangs_is_given_up_in_time_and_called_once() -> None:
    name = f"{__name__}:hanging"
    given = USUAL | {"oauth_cb": name, "sasl.oauthbearer.config": "x"}
    source = token_source(ClientConfig.from_properties(given, allows_literal_secrets=True))
    for _ in range(2):
        with pytest.raises(RetriableError, match=f"OAUTH_CB_FAILED: oauth_cb: {name} returned no token within 10 s"):
            source.token(deadline(20))
    assert [thread.name for thread in threading.enumerate()].count(f"the token of oauth_cb: {name}") == 1
    _released.set()
    assert source.token(deadline()).value == "at last"


def test_a_callable_gives_token_end_and_extensions() -> None:
    actual = from_callable(f"{__name__}:given_token", "x")
    assert (actual.value, actual.expires_at_s, actual.extensions) == ("token for x", 5e9, {"more": "1"})
