"""CPU of a mirror that signs in with Kerberos beside one without security: the same topic and clusters, in turn.

    python -m benchmarks.sign_in --gb 1 --runs 3

It needs what `make kdc` installs. Each copy is a run with `--available-now`, so the figures hold Spark's start too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import yaml
from tests.kerberos.kerberized_broker import KerberizedBroker
from tests.kerberos.realm import Realm, client_config

from benchmarks.corpora import CORPORA
from benchmarks.corpus_writer import write_corpus
from benchmarks.interrupts import end_on_sigterm
from benchmarks.meter import ProcessTree
from benchmarks.topics import log_bytes
from shallow_mirror.demo.mirror_process import command
from shallow_mirror.local_kafka.server_process import start_together, stop_together

TOPIC = "signed-in"
_LISTENERS = {"none": None, "GSSAPI": "GSSAPI"}
_TICKET_S = 3600
_SAMPLED_EVERY_S = 0.25


def copy_cpu_s(folder: Path, name: str, clients: list[dict[str, str]]) -> float:
    """Copy the whole topic into a new one; return the CPU seconds of the mirror's processes."""
    source, target = ({"alias": alias, "client": client} for alias, client in zip(("east", "west"), clients, strict=True))
    document = {
        "mirror": name,
        "source": source,
        "target": target,
        "topics": {"include": [TOPIC], "target_name": f"{name}-{{topic}}"},
        "tables": f"{name}-tables",
    }
    conf = folder / f"{name}.yaml"
    conf.write_text(yaml.safe_dump(document), encoding="utf-8")
    with conf.with_suffix(".log").open("w") as log:
        mirror = subprocess.Popen([*command(), "run", str(conf), "--available-now"], stdout=log, stderr=log)
        tree = ProcessTree(mirror.pid)
        cpu_s = tree.cpu_s()
        while mirror.poll() is None:
            time.sleep(_SAMPLED_EVERY_S)
            cpu_s = max(cpu_s, tree.cpu_s())
    if mirror.returncode:
        raise SystemExit(
            f"{name} ended with {mirror.returncode}:\n{conf.with_suffix('.log').read_text(encoding='utf-8')[-2000:]}"
        )
    return cpu_s


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.sign_in", description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--corpus", default="zstd-big", choices=sorted(CORPORA))
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        realms = [
            stack.enter_context(Realm(folder / side, f"{side.upper()}.TEST", lifetime_s=_TICKET_S))
            for side in ("source", "target")
        ]
        config = folder / "krb5.conf"
        config.write_text(client_config(realms), encoding="utf-8")
        os.environ["KRB5_CONFIG"] = str(config)
        brokers = [KerberizedBroker(folder / side, realm) for side, realm in zip(("east", "west"), realms, strict=True)]
        nodes = [broker.node for broker in brokers]
        start_together(nodes)
        stack.callback(stop_together, nodes)
        write_corpus(nodes[0].bootstrap, TOPIC, CORPORA[options.corpus], options.gb * 1e9)
        gb = log_bytes(nodes[0].folder / "data", TOPIC) / 1e9
        figures: dict[str, list[float]] = {kind: [] for kind in _LISTENERS}
        for run in range(options.runs):
            for kind, listener in _LISTENERS.items():
                clients = [
                    broker.properties(listener) if listener else {"bootstrap.servers": broker.node.bootstrap}
                    for broker in brokers
                ]
                figures[kind].append(copy_cpu_s(folder, f"{kind.lower()}-{run}", clients) / gb)
        print(f"{options.corpus}, {gb:.2f} GB in the log, {options.runs} runs of each, in turn: CPU s/GB")
        for kind, values in figures.items():
            print(f"{kind:8} {statistics.median(values):.3f}  ({min(values):.3f} to {max(values):.3f})")
        print(f"ratio of the medians: {statistics.median(figures['GSSAPI']) / statistics.median(figures['none']):.3f}")


if __name__ == "__main__":
    main()
