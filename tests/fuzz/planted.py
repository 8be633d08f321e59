"""Bugs of every kind, for the test that they are found."""

from __future__ import annotations

import ctypes
import time

from tests.fuzz.target import Target

_BAD = 40
"""Inputs that are shorter are fine."""


def crashing(data: bytes) -> None:
    if len(data) < _BAD:
        raise KeyError(len(data))


def refusing(data: bytes) -> None:
    if len(data) < _BAD:
        raise ValueError("documented")


def hanging(data: bytes) -> None:
    while len(data) < _BAD:
        pass


def waiting(data: bytes) -> None:
    if len(data) < _BAD:
        time.sleep(3600)


def over_allocating(data: bytes) -> None:
    if len(data) < _BAD:
        bytearray(48 << 20)[:: 1 << 12] = bytes([1]) * (48 << 8)


def asking_for_the_moon(data: bytes) -> None:
    if len(data) < _BAD:
        bytearray(1 << 40)


def lying(data: bytes) -> None:
    assert len(data) >= _BAD, "a promise"


def dying(data: bytes) -> None:
    if len(data) < _BAD:
        ctypes.string_at(0)


TARGETS = {
    run.__name__: Target(run.__name__, [bytes(100)], run, (ValueError,))
    for run in (crashing, refusing, hanging, waiting, over_allocating, asking_for_the_moon, lying, dying)
}
