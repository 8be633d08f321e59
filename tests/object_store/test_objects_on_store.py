"""Objects on a real S3 server, through a proxy that makes faults."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.object_store.servers import ACCESS_KEY, BUCKET, SECRET_KEY, Store, StoreProxy, StoreServer, options_for
from tests.object_store.store_proxy import Harm, StoreFault
from tests.security.certificates import Authority

from shallow_mirror.errors import ConfigError, ObjectExistsError, ObjectMissingError, StoreUnreachableError
from shallow_mirror.object_store import PART_BYTES, PARTS_IN_FLIGHT, READ_BYTES, ObjectStore

NAME = "a1/00000003/0000000007-0001-00-deadbeef.batches"
SMALL = b"0123456789"
LARGE = os.urandom(1 << 20) * 17
"""Of three parts, the last of 1 MiB."""

UPLOAD = r"uploadId="
PROBE = r"_shallow_mirror/probe-"


def opened(store: Store, **changes: str) -> ObjectStore:
    """Open the objects of a test; requests fail sooner than in an archive unless `changes` say otherwise."""
    quick = {"timeout": "2s", "retry_timeout": "2s", "max_retries": "2", "backoff_config.init_backoff": "10ms", **changes}
    return ObjectStore.open(store.location, options_for(store.proxy.endpoint, **quick))


def written(objects: ObjectStore, data: bytes, name: str = NAME) -> int:
    with objects.writer(name) as writer:
        writer.write(data)
        return writer.close()


def requests_of(store: Store, action: Callable[[], object]) -> list[tuple[str, str]]:
    before = len(store.proxy.requests())
    action()
    return store.proxy.requests()[before:]


def test_what_was_written_without_a_hash_in_the_signature_is_read(store: Store) -> None:
    objects = opened(store, aws_unsigned_payload="true")
    assert written(objects, LARGE) == len(LARGE)
    (read,) = opened(store).read_ranges(NAME, [(0, len(LARGE))])
    assert bytes(read) == LARGE


UNSIGNED = "UNSIGNED-PAYLOAD"


def put_hashes(proxy: StoreProxy, action: Callable[[], object]) -> list[str]:
    """Return the hashes that the signatures of uploads have, in order."""
    before = len(proxy.requests())
    action()
    return [
        payload_hash
        for (method, _), payload_hash in zip(proxy.requests()[before:], proxy.payload_hashes()[before:], strict=True)
        if method == "PUT"
    ]


def test_over_plain_http_the_signature_of_an_upload_has_a_hash_of_its_bytes_unless_an_option_says_otherwise(store: Store) -> None:
    assert put_hashes(store.proxy, lambda: written(opened(store), SMALL)) == [hashlib.sha256(SMALL).hexdigest()]
    assert UNSIGNED not in put_hashes(store.proxy, lambda: written(opened(store), LARGE, "large"))
    unsigned = opened(store, aws_unsigned_payload="true")
    assert set(put_hashes(store.proxy, lambda: written(unsigned, LARGE, "large-unsigned"))) == {UNSIGNED}


def test_over_https_the_signature_of_an_upload_has_no_hash_unless_an_option_says_otherwise(
    store_server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_SECRET_KEY", SECRET_KEY)
    authority = Authority(tmp_path, "ca")
    key = authority.signed("store", ("127.0.0.1",)).keystore_file
    proxy = StoreProxy(store_server, tmp_path, certificate_and_key=key, ca_file=authority.identity.certificate_file)
    proxy.start()
    try:

        def over_https(name: str, **changes: str) -> ObjectStore:
            trusted = {"root_certificate": authority.identity.certificate_pem, **changes}
            return ObjectStore.open(f"s3://{BUCKET}/{name}", options_for(proxy.endpoint, **trusted))

        for data in (SMALL, LARGE):
            objects = over_https(f"over-https-{len(data)}")
            assert set(put_hashes(proxy, partial(written, objects, data))) == {UNSIGNED}
            assert objects.read(NAME, 0, len(data)) == data
        signed = over_https("over-https-signed", aws_unsigned_payload="false")
        assert put_hashes(proxy, lambda: written(signed, SMALL)) == [hashlib.sha256(SMALL).hexdigest()]
    finally:
        proxy.stop()


@pytest.mark.parametrize("data", [b"", SMALL, LARGE[:PART_BYTES], LARGE[: PART_BYTES + 1], LARGE], ids=len)
def test_what_was_written_is_read(store: Store, data: bytes) -> None:
    objects = opened(store)
    assert written(objects, data) == len(data)
    assert objects.size(NAME) == len(data)
    assert objects.read(NAME, 0, len(data)) == data
    assert objects.tail(NAME, 7) == data[-7:]
    [info] = objects.list("a1")
    assert (info.name, info.size_bytes) == (NAME, len(data))


def test_a_large_object_is_uploaded_in_parts_from_a_buffer_that_may_be_reused(store: Store) -> None:
    objects = opened(store)
    buffer = bytearray(1 << 20)

    def write() -> None:
        with objects.writer(NAME) as writer:
            for number in range(2 * PARTS_IN_FLIGHT * (PART_BYTES >> 20) // 4):
                buffer[:] = bytes([number]) * len(buffer)
                writer.write(buffer)
            writer.close()

    parts = [path for method, path in requests_of(store, write) if method == "PUT" and "partNumber=" in path]
    assert len(parts) == PARTS_IN_FLIGHT // 2
    assert [objects.read(NAME, number << 20, 1)[0] for number in range(16)] == list(range(16))


def test_ranges_are_read_by_requests_of_bounded_size(store: Store) -> None:
    objects = opened(store)
    written(objects, LARGE)
    ranges = [(5, 10), (15, 1 << 20), (0, 0), ((1 << 20) + 15, READ_BYTES), (len(LARGE) - 3, 3), (2, 4)]
    results: list[bytes] = []
    requests = requests_of(store, lambda: results.extend(objects.read_ranges(NAME, ranges, 2)))
    assert results == [LARGE[start : start + size] for start, size in ranges]
    assert [method for method, _ in requests] == ["GET"] * 4


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=len)
def test_a_written_object_is_looked_up_once_before_it_is_reported(store: Store, data: bytes) -> None:
    requests = requests_of(store, lambda: written(opened(store), data))
    assert [method for method, _ in requests][-2:] == ["PUT" if data is SMALL else "POST", "HEAD"]
    assert [method for method, _ in requests].count("HEAD") == (1 if data is SMALL else 3)


@pytest.mark.parametrize(("data", "method", "path"), [(SMALL, "PUT", ""), (LARGE, "POST", UPLOAD)], ids=["put", "multipart"])
@pytest.mark.parametrize(
    ("harm", "found"), [(Harm.FORGET, "there is no such object now"), (Harm.SHORTEN, r"it has [\d,]+ of [\d,]+ bytes now")]
)
def test_a_write_that_the_store_confirms_and_does_not_keep_is_found_at_once(
    store: Store, harm: Harm, found: str, data: bytes, method: str, path: str
) -> None:
    objects = opened(store)
    with (
        store.proxy.faulty(StoreFault(harm=harm, method=method, path=path)),
        pytest.raises(
            StoreUnreachableError,
            match=rf"did not keep {NAME}: it confirmed that the object is complete, and {found}\. Remedy: check the store",
        ),
    ):
        written(objects, data)
    assert written(objects, data, "again") == len(data)


def test_a_part_that_the_store_confirms_and_does_not_keep_fails_the_upload(store: Store) -> None:
    objects = opened(store)
    with (
        store.proxy.faulty(StoreFault(harm=Harm.FORGET, method="PUT", path="partNumber=2")),
        pytest.raises(StoreUnreachableError, match=r"400 InvalidPart .*the object is to be written again"),
    ):
        written(objects, LARGE)
    assert objects.size(NAME) is None


def test_missing_objects_and_missing_bytes_are_named(store: Store) -> None:
    objects = opened(store)
    written(objects, SMALL)
    assert objects.size("none") is None
    with pytest.raises(ObjectMissingError, match="/none: the object does not exist"):
        objects.read("none", 0, 1)
    with pytest.raises(ObjectMissingError, match="/none: the object does not exist"):
        objects.tail("none", 1)
    with pytest.raises(ObjectMissingError, match="ends at byte 10, and bytes 5 to 15 were expected"):
        objects.read(NAME, 5, 10)
    with pytest.raises(ObjectMissingError, match="ends before the bytes that were expected"):
        objects.read(NAME, 50, 1)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_an_object_is_not_overwritten(store: Store, data: bytes) -> None:
    objects = opened(store)
    written(objects, SMALL)
    with pytest.raises(ObjectExistsError, match="exists already and was not overwritten"):
        written(objects, data[::-1])
    assert objects.read(NAME, 0, 10) == SMALL
    assert list(objects.list_unfinished()) == []


def test_an_upload_whose_name_was_taken_meanwhile_is_given_up(store: Store) -> None:
    objects = opened(store)
    with objects.writer(NAME) as writer:
        writer.write(LARGE)
        written(objects, SMALL)
        with pytest.raises(ObjectExistsError):
            writer.close()
    assert objects.read(NAME, 0, 10) == SMALL


def test_an_aborted_upload_leaves_nothing_on_the_store(store: Store) -> None:
    objects = opened(store)

    def abort() -> None:
        with objects.writer(NAME) as writer:
            writer.write(LARGE)

    assert ("DELETE", UPLOAD) in [
        (method, path[path.find(UPLOAD) :][: len(UPLOAD)]) for method, path in requests_of(store, abort)
    ]
    assert objects.size(NAME) is None


def test_objects_below_a_prefix_are_listed_and_missing_ones_are_deleted_as_well(store: Store) -> None:
    objects = opened(store)
    for name in ("a/1/x", "a/2/y", "ab/z"):
        written(objects, SMALL, name)
    assert sorted(info.name for info in objects.list("a")) == ["a/1/x", "a/2/y"]
    assert list(objects.list("none")) == []
    objects.delete(["a/1/x", "a/none", "ab/z"])
    assert [info.name for info in objects.list()] == ["a/2/y"]


@pytest.mark.parametrize(
    ("data", "method", "path"),
    [(SMALL, "PUT", ""), (LARGE, "PUT", UPLOAD), (LARGE, "POST", UPLOAD)],
    ids=["small", "part", "complete"],
)
@pytest.mark.parametrize("harm", [Harm.ANSWER_503, Harm.CUT, Harm.LOSE_RESPONSE, Harm.HIDE_RESPONSE], ids=lambda harm: harm.name)
def test_a_write_whose_request_failed_once_ends_with_the_object_there(
    store: Store, data: bytes, method: str, path: str, harm: Harm
) -> None:
    objects = opened(store)
    with store.proxy.faulty(StoreFault(harm=harm, method=method, path=path, count=1)):
        assert written(objects, data) == len(data)
        assert store.proxy.hits() == 1
    assert objects.read(NAME, 0, len(data)) == data


def test_an_applied_write_whose_responses_are_all_lost_is_found(store: Store) -> None:
    objects = opened(store)
    with store.proxy.faulty(StoreFault(harm=Harm.HIDE_RESPONSE, method="PUT")):
        assert written(objects, SMALL) == 10
    assert objects.read(NAME, 0, 10) == SMALL


def test_reads_that_failed_once_are_repeated(store: Store) -> None:
    objects = opened(store)
    written(objects, SMALL)
    with store.proxy.faulty(StoreFault(harm=Harm.ANSWER_503, method="GET", count=1)):
        assert objects.read(NAME, 0, 10) == SMALL
    with store.proxy.faulty(StoreFault(harm=Harm.CUT, count=1)):
        assert [info.name for info in objects.list()] == [NAME]


def test_a_store_that_fails_is_named_with_the_operation(store: Store) -> None:
    objects = opened(store, max_retries="0")
    with store.proxy.faulty(StoreFault(harm=Harm.ANSWER_503)):
        with pytest.raises(StoreUnreachableError, match=f"{store.location}: the store did not write {NAME}: 503 SlowDown"):
            written(objects, SMALL)
        with pytest.raises(StoreUnreachableError, match=f"the store did not read {NAME}: 503 SlowDown.*Remedy: "):
            objects.read(NAME, 0, 1)
        with pytest.raises(StoreUnreachableError, match="the store did not list objects: 503"):
            list(objects.list())
        with pytest.raises(StoreUnreachableError, match="the store did not delete objects: 503"):
            objects.delete([NAME])
        with pytest.raises(StoreUnreachableError, match="the store did not look for"):
            written(objects, LARGE)
    with store.proxy.faulty(StoreFault(harm=Harm.HANG)), pytest.raises(StoreUnreachableError, match="did not read") as raised:
        opened(store, timeout="300ms").read(NAME, 0, 1)
    assert not any(mark in str(raised.value) for mark in ("\n", "<"))


def test_a_server_that_was_stopped_is_unreachable(store_server: StoreServer, tmp_path: Path) -> None:
    server = StoreServer(tmp_path / "objects")
    server.start()
    options = {"AWS_SECRET_ACCESS_KEY": SECRET_KEY, "retry_timeout": "1s", "max_retries": "1"}
    objects = ObjectStore.open(f"s3://{BUCKET}/x", options_for(f"http://127.0.0.1:{server.port}", **options))
    written(objects, SMALL)
    writer = objects.writer("other")
    writer.write(SMALL)
    server.stop()
    with pytest.raises(StoreUnreachableError, match=r"did not write other: (tcp connect error|Connection refused)"):
        writer.close()
    with pytest.raises(StoreUnreachableError, match="did not read"):
        objects.read(NAME, 0, 1)
    server.start()
    try:
        assert objects.read(NAME, 0, 10) == SMALL
        assert objects.size("other") is None
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "the store refuses to write .*403 SignatureDoesNotMatch.*check the credentials"),
        ({"AWS_ALLOW_HTTP": "false"}, "URL scheme is not allowed.*AWS_ALLOW_HTTP"),
        ({"timeout": "5 parsecs"}, "storage.options or the URI cannot be used: .*5 parsecs"),
        ({"retry_timeout": "5 parsecs"}, "storage.options.retry_timeout: '5 parsecs' is not a duration"),
        ({"max_retries": "many"}, "storage.options.max_retries: 'many' is not a number"),
    ],
)
def test_wrong_options_are_wrong_settings(store: Store, changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(store, **changes).probe()


def test_a_missing_bucket_is_a_wrong_setting(store: Store) -> None:
    objects = ObjectStore.open("s3://no-such-bucket/x", options_for(store.proxy.endpoint))
    for action in (objects.probe, lambda: list(objects.list()), lambda: objects.read(NAME, 0, 1)):
        with pytest.raises(ConfigError, match="404 NoSuchBucket"):
            action()


def test_the_probe_keeps_nothing(store: Store) -> None:
    opened(store, AWS_S3_ALLOW_UNSAFE_RENAME="true").probe()  # an option of deltalake alone
    assert store.files() == []


@pytest.mark.parametrize(
    ("method", "path", "operation"),
    [
        ("PUT", PROBE, "write"),
        ("GET", PROBE, "read"),
        ("GET", r"\?.*list-type", "list objects"),
        ("POST", "delete", "delete objects"),
    ],
)
def test_the_probe_names_the_permission_that_is_missing(store: Store, method: str, path: str, operation: str) -> None:
    with store.proxy.faulty(StoreFault(harm=Harm.ANSWER_403, method=method, path=path)):
        with pytest.raises(ConfigError, match=f"the store refuses to {operation}.*: 403 AccessDenied") as raised:
            opened(store).probe()
    assert len(raised.value.problems) == 1


def test_renewed_credentials_are_used_after_a_refusal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_SECRET_KEY", "expired")
    objects = opened(store)
    with pytest.raises(ConfigError, match="403"):
        objects.size(NAME)
    monkeypatch.setenv("STORE_SECRET_KEY", SECRET_KEY)
    assert objects.size(NAME) is None


def test_credentials_of_the_environment_work(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in options_for(store.proxy.endpoint).items():
        monkeypatch.setenv(name, SECRET_KEY if name == "AWS_SECRET_ACCESS_KEY" else value)
    assert os.environ["AWS_ACCESS_KEY_ID"] == ACCESS_KEY
    ObjectStore.open(store.location).probe()


def test_a_store_travels_unresolved_to_another_process(store: Store) -> None:
    objects = opened(store)
    written(objects, SMALL)
    pickled = pickle.dumps(objects)
    assert SECRET_KEY.encode() not in pickled
    assert pickle.loads(pickled).read(NAME, 0, 10) == SMALL


def test_a_process_that_was_forked_before_the_first_use_uses_the_store_and_one_forked_later_refuses(store: Store) -> None:
    program = """
import os, pickle, signal, sys
from shallow_mirror.object_store import ObjectStore
import obstore
objects = pickle.loads(bytes.fromhex(sys.argv[1]))

def forked(action):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)  # a request that hangs ends as a failure
        try:
            action()
        except RuntimeError as error:
            print(error, flush=True)
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

assert forked(objects.probe) == 0
assert forked(objects.probe) == 0
objects.probe()
assert forked(objects.probe) == 3
objects.probe()
"""
    completed = _run(program, pickle.dumps(opened(store)).hex())
    assert "was forked from process" in completed


def test_the_library_is_not_imported_before_the_first_use() -> None:
    program = """
import sys
from shallow_mirror.object_store import ObjectStore
ObjectStore.open("s3://bucket/path", {"AWS_REGION": "x"})
ObjectStore.open("/tmp").size("none")
assert not any(name.split(".")[0] in ("obstore", "deltalake") for name in sys.modules), "imported"
"""
    assert _run(program) == ""


def _run(program: str, *arguments: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout
