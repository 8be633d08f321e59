"""Pure: how far away the clusters are from the peers, whether connections are encrypted, and the options for both."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

NEAR = "none"
SOURCE, TARGET = SIDES = ("source", "target")
BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """`rtt_ms`: the round trip between a peer and a far cluster. `far`: which cluster is; `NEAR`, `SOURCE`, `TARGET` or `BOTH`.

    `tls`: whether peers connect to both clusters by TLS. Fields are keys of a row of results.
    """

    rtt_ms: float = 0.0
    far: str = NEAR
    tls: bool = False

    @property
    def far_sides(self) -> tuple[str, ...]:
        return tuple(side for side in SIDES if self.far in (side, BOTH))

    @property
    def near(self) -> Link:
        """Return the same without distance."""
        return Link(tls=self.tls)

    def __str__(self) -> str:
        where = "source and target" if self.far == BOTH else self.far
        parts = [f"{where} {self.rtt_ms:g} ms away"] if self.far_sides else []
        return ", ".join([*parts, *(["TLS"] if self.tls else [])])


PLAIN = Link()
"""Near, and without TLS."""


def add_link_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `link_of` reads."""
    parser.add_argument("--rtt-ms", type=_not_negative, metavar="N", help="round trip between peers and the clusters of --far")
    parser.add_argument("--far", choices=(*SIDES, BOTH), help="which clusters are far away (with --rtt-ms)")
    parser.add_argument("--tls", action="store_true", help="connect the peers to both clusters by TLS 1.3")


def link_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Link:
    """Return the link of parsed options. End the program with an error where one of --rtt-ms and --far is missing."""
    if (options.rtt_ms is None) != (options.far is None):
        parser.error("--rtt-ms and --far are given together or not at all")
    return Link(rtt_ms=options.rtt_ms or 0.0, far=options.far or NEAR, tls=options.tls)


def _not_negative(text: str) -> float:
    if not (value := float(text)) >= 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value
