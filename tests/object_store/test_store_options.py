"""`storage.options` as the two libraries take them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from shallow_mirror.errors import ConfigError
from shallow_mirror.object_store.store_options import (
    MOST_RETRIES,
    RETRY_S,
    environment_http_options,
    library_options,
    payload_options,
    resolved_options,
)


def test_options_without_timeouts_have_those_of_every_store() -> None:
    options = library_options(resolved_options({"AWS_REGION": "x", "AWS_ALLOW_HTTP": "true"}))
    assert options.config == {"aws_region": "x"}
    assert options.client == {"allow_http": "true", "connect_timeout": "5s", "timeout": "20s"}
    assert options.retry == {
        "max_retries": MOST_RETRIES,
        "retry_timeout": timedelta(seconds=RETRY_S),
        "backoff": {"base": 2, "init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=3)},
    }


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("15s", 15), ("15 sec", 15), ("1m 30s", 90), ("1m30s", 90), ("2 minutes", 120), ("1h", 3600)],
)
def test_durations_are_those_of_the_library(text: str, seconds: float) -> None:
    assert library_options({"retry_timeout": text}).retry["retry_timeout"] == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "15", "s", "5 parsecs", "1s and a bit", "-1s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"storage\.options\.retry_timeout: .* is not a duration"):
        library_options({"retry_timeout": text})


def test_http_options_of_the_environment_are_those_of_the_kind_of_store() -> None:
    environment = {
        "AWS_ALLOW_HTTP": "true",
        "aws_proxy_url": "http://p",
        "AWS_REGION": "x",
        "AZURE_TIMEOUT": "1s",
        "TIMEOUT": "2s",
    }
    assert environment_http_options(environment, "aws") == {"allow_http": "true", "proxy_url": "http://p"}
    assert environment_http_options(environment, "azure") == {"timeout": "1s"}


UNSIGNED = {"aws_unsigned_payload": "true"}


@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [
        ({}, {}, UNSIGNED),
        ({"aws_region": "eu-central-1"}, {}, UNSIGNED),
        ({"aws_endpoint_url": "https://minio:9000"}, {}, UNSIGNED),
        ({"endpoint": "HTTPS://minio:9000"}, {}, UNSIGNED),
        ({"aws_endpoint_url": "http://minio:9000"}, {}, {}),
        ({"aws_endpoint": "http://minio:9000"}, {}, {}),
        ({"endpoint_url": "http://minio:9000"}, {}, {}),
        ({"endpoint": "minio:9000"}, {}, {}),
        ({}, {"AWS_ENDPOINT_URL": "http://minio:9000"}, {}),
        ({}, {"aws_endpoint": "http://minio:9000"}, {}),
        ({}, {"AWS_ENDPOINT_URL": "https://minio:9000"}, UNSIGNED),
        ({}, {"AWS_ENDPOINT": "https://a", "AWS_ENDPOINT_URL": "http://b"}, {}),
        ({"aws_endpoint_url": "https://minio:9000"}, {"AWS_ENDPOINT_URL": "http://other"}, UNSIGNED),
        ({"aws_endpoint_url": "http://minio:9000"}, {"AWS_ENDPOINT_URL": "https://other"}, {}),
    ],
)
def test_the_bytes_of_uploads_are_not_hashed_where_tls_protects_them(
    config: dict[str, str], environment: dict[str, str], expected: dict[str, str]
) -> None:
    assert payload_options(config, {}, environment) == expected


@pytest.mark.parametrize("value", ["true", "false"])
@pytest.mark.parametrize("endpoint", ["http://minio:9000", "https://minio:9000"])
def test_an_option_that_says_whether_uploads_are_hashed_wins(endpoint: str, value: str) -> None:
    of_endpoint = {"aws_endpoint_url": endpoint}
    assert payload_options({**of_endpoint, "aws_unsigned_payload": value}, {}, {}) == {}
    assert payload_options({**of_endpoint, "unsigned_payload": value}, {}, {}) == {}
    assert payload_options(of_endpoint, {}, {"AWS_UNSIGNED_PAYLOAD": value}) == {}


@pytest.mark.parametrize(("value", "expected"), [("true", {}), ("false", UNSIGNED)])
def test_certificates_that_are_not_verified_do_not_protect_uploads(value: str, expected: dict[str, str]) -> None:
    assert payload_options({}, {"allow_invalid_certificates": value}, {}) == expected
