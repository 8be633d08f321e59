"""What a mirror's processes do at every point they pass while it is harmed: knock at a gate, and wait until it lets them on.

In a module of its own: tasks unpickle it, and the program that makes it is `__main__`.
"""

from __future__ import annotations

import os
import socket


class Knock:
    """An observer, on the driver and in tasks. Returns when the gate closes the connection."""

    def __init__(self, gate: str) -> None:
        self._gate = gate

    def __call__(self, point: str) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._gate)
            connection.sendall(f"{os.getpid()} {point}\n".encode())
            connection.recv(1)
