from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.wire.protocol.scram import ScramClient, ScramError

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_the_conversation_of_rfc_7677() -> None:
    scram_client = client()
    assert scram_client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram_client.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    scram_client.verify(SERVER_FINAL)


def test_the_user_name_is_escaped() -> None:
    assert ScramClient("SCRAM-SHA-512", "a=b,c", "p", "n").first() == b"n,,n=a=3Db=2Cc,r=n"


def test_a_server_that_does_not_know_the_password_is_no_server() -> None:
    scram_client = ScramClient("SCRAM-SHA-256", "user", "other", NONCE)
    scram_client.final(SERVER_FIRST)
    with pytest.raises(ScramError, match="does not know the password"):
        scram_client.verify(SERVER_FINAL)


@pytest.mark.parametrize(
    ("changed", "to", "message"),
    [
        (b"r=rOpr", b"r=other", "nonce"),
        (b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b"", "nonce"),
        (b"i=4096", b"i=4095", "4095 iterations"),
        (b"i=4096", b"i=99999999", "iterations"),
        (b"i=4096", b"i=many", "no count"),
        (b"i=4096", b"i=4096,m=x", "extension"),
        (b"s=W22", b"s=?", "no readable s="),
        (b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b"s", "not one of SCRAM"),
        (b"r=", b"\xff=", "not one of SCRAM"),
    ],
)
def test_a_first_message_that_no_honest_server_sends_is_refused(changed: bytes, to: bytes, message: str) -> None:
    with pytest.raises(ScramError, match=message):
        client().final(SERVER_FIRST.replace(changed, to))


@pytest.mark.parametrize(
    ("final", "message"), [(b"e=unknown-user", "refused: unknown-user"), (b"v=?", "readable v="), (b"x=1", "v=")]
)
def test_a_final_message_that_refuses_or_says_nothing_is_an_error(final: bytes, message: str) -> None:
    scram_client = client()
    scram_client.final(SERVER_FIRST)
    with pytest.raises(ScramError, match=message):
        scram_client.verify(final)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_message_or_an_error_without_the_password(message: bytes) -> None:
    for speak in (client().final, client().verify):
        with pytest.raises(ScramError) as caught:
            speak(message)
        assert "pencil" not in str(caught.value)
