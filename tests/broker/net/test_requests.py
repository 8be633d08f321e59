"""Responses that no broker sends, to requests that kafka-python encodes and decodes."""

from __future__ import annotations

import pytest
from tests.fakes.replayed import NEVER, replayed_connection, response_frame

from shallow_mirror.broker.net import requests
from shallow_mirror.errors import RetriableError

ENDLESS = b"\xff" * 9 + b"\x01"
UNREADABLE = {
    "nothing": ("EndTxn", b""),
    "tags in the header": ("EndTxn", b"\x01"),
    "half of it": ("EndTxn", bytes(4)),
    "tags where there are none": ("ApiVersions", b"\x00\x00\x02" + bytes(6) + b"\x01" + bytes(6)),
    "a string of 2 to the 63 bytes": ("FindCoordinator", bytes(7) + ENDLESS),
    "an array of 2 to the 63 entries": ("Metadata", bytes(5) + ENDLESS),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_response_that_cannot_be_decoded_is_retriable_names_the_broker_and_closes_the_connection(what: str) -> None:
    api, body = UNREADABLE[what]
    connection = replayed_connection(response_frame(1, body))
    with pytest.raises(RetriableError, match=f"PROTOCOL: replayed:9092 sent an unreadable answer to {api}"):
        requests.call(connection, api, NEVER)
    assert connection.is_closed
