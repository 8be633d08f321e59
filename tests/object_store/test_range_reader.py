"""Direct reads from a strict server with faults, with TLS and without."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.fakes.range_server import PATH, SIGNATURE, Fault, RangeServer
from tests.security.certificates import DAY, NOW, Authority

from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, StoreUnreachableError
from shallow_mirror.object_store.direct_read_options import DirectReadOptions, RetryRules
from shallow_mirror.object_store.range_reader import IDLE_CONNECTIONS, RangeReader, ReadRefusedError

DATA = random.Random(5).randbytes(700_000)
ROOT = "s3://bucket"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ca")


@pytest.fixture(params=["https", "http"])
def server(request: pytest.FixtureRequest, authority: Authority) -> Iterator[RangeServer]:
    key = authority.signed("store", ("127.0.0.1",)).keystore_file if request.param == "https" else None
    with RangeServer(DATA, certificate_and_key=key) as server:
        yield server


class Pauses:
    """A sleep that only notes how long it was to be."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def options_of(authority: Authority, **changes: object) -> DirectReadOptions:
    options = DirectReadOptions(
        allows_http=True,
        verifies=True,
        ca_pem=authority.identity.certificate_pem,
        user_agent="test",
        connect_timeout_ms=5_000.0,
        timeout_ms=5_000.0,
        read_timeout_ms=None,
        pool_idle_ms=90_000.0,
        retry=RetryRules(max_retries=3, timeout_ms=15_000.0, first_pause_ms=100.0, most_pause_ms=250.0, base=2.0),
    )
    return replace(options, **changes)  # type: ignore[arg-type]


def read(reader: RangeReader, server: RangeServer, start: int, size: int) -> bytes:
    buffer = bytearray(size)
    reader.read_into(lambda: server.url, start, memoryview(buffer), "read x", ROOT)
    return bytes(buffer)


@pytest.fixture(autouse=True)
def no_authorities_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load no certificates of the system: hundreds for each reader, and no server here has one of them."""
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def reader(authority: Authority, pauses: Pauses) -> RangeReader:
    return RangeReader(options_of(authority), sleep=pauses, jitter=lambda: 0.5)


@pytest.mark.parametrize("record_bytes", [1, 700, 4096, 1 << 20])
def test_ranges_are_read_over_one_connection(server: RangeServer, reader: RangeReader, record_bytes: int) -> None:
    server.record_bytes = record_bytes
    size = 600 if record_bytes == 1 else 600_000
    for start in (0, 1, 65_537):
        assert read(reader, server, start, size) == DATA[start : start + size]
    assert read(reader, server, len(DATA) - 1, 1) == DATA[-1:]
    assert server.requests == [*(f"bytes={start}-{start + size - 1}" for start in (0, 1, 65_537)), "bytes=699999-699999"]
    assert server.connections == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Fault.ANSWER_500,
        Fault.ANSWER_503,
        Fault.ANSWER_429,
        Fault.CHUNKED_503,
        Fault.CUT,
        Fault.CUT_HEAD,
        Fault.CUT_HALF,
        Fault.SHORT,
        Fault.GARBAGE,
    ],
)
def test_what_may_pass_is_repeated_with_the_pauses_of_obstore(
    server: RangeServer, reader: RangeReader, pauses: Pauses, fault: Fault
) -> None:
    server.faults += [fault] * 3
    assert read(reader, server, 10, 500_000) == DATA[10:500_010]
    assert len(server.requests) == 4
    assert pauses.seconds == [0.1, 0.15, 0.2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault.ANSWER_503, "503 SlowDown Please wait."),
        (Fault.CHUNKED_503, "503 SlowDown Please wait."),
        (Fault.ANSWER_429, "429 TooManyRequests Please wait."),
        (Fault.CUT, "closed the connection"),
        (Fault.CUT_HALF, "closed the connection"),
        (Fault.SHORT, "closed the connection"),
        (Fault.GARBAGE, "BadStatusLine"),
    ],
)
def test_after_the_last_attempt_the_store_is_unreachable_and_no_text_has_the_signature(
    server: RangeServer, reader: RangeReader, caplog: pytest.LogCaptureFixture, fault: Fault, reason: str
) -> None:
    caplog.set_level(logging.DEBUG)
    server.faults += [fault] * 4
    with pytest.raises(StoreUnreachableError) as raised:
        read(reader, server, 0, 100)
    assert len(server.requests) == 4
    text = str(raised.value)
    assert text.startswith(f"{ROOT}: the store did not read x: ")
    assert reason in text
    assert f"//{server.authority}{PATH}). Remedy: check" in text
    assert raised.value.__cause__ is None
    assert SIGNATURE not in f"{text} {raised.value.__context__} {caplog.text}"


def test_no_attempt_begins_when_the_time_for_retries_is_over(server: RangeServer, authority: Authority) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 8

    reader = RangeReader(options_of(authority), clock=lambda: now[0], sleep=sleep)
    server.faults += [Fault.ANSWER_503] * 10
    with pytest.raises(StoreUnreachableError, match="503"):
        read(reader, server, 0, 100)
    assert len(server.requests) == 3


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.HANG, Fault.HANG_HALF, Fault.TRICKLE])
def test_an_attempt_ends_at_its_timeout(server: RangeServer, authority: Authority, pauses: Pauses, fault: Fault) -> None:
    options = options_of(authority, timeout_ms=150.0, retry=replace(options_of(authority).retry, max_retries=1))
    server.faults += [fault] * 2
    with pytest.raises(StoreUnreachableError, match=r"did not read x: .*(timed out|gave up waiting)"):
        read(RangeReader(options, sleep=pauses), server, 0, 300_000)
    assert len(server.requests) == 2


def test_a_silence_ends_an_attempt_before_its_timeout(server: RangeServer, authority: Authority, pauses: Pauses) -> None:
    server.faults += [Fault.HANG_HALF]
    reader = RangeReader(options_of(authority, timeout_ms=60_000.0, read_timeout_ms=100.0), sleep=pauses)
    assert read(reader, server, 0, 300_000) == DATA[:300_000]
    assert len(server.requests) == 2


def test_a_server_that_does_not_listen_is_unreachable(server: RangeServer, reader: RangeReader) -> None:
    server._server.server_close()
    with pytest.raises(StoreUnreachableError, match=r"cannot connect to 127\.0\.0\.1:.*Connection refused"):
        read(reader, server, 0, 100)


@pytest.mark.parametrize(
    ("fault", "status"),
    [(Fault.ANSWER_403, 403), (Fault.ANSWER_404, 404), (Fault.WHOLE, 200), (Fault.OTHER_RANGE, 206)],
)
def test_a_refusal_is_left_to_obstore_at_once(server: RangeServer, reader: RangeReader, fault: Fault, status: int) -> None:
    server.faults += [fault]
    with pytest.raises(ReadRefusedError) as raised:
        read(reader, server, 5_000, 100)
    assert raised.value.status == status
    assert len(server.requests) == 1
    assert read(reader, server, 0, 100) == DATA[:100]


@pytest.mark.parametrize("start", [len(DATA) - 10, len(DATA) + 10])
def test_bytes_behind_the_end_are_not_taken_for_the_wanted_ones(server: RangeServer, reader: RangeReader, start: int) -> None:
    with pytest.raises(ReadRefusedError) as raised:
        read(reader, server, start, 100)
    assert raised.value.status == (206 if start < len(DATA) else 416)


@pytest.mark.parametrize("fault", [Fault.SAY_CLOSE, Fault.CLOSE_SILENTLY])
def test_a_connection_that_the_server_closed_is_not_used_again(
    server: RangeServer, reader: RangeReader, pauses: Pauses, fault: Fault
) -> None:
    server.faults += [fault]
    for start in (0, 100, 200):
        assert read(reader, server, start, 100) == DATA[start : start + 100]
    assert server.connections == 2
    assert len(pauses.seconds) <= (fault is Fault.CLOSE_SILENTLY)  # the end may come after the next request was sent


def test_a_connection_without_requests_for_too_long_is_not_used_again(server: RangeServer, authority: Authority) -> None:
    now = [0.0]
    reader = RangeReader(options_of(authority), clock=lambda: now[0])
    for now[0] in (0.0, 89.0, 179.5):
        assert read(reader, server, 0, 100) == DATA[:100]
    assert server.connections == 2


def test_idle_connections_are_limited_and_closed_with_the_reader(server: RangeServer, authority: Authority) -> None:
    reader, url = RangeReader(options_of(authority)), urlsplit(server.url)
    deadline = Deadline.after_ms(5_000.0, time.monotonic)
    connections = [reader._connection(url, deadline) for _ in range(IDLE_CONNECTIONS + 2)]
    for connection in connections:
        reader._give_back(url, connection)
    idle = reader._idle
    assert [kept.connection for kept in idle] == connections[:IDLE_CONNECTIONS]
    del reader
    assert not idle


@pytest.mark.parametrize(
    ("hosts", "ends", "reason"),
    [(("10.0.0.1",), NOW + DAY, "IP address mismatch"), (("127.0.0.1",), NOW - DAY, "expired")],
)
def test_a_certificate_that_is_not_accepted_is_a_refusal(
    authority: Authority, reader: RangeReader, hosts: tuple[str, ...], ends: object, reason: str
) -> None:
    key = authority.signed("wrong", hosts, ends=ends).keystore_file  # type: ignore[arg-type]
    with (
        RangeServer(DATA, certificate_and_key=key) as server,
        pytest.raises(ReadRefusedError, match=f"the certificate of 127.0.0.1:.* is not accepted: .*{reason}") as raised,
    ):
        read(reader, server, 0, 100)
    assert raised.value.status is None


def test_an_unknown_authority_is_refused_unless_certificates_are_not_verified(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    with RangeServer(DATA, certificate_and_key=authority.signed("s", ("10.0.0.1",)).keystore_file) as server:
        for options in (options_of(other), options_of(authority, ca_pem="")):
            with pytest.raises(ReadRefusedError, match="certificate"):
                read(RangeReader(options), server, 0, 100)
        assert read(RangeReader(options_of(other, verifies=False)), server, 0, 100) == DATA[:100]


def test_a_ca_that_is_not_pem_is_a_wrong_setting(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"storage\.options\.root_certificate"):
        RangeReader(options_of(authority, ca_pem="no certificate"))


def test_plain_http_is_refused_unless_it_is_allowed(authority: Authority) -> None:
    with RangeServer(DATA) as server:
        with pytest.raises(ReadRefusedError, match="scheme"):
            read(RangeReader(options_of(authority, allows_http=False)), server, 0, 100)
        assert server.requests == []


def test_a_server_that_breaks_tls_is_unreachable_after_all_attempts(authority: Authority, pauses: Pauses) -> None:
    with RangeServer(DATA) as server:
        url = server.url.replace("http://", "https://")
        with pytest.raises(StoreUnreachableError, match=r"SSLError|closed the connection"):
            RangeReader(options_of(authority), sleep=pauses).read_into(lambda: url, 0, memoryview(bytearray(10)), "read x", ROOT)
    assert len(pauses.seconds) == 3
