"""Objects of an archive: their names and footers, which lie in a store that others can write to."""

from __future__ import annotations

from tests.archive_format.archived_rows import HEADER, NAME, data, gap
from tests.fuzz.target import Target

from shallow_mirror.archive_format import ObjectName, build_footer, footer_size, parse_footer
from shallow_mirror.archive_format.object_footer import FORMAT, MAGIC, TRAILER
from shallow_mirror.errors import ArchiveFormatError, ConfigError
from shallow_mirror.wire import crc32c

_OBJECT = str(NAME)


def footer(tail: bytes) -> None:
    """Check that what was read is within the tail, and is written and read alike."""
    parsed = parse_footer(_OBJECT, tail)
    assert parsed.size_bytes == footer_size(_OBJECT, tail) <= len(tail)
    is_of_today = parsed.header.try_id is not None
    if is_of_today and any(row.stored is not None for row in parsed.rows):
        rebuilt = parse_footer(_OBJECT, build_footer(parsed.header, parsed.rows))
        assert (rebuilt.header, rebuilt.rows) == (parsed.header, parsed.rows)


def sealed_footer(content: bytes) -> None:
    """Give the footer a correct trailer, which would refuse nearly every change."""
    footer(content + TRAILER.pack(crc32c(content), len(content), MAGIC, FORMAT))


def object_name(text: bytes) -> None:
    name = ObjectName.parse(text.decode("utf-8", "replace"))
    assert name is None or str(name).encode() == text


_FOOTERS = [
    build_footer(HEADER, [data(5, 20)]),
    build_footer(HEADER, [data(5, 20), gap(20, 25), data(25, 30, position=100)]),
]
_CONTENTS = [tail[: -TRAILER.size] for tail in _FOOTERS] + [b"[" * 5_000]
_ERRORS = (ArchiveFormatError, ConfigError)

ARCHIVES = [
    Target("footer of an object", _FOOTERS, footer, _ERRORS),
    Target("footer with a correct checksum", _CONTENTS, sealed_footer, _ERRORS),
    Target("name of an object", [_OBJECT.encode()], object_name),
]
