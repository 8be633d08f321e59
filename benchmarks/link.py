"""Pure: how far away the clusters are from the peers, whether connections are encrypted, and the options for both."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

NEAR = "none"
SOURCE, TARGET = SIDES = ("source", "target")
BOTH = "both"
_FAR_CHOICES = (NEAR, *SIDES, BOTH)


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
    """Add the options that `links_of` reads."""
    parser.add_argument(
        "--rtt-ms",
        type=_round_trips,
        metavar="N[,N]",
        help="round trip between peers and the clusters of --far; several take turns, 0 is the same way without a delay",
    )
    parser.add_argument(
        "--far",
        type=_far_choices,
        metavar="SIDES",
        help=f"which clusters are far away (with --rtt-ms): of {', '.join(_FAR_CHOICES)}; several take turns",
    )
    parser.add_argument("--tls", action="store_true", help="connect the peers to both clusters by TLS 1.3")


def links_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[Link]:
    """Return the links of parsed options. End the program with an error where one of --rtt-ms and --far is missing."""
    if (options.rtt_ms is None) != (options.far is None):
        parser.error("--rtt-ms and --far are given together or not at all")
    if options.far is None:
        return [Link(tls=options.tls)]
    return [
        Link(rtt_ms=rtt_ms, far=far, tls=options.tls)
        for far in options.far
        for rtt_ms in ([0.0] if far == NEAR else options.rtt_ms)
    ]


def _far_choices(text: str) -> list[str]:
    chosen = list(dict.fromkeys(text.split(",")))
    if unknown := [name for name in chosen if name not in _FAR_CHOICES]:
        raise argparse.ArgumentTypeError(f"invalid choice: {', '.join(unknown)} (of {', '.join(_FAR_CHOICES)})")
    return chosen


def _round_trips(text: str) -> list[float]:
    values = [float(part) for part in text.split(",")]
    if negative := [value for value in values if not value >= 0]:
        raise argparse.ArgumentTypeError(f"{negative[0]:g} is less than 0")
    return list(dict.fromkeys(values))
