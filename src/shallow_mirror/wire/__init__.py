"""Pure: bytes of record batches, Fetch and Produce. No I/O, no clock, no Spark."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.wire.batches import coalescing as coalescing
    from shallow_mirror.wire.batches.batch_builder import build_batch as build_batch
    from shallow_mirror.wire.batches.coalescing import find_small as find_small
    from shallow_mirror.wire.batches.control_records import MarkerType as MarkerType, parse_marker as parse_marker
    from shallow_mirror.wire.batches.crc import (
        crc32c as crc32c,
        joined_crc as joined_crc,
        payload_crcs as payload_crcs,
        verify_crc as verify_crc,
        verify_crcs as verify_crcs,
    )
    from shallow_mirror.wire.batches.header import (
        BATCH_HEADER_BYTES as BATCH_HEADER_BYTES,
        CODEC_MASK as CODEC_MASK,
        CONTROL_BIT as CONTROL_BIT,
        DELETE_HORIZON_BIT as DELETE_HORIZON_BIT,
        HEADER as HEADER,
        LOG_APPEND_TIME_BIT as LOG_APPEND_TIME_BIT,
        NATIVE_HEADER as NATIVE_HEADER,
        TRANSACTIONAL_BIT as TRANSACTIONAL_BIT,
        Codec as Codec,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
