"""How long it takes until a new record is visible on the target: after a SIGKILL, and after a clean stop."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition as ClientTopicPartition
from tests.faults.rounds import PATIENCE_S, RoundFailedError, Scene
from tests.faults.steps import DECIDED, LAST_RECEIPT, RETURNED, Step

CLEAN = "clean stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """`seconds` from the start of the process until a record that was written just before it is visible."""

    engine: str
    after: str
    seconds: float


def measure(scene: Scene, each: int) -> list[Start]:
    """`each` starts after a clean stop, and as many after a kill with open transactions, and after one with decided ones."""
    starts = []

    def note(after: str) -> None:
        starts.append(Start(engine=scene.engine, after=after, seconds=_seconds_until_visible(scene)))

    for _ in range(each):
        scene.reach(RETURNED)
        scene.gate.forget()
        if scene.running().stop() != 0:
            raise RoundFailedError(f"the mirror did not stop cleanly:\n{scene.running_or_ended().log()[-4000:]}")
        note(CLEAN)
        for step in (LAST_RECEIPT, DECIDED):
            _kill_at(scene, step)
            note(f"SIGKILL at {step.name}")
    return starts


def _kill_at(scene: Scene, step: Step) -> None:
    scene.reach(step)
    scene.running().kill()
    scene.gate.forget()


def _seconds_until_visible(scene: Scene) -> float:
    topic = next(iter(scene.topics))
    key = f"probe-{time.monotonic_ns()}".encode()
    consumer = Consumer(
        {
            "bootstrap.servers": scene.target,
            "group.id": "starts",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        _, end = consumer.get_watermark_offsets(ClientTopicPartition(topic, 0), 30)
        consumer.assign([ClientTopicPartition(topic, 0, end)])
        producer = Producer({"bootstrap.servers": scene.source, "log_level": 0})
        producer.produce(topic, b"probe", key, 0)
        if producer.flush(30):
            raise RoundFailedError("the source did not take the probe")
        began = time.monotonic()
        scene.running()
        while time.monotonic() - began < PATIENCE_S:
            message = consumer.poll(0.02)
            if message is not None and message.error():
                raise KafkaException(message.error())
            if message is not None and message.key() == key:
                return time.monotonic() - began
        raise RoundFailedError(f"the probe did not arrive:\n{scene.running().log()[-4000:]}")
    finally:
        consumer.close()


def write_starts(path: Path, starts: Sequence[Start]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(start)) + "\n" for start in starts)


def read_starts(path: Path) -> list[Start]:
    if not path.exists():
        return []
    return [Start(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


STARTS_HEAD = "| runs on | start after | runs | seconds until a new record is visible (median, least to most) | ratio |"


def starts_table(starts: Sequence[Start]) -> str:
    """Pure: medians, and their ratio to that of the same engine after a clean stop."""
    seconds_of: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for start in starts:
        seconds_of[start.engine, start.after].append(start.seconds)
    lines = [STARTS_HEAD, "|---|---|---|---|---|"]
    for (engine, after), seconds in seconds_of.items():
        median, clean = statistics.median(seconds), seconds_of.get((engine, CLEAN))
        ratio = f"{median / statistics.median(clean):.2f}" if clean else ""
        lines.append(
            f"| {engine} | {after} | {len(seconds)} | {median:.1f} ({min(seconds):.1f} to {max(seconds):.1f}) | {ratio} |"
        )
    return "\n".join(lines) + "\n"
