"""Whole record batches, by their headers: index, checksum, admission and restamp, without opening one."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.wire.batches.admission import (
        SENT as SENT,
        Admission as Admission,
        Verdict as Verdict,
        admit as admit,
        kind_of as kind_of,
    )
    from shallow_mirror.wire.batches.batch_index import (
        BatchIndex as BatchIndex,
        IndexStop as IndexStop,
        StopReason as StopReason,
        can_be_quarantined as can_be_quarantined,
        has_an_end as has_an_end,
        index_batches as index_batches,
    )
    from shallow_mirror.wire.batches.restamping import (
        SEQUENCE_MODULUS as SEQUENCE_MODULUS,
        SharedProducer as SharedProducer,
        Stamped as Stamped,
        restamp as restamp,
        restamp_all as restamp_all,
        restamp_at_offsets as restamp_at_offsets,
        restamped_at as restamped_at,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
