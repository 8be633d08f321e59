"""`redo`: another copy of a range, into a topic of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.commands.options import Conf
from shallow_mirror.commands.sessions import interruptible, session_for


def redo(
    conf: Conf,
    topic: Annotated[str, typer.Argument(help="Source topic.")],
    partition: Annotated[int, typer.Argument(help="Source partition.")],
    start: Annotated[int, typer.Argument(metavar="FROM", help="First source offset; its batch is copied whole.")],
    end: Annotated[int, typer.Argument(metavar="TO", help="Source offset after the last one.")],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET_TOPIC",
            help="Target topic of the copy, created if missing; must not be a target topic of this mirror.",
        ),
    ],
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables", metavar="FOLDER", help="Folder for the offset map of the copy; below the mirror's tables by default."
        ),
    ] = None,
) -> None:
    """Copy a range of source offsets again, into another topic.

    Exactly once, with an offset map of its own, also beside the running mirror. The same command continues an interrupted copy.
    """
    from shallow_mirror.operations.redo import RedoRequest, mirrored_clusters, redo as copy_again, redo_config
    from shallow_mirror.types import TopicPartition

    request = RedoRequest(TopicPartition(topic, partition), start, end, target)
    mirror = load_mirror(conf, "redo")
    config = redo_config(mirror, request, None if tables is None else str(tables.resolve()))
    with session_for(mirror) as spark:
        clusters = mirrored_clusters(mirror, spark)
    with (
        interruptible("what was copied is kept: the same command continues from there"),
        session_for(config, is_writing=True) as spark,
    ):
        redone = copy_again(config, request, spark, clusters=clusters)
    print(redone.sentence())
