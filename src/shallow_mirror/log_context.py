"""Every process: the name of the mirror that a log line is about, where several mirrors run in one process.

Nothing is set where there is one mirror: its lines have no name. Threads do not inherit the name: whoever starts one that logs
passes its function through `in_context`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

_name: ContextVar[str | None] = ContextVar("shallow_mirror_log_name", default=None)

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


def current_name() -> str | None:
    """Return the name for log lines of this thread; None: they have none."""
    return _name.get()


@contextmanager
def log_name(name: str | None) -> Iterator[None]:
    """Give the log lines of the block this name."""
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


def in_context(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` for another thread, with the name that log lines of this thread have now."""
    name = _name.get()

    def run(*arguments: P.args, **options: P.kwargs) -> T:
        with log_name(name):
            return function(*arguments, **options)

    return run


def in_context_of_driver(task: Callable[[A], Iterator[T]]) -> Callable[[A], Iterator[T]]:
    """Return a task of Spark for its workers, with the name that log lines of this thread have now. If they have none, it is
    the task itself.
    """
    name = _name.get()
    if name is None:
        return task

    def run(rows: A) -> Iterator[T]:
        with log_name(name):
            yield from task(rows)

    return run
