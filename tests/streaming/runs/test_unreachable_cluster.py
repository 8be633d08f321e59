"""How `shallow-mirror run` ends, as a process, where no cluster answers: neither brokers nor a JVM are started."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.support import mirror_runs as runs
from tests.support.mirror_runs import command, conf_file, log_text, wait_for_run

from shallow_mirror.local_kafka.ports import free_ports

pytestmark = pytest.mark.thorough  # it waits for 20 s, beside other tests


def test_a_cluster_that_cannot_be_reached_is_named_and_waited_for_until_a_signal_or_the_end_of_the_time(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    caught_up, limited = tmp_path / "caught_up", tmp_path / "limited"
    for folder in (caught_up, limited):
        folder.mkdir()
    with (
        command(caught_up, conf_file(caught_up, nowhere, nowhere, ["orders"]), "--available-now") as waiting,
        command(limited, conf_file(limited, nowhere, nowhere, ["orders"]), "--for", "1") as ending,
    ):
        wait_for_run(
            waiting, "the second attempt", lambda: log_text(caught_up).count("source cluster east: NETWORK_EXCEPTION") == 2
        )
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(runs.PATIENCE_S) == 0, log_text(caught_up)
        assert ending.wait(runs.PATIENCE_S) == 1
    gave_up = "NETWORK_EXCEPTION: gave up asking for metadata: cannot connect to"
    assert f"stopped while waiting: source cluster east: {gave_up} {nowhere}" in log_text(caught_up)
    assert log_text(limited).splitlines()[-1].startswith(f"RetriableError: {gave_up}")
