"""`mm2`: what a MirrorMaker 2 beside the mirror has copied, its groups, and whether it still writes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shallow_mirror.commands.file_kinds import load_mirror
from shallow_mirror.commands.options import EXIT_DIFFERENT, EXIT_LEFT, AsJson, Conf
from shallow_mirror.commands.sessions import interruptible, session_for
from shallow_mirror.errors import ConfigError
from shallow_mirror.progress import Spoken

if TYPE_CHECKING:
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.mirror_maker.running.names import MirrorMakerNames

mm2 = typer.Typer(help="Move from MirrorMaker 2: its lag, its groups, and the end of its writing.", no_args_is_help=True)

Properties = Annotated[
    Path, typer.Argument(metavar="FILE", help="mm2.properties, or the JSON of a MirrorSourceConnector, as for `import`.")
]
TargetName = Annotated[
    str | None,
    typer.Option("--target-name", metavar="TEMPLATE", help="Its names of target topics, with a replication policy of your own."),
]
OffsetsTopic = Annotated[
    str | None,
    typer.Option(
        "--offsets-topic", metavar="TOPIC", help="offset.storage.topic of its workers, in a Connect cluster of your own."
    ),
]


@mm2.command("lag")
def lag(
    conf: Conf, file: Properties, target_name: TargetName = None, offsets_topic: OffsetsTopic = None, as_json: AsJson = False
) -> None:
    """Show how far MirrorMaker 2 has copied each partition of the mirrored topics. The exit code is 1 while it is behind.

    Kafka Connect records the offsets once per offset.flush.interval.ms, by default a minute.
    """
    from shallow_mirror.mirror_maker.running import lag as mirror_maker_lag
    from shallow_mirror.operations.status_view import stdout_console

    config = load_mirror(conf, "mm2 lag")
    names = _names(config, file, target_name, offsets_topic)
    with interruptible("nothing was changed"), Spoken("mm2 lag") as spoken:
        read = mirror_maker_lag.read_lag(
            config, names, file.name, on_wait=lambda awaited: spoken.awaits(f"mm2 lag: waits for {awaited}")
        )
    mirror_maker_lag.show(read, stdout_console(), as_json=as_json)
    if read.records:
        raise typer.Exit(EXIT_DIFFERENT)


@mm2.command("check")
def check(
    conf: Conf,
    file: Properties,
    watch_s: Annotated[
        float, typer.Option("--watch", metavar="SECONDS", min=0.0, help="How long both clusters are watched for writers.")
    ] = 15.0,
    target_name: TargetName = None,
    offsets_topic: OffsetsTopic = None,
    as_json: AsJson = False,
) -> None:
    """Check that the mirror may continue in MirrorMaker 2's topics: everything is copied, and no other client writes any more.

    The exit code is 1 if something is in the way. Nothing is changed.
    """
    from shallow_mirror.mirror_maker.running.take_over import check_take_over

    config = load_mirror(conf, "mm2 check")
    names = _names(config, file, target_name, offsets_topic)
    with interruptible("nothing was changed"), Spoken("mm2 check") as spoken:
        checked = check_take_over(
            config,
            names,
            file.name,
            watch_s=watch_s,
            sleep=time.sleep,
            on_wait=lambda awaited: spoken.awaits(f"mm2 check: waits for {awaited}"),
        )
    print(json.dumps(checked.document()) if as_json else "\n".join(checked.lines()))
    if not checked.is_fine:
        raise typer.Exit(EXIT_DIFFERENT)


@mm2.command("groups")
def groups(
    conf: Conf,
    file: Properties,
    pattern: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Only this group; or a regular expression on whole names.")
    ] = None,
    is_applied: Annotated[
        bool, typer.Option("--apply", help="Commit the offsets in the mirror's topics, for groups that have no members.")
    ] = False,
    is_forced: Annotated[
        bool,
        typer.Option("--force", help="With --apply: also move offsets backwards, and use the nearest one where none is exact."),
    ] = False,
    target_name: TargetName = None,
    search_mib: Annotated[
        int, typer.Option("--search-mib", metavar="MIB", min=1, help="Read at most so much of a source partition for one offset.")
    ] = 256,
    as_json: AsJson = False,
) -> None:
    """Show where groups that read MirrorMaker 2's topics continue in the mirror's, found by comparing records at the source.

    With --apply the exit code is 1 while an offset is left.
    """
    from shallow_mirror.mirror_maker.running import group_view
    from shallow_mirror.mirror_maker.running.group_positions import move_groups
    from shallow_mirror.operations.recover import require_newest_tables
    from shallow_mirror.operations.status_view import stdout_console

    if is_forced and not is_applied:
        raise ConfigError("--force requires --apply")
    config = load_mirror(conf, "mm2 groups")
    names = _names(config, file, target_name)
    done = "offsets that were committed stay; run it again to continue" if is_applied else "nothing was changed"
    with interruptible(done), Spoken("mm2 groups: waits for the tables") as spoken, session_for(config) as spark:
        if is_applied:
            spoken.awaits("mm2 groups: waits for the target to tell whether the tables are the newest")
            require_newest_tables(config, spark)
        report = move_groups(
            config,
            names,
            spark=spark,
            pattern=pattern,
            is_applied=is_applied,
            is_forced=is_forced,
            most_bytes=search_mib << 20,
            on_wait=lambda awaited: spoken.awaits(f"mm2 groups: waits for {awaited}"),
        )
    group_view.show(report, stdout_console(), as_json=as_json)
    if is_applied and not report.is_done:
        raise typer.Exit(EXIT_LEFT)


def _names(config: MirrorConfig, file: Path, target_name: str | None, offsets_topic: str | None = None) -> MirrorMakerNames:
    from shallow_mirror.mirror_maker import mirror_files
    from shallow_mirror.mirror_maker.running.names import flow_between, names_of

    flow = flow_between(mirror_files.read_flows(file), config.source.alias, config.target.alias, file.name)
    return names_of(flow, file.name, target_name=target_name, connect_offsets=offsets_topic)
