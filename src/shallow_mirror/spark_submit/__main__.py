"""Prints the path of the script, for `spark-submit ... "$(python -m shallow_mirror.spark_submit)" run CONF`."""

from __future__ import annotations

from pathlib import Path

if __name__ == "__main__":
    print(Path(__file__).with_name("shallow_mirror_main.py"))
