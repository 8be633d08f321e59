"""Pure: compression of a record batch's block, and decompression within a bound on what comes out.

Anybody who may write to the source may have made a block. So nothing is allocated by the size that a block claims, all frames
of a block count against one bound, and whatever error a library raises for bad bytes becomes CorruptBlockError.

Blocks are read as brokers read them, in every version from 2.8 to 4.x: what a broker stores can be opened. Brokers ignore bytes
behind the first frame of LZ4 and behind the last whole member of gzip, and read all frames of zstd, skippable ones included.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shallow_mirror.errors import ConfigError
from shallow_mirror.wire.batches.header import Codec

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_XERIAL_VERSIONS = struct.pack(">ii", 1, 1)
_XERIAL_PART_BYTES = 32 << 10
"""Java's block size."""

_BLOCK_LENGTH = struct.Struct(">i")
_MAX_WINDOW_BYTES = 1 << 27
"""The window of the highest level that producers can choose; a frame that wants more is not opened."""

_MOST_IDLE_CONTEXTS = 4
"""As many as threads are likely to open batches at once."""

_GZIP_FRAMING = 31
_GZIP_MEMBER_READ_BYTES = 1 << 16
"""Of a member behind the first one: the library copies what it was given and did not use."""

_ZSTD_LEVEL = 1
"""Twice as fast as Java's default of 3, up to 7 % larger. Levels below it leave literals as they are: half as large again."""

_LEAST_READ_BYTES = 1 << 16
_USUAL_RATIO = 4
"""Output is read in pieces of this ratio at first, then of twice as much: mostly one piece suffices."""

_LZ4_FLAGS_POS = 4
_LZ4_SAYS_SIZE = 0x08
_MOST_LZ4_RATIO = 255
"""The highest ratio of LZ4: a small frame without a size, which the library would trust, is opened in one call."""

_32_BITS = (1 << 32) - 1
_XXHASH_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


class CorruptBlockError(ValueError):
    """Bytes that are no block of their codec."""


class BlockTooLargeError(ValueError):
    """The content of the block exceeds the bound, by an unknown amount."""


def decompress(block: memoryview, codec: Codec, max_bytes: int) -> memoryview:
    """Decompress a block. Raises CorruptBlockError, BlockTooLargeError, ConfigError if the codec's library is missing."""
    if codec is Codec.NONE:
        if len(block) > max_bytes:
            raise BlockTooLargeError
        return block
    return memoryview(_DECOMPRESSORS[codec](block, max_bytes))


def compress(block: memoryview, codec: Codec, level: int | None = None) -> bytes | memoryview:
    """Compress to one block in the framing of Java's producer. Raises ConfigError without the codec's library.

    `level`: of gzip, lz4 or zstd, as its library counts; None: its default, of zstd 1.
    """
    return block if codec is Codec.NONE else _COMPRESSORS[codec](block, level)


def _decompress_gzip(block: memoryview, max_bytes: int) -> bytes:
    """Decompress all members, also empty ones, up to the first bytes that are no whole member."""
    out: list[bytes] = []
    left_bytes, pos, at_once = max_bytes, 0, len(block)
    while pos < len(block):
        decoder = zlib.decompressobj(_GZIP_FRAMING)
        member: list[bytes] = []
        try:
            while pos < len(block) and not decoder.eof:
                given = block[pos : pos + at_once]
                member.append(decoder.decompress(given, left_bytes + 1))
                left_bytes -= len(member[-1])
                if left_bytes < 0:
                    raise BlockTooLargeError
                pos += len(given) - len(decoder.unused_data)
        except zlib.error as error:
            if not out:
                raise CorruptBlockError(str(error)) from error
            break
        if not decoder.eof:
            if not out:
                raise CorruptBlockError("it ends in the middle of a frame")
            break
        out += member
        at_once = _GZIP_MEMBER_READ_BYTES
    return _join(out)


def _decompress_lz4(block: memoryview, max_bytes: int) -> bytes:
    """Decompress the first frame."""
    frame = _library("lz4.frame")
    if _MOST_LZ4_RATIO * len(block) <= max_bytes and len(block) > _LZ4_FLAGS_POS and not block[_LZ4_FLAGS_POS] & _LZ4_SAYS_SIZE:
        # Decompressed again below, which raises the right error.
        with contextlib.suppress(RuntimeError):
            return bytes(frame.decompress(block))
    decoder = _Lz4Decoder(frame.LZ4FrameDecompressor())
    try:
        opened = decoder.decompress(block, max_bytes + 1)
    except (RuntimeError, EOFError, ValueError) as error:
        raise CorruptBlockError(str(error)) from error
    if len(opened) > max_bytes:
        raise BlockTooLargeError
    if not decoder.eof:
        raise CorruptBlockError("it ends in the middle of a frame")
    return opened


class _Lz4Decoder:
    """A decoder that reads in pieces: the library allocates as much as it may return at once."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder

    @property
    def eof(self) -> bool:
        return bool(self._decoder.eof)

    def decompress(self, data: memoryview | bytes, most_bytes: int) -> bytes:
        out: list[bytes] = []
        at_once = max(_USUAL_RATIO * len(data), _LEAST_READ_BYTES)
        while most_bytes:
            out.append(self._decoder.decompress(data, min(at_once, most_bytes)))
            if self._decoder.eof or not out[-1]:
                break
            most_bytes -= len(out[-1])
            at_once, data = 2 * at_once, b""
        return _join(out)


def _join(parts: list[bytes]) -> bytes:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_zstd(block: memoryview, max_bytes: int) -> bytes:
    """Decompress until the end or the bound: frames mostly do not state their size."""
    library = _library("zstandard")
    out: list[bytes] = []
    left_bytes, at_once = max_bytes, max(_USUAL_RATIO * len(block), _LEAST_READ_BYTES)
    try:
        with _ZSTD_DECOMPRESSORS.borrow() as decompressor, decompressor.stream_reader(block, read_across_frames=True) as reader:
            while chunk := reader.read(min(at_once, left_bytes + 1)):
                out.append(chunk)
                left_bytes -= len(chunk)
                at_once = 2 * at_once if len(chunk) == at_once else _LEAST_READ_BYTES
                if left_bytes < 0:
                    raise BlockTooLargeError
    except library.ZstdError as error:
        raise CorruptBlockError(str(error)) from error
    return _join(out)


def _decompress_snappy(block: memoryview, max_bytes: int) -> bytes:
    """Decompress xerial's framing of blocks (Java), or one bare block (librdkafka)."""
    if bytes(block[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(block, max_bytes)
    out = bytearray()
    pos = 0
    while pos < len(block):
        if bytes(block[pos : pos + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            pos += _XERIAL_HEADER_BYTES
            continue
        if pos + _BLOCK_LENGTH.size > len(block):
            break  # brokers ignore a rest that is shorter than a length
        (size,) = _BLOCK_LENGTH.unpack_from(block, pos)
        pos += _BLOCK_LENGTH.size
        if not 0 < size <= len(block) - pos:
            raise CorruptBlockError(f"a part of {size} bytes at byte {pos} of {len(block)}")
        out += _snappy_block(block[pos : pos + size], max_bytes - len(out))
        pos += size
    return bytes(out)


def _snappy_block(block: memoryview, max_bytes: int) -> bytes:
    cramjam = _library("cramjam")
    if _snappy_length(block) > max_bytes:
        raise BlockTooLargeError
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBlockError(str(error)) from error


def _snappy_length(block: memoryview) -> int:
    """Return the size that the block states in its first varint. The library allocates that much before it reads the rest."""
    size = 0
    for i, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return size
    raise CorruptBlockError("it does not begin with a length")


def fix_lz4_checksum(frame: memoryview) -> memoryview:
    """Correct the header checksum (xxHash32) of a frame of magic 0: producers computed it over too many bytes."""
    flags = frame[_LZ4_FLAGS_POS] if len(frame) > _LZ4_FLAGS_POS else 0
    checksum_pos = _LZ4_FLAGS_POS + 2 + 8 * (flags >> 3 & 1) + 4 * (flags & 1)
    if checksum_pos >= len(frame):
        return frame
    fixed = bytearray(frame)
    fixed[checksum_pos] = _xxhash32(bytes(frame[_LZ4_FLAGS_POS:checksum_pos])) >> 8 & 0xFF
    return memoryview(fixed)


def _xxhash32(data: bytes) -> int:
    """Return the hash of fewer than 16 bytes, with seed 0."""
    first, second, third, fourth, fifth = _XXHASH_PRIMES
    hashed = fifth + len(data)
    words = len(data) // 4 * 4
    for pos in range(0, words, 4):
        hashed = _rotated(hashed + int.from_bytes(data[pos : pos + 4], "little") * third, 17) * fourth
    for byte in data[words:]:
        hashed = _rotated(hashed + byte * fifth, 11) * first
    hashed &= _32_BITS
    hashed = (hashed ^ hashed >> 15) * second & _32_BITS
    hashed = (hashed ^ hashed >> 13) * third & _32_BITS
    return hashed ^ hashed >> 16


def _rotated(value: int, bits: int) -> int:
    value &= _32_BITS
    return (value << bits | value >> (32 - bits)) & _32_BITS


def _compress_gzip(block: memoryview, level: int | None) -> bytes:
    encoder = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, wbits=_GZIP_FRAMING)
    return encoder.compress(block) + encoder.flush()


def _compress_snappy(block: memoryview, _level: int | None) -> bytes:
    cramjam = _library("cramjam")
    out = [_XERIAL_MAGIC + _XERIAL_VERSIONS]
    for start in range(0, len(block), _XERIAL_PART_BYTES):
        part = bytes(cramjam.snappy.compress_raw(block[start : start + _XERIAL_PART_BYTES]))
        out += (_BLOCK_LENGTH.pack(len(part)), part)
    return b"".join(out)


def _compress_lz4(block: memoryview, level: int | None) -> bytes:
    frame = _library("lz4.frame")
    options = {"block_size": frame.BLOCKSIZE_MAX64KB, "block_linked": False, "store_size": False}
    return bytes(frame.compress(block, compression_level=level or frame.COMPRESSIONLEVEL_MIN, **options))


def _compress_zstd(block: memoryview, level: int | None) -> bytes:
    with _zstd_compressors(_ZSTD_LEVEL if level is None else level).borrow() as compressor:
        return bytes(compressor.compress(block))


class _Contexts:
    """A pool of contexts, each for one caller at a time. Making a context takes as long as decompressing 16 KB."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: deque[Any] = deque(maxlen=_MOST_IDLE_CONTEXTS)

    @contextmanager
    def borrow(self) -> Iterator[Any]:
        try:
            context = self._idle.pop()
        except IndexError:
            context = self._make()
        yield context
        # Not after an error: a context that met bad bytes is dropped.
        self._idle.append(context)


@functools.cache
def _zstd_compressors(level: int) -> _Contexts:
    return _Contexts(lambda: _library("zstandard").ZstdCompressor(level=level))


_ZSTD_DECOMPRESSORS = _Contexts(lambda: _library("zstandard").ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES))


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"opening records needs the package {name.split('.')[0]}, which is not installed: "
            "pip install 'shallow-mirror[rebuild]'"
        ) from error


_DECOMPRESSORS: dict[Codec, Callable[[memoryview, int], bytes]] = {
    Codec.GZIP: _decompress_gzip,
    Codec.SNAPPY: _decompress_snappy,
    Codec.LZ4: _decompress_lz4,
    Codec.ZSTD: _decompress_zstd,
}

_COMPRESSORS: dict[Codec, Callable[[memoryview, int | None], bytes]] = {
    Codec.GZIP: _compress_gzip,
    Codec.SNAPPY: _compress_snappy,
    Codec.LZ4: _compress_lz4,
    Codec.ZSTD: _compress_zstd,
}
