"""What `spark-submit` runs: the command line, whose commands use the session that Spark has prepared."""

from __future__ import annotations

from shallow_mirror.cli import main

if __name__ == "__main__":
    main()
