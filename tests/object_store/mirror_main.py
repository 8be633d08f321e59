"""`shallow-mirror run CONF` with `tests.faults.without_spark` in Spark's place."""

from __future__ import annotations

from shallow_mirror import cli
from shallow_mirror.commands import sessions

if __name__ == "__main__":
    from tests.faults import without_spark

    instead = without_spark.Session(workers=2)
    sessions.submitted_session = lambda: instead
    cli.main()
