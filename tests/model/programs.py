"""The code under test as programs that stop at every effect, so that a search may fork, crash and interleave them.

A program is run up to its next effect by running it from its beginning on the responses it got so far. That is done once
for each history of responses: what a program asks next is kept in a tree, and a search walks the tree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.model.effects import Effect


class SuspendedError(BaseException):
    """The program has asked for something that has no response yet."""


class Port:
    """Where a program asks for effects; replays a history of responses."""

    def __init__(self) -> None:
        self._responses: tuple[Any, ...] = ()
        self._played = 0
        self.request: Effect | None = None
        self.now_s = 0.0

    def rewind(self, responses: tuple[Any, ...]) -> None:
        self._responses, self._played, self.request, self.now_s = responses, 0, None, 0.0

    def ask(self, request: Effect) -> Any:
        if self._played == len(self._responses):
            self.request = request
            raise SuspendedError
        self._played += 1
        return self._responses[self._played - 1]


class Program(Protocol):
    """Frozen and hashable: equal programs are the same process in the same state."""

    def play(self, port: Port) -> Any:
        """Run to the end, and return another program that continues, or the outcome."""


@dataclass(eq=False, slots=True)
class Node:
    """A program after a history of responses: what it asks next, or its outcome."""

    program: Program
    responses: tuple[Any, ...]
    request: Effect | None = None
    outcome: Any = None
    children: dict[Any, Node] = field(default_factory=dict)


class Library:
    """All programs seen so far. Whoever changes the code under test needs another one."""

    def __init__(self) -> None:
        self._port = Port()
        self._roots: dict[Program, Node] = {}
        self.plays = 0

    def start(self, program: Program) -> Node:
        node = self._roots.get(program)
        if node is None:
            node = self._roots[program] = self._play(program, ())
        return node

    def go_on(self, node: Node, response: Any) -> Node:
        after = node.children.get(response)
        if after is None:
            after = node.children[response] = self._play(node.program, (*node.responses, response))
        return after

    def _play(self, program: Program, responses: tuple[Any, ...]) -> Node:
        """Where the program goes on as another one, that one's beginning: histories end where a state sums them up."""
        self.plays += 1
        self._port.rewind(responses)
        outcome: Any = None
        with contextlib.suppress(SuspendedError):
            outcome = program.play(self._port)
        if self._port.request is not None:
            return Node(program, responses, request=self._port.request)
        if hasattr(outcome, "play"):
            return self.start(outcome)
        return Node(program, responses, outcome=outcome)


Patch = Callable[[], contextlib.AbstractContextManager[None]]
