"""A TCP proxy in front of one broker that knows Kafka's framing and does to single requests what networks do to them.

    with HeldPort() as port, Proxy(port, broker_port, plan): ...
    armed = plan.arm(Fault(api="EndTxn", harm=Harm.CUT, moment=Moment.APPLIED))

A broker whose clients should come by here advertises the port (see `LocalKafkaCluster.proxies`), so that it is known
before the broker is. One thread with one event loop; everything is closed at the end of the block.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.fakes.kafka_codec import API_KEYS

HOST = "127.0.0.1"
STOP_TIMEOUT_S = 20.0

_APIS = {key: api for api, key in API_KEYS.items()}
_REQUEST_HEAD = struct.Struct(">hhi")
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Harm(enum.Enum):
    CUT = "the connection ends"
    RESET = "the connection is reset"
    DELAY = "what was held passes late, whether or not anybody still waits for it"
    HALF_OPEN = "nothing passes in this direction any more, and nobody is told"


class Moment(enum.Enum):
    """On the way to the broker; or on the way back, when the broker has done what it was asked."""

    ARRIVING = "before it is applied"
    APPLIED = "after it was applied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to the `nth` request of an API from the moment on when it is armed. `delay_s` is of DELAY."""

    api: str
    harm: Harm
    moment: Moment
    nth: int = 1
    delay_s: float = 0.0


class Armed:
    """A fault that waits for its request, or has met it."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self._left = fault, fault.nth
        self._has_fired = threading.Event()

    @property
    def has_fired(self) -> bool:
        return self._has_fired.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has met its request within that time."""
        return self._has_fired.wait(timeout_s)

    def count(self) -> bool:
        """One more request of its API; whether it is the one."""
        self._left -= 1
        if self._left == 0:
            self._has_fired.set()
        return self._left == 0


class FaultPlan:
    """The faults of one or several proxies: n-th counts over all of them. Each fault happens once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[Armed] = []
        self.requests: Counter[str] = Counter()
        """By API, all that came."""

    def arm(self, *faults: Fault) -> tuple[Armed, ...]:
        made = tuple(Armed(fault) for fault in faults)
        with self._lock:
            self._armed += made
        return made

    def wait_until_met(self, timeout_s: float) -> bool:
        """Whether within that time nothing is armed any more."""
        give_up_at = time.monotonic() + timeout_s
        with self._lock:
            waiting = list(self._armed)
        return all(event.wait(max(0.0, give_up_at - time.monotonic())) for event in waiting)

    def disarm(self) -> None:
        """Those that have not met their request never will."""
        with self._lock:
            self._armed.clear()

    def meet(self, api: str) -> Fault | None:
        """Return the fault that has to happen to this request."""
        with self._lock:
            self.requests[api] += 1
            matching = [armed for armed in self._armed if armed.fault.api == api and armed.count()]
            self._armed = [armed for armed in self._armed if armed not in matching]
        return matching[0].fault if matching else None


class HeldPort:
    """Context manager. A free port that nobody else gets, whether or not anybody listens at it."""

    def __init__(self) -> None:
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._holder.bind((HOST, 0))
        self.number = int(self._holder.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._holder.close()

    def listen(self) -> socket.socket:
        return socket.create_server((HOST, self.number), reuse_port=True)


class Proxy:
    """Context manager. Between `stall` and `flow` nothing passes and nothing ends; between `refuse` and `accept` all
    connections are cut and new ones refused."""

    def __init__(self, port: HeldPort, broker_port: int, plan: FaultPlan) -> None:
        self._port, self._broker_port, self._plan = port, broker_port, plan
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy of {broker_port}")
        self._flowing = asyncio.Event()
        self._link, self._reply_link = _Link(), _Link()
        self._listener: socket.socket | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._unforeseen: list[BaseException] = []

    @property
    def address(self) -> str:
        return f"{HOST}:{self._port.number}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop.call_soon_threadsafe(self._flowing.set)
        try:
            self.accept()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.refuse()
        self._end()
        assert not self._unforeseen, self._unforeseen

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), f"the proxy at {self.address} does not end"
        self._loop.close()

    def accept(self) -> None:
        self._run(self._accept())

    def refuse(self) -> None:
        self._run(self._refuse())

    def flow(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def stall(self, seconds: float | None = None) -> None:
        """Let nothing pass from now on, for so long, or until `flow`."""
        self._run(self._stall(seconds))

    def limit(self, bytes_per_s: float) -> None:
        """Limit requests of all connections together to this speed from now on; replies pass as they come."""
        self._link.bytes_per_s = bytes_per_s

    def limit_replies(self, bytes_per_s: float) -> None:
        """Limit replies to all connections together to this speed from now on, a part at a time."""
        self._reply_link.bytes_per_s = bytes_per_s

    def delay(self, seconds: float) -> None:
        """Deliver what comes from clients from now on so much later; bytes under way do not wait for each other."""
        self._link.delay_s = seconds

    def delay_replies(self, seconds: float) -> None:
        """Deliver what comes from the broker from now on so much later."""
        self._reply_link.delay_s = seconds

    @property
    def requested_bytes(self) -> int:
        """Of all requests that have passed."""
        return self._link.passed_bytes

    @property
    def replied_bytes(self) -> int:
        """Of all replies, or the parts of them, that have passed."""
        return self._reply_link.passed_bytes

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(STOP_TIMEOUT_S)

    async def _accept(self) -> None:
        if self._listener is None:
            self._listener = self._port.listen()
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._take_in, self._listener)

    def _take_in(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        serving = self._loop.create_task(self._serve(client))
        self._connections.add(serving)
        serving.add_done_callback(lambda _: client.close())
        serving.add_done_callback(self._connections.discard)

    async def _stall(self, seconds: float | None) -> None:
        self._flowing.clear()
        if seconds is not None:
            self._loop.call_later(seconds, self._flowing.set)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, accepted: socket.socket) -> None:
        client = await asyncio.open_connection(sock=accepted)
        try:
            await self._flowing.wait()
            broker = await asyncio.open_connection(HOST, self._broker_port)
            self._unforeseen += await _Connection(client, broker, self._plan, self._flowing, self._link, self._reply_link).run()
        except (OSError, asyncio.CancelledError):
            """The broker is away, or the proxy is told to end it: the client sees the end of its connection."""
        finally:
            await _close(client[1])


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _ConnectionEndedError(Exception):
    """By a fault, for both sides."""


class _Link:
    """What all connections share: they queue for it. In a part of a frame at a time, so that none waits for a whole one."""

    PART_BYTES = 16 << 10

    def __init__(self) -> None:
        self.bytes_per_s = math.inf
        self.delay_s = 0.0
        self.passed_bytes = 0
        self._free_at = 0.0

    def parts(self, frame: bytes) -> list[bytes]:
        """Cut a frame into what passes at a time."""
        if self.bytes_per_s == math.inf:
            return [frame]
        return [frame[at : at + self.PART_BYTES] for at in range(0, len(frame), self.PART_BYTES)]

    async def carry(self, size_bytes: int) -> None:
        """Return when so many bytes have passed."""
        loop = asyncio.get_running_loop()
        self.passed_bytes += size_bytes
        while size_bytes > 0 and self.bytes_per_s < math.inf:
            part = min(size_bytes, self.PART_BYTES)
            size_bytes -= part
            self._free_at = max(self._free_at, loop.time()) + part / self.bytes_per_s
            await asyncio.sleep(self._free_at - loop.time())


class _Delivery:
    """What is under way to one side of a connection, at most `PARTS` writes."""

    PARTS = 4096

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._parts: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(self.PARTS)
        self.task = asyncio.create_task(self._deliver())

    async def write(self, data: bytes, delay_s: float) -> None:
        """Deliver after so long. Raise what an earlier delivery raised."""
        if self.task.done():
            await self.task
        if delay_s or not self._parts.empty():
            await self._parts.put((asyncio.get_running_loop().time() + delay_s, data))
        else:
            await self._parts.join()  # the last part is still being written
            await _write(self._writer, data)

    async def drain(self) -> None:
        """Return when everything is delivered, or its delivery has failed."""
        joined = asyncio.create_task(self._parts.join())
        await asyncio.wait({joined, self.task}, return_when=asyncio.FIRST_COMPLETED)
        joined.cancel()

    async def _deliver(self) -> None:
        while True:
            due, data = await self._parts.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await _write(self._writer, data)
            self._parts.task_done()


class _Connection:
    def __init__(
        self, client: _Stream, broker: _Stream, plan: FaultPlan, flowing: asyncio.Event, link: _Link, reply_link: _Link
    ) -> None:
        self._client, self._broker, self._plan, self._flowing = client, broker, plan, flowing
        self._link, self._reply_link = link, reply_link
        self._harmed_replies: dict[int, Fault] = {}

        self._to_broker, self._to_client = _Delivery(broker[1]), _Delivery(client[1])

    async def run(self) -> list[BaseException]:
        """Until both directions have ended, or either was ended by a fault or by the broker. What nobody has foreseen."""
        requests = asyncio.create_task(self._forward_requests())
        replies = asyncio.create_task(self._forward_replies())
        try:
            await asyncio.wait({requests, replies}, return_when=asyncio.FIRST_COMPLETED)
            if requests.done() and not requests.exception() and not replies.done():
                await self._to_broker.drain()
                with contextlib.suppress(OSError):  # the broker has ended it meanwhile
                    self._broker[1].write_eof()
                await asyncio.wait({replies})
                await self._to_client.drain()
        finally:
            for pump in (requests, replies, self._to_broker.task, self._to_client.task):
                pump.cancel()
            self._broker[1].close()  # before anything is waited for: the proxy may be told to end just now
            pumps = (requests, replies, self._to_broker.task, self._to_client.task)
            ends = await asyncio.gather(*pumps, return_exceptions=True)
            await _close(self._broker[1])
        return [end for end in ends if isinstance(end, Exception) and not isinstance(end, _ConnectionEndedError | OSError)]

    async def _forward_requests(self) -> None:
        """Forward requests until the client ends."""
        while (frame := await _frame(self._client[0])) is not None:
            key, _, correlation_id = _REQUEST_HEAD.unpack_from(frame, 4)
            await self._flowing.wait()
            fault = self._plan.meet(_APIS.get(key, f"API {key}"))
            if fault is not None and fault.moment is Moment.ARRIVING:
                await self._harm(fault)
            elif fault is not None:
                self._harmed_replies[correlation_id] = fault
            await self._link.carry(len(frame))
            await self._to_broker.write(frame, self._link.delay_s)

    async def _forward_replies(self) -> None:
        """Forward replies until the broker ends."""
        while (frame := await _frame(self._broker[0])) is not None:
            await self._flowing.wait()
            fault = self._harmed_replies.pop(int.from_bytes(frame[4:8], "big"), None)
            if fault is not None:
                await self._harm(fault)
            for part in self._reply_link.parts(frame):
                await self._reply_link.carry(len(part))
                await self._to_client.write(part, self._reply_link.delay_s)

    async def _harm(self, fault: Fault) -> None:
        """Apply the fault; return when what was held may pass."""
        match fault.harm:
            case Harm.DELAY:
                await asyncio.sleep(fault.delay_s)
            case Harm.HALF_OPEN:
                await asyncio.Event().wait()
            case Harm.RESET:
                for _, writer in (self._client, self._broker):
                    _reset(writer)
                raise _ConnectionEndedError
            case Harm.CUT:
                raise _ConnectionEndedError


async def _frame(reader: asyncio.StreamReader) -> bytes | None:
    """With its length; None at the end of the stream, also in the middle of a frame."""
    try:
        head = await reader.readexactly(4)
        return head + await reader.readexactly(int.from_bytes(head, "big"))
    except (asyncio.IncompleteReadError, OSError):
        return None


async def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(frame)
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # already ended
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):  # the other side was faster
        await writer.wait_closed()
