"""`shallow-mirror run CONF` with the loop that the fault campaigns put in Spark's place: a start costs a second.

PYTHONPATH=. python -m benchmarks.without_spark CONF
"""

from __future__ import annotations

import os
import sys

from tests.faults import without_spark

from shallow_mirror import cli
from shallow_mirror.commands import sessions


def main() -> None:
    (conf,) = sys.argv[1:]
    session = without_spark.Session(workers=os.cpu_count() or 1)
    sessions.submitted_session = lambda: session
    sys.argv = ["shallow-mirror", "run", conf]
    cli.main()


if __name__ == "__main__":
    main()
