"""The name of a mirror in log lines reaches other threads, tasks and planners, and no further."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator

from pyspark import cloudpickle

from shallow_mirror.log_context import current_name, in_context, in_context_of_driver, log_name
from shallow_mirror.logging_setup import JsonFormatter


def test_a_thread_has_the_name_only_where_it_is_passed_on() -> None:
    names: list[str | None] = []

    def note() -> None:
        names.append(current_name())

    with log_name("orders"):
        threads = [threading.Thread(target=in_context(note)), threading.Thread(target=note)]
    for thread in threads:
        thread.start()
        thread.join()
    assert names == ["orders", None]
    assert current_name() is None


def test_a_task_has_the_name_in_another_process_while_it_runs() -> None:
    def named(rows: list[int]) -> Iterator[tuple[int, str | None]]:
        for row in rows:
            yield row, current_name()

    with log_name("orders"):
        pickled = cloudpickle.dumps(in_context_of_driver(named))
    task = cloudpickle.loads(pickled)
    assert list(task([1, 2])) == [(1, "orders"), (2, "orders")]
    assert current_name() is None


def test_a_json_line_has_the_name_where_there_is_one() -> None:
    record = logging.LogRecord("logger", logging.INFO, "", 0, "text", None, None)
    with log_name("orders"):
        assert json.loads(JsonFormatter().format(record))["mirror"] == "orders"
    assert "mirror" not in json.loads(JsonFormatter().format(record))
