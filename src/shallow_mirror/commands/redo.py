"""`redo`: a range once more, into a topic of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shallow_mirror.commands.options import Conf
from shallow_mirror.commands.sessions import session_for
from shallow_mirror.commands.signals import interruptible


def redo(
    conf: Conf,
    topic: str,
    partition: int,
    start: Annotated[int, typer.Argument(metavar="FROM", help="First source offset; the batch that holds it is copied whole.")],
    end: Annotated[int, typer.Argument(metavar="TO", help="Behind the last one.")],
    target: Annotated[
        str, typer.Option("--to", metavar="TARGET_TOPIC", help="Created like a target topic; none of this mirror's.")
    ],
    tables: Annotated[
        Path | None,
        typer.Option("--tables", metavar="FOLDER", help="For the offset map of the copy; below the mirror's by default."),
    ] = None,
) -> None:
    """Copy a range of source offsets again, into another topic.

    Exactly once, with an offset map of its own, and also beside the running mirror. The same command again goes on where it was.
    """
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.operations.redo import RedoRequest, redo_config
    from shallow_mirror.operations.redo import redo as copy_again
    from shallow_mirror.types import TopicPartition

    request = RedoRequest(TopicPartition(topic, partition), start, end, target)
    config = redo_config(MirrorConfig.load(conf), request, None if tables is None else str(tables.resolve()))
    with (
        interruptible("what was copied is kept: the same command goes on from there"),
        session_for(config, is_writing=True) as spark,
    ):
        redone = copy_again(config, request, spark)
    print(redone.sentence())
