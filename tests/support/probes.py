"""Responses to the probes of a run."""

from __future__ import annotations

import urllib.error
import urllib.request


def probe(port: int, path: str) -> tuple[int, str]:
    """Return status and text of a probe; status 0 where nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)
