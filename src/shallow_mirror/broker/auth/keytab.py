"""Pure: the principals of a keytab, for messages; the keys are read by libkrb5 alone."""

from __future__ import annotations

import struct

_VERSION = b"\x05\x02"


def keytab_principals(data: bytes) -> tuple[str, ...]:
    """Return the principals that a keytab holds keys of, each once, in the file's order. Raises ValueError: it is none."""
    if data[:2] != _VERSION:
        raise ValueError("it does not begin as a keytab")
    principals, pos = list[str](), 2
    try:
        while pos < len(data):
            (size,) = struct.unpack_from(">i", data, pos)
            pos += 4
            if size > 0:
                principals.append(_principal(struct.unpack_from(f"{size}s", data, pos)[0]))
            # A negative size is that of a deleted entry; zero ends the file.
            elif size == 0:
                break
            pos += abs(size)
    except (struct.error, UnicodeDecodeError):
        raise ValueError("it is damaged") from None
    return tuple(dict.fromkeys(principals))


def _principal(entry: bytes) -> str:
    (components,) = struct.unpack_from(">H", entry)
    texts, pos = list[str](), 2
    for _ in range(components + 1):
        (size,) = struct.unpack_from(">H", entry, pos)
        texts.append(struct.unpack_from(f"{size}s", entry, pos + 2)[0].decode())
        pos += 2 + size
    realm, *names = texts
    return f"{'/'.join(names)}@{realm}"
