"""Direct reads from a real S3 server, over TLS through a proxy that makes faults."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.object_store.servers import BUCKET, SECRET_KEY, StoreProxy, StoreServer, options_for
from tests.object_store.store_proxy import Harm, StoreFault
from tests.security.certificates import Authority

from shallow_mirror.errors import ConfigError, ObjectMissingError, StoreUnreachableError
from shallow_mirror.object_store import READ_BYTES, ObjectStore
from shallow_mirror.object_store.remote_store import DIRECT_READ_BYTES, RemoteStore

NAME = "a1/odd name+%.batches"
DATA = os.urandom(1 << 20) * 18
SIGNED = "X-Amz-Signature="
THREADS = 12


class TlsStore:
    """A proxy with TLS in front of the server, and objects behind it."""

    def __init__(self, proxy: StoreProxy, authority: Authority) -> None:
        self.proxy, self.authority = proxy, authority

    def opened(self, **changes: str) -> ObjectStore:
        quick = {"timeout": "2s", "retry_timeout": "2s", "max_retries": "2", "backoff_config.init_backoff": "10ms"}
        options = options_for(self.proxy.endpoint, root_certificate=self.authority.identity.certificate_pem)
        return ObjectStore.open(f"s3://{BUCKET}/direct reads", {**options, **quick, **changes})

    def gets_of(self, action: Callable[[], object]) -> list[str]:
        """Return path and query of the GET requests of an action."""
        before = len(self.proxy.requests())
        action()
        return [path for method, path in self.proxy.requests()[before:] if method == "GET"]


@pytest.fixture(scope="module")
def tls_proxy(store_server: StoreServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StoreProxy, Authority]]:
    folder = tmp_path_factory.mktemp("tls-proxy")
    authority = Authority(folder, "ca")
    key = authority.signed("store", ("127.0.0.1",)).keystore_file
    proxy = StoreProxy(store_server, folder, certificate_and_key=key, ca_file=authority.identity.certificate_file)
    proxy.start()
    yield proxy, authority
    proxy.stop()


@pytest.fixture
def store(
    store_server: StoreServer, tls_proxy: tuple[StoreProxy, Authority], monkeypatch: pytest.MonkeyPatch
) -> Iterator[TlsStore]:
    monkeypatch.setenv("STORE_SECRET_KEY", SECRET_KEY)
    store = TlsStore(*tls_proxy)
    objects = store.opened()
    if objects.size(NAME) is None:
        with objects.writer(NAME) as writer:
            writer.write(DATA)
            writer.close()
    yield store
    store.proxy.clear()


def read(objects: ObjectStore, start: int, size: int) -> bytes:
    target = bytearray(size)
    objects.read_into(NAME, [(start, size)], memoryview(target))
    return bytes(target)


def test_large_ranges_are_read_by_signed_urls_and_small_ones_through_obstore(store: TlsStore) -> None:
    objects = store.opened()
    assert read(objects, 5, len(DATA) - 5) == DATA[5:]
    gets = store.gets_of(lambda: read(objects, 5, 2 * READ_BYTES + DIRECT_READ_BYTES))
    assert [SIGNED in path for path in gets] == [True] * 3
    gets = store.gets_of(lambda: read(objects, 5, DIRECT_READ_BYTES - 1))
    assert [SIGNED in path for path in gets] == [False]
    ranges = [(3, 100), (200_000, 300_000), (900_000, READ_BYTES + 1)]
    assert objects.read_ranges(NAME, ranges) == tuple(DATA[start : start + size] for start, size in ranges)


def test_reads_of_many_threads_are_right_while_some_fail(store: TlsStore) -> None:
    objects = store.opened()
    reads = [(number * 130_001, 70_000 + number * 30_000) for number in range(3 * THREADS)]
    with store.proxy.faulty(StoreFault(harm=Harm.CUT, path=SIGNED, skip=5, count=2)), ThreadPoolExecutor(THREADS) as threads:
        results = list(threads.map(lambda read_range: read(objects, *read_range), reads))
    assert results == [DATA[start : start + size] for start, size in reads]


@pytest.mark.parametrize(
    ("options", "begins", "holds"),
    [
        ({}, "https://s3.eu-north-1.amazonaws.com/bucket/pre%20fix/a/x%2B1?", "key%2F20"),
        ({"aws_virtual_hosted_style_request": "true"}, "https://bucket.s3.eu-north-1.amazonaws.com/pre%20fix/a/x%2B1?", "X-Amz"),
        ({"aws_endpoint_url": "https://store:9000"}, "https://store:9000/bucket/pre%20fix/a/x%2B1?", "%2Feu-north-1%2Fs3%2F"),
        ({"aws_session_token": "${env:TOKEN}"}, "https://s3.eu-north-1.amazonaws.com/", "X-Amz-Security-Token=to%2Fken"),
    ],
)
def test_signed_urls_follow_the_options_of_the_store(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], begins: str, holds: str
) -> None:
    monkeypatch.setenv("TOKEN", "to/ken")
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "${env:TOKEN}", "aws_region": "eu-north-1"}
    url = RemoteStore("s3://bucket/pre fix", {**keys, **options})._signed_url("a/x+1")
    assert url.startswith(begins)
    assert holds in url
    assert "X-Amz-Expires=1800" in url


@pytest.mark.parametrize("harm", [Harm.ANSWER_500, Harm.ANSWER_503, Harm.CUT, Harm.LOSE_RESPONSE])
def test_a_signed_read_that_failed_is_repeated(store: TlsStore, harm: Harm) -> None:
    objects = store.opened()
    with store.proxy.faulty(StoreFault(harm=harm, path=SIGNED, count=2)):
        assert read(objects, 7, 200_000) == DATA[7:200_007]
        assert store.proxy.hits() == 2


@pytest.mark.parametrize(
    ("harm", "reason"),
    [(Harm.ANSWER_503, "503 SlowDown Please try again."), (Harm.HANG, "timed out"), (Harm.CUT, "closed the connection")],
)
def test_a_store_that_fails_is_named_without_the_signature(
    store: TlsStore, caplog: pytest.LogCaptureFixture, harm: Harm, reason: str
) -> None:
    caplog.set_level(logging.DEBUG)
    objects = store.opened(timeout="300ms", max_retries="1")
    with store.proxy.faulty(StoreFault(harm=harm)), pytest.raises(StoreUnreachableError) as raised:
        read(objects, 0, 200_000)
    text = str(raised.value)
    assert f"the store did not read {NAME}: " in text
    assert reason in text
    assert f"({store.proxy.endpoint}/{BUCKET}/direct%20reads/" in text
    assert "X-Amz" not in text + caplog.text


def test_missing_objects_and_bytes_are_named_as_by_obstore(store: TlsStore) -> None:
    objects = store.opened()
    with pytest.raises(ObjectMissingError, match="/none: the object does not exist"):
        objects.read("none", 0, 200_000)
    end = len(DATA)
    with pytest.raises(ObjectMissingError, match=f"ends at byte {end}, and bytes {end - 5} to {end + 95_000} were expected"):
        read(objects, end - 5, 95_005)
    with pytest.raises(ObjectMissingError, match="ends before the bytes that were expected"):
        read(objects, len(DATA) + 50, 200_000)
    assert SIGNED in store.gets_of(lambda: read(objects, 0, 200_000))[0]


def test_wrong_keys_and_a_missing_permission_are_wrong_settings(store: TlsStore) -> None:
    with pytest.raises(ConfigError, match=r"the store refuses to read .*403 SignatureDoesNotMatch.*check the credentials"):
        read(store.opened(AWS_SECRET_ACCESS_KEY="wrong"), 0, 200_000)
    objects = store.opened()
    with store.proxy.faulty(StoreFault(harm=Harm.ANSWER_403)), pytest.raises(ConfigError, match="403 AccessDenied"):
        read(objects, 0, 200_000)
    assert SIGNED in store.gets_of(lambda: read(objects, 0, 200_000))[0]


def test_keys_that_were_renewed_are_used_after_a_refusal(store: TlsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_SECRET_KEY", "expired")
    objects = store.opened()
    with pytest.raises(ConfigError, match="403"):
        read(objects, 0, 200_000)
    monkeypatch.setenv("STORE_SECRET_KEY", SECRET_KEY)
    assert read(objects, 0, 200_000) == DATA[:200_000]


def test_a_store_that_refuses_signed_urls_alone_is_read_through_obstore_and_that_is_logged_once(
    store: TlsStore, caplog: pytest.LogCaptureFixture
) -> None:
    objects = store.opened()
    with store.proxy.faulty(StoreFault(harm=Harm.ANSWER_403, path=SIGNED)):
        gets = store.gets_of(lambda: [read(objects, 0, 200_000) for _ in range(3)])
    assert [SIGNED in path for path in gets] == [True, False, False, False]
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "a read by a signed URL is refused (status 403 Forbidden)" in record.getMessage()
    assert read(objects, 9, 200_000) == DATA[9:200_009]


def test_options_that_direct_reads_do_not_know_are_left_to_obstore_and_that_is_logged(
    store: TlsStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    objects = store.opened(randomize_addresses="true")
    gets = store.gets_of(lambda: read(objects, 0, 200_000))
    assert [SIGNED in path for path in gets] == [False]
    assert "objects are read through obstore, not by direct reads: option randomize_addresses" in caplog.text


def test_a_certificate_that_is_not_accepted_is_a_wrong_setting(store: TlsStore, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other").identity.certificate_pem
    for size in (10, 200_000):
        with pytest.raises(ConfigError, match=r"its certificate is not accepted here: .*storage\.options\.root_certificate"):
            read(store.opened(root_certificate=other), 0, size)
    unverified = store.opened(root_certificate=other, allow_invalid_certificates="true")
    assert read(unverified, 0, 200_000) == DATA[:200_000]
