"""For which options objects are read by direct reads, and which options these have."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from shallow_mirror.object_store import resolved_options
from shallow_mirror.object_store.direct_read_options import (
    DirectReadOptions,
    RetryRules,
    direct_read_options,
    reason_for_obstore,
)
from shallow_mirror.object_store.store_options import LibraryOptions, library_options


def options_of(written: Mapping[str, str]) -> LibraryOptions:
    return library_options(resolved_options(written))


@pytest.mark.parametrize(
    "written",
    [
        {},
        {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t", "AWS_REGION": "eu-central-1"},
        {"aws_endpoint_url": "https://store:9000", "aws_virtual_hosted_style_request": "true", "aws_allow_http": "true"},
        {"aws_web_identity_token_file": "/token", "aws_role_arn": "arn:aws:iam::1:role/x"},
        {"aws_server_side_encryption": "aws:kms", "aws_unsigned_payload": "true", "aws_conditional_put": "etag"},
        {"aws_skip_signature": "false", "request_payer": "FALSE"},
        {"root_certificate": "PEM", "allow_invalid_certificates": "true", "user_agent": "x", "http1_only": "true"},
        {"timeout": "1m 30s", "connect_timeout": "500ms", "read_timeout": "2s", "pool_idle_timeout": "1m"},
    ],
)
def test_usual_options_of_s3_are_understood(written: dict[str, str]) -> None:
    assert reason_for_obstore("aws", options_of(written), {"AWS_REGION": "x", "NO_PROXY": "*", "HTTPS_PROXY": ""}) is None


@pytest.mark.parametrize(
    ("written", "environment", "reason"),
    [
        ({"proxy_url": "http://p"}, {}, "option proxy_url"),
        ({"proxy_ca_certificate": "PEM"}, {}, "option proxy_ca_certificate"),
        ({"http2_only": "true"}, {}, "option http2_only"),
        ({"randomize_addresses": "true"}, {}, "option randomize_addresses"),
        ({"aws_skip_signature": "true"}, {}, "option skip_signature"),
        ({"AWS_REQUEST_PAYER": "requester"}, {}, "option request_payer"),
        ({"s3_express": "on"}, {}, "option s3_express"),
        ({"aws_sse_customer_key_base64": "a2V5"}, {}, "option sse_customer_key_base64"),
        ({}, {"AWS_SKIP_SIGNATURE": "true"}, "option skip_signature"),
        ({}, {"AWS_S3_EXPRESS": "1"}, "option s3_express"),
        ({"timeout": "1 day"}, {}, "option timeout"),
        ({"pool_idle_timeout": "forever"}, {}, "option pool_idle_timeout"),
        ({}, {"https_proxy": "http://p"}, "a proxy (https_proxy in the environment)"),
        ({}, {"ALL_PROXY": "socks5://p"}, "a proxy (ALL_PROXY in the environment)"),
    ],
)
def test_other_options_are_left_to_obstore(written: dict[str, str], environment: dict[str, str], reason: str) -> None:
    assert reason_for_obstore("aws", options_of(written), environment) == reason


def test_an_option_wins_over_the_environment() -> None:
    environment = {"AWS_SKIP_SIGNATURE": "true"}
    assert reason_for_obstore("aws", options_of({"aws_skip_signature": "false"}), environment) is None


@pytest.mark.parametrize("kind", ["azure", "google"])
def test_other_stores_are_left_to_obstore(kind: str) -> None:
    assert reason_for_obstore(kind, options_of({}), {}) == "the store is not S3"


def test_without_options_direct_reads_have_the_times_of_every_store() -> None:
    assert direct_read_options(options_of({})) == DirectReadOptions(
        allows_http=False,
        verifies=True,
        ca_pem="",
        user_agent="shallow-mirror",
        connect_timeout_ms=5_000.0,
        timeout_ms=20_000.0,
        read_timeout_ms=None,
        pool_idle_ms=90_000.0,
        retry=RetryRules(max_retries=6, timeout_ms=15_000.0, first_pause_ms=100.0, most_pause_ms=3_000.0, base=2.0),
    )


def test_options_of_direct_reads_are_those_that_obstore_has() -> None:
    written = {
        "AWS_ALLOW_HTTP": "yes",
        "allow_invalid_certificates": "1",
        "root_certificate": "PEM",
        "user_agent": "me",
        "connect_timeout": "1s",
        "timeout": "2m",
        "read_timeout": "3s",
        "pool_idle_timeout": "4s",
        "max_retries": "0",
        "retry_timeout": "5s",
        "backoff_config.init_backoff": "6ms",
        "backoff_config.max_backoff": "7s",
        "backoff_config.base": "3",
    }
    assert direct_read_options(options_of(written)) == DirectReadOptions(
        allows_http=True,
        verifies=False,
        ca_pem="PEM",
        user_agent="me",
        connect_timeout_ms=1_000.0,
        timeout_ms=120_000.0,
        read_timeout_ms=3_000.0,
        pool_idle_ms=4_000.0,
        retry=RetryRules(max_retries=0, timeout_ms=5_000.0, first_pause_ms=6.0, most_pause_ms=7_000.0, base=3.0),
    )


def test_pauses_grow_from_the_first_to_the_longest_at_random() -> None:
    rules = RetryRules(max_retries=9, timeout_ms=1.0, first_pause_ms=100.0, most_pause_ms=3_000.0, base=2.0)
    assert [rules.next_pause_ms(100.0, chance) for chance in (0.0, 0.5, 1.0)] == [100.0, 150.0, 200.0]
    assert rules.next_pause_ms(2_900.0, 1.0) == 3_000.0
    pause_ms, chance = 100.0, random.Random(3)
    for _ in range(50):
        pause_ms = rules.next_pause_ms(pause_ms, chance.random())
        assert 100.0 <= pause_ms <= 3_000.0
