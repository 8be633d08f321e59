"""Real brokers on this machine: `demo` and `local-kafka`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(keep: Annotated[bool, typer.Option("--keep", help="Keep the files of the demo.")] = False) -> None:
    """Run two real clusters on this machine, mixed traffic, a mirror that is killed and resumed, and verify the copy."""
    from shallow_mirror.demo.run import run_demo

    raise typer.Exit(run_demo(keep))


def local_kafka(
    clusters: Annotated[int, typer.Option(min=1, max=9, help="Number of clusters.")] = 2,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="Number of brokers of each cluster.")] = 1,
    version: Annotated[str, typer.Option(help="Kafka version; tested with 2.8.2, 3.9.2, 4.3.0 and 4.4.0.")] = "4.4.0",
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for data and addresses; a temporary folder by default. "
            "After a restart the addresses are the same where the ports are free."
        ),
    ] = None,
) -> None:
    """Run real Kafka brokers in the foreground until Ctrl-C."""
    from shallow_mirror.local_kafka import run_local_kafka

    run_local_kafka(clusters, version, folder, brokers)
