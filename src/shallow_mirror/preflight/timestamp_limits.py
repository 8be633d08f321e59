"""Pure: which batches hold records whose timestamps the target topic rejects, as far as headers show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shallow_mirror.sinks.kafka.targets import LIMIT_BEFORE_3_6, NO_LIMIT_MS, TIMESTAMP_LIMITS, is_stamping
from shallow_mirror.types import LogAppendTimePolicy
from shallow_mirror.wire import DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT
from shallow_mirror.wire.batches import BatchIndex

_NO_TIMESTAMP = -1
_BEFORE, _AFTER = TIMESTAMP_LIMITS

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """A record beyond `at_ms` is refused (INVALID_TIMESTAMP) while `setting` is unchanged."""

    setting: str
    value_ms: int
    at_ms: int

    @property
    def rule(self) -> str:
        return f"records with timestamps beyond {self.setting}={self.value_ms} of the target topic (INVALID_TIMESTAMP)"

    @property
    def remedy(self) -> str:
        return f"Set {self.setting}={NO_LIMIT_MS} on the target topic"


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """None: no such limit."""

    oldest: TimeLimit | None
    newest: TimeLimit | None


def time_limits(settings: Mapping[str, str], now_ms: int) -> TimeLimits:
    """Of a target topic, as they are now: both move on with the clock of its broker."""
    if is_stamping(settings):
        return TimeLimits(None, None)
    old, new = _narrowest(settings, _BEFORE), _narrowest(settings, _AFTER)
    return TimeLimits(
        None if old is None else TimeLimit(*old, at_ms=now_ms - old[1]),
        None if new is None else TimeLimit(*new, at_ms=min(now_ms + new[1], NO_LIMIT_MS)),
    )


def _narrowest(settings: Mapping[str, str], name: str) -> tuple[str, int] | None:
    limits = [
        (int(settings[setting_name]), setting_name) for setting_name in (name, LIMIT_BEFORE_3_6) if setting_name in settings
    ]
    value, setting = min(limits, default=(NO_LIMIT_MS, name))
    return None if value == NO_LIMIT_MS else (setting, value)


def too_old(index: BatchIndex, limit: TimeLimit, policy: LogAppendTimePolicy) -> Bools:
    oldest, _ = _known_times(index, policy)
    return np.asarray((oldest != _NO_TIMESTAMP) & (oldest < limit.at_ms), np.bool_)


def too_new(index: BatchIndex, limit: TimeLimit, policy: LogAppendTimePolicy) -> Bools:
    _, newest = _known_times(index, policy)
    return np.asarray(newest > limit.at_ms, np.bool_)


def _known_times(index: BatchIndex, policy: LogAppendTimePolicy) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return an old and a new time that some record of each batch certainly has on the target.

    The base timestamp is the first record's, unless the cleaner was there. If the source's broker stamped the batch, its time
    is the maximum; the producers' own are only known by the first one.
    """
    headers = index.headers
    first, newest = headers["base_timestamp"].astype(np.int64), headers["max_timestamp"].astype(np.int64)
    is_cleaned = headers["records_count"] != headers["last_offset_delta"].astype(np.int64) + 1
    is_cleaned |= (headers["attributes"] & DELETE_HORIZON_BIT) != 0
    is_stamped = (headers["attributes"] & LOG_APPEND_TIME_BIT) != 0
    if policy is LogAppendTimePolicy.KEEP:
        return np.where(is_cleaned | is_stamped, newest, first), newest
    own_newest = np.where(is_stamped, np.where(is_cleaned, _NO_TIMESTAMP, first), newest)
    return np.where(is_cleaned, own_newest, first), own_newest
