from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from benchmarks.link import PLAIN, Link
from benchmarks.medians import standings
from benchmarks.plot import write_plot
from benchmarks.results import Failed, Measured, Result, write_json
from benchmarks.table import print_tables
from rich.console import Console

FAR = Link(rtt_ms=80, far="target", tls=True)


def measured(
    peer: str, run: int = 1, *, mb_per_s: float = 100.0, cpu: float = 2.0, difference: str = "", link: Link = PLAIN
) -> Measured:
    return Measured(
        peer=peer,
        corpus="zstd-big",
        run=run,
        link=link,
        mb_per_s=mb_per_s,
        cpu_s_per_gb=cpu,
        peak_mb=1234.0,
        equal=not difference,
        difference=difference,
        startup_s=3.0,
        startup_cpu_s=4.0,
        seconds=20.0,
        window_s=18.0,
        window_share=0.9,
        micro_batches=None,
        source_broker_cpu_s_per_gb=0.5,
        target_broker_cpu_s_per_gb=5.0,
        log_size_ratio=1.0,
    )


def failed(peer: str, run: int = 1) -> Failed:
    return Failed(peer=peer, corpus="zstd-big", run=run, failed="PeerMissingError: there is no `go`")


def printed(results: list[Result]) -> str:
    out = io.StringIO()
    print_tables(results, Console(file=out, width=200))
    return out.getvalue()


def line_of(text: str, peer: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"│ {peer} "))
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_a_table_has_medians_and_the_ratio_to_ours() -> None:
    rates = [100.0, 300.0, 200.0]
    results: list[Result] = [measured("shallow-mirror", run, mb_per_s=rate) for run, rate in enumerate(rates, 1)]
    results += [measured("mirrormaker2", mb_per_s=20.0, cpu=50.0)]
    text = printed(results)
    ours, theirs = line_of(text, "shallow-mirror"), line_of(text, "mirrormaker2")
    assert ours == ["shallow-mirror", "200.0", "2.00", "1234", "3.0", "4.0", "0.50", "5.00", "1.000", "1.0", "1.0", "yes", "3"]
    assert theirs[1:3] == ["20.0", "50.00"]
    assert theirs[-4:] == ["25.0", "10.0", "yes", "1"]


def test_a_peer_that_failed_has_no_figures_and_its_reason_stands_below() -> None:
    text = printed([measured("shallow-mirror"), failed("franz-go", 1), failed("franz-go", 2)])
    assert line_of(text, "franz-go")[1:] == ["failed", *["–"] * 10, "0, 2 failed"]
    assert text.count("franz-go: failed: PeerMissingError: there is no `go`") == 1


def test_a_copy_that_is_not_equal_is_said_in_the_table_and_below() -> None:
    text = printed([measured("shallow-mirror"), measured("spark-kafka", difference="only the timestamps differ")])
    assert line_of(text, "spark-kafka")[-2] == "NO"
    assert "spark-kafka: not equal: only the timestamps differ" in text


def test_runs_that_failed_do_not_count_in_a_median() -> None:
    (standing,) = standings([failed("a", 1), measured("a", 2, mb_per_s=7.0)], "zstd-big")
    assert standing.median(lambda run: run.mb_per_s) == 7.0
    assert (len(standing.measured), len(standing.failed)) == (1, 1)


def test_the_json_is_a_list_of_rows_and_a_failure_has_no_figures(tmp_path: Path) -> None:
    write_json(tmp_path / "deep" / "results.json", [measured("shallow-mirror", link=FAR), failed("franz-go")])
    ours, other = json.loads((tmp_path / "deep" / "results.json").read_text())
    wanted = {"peer": "shallow-mirror", "corpus": "zstd-big", "run": 1, "mb_per_s": 100.0, "cpu_s_per_gb": 2.0, "equal": True}
    wanted |= {"rtt_ms": 80, "far": "target", "tls": True}
    assert wanted.items() <= ours.items()
    assert ours["peak_mb"] == 1234.0
    reason = "PeerMissingError: there is no `go`"
    near = {"rtt_ms": 0.0, "far": "none", "tls": False}
    assert other == {"peer": "franz-go", "corpus": "zstd-big", "run": 1, **near, "failed": reason}


def test_near_and_far_results_are_not_mixed() -> None:
    text = printed([measured("shallow-mirror", mb_per_s=100.0), measured("shallow-mirror", mb_per_s=20.0, link=FAR)])
    near, far = text.split("zstd-big, target 80 ms away, TLS: medians")
    assert line_of(near, "shallow-mirror")[1] == "100.0"
    assert line_of(far, "shallow-mirror")[1] == "20.0"


@pytest.mark.thorough
@pytest.mark.parametrize("results", [[measured("shallow-mirror"), failed("franz-go")], [failed("franz-go")]])
def test_a_plot_is_drawn_also_where_peers_failed(results: list[Result], tmp_path: Path) -> None:
    write_plot(tmp_path / "plot.svg", results)
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
