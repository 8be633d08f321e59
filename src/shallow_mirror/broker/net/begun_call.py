"""Everywhere: a request that is sent now, and whose response is received later: several may be on their way at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.requests import receive, send
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, RetriableError

BEGUN = "begun"
"""The usual purpose of connections with requests whose response is received later: nothing else is asked over them."""

_T = TypeVar("_T")


class BegunCall(Generic[_T]):
    """A request over a connection of its own purpose (`BEGUN`), or behind all requests of another one.

    A response that is not wanted any more is dropped with the next ones.

    Nothing is raised when it is sent: `receive` raises a failure of then.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        send: Callable[[Connection], object],
        receive: Callable[[Connection, Deadline], _T],
    ) -> None:
        self._receive = receive
        self._failure: RetriableError | BrokerTooOldError | None = None
        self._responses: list[_T] = []
        try:
            self._connection = connect()
            send(self._connection)
            self._connection.begun.append(self)
        except (RetriableError, BrokerTooOldError) as error:
            self._failure = error

    def connection(self) -> Connection:
        """Return the connection that it was sent over. Raises a failure of then."""
        if self._failure is not None:
            raise self._failure
        return self._connection

    def receive(self, deadline: Deadline) -> _T:
        """Return the response. Raises RetriableError, also for a failure when it was sent, and BrokerTooOldError."""
        while not self._responses and self._failure is None:
            first: BegunCall[object] = self._connection.begun.popleft()
            try:
                first._responses.append(first._receive(self._connection, deadline))
            except RetriableError as error:
                for lost in (first, *self._connection.begun):
                    lost._failure = error
                self._connection.begun.clear()
        if self._failure is not None:
            raise self._failure
        return self._responses[0]

    def wait(self, ms: float) -> bool:
        """Wait so long for the first response of the connection; return whether something came, which may be an error."""
        return bool(self._responses) or self._failure is not None or self._connection.wait_readable(ms)


class DecodedCall(BegunCall[Any]):
    """A request of an API whose response is decoded as by `call`; its error codes are left to the caller."""

    def __init__(self, connect: Callable[[], Connection], api: str, deadline: Deadline, fields: Mapping[str, Any]) -> None:
        super().__init__(
            connect,
            lambda connection: send(connection, api, deadline, **fields),
            lambda connection, receiving: receive(connection, api, receiving),
        )


def begin_together(
    connect: Callable[[], Connection],
    send: Callable[[Connection], object],
    receives: Sequence[Callable[[Connection, Deadline], _T]],
) -> list[BegunCall[_T]]:
    """Begin several calls whose requests `send` sends in one write. `receives`: of each, in the order of the requests."""
    first = BegunCall(connect, send, receives[0])
    return [first, *(BegunCall(first.connection, lambda _: None, receive) for receive in receives[1:])]
