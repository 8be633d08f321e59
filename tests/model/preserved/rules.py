"""The rules of the protocol, each of which can be left out: the model then has to find what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the product does.

    `keeps_alive`: batches of old records are sent with the time of now. `waits_quiet`: before a log whose producer is forgotten is
    written to. `sends_first_alone`: to such a log. `stops_when_cut_short`: where the first batch was not sent any more, none is.
    `agrees_on_producer`: all writers use one producer id. `asks_again`: after an unknown outcome, rather than repeat with another
    id. `compares_base_offsets`, `checks_headers`: to find a foreign writer. `is_conditional`: batches have sequences, and those of
    their offsets (`counts_from_offset`). `begins_at_log_end`: rather than at the position of the map. `records_answered`: only what
    was acknowledged is recorded. `notes_lost_task`: a task that another attempt replaces makes the log unclean.
    `looks_twice`: before damage or a loss is reported, as a deposed leader may have answered. `requires_long_expiration`:
    producer.id.expiration.ms is long enough for `quiet_ms`. `compares_existing`: what a log holds that is continued, with the
    source. `takes_new_producer`: for such a log, not one whose batches it has. `bounds_origin`: only a log that ends where the
    first batch of its producer belongs is written to without a wait.
    """

    keeps_alive: bool = True
    waits_quiet: bool = True
    sends_first_alone: bool = True
    stops_when_cut_short: bool = True
    agrees_on_producer: bool = True
    asks_again: bool = True
    compares_base_offsets: bool = True
    checks_headers: bool = True
    is_conditional: bool = True
    counts_from_offset: bool = True
    begins_at_log_end: bool = True
    records_answered: bool = True
    notes_lost_task: bool = True
    looks_twice: bool = True
    requires_long_expiration: bool = True
    compares_existing: bool = True
    takes_new_producer: bool = True
    bounds_origin: bool = True


PRODUCT = Rules()
