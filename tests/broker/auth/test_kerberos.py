"""The exchange of SASL GSSAPI and keytabs, without a KDC. On brokers: tests/kerberos."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st
from tests.fakes.gss_acceptor import FakeAcceptor, FakeContext, RefusedError, protect
from tests.support.deadlines import deadline

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.auth.kerberos import GssExchangeError, conversation, exchange
from shallow_mirror.broker.auth.keytab import keytab_principals
from shallow_mirror.errors import AuthenticationError

GSSAPI = {"bootstrap.servers": "x:1", "security.protocol": "sasl_ssl", "sasl.mechanism": "GSSAPI"}


def run_exchange(context: FakeContext, answer: Callable[[bytes], bytes]) -> None:
    client = exchange(context, b"AP-REQ")
    message = next(client)
    try:
        while True:
            message = client.send(answer(message))
    except StopIteration:
        return


def test_the_exchange_ends_with_an_acceptor_that_is_content() -> None:
    acceptor = FakeAcceptor()
    run_exchange(FakeContext(), acceptor.answer)
    assert acceptor.is_complete


def test_no_layer_is_chosen_among_all_of_them() -> None:
    acceptor = FakeAcceptor(offer=bytes([7, 0, 255, 255]))
    run_exchange(FakeContext(), acceptor.answer)
    assert acceptor.is_complete


@pytest.mark.parametrize(
    ("offer", "message"),
    [(bytes([6, 0, 255, 255]), "insists on a security layer"), (bytes([1, 0, 0]), "in 3 bytes"), (b"", "in 0 bytes")],
)
def test_an_offer_that_cannot_be_taken_ends_the_exchange(offer: bytes, message: str) -> None:
    acceptor = FakeAcceptor(offer=offer)
    with pytest.raises(GssExchangeError, match=message):
        run_exchange(FakeContext(), acceptor.answer)
    assert not acceptor.is_complete


def test_a_broker_that_did_not_prove_its_identity_is_told_nothing() -> None:
    sent: list[bytes] = []

    def answer(message: bytes) -> bytes:
        sent.append(message)
        return b"AP-REP"

    with pytest.raises(GssExchangeError, match="did not prove its identity"):
        run_exchange(FakeContext(flags=0), answer)
    assert sent == [b"AP-REQ"]


@pytest.mark.parametrize("forged", [b"", b"AP-REQ", b"error"])
def test_a_broker_without_the_key_of_its_service_is_refused(forged: bytes) -> None:
    with pytest.raises(RefusedError, match="defective token"):
        run_exchange(FakeContext(), lambda _message: forged)


def test_an_offer_that_was_changed_on_its_way_is_refused() -> None:
    acceptor = FakeAcceptor()

    def answer(message: bytes) -> bytes:
        reply = acceptor.answer(message)
        return reply[:-1] + b"\xff" if reply.startswith(protect(acceptor.offer)[:32]) else reply

    with pytest.raises(RefusedError, match="was changed"):
        run_exchange(FakeContext(), answer)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((b"", b"", b""), "begins with AP-REQ"),
        ((b"AP-REQ", b"more"), "nothing is to be said"),
        ((b"AP-REQ", b"", b"\x01\x00\x00\x00"), "was changed"),
        ((b"AP-REQ", b"", protect(b"\x02\x00\x00\x00")), "one of the offered layers"),
        ((b"AP-REQ", b"", protect(b"\x01\x00\xff\xff")), "no buffer"),
        ((b"AP-REQ", b"", protect(b"\x01\x00\x00\x00kafka@broker")), "act as itself"),
        ((b"AP-REQ", b"", protect(b"\x01\x00\x00\x00"), b""), "is over"),
    ],
)
def test_the_acceptor_refuses_what_a_broker_refuses(messages: tuple[bytes, ...], reason: str) -> None:
    acceptor = FakeAcceptor()
    *earlier, last = messages
    if reason == "begins with AP-REQ":
        earlier = []
    for message in earlier:
        acceptor.answer(message)
    with pytest.raises(RefusedError, match=reason):
        acceptor.answer(last)


def test_a_machine_without_the_package_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(AuthenticationError) as caught:
        next(conversation(ClientConfig.from_properties(GSSAPI), "x:1", deadline()))
    (problem,) = caught.value.problems
    assert problem.startswith("broker x:1, GSSAPI: the package gssapi cannot be used here (")
    assert "install MIT Kerberos and shallow-mirror[kerberos] on every machine that connects, also those of executors" in problem


def entry(principal: str, key: bytes = b"k" * 32) -> bytes:
    name, _, realm = principal.partition("@")
    components = name.split("/")
    texts = b"".join(struct.pack(">H", len(text)) + text.encode() for text in (realm, *components))
    body = struct.pack(">H", len(components)) + texts + struct.pack(">IIBHH", 1, 0, 2, 18, len(key)) + key
    return struct.pack(">i", len(body)) + body


HOLE = struct.pack(">i", -7) + b"deleted"


@pytest.mark.parametrize(
    ("entries", "principals"),
    [
        ([], ()),
        ([entry("mirror@A.TEST")], ("mirror@A.TEST",)),
        (
            [entry("b@A.TEST"), HOLE, entry("kafka/host.example@A.TEST"), entry("b@A.TEST")],
            ("b@A.TEST", "kafka/host.example@A.TEST"),
        ),
        ([entry("b@A.TEST"), bytes(12)], ("b@A.TEST",)),
    ],
)
def test_principals_of_a_keytab_are_listed_once_each(entries: list[bytes], principals: tuple[str, ...]) -> None:
    assert keytab_principals(b"\x05\x02" + b"".join(entries)) == principals


def test_every_cut_of_a_keytab_lists_what_is_whole_or_is_damaged() -> None:
    whole = b"\x05\x02" + entry("mirror@A.TEST")
    for size in range(len(whole)):
        if size == 2:
            assert keytab_principals(whole[:size]) == ()
            continue
        with pytest.raises(ValueError, match=r"does not begin as a keytab|is damaged"):
            keytab_principals(whole[:size])


@given(st.binary(max_size=200))
def test_bytes_that_are_no_keytab_raise_no_other_error(data: bytes) -> None:
    with suppress(ValueError):
        assert all("@" in principal for principal in keytab_principals(b"\x05\x02" + data))
