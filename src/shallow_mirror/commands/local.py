"""Real brokers on this machine: `demo` and `local-kafka`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(keep: Annotated[bool, typer.Option("--keep", help="Leave the files of the demo where they are.")] = False) -> None:
    """Two real clusters on this machine, messy traffic, a mirror that is killed and resumed, and the proof of the copy."""
    from shallow_mirror.demo.run import run_demo

    raise typer.Exit(run_demo(keep))


def local_kafka(
    clusters: Annotated[int, typer.Option(min=1, max=9, help="How many clusters.")] = 2,
    brokers: Annotated[int, typer.Option(min=1, max=9, help="How many brokers each of them has.")] = 1,
    version: Annotated[str, typer.Option(help="Kafka version; tried with 2.8.2, 3.9.2 and 4.3.0.")] = "4.3.0",
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where their data and addresses are kept; a temporary folder by default. "
            "Started again, they have the same addresses where the ports are free."
        ),
    ] = None,
) -> None:
    """Real Kafka brokers in the foreground until Ctrl-C."""
    from shallow_mirror.local_kafka.command import run_local_kafka

    run_local_kafka(clusters, version, folder, brokers)
