"""Relays that make a broker far away: benchmarks/relay, each in a process of its own until the block ends."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.go_program import GoProgram
from shallow_mirror.errors import MirrorError

HOST = "127.0.0.1"
PROGRAM = GoProgram("relay", Path(__file__).parent / "relay")


class RelayError(MirrorError):
    """The relay did not start, or ended by itself."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Connections to `port` wait until `connect_to` has named where they lead."""

    port: int
    process: subprocess.Popen[str]

    def connect_to(self, address: str) -> None:
        """Forward all connections to `address`, which is `host:port`. Only once. Raises RelayError."""
        self._write(address)

    def set_round_trip(self, rtt_ms: float) -> None:
        """Delay what is read from now on by half of `rtt_ms`. After `connect_to`. Raises RelayError."""
        self._write(f"{rtt_ms / 2:g}")
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise RelayError(f"the relay at port {self.port} has ended")

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise RelayError(f"the relay at port {self.port} has ended") from error


@contextmanager
def running_relay(rtt_ms: float, *options: str) -> Iterator[Relay]:
    """Yield a relay that delivers bytes `rtt_ms / 2` after they arrived. Raises GoBuildError, RelayError.

    It ends with this process, however this ends: its standard input ends then.
    """
    command = [str(PROGRAM.build()), "-delay-ms", f"{rtt_ms / 2:g}", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RelayError("the relay ended instead of listening, see standard error")
            yield Relay(int(line), process)
        finally:
            process.kill()
