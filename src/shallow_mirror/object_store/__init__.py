"""Objects in a folder, on S3, Azure or Google Cloud Storage: written once, read by ranges, never overwritten."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.object_store.base import (
        DELETE_PAGE as DELETE_PAGE,
        PART_BYTES as PART_BYTES,
        PARTS_IN_FLIGHT as PARTS_IN_FLIGHT,
        READ_BYTES as READ_BYTES,
        READS_IN_FLIGHT as READS_IN_FLIGHT,
        ObjectInfo as ObjectInfo,
        ObjectWriter as ObjectWriter,
    )
    from shallow_mirror.object_store.object_store import ObjectStore as ObjectStore
    from shallow_mirror.object_store.store_errors import (
        REMEDY_DISK as REMEDY_DISK,
        is_past_end as is_past_end,
        one_line as one_line,
        store_error as store_error,
    )
    from shallow_mirror.object_store.store_options import option_problems as option_problems, resolved_options as resolved_options
else:
    __getattr__, __dir__ = lazy_names(__name__)
