"""Two clusters in memory that went apart, strict about what a fail-over may do and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.migration.fake_effects import Kill

from shallow_mirror.migration.conductor_ports import Detail, Outside
from shallow_mirror.migration.failover import FailoverState, Step, Way
from shallow_mirror.migration.late_writes import Copied, LateWrite, gaps_of
from shallow_mirror.migration.observations import MirrorRun
from shallow_mirror.types import OffsetRange, TopicPartition

PARTITION = TopicPartition("orders", 0)


@dataclass
class FakeClusters:
    """`mirrored` of `source_end` records were copied before the source was lost."""

    mirrored: int = 90
    source_end: int = 100
    target_end: int = 90
    is_fenced: bool = False
    is_target_used: bool = False
    are_groups_moved: bool = False
    is_read_only: bool = True
    topic_id: str | None = "old"
    kept: list[tuple[int, int]] = field(default_factory=list)
    is_back_allowed: bool = False
    is_back_running: bool = False
    filled_end: int = 0
    is_handed_back: bool = False
    back: str = "back"
    """The mirror back that the file names."""
    stuck: str = ""
    """A mirror back that has filled a topic which somebody has deleted."""
    late_records: int = 0
    """Written to the source after the first look at its logs."""
    now_s: float = 0.0

    def tick(self, seconds: float) -> None:
        self.now_s += seconds


class FakeFailover:
    """`Effects` and `WayBackEffects`, each of which may be killed before and after what it does."""

    mirror_id = "m"
    source_alias, target_alias, back_file, starts_back = "east", "west", "back.yaml", True

    def __init__(self, world: FakeClusters, kill: Kill) -> None:
        self._world, self._kill = world, kill

    @property
    def way_back(self) -> FakeFailover:
        return self

    def topics(self) -> list[str]:
        return ["orders"]

    def problems(self) -> list[str]:
        self._kill()
        return []

    def fence(self) -> Detail:
        self._kill()
        self._world.is_fenced = True
        self._kill()
        return {"partitions": [], "seen_at_ms": None, "open": []}

    def open_topics(self) -> int:
        assert self._world.is_fenced, "the mirror would deny others again"
        self._kill()
        self._world.is_read_only = False
        self._kill()
        return 1

    def move_groups(self) -> Detail:
        assert self._world.is_fenced, "late records could come before those of the applications"
        assert not self._world.is_read_only, "applications start behind this step"
        self._kill()
        self._world.are_groups_moved = True
        self._kill()
        return {"groups": 1, "offsets": 1, "nearest": 0, "observed_at": None, "left": []}

    def release(self, _: FailoverState, *, despite_groups: bool) -> list[str]:
        self._kill()
        if self._world.is_fenced and self._world.is_target_used:
            return ["records were written to west since"]
        self._world.is_fenced = False
        self._world.is_read_only = True  # by the mirror that starts again
        self._kill()
        return []

    def count_losses(self, _: FailoverState) -> Detail:
        return {"groups": {}}

    def back_problems(self, _: FailoverState) -> list[str]:
        self._kill()
        return []

    def active_groups(self) -> list[str]:
        return []

    def open_at_source(self, _: FailoverState) -> list[str]:
        return []

    def topic_ids(self, _: FailoverState) -> Mapping[str, str]:
        return {"orders": self._world.topic_id or ""}

    def diverged(self, state: FailoverState, ids: Mapping[str, str]) -> Sequence[LateWrite]:
        self._kill()
        world = self._world
        if world.topic_id is None or ids.get("orders") != world.topic_id:
            return []
        known = [Copied(0, world.mirrored, None), *(Copied(write["start"], write["end"], None) for write in state.keeping)]
        gaps = gaps_of(OffsetRange(0, world.source_end), known)
        world.source_end += world.late_records
        world.late_records = 0
        return [LateWrite(topic_partition=PARTITION, start=gap.start, end=gap.end) for gap in gaps]

    def keep(self, write: LateWrite) -> Detail:
        self._kill()
        if (write.start, write.end) not in self._world.kept:  # as `redo`: a range is copied once
            self._world.kept.append((write.start, write.end))
        self._kill()
        return {"kept_topic": "kept", "gone": []}

    def compare_kept(self, writes: Sequence[LateWrite]) -> list[str]:
        assert [(write.start, write.end) for write in writes] == self._world.kept
        return []

    def delete_topics(self, ids: Mapping[str, str]) -> list[str]:
        world = self._world
        self._kill()
        if world.topic_id is not None and ids.get("orders") == world.topic_id:
            kept = sum(end - start for start, end in world.kept)
            assert kept == world.source_end - world.mirrored, "records that only the source has would be lost"
            assert not world.is_back_allowed
            world.topic_id = None
        self._kill()
        return []

    def back(self) -> Detail:
        return {"mirror": self._world.back, "tables": self._world.back}

    def replacing_problems(self, state: FailoverState, topics: Sequence[str]) -> list[str]:
        self._kill()
        return []

    def run_of_replaced(self, _: Detail) -> MirrorRun | None:
        return None

    def take_back(self, former: Detail, topics: Sequence[str]) -> None:
        assert former["mirror"] != self._world.back
        assert not self._world.is_handed_back, "writers may be there"
        self._kill()
        self._world.is_back_allowed = self._world.is_back_running = False
        self._kill()

    def filling_problems(self, _: Sequence[str]) -> list[str]:
        return ["orders was deleted at east"] if self._world.back == self._world.stuck else []

    def prepare_back(self, topics: Sequence[str]) -> None:
        assert self._world.topic_id != "old", "the old topic is still there"
        assert list(topics) == ["orders"]
        self._world.is_back_allowed = True
        self._kill()

    def back_run(self) -> MirrorRun | None:
        return MirrorRun(description="run 1", is_alive=True, is_over=False) if self._world.is_back_running else None

    def start_back(self) -> str:
        self._kill()
        self._world.is_back_running = True
        self._world.topic_id, self._world.filled_end = "new", self._world.target_end
        self._kill()
        return "pid 1"

    def unfilled(self, _: Sequence[str]) -> list[str]:
        return []

    def groups_of(self, _: Sequence[str]) -> list[str]:
        return ["billing"]

    def hand_back(self, topics: Sequence[str], groups: Sequence[str]) -> Detail:
        assert self._world.filled_end == self._world.target_end
        assert (list(topics), list(groups)) == (["orders"], ["billing"])
        self._kill()
        self._world.is_handed_back = True
        self._kill()
        return {"writers_stopped_s": 1.0}


@dataclass
class FakeReports:
    lines: list[str] = field(default_factory=list)

    def begun(self, wave: str, step: object) -> None: ...
    def done(self, wave: str, step: object, detail: object) -> None: ...
    def waits(self, outside: Outside) -> None: ...

    def says(self, sentence: str) -> None:
        self.lines.append(sentence)

    def step_begun(self, way: Way, step: Step) -> None: ...
    def step_done(self, way: Way, step: Step, detail: Mapping[str, Any]) -> None: ...
