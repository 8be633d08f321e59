"""`verify --report`: what the files say, that they are whole, and that OpenSSL checks their signatures."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.changes import error
from tests.support.console_entry import Ended, console
from tests.support.html_elements import Elements
from tests.support.record_batches import batch
from tests.verify.mirrored import Mirrored, changed, data_positions, replace

from shallow_mirror.errors import RetriableError
from shallow_mirror.verify import VerifyReport

pytestmark = pytest.mark.thorough


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Mirrored]:
    with Mirrored(tmp_path) as mirrored:
        mirrored.mirror(batch(0, 10), batch(10, 5))
        (tmp_path / "mirror.yaml").write_text(yaml.safe_dump(mirrored.document), encoding="utf-8")
        yield mirrored


def verified(folder: Path, *options: str) -> Ended:
    return console("verify", str(folder / "mirror.yaml"), "--report", str(folder / "kept"), *options)


def document_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "kept.json").read_bytes())
    return document


def openssl(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["openssl", *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


def make_key(folder: Path, *options: str) -> str:
    made = openssl("genpkey", *(options or ("-algorithm", "ed25519")), "-out", "key.pem", cwd=folder)
    assert made.returncode == 0, made.stderr
    return str(folder / "key.pem")


def test_an_equal_copy_is_described_with_clusters_ranges_and_digests(copied: Mirrored, tmp_path: Path) -> None:
    ended = verified(tmp_path)
    assert (ended.code, ended.stderr, ended.slow_imports) == (0, "", "[]")
    document = document_of(tmp_path)
    assert (document["result"], document["signed_with"]) == ("equal", None)
    assert (document["source"]["cluster_id"], document["target"]["cluster_id"]) == ("east-id", "west-id")
    (partition,) = document["verification"]["partitions"]
    assert (partition["source_start"], partition["source_end"], partition["record_count"]) == (0, 15, 15)
    assert len(partition["digest"]) == 64
    page = (tmp_path / "kept.html").read_text(encoding="utf-8")
    sha256 = hashlib.sha256((tmp_path / "kept.json").read_bytes()).hexdigest()
    assert all(text in page for text in ("Result: equal", "east-id", "[0, 15)", partition["digest"], sha256, "is signed"))
    assert not {"script", "link", "img", "iframe"} & set(Elements(page).names)
    assert sorted(path.name for path in tmp_path.glob("kept*")) == ["kept.html", "kept.json"]


def test_a_difference_is_reported_and_what_was_kept_before_is_replaced(copied: Mirrored, tmp_path: Path) -> None:
    assert verified(tmp_path).code == 0
    equal = document_of(tmp_path)["verification"]["partitions"][0]["digest"]
    position = data_positions(copied.target_log)[1]
    data = copied.target_log.batches[position].data
    replace(copied.target_log, position, changed(data, len(data) - 1, b"\x7f"))
    assert verified(tmp_path).code == 1
    document = document_of(tmp_path)
    assert document["result"] == "different"
    (partition,) = document["verification"]["partitions"]
    assert sum(partition["difference_counts"].values()) == sum(document["verification"]["difference_counts"].values()) > 0
    assert partition["digest"] != equal
    page = (tmp_path / "kept.html").read_text(encoding="utf-8")
    assert "Result: different" in page
    assert document["verification"]["differences"][0]["reason"] in page


def test_what_is_not_covered_is_no_success(copied: Mirrored, tmp_path: Path) -> None:
    copied.source.create_topic("orders-new")
    copied.source.seed(("orders-new", 0), batch(0, 4))
    copied.document["topics"] = {"include": ["orders.*"]}
    (tmp_path / "mirror.yaml").write_text(yaml.safe_dump(copied.document), encoding="utf-8")
    assert verified(tmp_path).code == 1
    document = document_of(tmp_path)
    assert document["result"] == "not everything covered"
    assert "orders-new-0: the offset map does not have it: 4 offsets at the source" in document["verification"]["uncovered"]
    assert "orders-new-0: the offset map does not have it" in (tmp_path / "kept.html").read_text(encoding="utf-8")


def test_a_verification_that_an_error_ends_leaves_a_report_that_says_so(copied: Mirrored, tmp_path: Path) -> None:
    assert verified(tmp_path).code == 0
    copied.target.change_always("Fetch", error(29, ("orders", 0)))
    ended = verified(tmp_path)
    assert ended.code != 0
    document = document_of(tmp_path)
    assert document["result"] == "stopped before the end"
    assert document["verification"]["stopped_by"] in ended.stderr.replace("\n", " ")
    assert "Stopped before the end by" in (tmp_path / "kept.html").read_text(encoding="utf-8")


def test_an_error_hands_out_what_was_found_until_then(copied: Mirrored) -> None:
    stopped: list[VerifyReport] = []

    def fail(_: object) -> None:
        raise RetriableError("NETWORK_EXCEPTION", "gone")

    with pytest.raises(RetriableError):
        copied.verify(on_progress=fail, on_stopped=stopped.append)
    assert (stopped[0].is_equal, stopped[0].stopped_by) == (False, "RetriableError: NETWORK_EXCEPTION: gone")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_checks_the_signatures_and_rejects_a_changed_file(copied: Mirrored, tmp_path: Path) -> None:
    key = make_key(tmp_path)
    assert openssl("pkey", "-in", "key.pem", "-pubout", "-out", "public.pem", cwd=tmp_path).returncode == 0
    assert verified(tmp_path, "--key", key).code == 0
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", "public.pem", "-outform", "DER"], cwd=tmp_path, capture_output=True, check=True
    ).stdout
    assert document_of(tmp_path)["signed_with"] == {
        "algorithm": "Ed25519",
        "public_key_sha256": hashlib.sha256(der).hexdigest(),
    }
    page = (tmp_path / "kept.html").read_text(encoding="utf-8")
    for name in ("kept.json", "kept.html"):
        command = f"openssl pkeyutl -verify -pubin -inkey public.pem -rawin -in {name} -sigfile {name}.sig"
        assert command in page
        assert "Signature Verified Successfully" in openssl(*command.split()[1:], cwd=tmp_path).stdout
        with (tmp_path / name).open("ab") as file:
            file.write(b" ")
        assert openssl(*command.split()[1:], cwd=tmp_path).returncode != 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-algorithm", "rsa"), "is no Ed25519 key: make one: openssl genpkey -algorithm ed25519 -out key.pem"),
        (("-algorithm", "ed25519", "-aes256", "-pass", "pass:secret"), "is encrypted: give a key without a password"),
    ],
    ids=["rsa", "encrypted"],
)
def test_another_key_is_refused_before_anything_is_read(
    copied: Mirrored, tmp_path: Path, options: tuple[str, ...], expected: str
) -> None:
    ended = verified(tmp_path, "--key", make_key(tmp_path, *options))
    assert (ended.code, ended.lines) == (2, [])
    assert expected in ended.stderr
    assert not (tmp_path / "kept.json").exists()


def test_wrong_options_are_refused_before_anything_is_read(copied: Mirrored, tmp_path: Path) -> None:
    conf = str(tmp_path / "mirror.yaml")
    (tmp_path / "text").write_text("no key", encoding="utf-8")
    missing = console("verify", conf, "--report", str(tmp_path / "no folder" / "kept"))
    assert (missing.code, missing.stderr) == (2, f"ConfigError: --report: {tmp_path}/no folder is no folder\n")
    lonely = console("verify", conf, "--key", str(tmp_path / "text"))
    assert (lonely.code, lonely.stderr) == (
        2,
        "ConfigError: --key signs the files of --report: give --report NAME as well\n",
    )
    text = verified(tmp_path, "--key", str(tmp_path / "text"))
    assert (text.code, "is no private key in PEM" in text.stderr) == (2, True)
    assert not (tmp_path / "kept.json").exists()


def test_the_digest_is_the_same_however_the_verification_was_divided(copied: Mirrored) -> None:
    copied.mirror(batch(15, 3))
    copied.mirror(batch(18, 7))
    whole, divided = copied.verify(), copied.verify(range_bytes=1)
    assert whole.partitions == divided.partitions
    deep = copied.verify(is_deep=True)
    assert deep.partitions[0].digest != whole.partitions[0].digest
    assert deep.partitions[0].record_count == whole.partitions[0].record_count == 25
