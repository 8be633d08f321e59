"""Everywhere: the brokers of a cluster by address, and one connection per broker and purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.connection_factory import ConnectionOpener
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.path_log import PathLog
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError

Address = tuple[str, int]

CONTROL = "control"
"""The purpose of connections for everything but Fetch and Produce."""


MOST_AT_ONCE = 8
"""So many connections are opened side by side."""


class ConnectionPool:
    """Connections of one process; bootstrap addresses have connections of their own."""

    def __init__(self, config: ClientConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._opener = ConnectionOpener(config, clock=clock)
        self._connections: dict[tuple[object, str], Connection] = {}
        self._paths: dict[tuple[Address, str], PathLog] = {}
        self._brokers: dict[int, Address] = {}
        self._unreachable_at: dict[object, float] = {}

    def set_brokers(self, brokers: Mapping[int, Address]) -> None:
        """Take the brokers of a metadata response; connections stay open."""
        self._brokers = dict(brokers)

    def add_broker(self, node_id: int, address: Address) -> None:
        self._brokers[node_id] = address

    @property
    def has_brokers(self) -> bool:
        return bool(self._brokers)

    def has_broker(self, node_id: int) -> bool:
        return node_id in self._brokers

    def connection(self, node_id: int, purpose: str, deadline: Deadline) -> Connection:
        """Return the open connection to a listed broker, or connect. Raises RetriableError if that fails."""
        if node_id not in self._brokers:
            raise RetriableError("BROKER_NOT_AVAILABLE", f"the cluster lists no broker {node_id}")
        return self._connect(node_id, self._brokers[node_id], purpose, deadline)

    def any_broker(self, deadline: Deadline, purpose: str = CONTROL, *, doubted: str = "") -> Connection:
        """Return a connection to a listed broker or a bootstrap server. Raises the last error when none can be reached.

        `doubted`: host and port of a broker that is not chosen if another one can be reached.
        """
        # Those that could not be reached lately come last: one that accepts connections and is silent would take all the time
        # there is, and would be the only one that is ever tried.
        listed = sorted(self._brokers.items(), key=lambda broker: f"{broker[1][0]}:{broker[1][1]}" == doubted)
        candidates = [*listed, *((address, address) for address in self._config.bootstrap)]
        last: RetriableError | None = None
        for key, address in sorted(candidates, key=lambda candidate: self._unreachable_at.get(candidate[1], 0.0)):
            if last is not None and deadline.is_over():
                break
            try:
                connection = self._connect(key, address, purpose, deadline)
            except RetriableError as error:
                self._unreachable_at[address] = self._clock()
                last = error
            else:
                self._unreachable_at.pop(address, None)
                return connection
        raise last if last is not None else RetriableError("NETWORK_EXCEPTION", "no bootstrap broker is configured")

    def is_listed(self, connection: Connection) -> bool:
        """Return whether a connection is to a listed broker, not to a bootstrap server."""
        return any(held is connection and key in self._brokers for (key, _), held in self._connections.items())

    def reject(self, connection: Connection) -> None:
        """Close a connection, whose address comes last from now on, like one that cannot be reached."""
        for (key, _), held in self._connections.items():
            if held is connection:
                address = self._brokers[key] if isinstance(key, int) and key in self._brokers else key
                self._unreachable_at[address] = self._clock()
        connection.close()

    def open_at_once(self, wanted: Iterable[tuple[int, str]], deadline: Deadline) -> None:
        """Open the connections that are missing, by node id and purpose, side by side: together they take the time of one.

        One that cannot be opened now is left to whoever asks for it, who gets the error.
        """
        missing = [
            (node_id, purpose)
            for node_id, purpose in dict.fromkeys(wanted)
            if node_id in self._brokers and (node_id, purpose) not in self._connections
        ]
        if len(missing) < 2:
            return
        deadline = deadline.sooner(self._config.connection_setup_timeout_ms)
        with ThreadPoolExecutor(min(MOST_AT_ONCE, len(missing)), thread_name_prefix="connect") as threads:
            opening = {key: threads.submit(self._opener.open, self._brokers[key[0]], deadline) for key in missing}
        for key, opened in opening.items():
            error = opened.exception()
            if error is None:
                self._connections[key] = opened.result()
            elif not isinstance(error, RetriableError):
                raise error

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def _connect(self, key: object, address: Address, purpose: str, deadline: Deadline) -> Connection:
        connection = self._connections.get((key, purpose))
        if connection is None or not connection.check_open():
            setup_deadline = deadline.sooner(self._config.connection_setup_timeout_ms)
            connection = self._opener.open(address, setup_deadline, self._path(address, purpose))
            self._connections[key, purpose] = connection
        return connection

    def _path(self, address: Address, purpose: str) -> PathLog:
        # By address: connections to the same listener follow the same path, before and after metadata named its broker.
        key = address, purpose
        if key not in self._paths:
            self._paths[key] = PathLog(f"{address[0]}:{address[1]}", purpose, self._clock)
        return self._paths[key]
