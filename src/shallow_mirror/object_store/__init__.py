"""Objects in a folder, on S3, Azure or Google Cloud Storage: written once, read by ranges, never overwritten."""

from shallow_mirror.object_store.base import PART_BYTES, PARTS_IN_FLIGHT, READ_BYTES, READS_IN_FLIGHT, ObjectInfo, ObjectWriter
from shallow_mirror.object_store.object_store import ObjectStore

__all__ = ["PARTS_IN_FLIGHT", "PART_BYTES", "READS_IN_FLIGHT", "READ_BYTES", "ObjectInfo", "ObjectStore", "ObjectWriter"]
