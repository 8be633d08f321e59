"""Batches that have to be opened: decompression, records, rebuilding and conversion from older formats."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.wire.records.compression import CorruptBlockError as CorruptBlockError, decompress as decompress
    from shallow_mirror.wire.records.fillers import (
        FILLER_KEY as FILLER_KEY,
        Fillers as Fillers,
        filler_record as filler_record,
        find_fillers as find_fillers,
    )
    from shallow_mirror.wire.records.legacy_formats import convert_legacy as convert_legacy
    from shallow_mirror.wire.records.placed_batches import Placement as Placement, place as place
    from shallow_mirror.wire.records.placed_queue import PlacedQueue as PlacedQueue
    from shallow_mirror.wire.records.record_builder import build_record as build_record
    from shallow_mirror.wire.records.send_buffer import (
        Outgoing as Outgoing,
        Rewritten as Rewritten,
        make_outgoing as make_outgoing,
    )
    from shallow_mirror.wire.records.unpacked_batch import (
        OPENED_FETCHES as OPENED_FETCHES,
        Record as Record,
        UnpackedBatch as UnpackedBatch,
        open_batch as open_batch,
        parse_record as parse_record,
        unpack_batch as unpack_batch,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
