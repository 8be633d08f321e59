"""Driver and executors: what the map knows of thousands of partitions, on its way to the tasks of every micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

_K = TypeVar("_K", bound=NamedTuple)
_V = TypeVar("_V")


class CompactDict(dict[_K, _V]):
    """By named tuples, of named tuples or numbers. Pickled as plain ones: without a call for each of them."""

    def __init__(self, items: Mapping[_K, _V] | Iterable[tuple[_K, _V]], key: type[_K], value: type[_V]) -> None:
        super().__init__(items)
        self._key, self._value = key, value

    def __reduce__(self) -> Any:
        values = self.values() if self._value is int else map(tuple, self.values())  # type: ignore[arg-type]
        return _unpickled, (dict(zip(map(tuple, self), values, strict=True)), self._key, self._value)


def _unpickled(plain: Mapping[Any, Any], key: Any, value: Any) -> CompactDict[Any, Any]:
    values = plain.values() if value is int else starmap(value, plain.values())
    return CompactDict(zip(starmap(key, plain), values, strict=True), key, value)
