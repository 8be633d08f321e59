"""Pure: figures of docs/reference that a preflight cannot measure, by the name of the corpus that they were measured with.

A test compares them with the pages.
"""

from __future__ import annotations

from dataclasses import dataclass

LARGE_BATCH_BYTES, SMALL_BATCH_BYTES = 64_000, 8_000
"""On average: from the first on, batches are compared with the large ones of a corpus; below the second, with the small ones."""

LEAST_MEMORY_MB, SLOT_MEMORY_MB = 1_000, 155
"""A local Spark with two slots, and each further slot: docs/concepts/overview.md#sizing."""

MICRO_BATCH_CPU_S, PARTITION_CPU_S = 0.3, 0.0007
"""Fixed work of a micro-batch, and of each active partition in it: docs/reference/scale.md#partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigures:
    """CPU seconds per 10^9 bytes of mirror and target broker (benchmarks.md), MB/s of one slot (performance.md#hot-path)."""

    corpus: str
    mirror_cpu_s_per_gb: float
    target_cpu_s_per_gb: float
    slot_mb_per_s: float


ZSTD_BIG = PublishedFigures(corpus="zstd-big", mirror_cpu_s_per_gb=0.73, target_cpu_s_per_gb=2.3, slot_mb_per_s=100)
LZ4_BIG = PublishedFigures(corpus="lz4-big", mirror_cpu_s_per_gb=0.60, target_cpu_s_per_gb=1.1, slot_mb_per_s=216)
UNCOMPRESSED = PublishedFigures(corpus="uncompressed", mirror_cpu_s_per_gb=0.71, target_cpu_s_per_gb=1.0, slot_mb_per_s=224)
ZSTD_16K = PublishedFigures(corpus="zstd-16k", mirror_cpu_s_per_gb=1.13, target_cpu_s_per_gb=5.0, slot_mb_per_s=74)
LZ4_SMALL = PublishedFigures(corpus="lz4-small", mirror_cpu_s_per_gb=1.97, target_cpu_s_per_gb=5.5, slot_mb_per_s=46)
ALL = (ZSTD_BIG, LZ4_BIG, UNCOMPRESSED, ZSTD_16K, LZ4_SMALL)

_BY_CODEC = {"none": UNCOMPRESSED, "lz4": LZ4_BIG, "snappy": LZ4_BIG}


def figures_for(batch_bytes: float, codec: str) -> PublishedFigures:
    """Return the figures of the corpus whose batches are most like these."""
    if batch_bytes < SMALL_BATCH_BYTES:
        return LZ4_SMALL
    return ZSTD_16K if batch_bytes < LARGE_BATCH_BYTES else _BY_CODEC.get(codec, ZSTD_BIG)
