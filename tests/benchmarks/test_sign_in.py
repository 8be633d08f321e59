"""What the benchmarks of sign-ins print."""

from __future__ import annotations

import argparse

import pytest
from benchmarks import sign_in, sign_in_connection, sign_in_start
from benchmarks.results import Measured
from benchmarks.sign_in_connection import Connections
from benchmarks.start_up import Start


def measured(method: str, run: int, cpu_s_per_gb: float, *, is_equal: bool = True) -> Measured:
    return Measured(
        peer=method,
        corpus="zstd-big",
        run=run,
        mb_per_s=100.0 * run,
        cpu_s_per_gb=cpu_s_per_gb,
        peak_mb=0,
        equal=is_equal,
        difference="" if is_equal else "1 record is missing",
        startup_s=0,
        startup_cpu_s=0,
        seconds=0,
        window_s=0,
        window_share=0,
        micro_batches=None,
        source_broker_cpu_s_per_gb=0,
        target_broker_cpu_s_per_gb=0,
        log_size_ratio=1,
    )


def test_methods_are_compared_with_the_first_round_by_round() -> None:
    runs = {
        "scram": [measured("scram", run, cpu) for run, cpu in ((1, 2.0), (2, 4.0), (3, 2.0))],
        "gssapi": [measured("gssapi", run, cpu, is_equal=run != 3) for run, cpu in ((1, 2.2), (2, 4.0), (3, 1.9))],
    }
    assert sign_in.table(runs) == [
        "scram         2.000 CPU s/GB (2.000 to 4.000)   200.0 MB/s (100.0 to 300.0)",
        "gssapi        2.200 CPU s/GB (1.900 to 4.000)   200.0 MB/s (100.0 to 300.0)  1 NOT EQUAL",
        "gssapi / scram: 1.100 of the medians; in each round 1.000 (0.950 to 1.100)",
    ]


def test_starts_are_compared_with_those_of_the_same_round() -> None:
    starts = {
        "plain": [Start(seconds, 9.0, 1_000.0, {}) for seconds in (8.0, 12.0, 9.0)],
        "azure": [Start(seconds, 9.5, 1_000.0, {}) for seconds in (8.25, 12.25, 9.5)],
    }
    _, plain, azure = sign_in_start.table(starts)
    assert " ".join(plain.split()) == "plain 9.00 (8.00 to 12.00) +0.00 (+0.00 to +0.00) 9.00 +0.00"
    assert " ".join(azure.split()) == "azure 9.50 (8.25 to 12.25) +0.25 (+0.25 to +0.50) 9.50 +0.50"


def test_first_connections_are_compared_with_those_of_the_first_method() -> None:
    runs = {
        "plain": [Connections(0.1, 0.05, 0.001), Connections(0.3, 0.05, 0.001)],
        "azure": [Connections(0.4, 0.25, 0.002), Connections(0.4, 0.35, 0.002)],
    }
    _, plain, azure = sign_in_connection.table(runs)
    assert " ".join(plain.split()) == "plain 0.200 0.050 +0.000 1.0"
    assert " ".join(azure.split()) == "azure 0.400 0.300 +0.250 2.0"


def test_an_unknown_method_is_refused_with_those_that_are_known() -> None:
    assert sign_in.methods_of("scram,gssapi") == ["scram", "gssapi"]
    with pytest.raises(argparse.ArgumentTypeError, match="unknown method 'kerberos'; known are none, plain, scram, gssapi"):
        sign_in.methods_of("scram,kerberos")
