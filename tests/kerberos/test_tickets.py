"""Tickets of one process from a real KDC, without brokers, on a clock of the test that passes a ticket's life at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kerberos.realm import Realm, client_config
from tests.support.deadlines import deadline, wait_until

from shallow_mirror.broker.auth.kerberos import Login, Service
from shallow_mirror.errors import AuthenticationError, RetriableError

pytestmark = pytest.mark.brokers

LIFE_S = 600
HERE, THERE = Service("kafka", "here.test"), Service("kafka", "there.test")
AT_ONCE_MS = 5_000
"""Less than the time in which libkrb5 gives up."""


class Client:
    """A principal of the realm with a keytab, and its tickets. `now`: its clock, in seconds."""

    def __init__(self, realm: Realm, name: str) -> None:
        realm.add(name)
        self.realm, self.name, self.now = realm, name, 1_000.0
        self.keytab = realm.keytab(name)
        self._login = Login("", str(self.keytab), clock=lambda: self.now)

    def sign_in(self, service: Service = HERE, within_ms: float = AT_ONCE_MS) -> None:
        _, token = self._login.begin(service, deadline(within_ms))
        assert token

    @property
    def tickets(self) -> int:
        return self.realm.tickets_given(self.name)

    @property
    def renewals(self) -> int:
        """Return how many threads get tickets for it now."""
        return sum(str(self.keytab) in thread.name for thread in threading.enumerate())


@pytest.fixture(scope="module")
def realm(needs_kdc: None, no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with Realm(tmp_path_factory.mktemp("realm"), "TICKETS.TEST", lifetime_s=LIFE_S) as realm:
        for service in (HERE, THERE):
            realm.add(str(service))
        yield realm


@pytest.fixture
def client(realm: Realm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Client:
    config = tmp_path / "krb5.conf"
    config.write_text(client_config([realm], "dns_canonicalize_hostname = false"), encoding="utf-8")
    monkeypatch.setenv("KRB5_CONFIG", str(config))
    return Client(realm, f"client-{abs(hash(request.node.name))}")


@contextmanager
def silent(realm: Realm) -> Iterator[None]:
    """Drop every packet to the KDC until the block ends."""
    realm.pause()
    try:
        yield
    finally:
        realm.resume()


def test_a_kdc_that_drops_packets_holds_up_no_authentication_while_the_ticket_is_valid(client: Client) -> None:
    client.sign_in()
    with silent(client.realm):
        for share in (0.6, 0.8, 0.94):
            client.now = 1_000.0 + share * (LIFE_S - 1)
            client.sign_in()
        assert client.renewals == 1
        client.now = 1_000.0 + LIFE_S
        with pytest.raises(RetriableError, match="KDC_UNREACHABLE: no answer of a KDC in time"):
            client.sign_in(within_ms=100)
        assert client.renewals == 1
    client.sign_in(within_ms=60_000)
    assert client.tickets == 2


def test_tickets_of_services_are_renewed_with_it_so_that_no_authentication_needs_the_kdc(client: Client) -> None:
    client.sign_in(HERE)
    client.sign_in(THERE)
    client.now += 0.6 * LIFE_S
    client.sign_in(HERE)
    wait_until(lambda: client.tickets == 2 and not client.renewals)
    with silent(client.realm):
        client.sign_in(HERE)
        client.sign_in(THERE)


def test_a_service_without_a_ticket_waits_for_the_kdc_and_holds_up_no_other(client: Client) -> None:
    client.sign_in(HERE)
    with silent(client.realm):
        with pytest.raises(RetriableError, match="KDC_UNREACHABLE: no answer of a KDC in time"):
            client.sign_in(THERE, within_ms=100)
        client.sign_in(HERE)
    client.sign_in(THERE, within_ms=60_000)


def test_a_key_that_was_changed_is_reported_once_and_ends_nothing_before_the_ticket_has_ended(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.sign_in()
    client.realm.change_key(client.name)
    for share in (0.6, 0.7, 0.8, 0.94):
        client.now = 1_000.0 + share * (LIFE_S - 1)
        client.sign_in()
        wait_until(lambda: not client.renewals)
    (line,) = caplog.messages
    assert line.startswith(
        f"the Kerberos ticket of the principal of {client.keytab} was not renewed and is used until it ends in "
    )
    assert "Preauthentication failed: the keytab holds an old key: export a new keytab" in line
    assert client.realm.refusals(client.name) == 1
    client.now = 1_000.0 + LIFE_S
    with pytest.raises(AuthenticationError, match="the keytab holds an old key"):
        client.sign_in()
    client.realm.keytab(client.name)
    client.sign_in()
