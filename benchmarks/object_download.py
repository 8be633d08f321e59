"""PYTHONPATH=. python -m benchmarks.object_download: what direct reads from an S3 server cost, and reads through obstore.

The server is that of the tests (versitygw on a folder of this machine), which sends TLS records of 4 KiB; its CPU is not counted.
CPU s/GB of this process: medians.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.object_store.servers import BUCKET, SECRET_KEY, StoreServer, options_for
from tests.security.certificates import Authority

from benchmarks.baselines import measured
from shallow_mirror.object_store import READ_BYTES, ObjectStore

NAME = "large"
READS, THREADS = 64, 4
RUNS = 5
THROUGH_OBSTORE = {"randomize_addresses": "true"}
"""An option that direct reads do not know."""


def main() -> None:
    os.environ["STORE_SECRET_KEY"] = SECRET_KEY
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-")))
        authority = Authority(folder, "ca")
        identity = authority.signed("store", ("127.0.0.1",))
        for scheme in ("https", "http"):
            files = {"certificate": identity.certificate_file, "key": identity.key_file} if scheme == "https" else {}
            server = StoreServer(folder / scheme, **files)
            opened.callback(server.stop)
            server.start()
            options = options_for(server.endpoint, root_certificate=authority.identity.certificate_pem)
            _write(ObjectStore.open(f"s3://{BUCKET}", options))
            for how, more in {"direct": {}, "obstore": THROUGH_OBSTORE}.items():
                store = ObjectStore.open(f"s3://{BUCKET}", {**options, **more})
                costs = [measured(partial(_read, store)) for _ in range(RUNS)]
                cpu = statistics.median(cost.cpu_s_per_gb for cost in costs)
                print(f"{scheme}, {how}: {cpu:.2f} CPU s/GB", flush=True)


def _write(store: ObjectStore) -> None:
    with store.writer(NAME) as writer:
        for _ in range(READS):
            writer.write(os.urandom(READ_BYTES))
        writer.close()


def _read(store: ObjectStore) -> tuple[int, int]:
    """Return bytes and requests."""
    buffers = [memoryview(bytearray(READ_BYTES)) for _ in range(THREADS)]

    def read(thread: int) -> None:
        for number in range(thread, READS, THREADS):
            store.read_into(NAME, [(number * READ_BYTES, READ_BYTES)], buffers[thread])

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(read, range(THREADS)))
    return READS * READ_BYTES, READS


if __name__ == "__main__":
    main()
