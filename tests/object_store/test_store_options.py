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
