"""What deltalake raises about object stores, as texts of deltalake 1.6.6, and the one line that is made of each."""

from __future__ import annotations

import pickle

import pytest
from deltalake.exceptions import DeltaError

from shallow_mirror.errors import ConfigError, FencedError, StoreUnreachableError
from shallow_mirror.object_store.store_errors import one_line, store_error

RED, END = "\x1b[31m", "\x1b[0m"
XML = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code><Message>Please try again.</Message></Error>'
SLOW = (
    f"Kernel error -> Generic S3 error\n   {RED}↳{END} Error performing GET http://s:1/b/t/_delta_log/_last_checkpoint in 217ms, "
    f"after 2 retries, max_retries\n {RED}↳{END} 2, retry_timeout\n {RED}↳{END} 4s  - Server returned non-2xx status code\n "
    f"{RED}↳{END} 503 Service Unavailable\n {RED}↳{END} {XML}\n"
)
ARROW = (
    "Kernel error: Arrow error: External: Generic S3 error: Error performing GET http://s:1/b/t/x.parquet in 2s, after 1 retries, "
    "max_retries: 2, retry_timeout: 4s  - HTTP error: error sending request"
)
LOST = (
    "Generic S3 error: Error performing GET http://s:1/b/t/part-0.parquet in 2ms - Server returned non-2xx status code: 404 Not "
    "Found: <Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>"
)
FULL = (
    "Failed to parse parquet: External: Generic LocalFileSystem error: Unable to copy data to file: No space left on device (os "
    "error 28)"
)
READ_ONLY = (
    "Could not create local directory: /d/tables/controls Error: Os { code: 30, kind: ReadOnlyFilesystem, message: "
    '"Read-only file system" }'
)
DENIED = "Generic LocalFileSystem error: Unable to create file /d/t/_delta_log/1.json: Permission denied (os error 13)"
FORBIDDEN = (
    f"Kernel error -> The operation lacked the necessary privileges to complete for path t\n {RED}↳{END} Error performing GET "
    f"http://s:1/b/t in 1ms - Server returned non-2xx status code\n {RED}↳{END} 403 Forbidden\n {RED}↳{END} {XML}"
)


@pytest.mark.parametrize(
    ("text", "is_refused", "expected"),
    [
        (
            SLOW,
            False,
            "s3://b/t: the store did not open the table: 503 SlowDown Please try again. (http://s:1/b/t/_delta_log/_last_ch",
        ),
        (
            ARROW,
            False,
            "s3://b/t: the store did not open the table: no answer (http://s:1/b/t/x.parquet). Remedy: check that the store",
        ),
        (
            LOST,
            False,
            "s3://b/t: the store did not open the table: 404 NoSuchKey The specified key does not exist. (http://s:1/b/t/part-0."
            "parquet). Remedy: the store has lost a file of the table: restore it",
        ),
        (
            FULL,
            False,
            "s3://b/t: the store did not open the table: No space left on device. Remedy: free or add space on the file system",
        ),
        (
            READ_ONLY,
            False,
            "s3://b/t: the store did not open the table: Read-only file system. Remedy: free or add space on the file system",
        ),
        (
            DENIED,
            True,
            "s3://b/t: the store refuses to open the table: Permission denied. Remedy: grant this user access to the folder",
        ),
        (
            FORBIDDEN,
            True,
            "s3://b/t: the store refuses to open the table: 403 SlowDown Please try again. (http://s:1/b/t). Remedy: ch",
        ),
    ],
)
def test_an_outage_is_one_line_whichever_class_the_library_gives_it(text: str, is_refused: bool, expected: str) -> None:
    for raised in (OSError(text), DeltaError(text)):
        error = store_error(raised, "open the table", "s3://b/t/")
        assert isinstance(error, StoreUnreachableError)
        assert str(error).startswith(expected)
        assert error.is_refused is is_refused
        assert not any(mark in str(error) for mark in ("\n", "\x1b", "<", "↳"))
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.parametrize(
    ("code", "is_refused", "verb"), [("AccessDenied", True, "refuses to"), ("InternalError", False, "did not")]
)
def test_one_of_many_objects_that_was_not_deleted_is_named(code: str, is_refused: bool, verb: str) -> None:
    text = f"Generic S3 error: DeleteObjects request failed for key a/x: Not now (code: {code})\n\nDebug source:\nGeneric {{\n}}"
    error = store_error(OSError(text), "delete objects", "s3://b/t")
    assert isinstance(error, StoreUnreachableError)
    assert error.is_refused is is_refused
    assert str(error).startswith(f"s3://b/t: the store {verb} delete objects: {code} Not now (a/x). Remedy: ")


def test_obstore_repeats_its_errors_as_structures_which_are_not_shown() -> None:
    text = "Generic S3 error: HTTP error: builder error\n\nDebug source:\nGeneric {\n    source: BadScheme,\n}"
    error = store_error(OSError(text), "look for x", "s3://b/t")
    assert str(error).startswith("s3://b/t: the store refuses to look for x: URL scheme is not allowed. Remedy: for http://")
    assert one_line(text) == "Generic S3 error: HTTP error: builder error"


def test_a_certificate_that_is_not_accepted_is_a_refusal() -> None:
    text = (
        "Generic S3 error: Error performing GET https://s:1/b/x?X-Amz-Signature=5ec2e7 in 1s, after 6 retries - HTTP error: error "
        "sending request\n\nDebug source:\nGeneric {\n  error: InvalidCertificate(\n        UnknownIssuer,\n ),\n}"
    )
    error = store_error(OSError(text), "read x", "s3://b/t")
    assert isinstance(error, StoreUnreachableError)
    assert error.is_refused
    assert str(error).startswith(
        "s3://b/t: the store refuses to read x: its certificate is not accepted here: UnknownIssuer (https://s:1/b/x). Remedy: set "
        "storage.options.root_certificate"
    )


@pytest.mark.parametrize(
    "text",
    [
        'Generic Config error\n ↳ failed to parse "5 parsecs" as Duration',
        "Unknown scheme: foo. Known schemes: abfss,azure",
        "Operation `put_opts` with mode `PutMode::Create` when conditional put is disabled not yet implemented by AmazonS3(b).",
    ],
)
def test_options_that_cannot_be_used_are_a_matter_of_the_mirror_file(text: str) -> None:
    assert isinstance(store_error(OSError(text), "open the table", "s3://b/t"), ConfigError)


@pytest.mark.parametrize(
    "text", ["Kernel error: Json error: Encountered unexpected 'g'", "Invalid JSON in file stats: key must be"]
)
def test_damage_is_not_taken_for_an_outage(text: str) -> None:
    assert store_error(DeltaError(text), "open the table", "s3://b/t") is None


def test_errors_of_ours_pass() -> None:
    fenced = FencedError("run two")
    assert store_error(fenced, "open the table", "s3://b/t") is fenced


def test_a_backtrace_and_long_texts_are_cut() -> None:
    assert one_line("Json error: bad 0: <unknown> 1: <unknown>") == "Json error: bad"
    assert len(one_line("x" * 1000)) == 300
