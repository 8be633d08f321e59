"""Driver: administrative requests about several items at once, each of which the cluster answers by itself.

An item is asked for again until its answer is definite, or the deadline is over. Every request here may be repeated: what it did
already is answered with a code that its caller takes for done (TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, UNKNOWN_TOPIC_ID …),
so a response that was lost leaves nothing undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shallow_mirror.broker.cluster.cluster import NEW_TOPIC_PATIENCE_MS, Cluster
from shallow_mirror.broker.net.error_codes import (
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorClass,
    error_class,
    error_name,
    is_forbidden,
    refusal,
)
from shallow_mirror.broker.net.requests import call
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError

ITEMS_PER_REQUEST = 500

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for one item. `code`: 0 for done. `message`: the broker's, empty if it has none."""

    code: int
    message: str = ""

    @property
    def name(self) -> str:
        return error_name(self.code)

    def reason(self, api: str, *, topic: str = "", key: str = "") -> str:
        """Return the error with the broker's message, or with the permissions to grant if an ACL is missing."""
        if is_forbidden(self.code) or not self.message:
            return refusal(self.code, api, topic=topic, key=key)
        return f"{self.name}: {self.message}"


@dataclass(frozen=True, slots=True)
class Undecided:
    """No definite answer for an item before the deadline: the effect may have happened."""

    error_name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.error_name}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Answers(Generic[K]):
    """The result of one try: answers, and why the others have none. `throttle_ms`: how long the broker wants no other try."""

    by_item: Mapping[K, Answer]
    errors: Mapping[K, RetriableError]
    throttle_ms: int = 0


Ask = Callable[[Sequence[K], Deadline], Answers[K]]


def ask_for_items(
    cluster: Cluster,
    items: Iterable[K],
    ask: Ask[K],
    deadline: Deadline,
    *,
    done: Collection[int] = (),
    brief: Collection[int] = (UNKNOWN_TOPIC_OR_PARTITION,),
) -> dict[K, Answer | Undecided]:
    """Ask until each item has a definite answer, or the deadline is over.

    `done`: codes that are definite for this request, whether or not they are for others. `brief`: those that are after
    NEW_TOPIC_PATIENCE_MS. `ask` raises RetriableError if it brought nothing.
    """
    waiting = dict.fromkeys(items)
    results: dict[K, Answer | Undecided] = {}
    patience, tries = deadline.sooner(NEW_TOPIC_PATIENCE_MS), 0
    while waiting:
        throttle_ms = 0
        errors: dict[K, RetriableError] = {}
        try:
            answers = ask(list(waiting), deadline.sooner(cluster.config.request_timeout_ms))
        except RetriableError as error:
            errors = dict.fromkeys(waiting, error)
        else:
            throttle_ms = answers.throttle_ms
            errors = {key: error for key, error in answers.errors.items() if key in waiting}
            for key, answer in answers.by_item.items():
                if key not in waiting:
                    continue
                if _is_definite(answer.code, done, () if patience.is_over() else brief):
                    results[key] = answer
                    del waiting[key]
                else:
                    errors[key] = RetriableError(answer.name, answer.message or "the cluster answered so")
        if not waiting:
            break
        # A broker does not read from a connection that it throttles: an earlier try would only use up its time.
        cluster.wait(max(cluster.back_off_ms(tries), throttle_ms), deadline)
        tries += 1
        if deadline.is_over():
            unanswered = RetriableError("PROTOCOL", "the answer leaves it out")
            for key in waiting:
                last = errors.get(key, unanswered)
                results[key] = Undecided(last.error_name, last.detail)
            break
        cluster.forget_metadata()
    return results


def _is_definite(code: int, done: Collection[int], passing: Collection[int]) -> bool:
    if code == 0 or code in done:
        return True
    if code in passing:
        return False
    return code == UNKNOWN_TOPIC_OR_PARTITION or error_class(code) not in (ErrorClass.RETRIABLE, ErrorClass.UNKNOWN)


def ask_controller(
    cluster: Cluster,
    api: str,
    items: Sequence[K],
    fields: Callable[[Sequence[K], Deadline], Mapping[str, Any]],
    parse: Callable[[Sequence[K], Any], Mapping[K, Answer]],
    deadline: Deadline,
    *,
    done: Collection[int] = (),
    weight: Callable[[K], int] = lambda _: 1,
    most: int = ITEMS_PER_REQUEST,
) -> dict[K, Answer | Undecided]:
    """Ask the controller for items, in requests whose `weight` in all is at most `most`, or of a single item.

    `fields`: of a request for items. `parse`: the answers of a response by item.
    """

    def ask(keys: Sequence[K], attempt: Deadline) -> Answers[K]:
        response = call(cluster.controller(attempt), api, attempt, **fields(keys, attempt))
        return Answers(parse(keys, response), {}, int(response.throttle_time_ms))

    results: dict[K, Answer | Undecided] = {}
    for part in parts(items, weight, most):
        results |= ask_for_items(cluster, part, ask, deadline, done=done)
    return results


def parts(items: Iterable[K], weight: Callable[[K], int], most: int) -> Iterator[list[K]]:
    """Yield items in lists of bounded weight; an item that is heavier has a list of its own."""
    part: list[K] = []
    total = 0
    for item in items:
        if part and total + weight(item) > most:
            yield part
            part, total = [], 0
        part.append(item)
        total += weight(item)
    if part:
        yield part


def answers_by_name(entries: Iterable[Any], name_of: Callable[[Any], K]) -> dict[K, Answer]:
    """Return the answers of response entries that have an error code and a message."""
    return {name_of(entry): Answer(int(entry.error_code), entry.error_message or "") for entry in entries}
