"""Driver: what a run says that is to serve metrics, and lacks the packages for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shallow_mirror.errors import ConfigError


@contextmanager
def importing_metrics() -> Iterator[None]:
    """Raise ConfigError if an import of the block needs a package of the extra `metrics`."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"metrics.port needs the package {error.name}: pip install 'shallow-mirror[metrics]', or leave metrics.port out"
        ) from error
