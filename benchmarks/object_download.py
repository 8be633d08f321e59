"""PYTHONPATH=. python -m benchmarks.object_download: the cost of direct reads from an S3 server, and of reads through obstore.

The server is that of the tests (versitygw on a folder of this machine); its CPU is not counted. It sends TLS records of 4 KiB,
and a TLS proxy in front of it sends records of 16 KiB. CPU s/GB of this process: medians of runs that alternate.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.object_store.servers import BUCKET, SECRET_KEY, StoreProxy, StoreServer, options_for
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
        plain = StoreServer(folder / "http" / "objects")
        tls = StoreServer(folder / "https" / "objects", certificate=identity.certificate_file, key=identity.key_file)
        proxy = StoreProxy(plain, folder, certificate_and_key=identity.keystore_file, ca_file=authority.identity.certificate_file)
        for process in (plain, tls, proxy):
            opened.callback(process.stop)
            process.start()
        ca_pem = authority.identity.certificate_pem
        for server in (plain, tls):
            _write(ObjectStore.open(f"s3://{BUCKET}", options_for(server.endpoint, root_certificate=ca_pem)))
        endpoints = {
            "https, records of 4 KiB": tls.endpoint,
            "https, records of 16 KiB": proxy.endpoint,
            "http": plain.endpoint,
        }
        for name, endpoint in endpoints.items():
            options = options_for(endpoint, root_certificate=ca_pem)
            stores = {
                "direct": ObjectStore.open(f"s3://{BUCKET}", options),
                "obstore": ObjectStore.open(f"s3://{BUCKET}", {**options, **THROUGH_OBSTORE}),
            }
            runs = [{how: measured(partial(_read, store)) for how, store in stores.items()} for _ in range(RUNS)]
            for how in stores:
                cpu = [run[how].cpu_s_per_gb for run in runs]
                print(f"{name}, {how}: {statistics.median(cpu):.2f} CPU s/GB ({min(cpu):.2f} to {max(cpu):.2f})", flush=True)


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
