"""`translate`: translation of an offset through the map."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from shallow_mirror.commands.file_kinds import load_mirror_or_restore
from shallow_mirror.commands.options import AsJson, MirrorOrRestore, parse_time
from shallow_mirror.commands.sessions import session_for


def translate(
    conf: MirrorOrRestore,
    topic: Annotated[str, typer.Argument(help="Source topic; with --reverse the target's.")],
    partition: Annotated[int, typer.Argument(help="Its partition.")],
    offset: Annotated[int, typer.Argument(help="Offset to translate.")],
    reverse: Annotated[bool, typer.Option("--reverse", help="TOPIC, PARTITION and OFFSET are the target's.")] = False,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="Use the map as it was at this time (ISO 8601 with zone).")
    ] = None,
    topic_id: Annotated[
        str | None, typer.Option("--topic-id", help="Incarnation of a recreated topic; the newest by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Translate a source offset to the target, or with --reverse back."""
    from shallow_mirror.checkpoints import OffsetMap
    from shallow_mirror.config import RestoreConfig
    from shallow_mirror.errors import ConfigError

    at, config = parse_time(as_of), load_mirror_or_restore(conf, "translate")
    with session_for(config) as spark:
        offset_map = OffsetMap.open(config.table_location, spark, mirror=config.mirror)
        look_up = offset_map.reverse if reverse else offset_map.translate
        translation = look_up(topic, partition, offset, as_of=at, topic_id=topic_id)
        if translation.target_offset is None and not offset_map.knows(topic, partition, is_target=reverse):
            partition_name = f"{'target' if reverse else 'source'} partition {topic}-{partition}"
            kind = "restored" if isinstance(config, RestoreConfig) else "mirrored"
            raise ConfigError(f"{partition_name} was never {kind}")
    document = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "kind": None if translation.kind is None else str(translation.kind),
        "exact": translation.exact,
        "beyond": translation.beyond,
        "target_topic": translation.target_topic,
        "target_partition": translation.target_partition,
        "target_offset": translation.target_offset,
        "as_of": as_of,
    }
    print(json.dumps(document) if as_json else _translation_sentence(document, is_reverse=reverse))


def _translation_sentence(document: dict[str, Any], *, is_reverse: bool) -> str:
    source = f"{document['topic']}-{document['partition']} offset {document['offset']}"
    if document["target_offset"] is None:
        return f"{source}: the map has no offset for it"
    target = f"{document['target_topic']}-{document['target_partition']} offset {document['target_offset']}"
    next_record = "end of the map" if document["beyond"] else "next record"
    segment = f"; in a segment of kind {document['kind']}" if document["kind"] else ""
    precision = "exact" if document["exact"] else f"{next_record}{segment}"
    return f"{'target' if is_reverse else 'source'} {source} -> {'source' if is_reverse else 'target'} {target} ({precision})"
