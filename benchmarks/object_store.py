"""PYTHONPATH=. python -m benchmarks.object_store: what a decision of the offset map costs in a folder and on an S3 server.

The server is that of the tests (versitygw on a folder of this machine), without a network in between: add the round trip of yours
for each request. Milliseconds are measured without the proxy, requests are counted with it. One JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.object_store.servers import BUCKET, SECRET_KEY, StoreProxy, StoreServer, options_for

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.tables import TableLocation
from shallow_mirror.checkpoints.tables.backends.conditional_put_probe import require_conditional_puts
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

PARTITIONS = 8
SOURCE = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 0)
TARGET = TargetPartition("orders", "tgttgttgttgttgttgttgtA", 0)


def rows_of(decision: int) -> list[DecidedSegment]:
    """Return the rows of one decision: five offsets of each of PARTITIONS partitions."""
    start = decision * 5
    return [
        DecidedSegment(
            Segment(
                source=SOURCE._replace(partition=partition),
                source_start=start,
                source_end=start + 5,
                kind=SegmentKind.DATA,
                target=TARGET._replace(partition=partition),
                target_start=start,
                target_end=start + 5,
                record_count=5,
                batch_count=1,
            ),
            SlotTxn("m-0", 1000, decision % 30_000),
        )
        for partition in range(PARTITIONS)
    ]


def taken_over(storage: TableLocation) -> LedgerOwner:
    owner = LedgerOwner.take_over(
        storage,
        name="m",
        source_cluster_id="S",
        target_cluster_id="T",
        run=RunIdentity.of_this_process(),
        now_ms=lambda: int(time.time() * 1000),
    )
    owner.settle()
    return owner


def measure(storage: TableLocation, decisions: int) -> dict[str, float]:
    """Return the medians in ms of what a micro-batch asks of the map, and the 99th percentile of a decision."""
    owner = taken_over(storage)
    checks, decided = list[float](), list[float]()
    for number in range(decisions):
        began = time.perf_counter()
        owner.check_ownership()
        checked = time.perf_counter()
        owner.next_decision()
        owner.decide(rows_of(number), 0)
        checks.append((checked - began) * 1000)
        decided.append((time.perf_counter() - checked) * 1000)
    return {
        "check_ownership_ms": round(statistics.median(checks), 1),
        "decide_ms": round(statistics.median(decided), 1),
        "decide_p99_ms": round(statistics.quantiles(decided, n=100)[98], 1),
    }


def requests_of(storage: TableLocation, proxy: StoreProxy, decisions: int) -> dict[str, float]:
    """Return requests for each decision, with the check of ownership before it, by kind."""
    owner = taken_over(storage)
    before = len(proxy.requests())
    for number in range(decisions):
        owner.check_ownership()
        owner.next_decision()
        owner.decide(rows_of(number), 0)
    kinds = Counter("LIST" if "list-type" in path else method for method, path in proxy.requests()[before:])
    return {kind: round(count / decisions, 1) for kind, count in sorted(kinds.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=150)
    decisions = parser.parse_args().decisions
    os.environ["STORE_SECRET_KEY"] = SECRET_KEY
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        server = StoreServer(folder / "objects")
        opened.callback(server.stop)
        server.start()
        proxy = StoreProxy(server, folder)
        opened.callback(proxy.stop)
        proxy.start()
        direct = options_for(f"http://127.0.0.1:{server.port}")
        print(json.dumps({"tables": "folder", **measure(TableLocation(str(folder / "tables")), decisions)}))
        print(json.dumps({"tables": "S3 server", **measure(TableLocation(f"s3://{BUCKET}/timed", direct), decisions)}))
        counted = TableLocation(f"s3://{BUCKET}/counted", options_for(proxy.endpoint))
        print(json.dumps({"requests of a decision": requests_of(counted, proxy, decisions)}))
        began, before = time.perf_counter(), len(proxy.requests())
        require_conditional_puts(counted)
        seconds = time.perf_counter() - began
        print(json.dumps({"probe_ms": round(seconds * 1000, 1), "requests": len(proxy.requests()) - before}))


if __name__ == "__main__":
    main()
