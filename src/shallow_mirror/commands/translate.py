"""`translate`: an offset through the map."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from shallow_mirror.commands.options import AsJson, Conf
from shallow_mirror.commands.sessions import session_for
from shallow_mirror.commands.times import time_of


def translate(
    conf: Conf,
    topic: str,
    partition: int,
    offset: int,
    reverse: Annotated[bool, typer.Option("--reverse", help="TOPIC, PARTITION and OFFSET are the target's.")] = False,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="Use the map as it was at this time (ISO 8601 with zone).")
    ] = None,
    topic_id: Annotated[
        str | None, typer.Option("--topic-id", help="Which incarnation of a recreated topic; the newest by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Source offset to target offset, or back."""
    from shallow_mirror.checkpoints.offset_map import OffsetMap
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.errors import ConfigError

    at, config = time_of(as_of), MirrorConfig.load(conf)
    with session_for(config) as spark:
        offset_map = OffsetMap.open(config.table_location, spark, mirror=config.mirror)
        look_up = offset_map.reverse if reverse else offset_map.translate
        found = look_up(topic, partition, offset, as_of=at, topic_id=topic_id)
        if found.target_offset is None and not offset_map.knows(topic, partition, is_target=reverse):
            raise ConfigError(f"{'target' if reverse else 'source'} partition {topic}-{partition} was never mirrored")
    answer = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "kind": None if found.kind is None else str(found.kind),
        "exact": found.exact,
        "beyond": found.beyond,
        "target_topic": found.target_topic,
        "target_partition": found.target_partition,
        "target_offset": found.target_offset,
        "as_of": as_of,
    }
    print(json.dumps(answer) if as_json else _translation_sentence(answer, is_reverse=reverse))


def _translation_sentence(answer: dict[str, Any], *, is_reverse: bool) -> str:
    asked = f"{answer['topic']}-{answer['partition']} offset {answer['offset']}"
    if answer["target_offset"] is None:
        return f"{asked}: the map knows no offset for it"
    found = f"{answer['target_topic']}-{answer['target_partition']} offset {answer['target_offset']}"
    next_one = "end of the map" if answer["beyond"] else "next record"
    where = f"; in a segment of kind {answer['kind']}" if answer["kind"] else ""
    how = "exact" if answer["exact"] else f"{next_one}{where}"
    return f"{'target' if is_reverse else 'source'} {asked} -> {'source' if is_reverse else 'target'} {found} ({how})"
