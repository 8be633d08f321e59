"""PYTHONPATH=. python -m benchmarks.object_upload: what the hash in the signature of an upload costs, against an S3 server here.

The server is that of the tests (versitygw on a folder of this machine); its CPU is not counted. CPU s/GB of this process.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from functools import partial
from pathlib import Path

from tests.object_store.servers import BUCKET, SECRET_KEY, StoreServer, options_for

from benchmarks.baselines import measured
from shallow_mirror.object_store import ObjectStore

PIECE_BYTES, PIECES = 8 << 20, 64
RUNS = 3
NAME = "a1/00000003/0000000007-0001-00-deadbeef.batches"


def main() -> None:
    os.environ["STORE_SECRET_KEY"] = SECRET_KEY
    data = os.urandom(PIECE_BYTES)
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as folder:
        server = StoreServer(Path(folder) / "objects")
        server.start()
        try:
            for is_unsigned in ("false", "true"):
                options = options_for(server.endpoint, aws_unsigned_payload=is_unsigned)
                costs = [measured(partial(_upload, data, options, run)).cpu_s_per_gb for run in range(RUNS)]
                print(f"aws_unsigned_payload {is_unsigned}: {statistics.median(costs):.2f} CPU s/GB")
        finally:
            server.stop()


def _upload(data: bytes, options: dict[str, str], run: int) -> tuple[int, int]:
    """Return bytes and objects."""
    objects = ObjectStore.open(f"s3://{BUCKET}/{options['aws_unsigned_payload']}-{run}", options)
    with objects.writer(NAME) as writer:
        for _ in range(PIECES):
            writer.write(data)
        writer.close()
    return PIECE_BYTES * PIECES, 1


if __name__ == "__main__":
    main()
