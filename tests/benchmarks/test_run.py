from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.corpora import CORPORA, chosen_corpora, make_batches
from benchmarks.peers.peer_registry import PEERS, chosen_peers
from benchmarks.resource_check import NEEDED_MEMORY_BYTES, needed_disk_bytes, room_problems
from benchmarks.run import compare, parsed
from rich.console import Console

from shallow_mirror.errors import ConfigError
from shallow_mirror.wire.batches import index_batches


def test_without_names_everything_is_compared() -> None:
    options = parsed([])
    assert [corpus.name for corpus in chosen_corpora(options.corpora)] == list(CORPORA)
    assert [peer.name for peer in chosen_peers(options.peers)] == list(PEERS)
    assert (options.gb, options.runs) == (2.0, 3)


@pytest.mark.parametrize("option", ["--corpora", "--peers"])
def test_unknown_names_are_errors_that_list_the_known_ones(option: str, tmp_path: Path) -> None:
    options = parsed([option, "nonsense,other", "--json", str(tmp_path / "results.json")])
    with pytest.raises(ConfigError) as caught:
        compare(options, Console(quiet=True))
    assert len(caught.value.problems) == 2
    assert "'nonsense'" in caught.value.problems[0]
    assert ", ".join(CORPORA if option == "--corpora" else PEERS) in caught.value.problems[0]
    assert not (tmp_path / "results.json").exists()


def test_too_little_disk_and_memory_are_both_said() -> None:
    disk, memory = room_problems(2.0, needed_disk_bytes(2.0) - 1, NEEDED_MEMORY_BYTES - 1, Path("/data"))
    assert disk.startswith("not enough disk: 2 GB a corpus need 8.2 GB in /data")
    assert memory.startswith("not enough memory: 6 GB are needed")
    assert room_problems(2.0, needed_disk_bytes(2.0), NEEDED_MEMORY_BYTES, Path("/data")) == []


def test_a_comparison_without_room_starts_nothing(tmp_path: Path) -> None:
    options = parsed(["--gb", "100000000", "--folder", str(tmp_path), "--json", str(tmp_path / "results.json")])
    with pytest.raises(ConfigError, match="not enough disk"):
        compare(options, Console(quiet=True))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["zstd-16k", "lz4-small"])
def test_a_corpus_is_the_same_in_every_run_and_its_batches_are_of_the_size_that_it_names(name: str) -> None:
    corpus = CORPORA[name]
    made = [batch.records for batch in make_batches(corpus)]
    assert made == [batch.records for batch in make_batches(corpus)]
    assert all(corpus.batch_bytes[0] <= len(records) <= corpus.batch_bytes[1] for records in made)
    assert len(index_batches(memoryview(b"".join(made)))) == corpus.distinct_batches
