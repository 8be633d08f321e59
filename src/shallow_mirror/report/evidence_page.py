"""Pure: the result of a verification as one HTML page, from its JSON document: no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from shallow_mirror.plurals import counted
from shallow_mirror.report.html_parts import duration, section, table, whole_page

PARTITIONS_SHOWN, DIFFERENCES_SHOWN, SENTENCES_SHOWN = 1_000, 200, 500

_NOT_PROVEN = (
    "that the first position of the offset map is where the mirror was meant to begin",
    "that records which retention has deleted on either side were copied correctly",
    "that a record of a compacted topic was removed by compaction and not otherwise",
    "that payloads with the same CRC-32C and the same size are equal (only without --deep)",
)


def evidence_page(document: Mapping[str, Any], json_name: str, sha256: str) -> str:
    """Return the page. `json_name`: of the file with the document. `sha256`: of its bytes."""
    verification = document["verification"]
    title = f"{document['mirror']}: {document['kind']}"
    body = "".join(
        [
            f"<header><h1>{escape(title)}</h1><p>ended {_moment(document['ended_at'])} UTC · "
            f"shallow-mirror {escape(document['shallow_mirror'])}</p></header>",
            f'<p class="notice"><b>Result: {escape(document["result"])}</b> · {escape(_counts(verification))}</p>',
            _stop(verification),
            section("What was compared", "", table(("", ""), _facts(document), wide=(1,))),
            section("Not covered", "what was asked for and could not be compared", _not_covered(verification)),
            section("Differences", _about_differences(verification), _differences(verification)),
            section("Partitions", "ranges of offsets are half-open", _partitions(verification["partitions"])),
            section("Digests", "of everything that was found equal, by source partition", _digests(verification["partitions"])),
            section("What this does not prove", "", _list(_NOT_PROVEN)),
            section("How to check this page", "", _check(document, json_name, sha256)),
        ]
    )
    return whole_page(title, body)


def _counts(verification: Mapping[str, Any]) -> str:
    differences = sum(verification["difference_counts"].values())
    return (
        f"{counted(verification['record_count'], 'record')} in {counted(verification['partition_count'], 'partition')} of "
        f"{counted(len(verification['topics']), 'topic')} found equal, {counted(differences, 'difference')}"
    )


def _stop(verification: Mapping[str, Any]) -> str:
    stopped_by = verification["stopped_by"]
    if stopped_by is None:
        return ""
    return f'<p class="notice">Stopped before the end by {escape(stopped_by)}. What follows was found until then.</p>'


def _facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    verification, asked_for = document["verification"], document["asked_for"]
    began, ended = (datetime.fromisoformat(document[name]) for name in ("began_at", "ended_at"))
    topics = "everything that the file includes" if asked_for["topics"] is None else ", ".join(asked_for["topics"])
    continued = ", and an earlier, interrupted run before it" if verification["continues"] else ""
    return [
        ("source", _side(document["source"])),
        ("target", _side(document["target"])),
        ("asked for", topics),
        ("depth", "every batch opened, record by record" if asked_for["deep"] else "batches by header and checksum (1)"),
        ("from, to (UTC)", f"{_moment(document['began_at'])}, {_moment(document['ended_at'])}"),
        ("duration", f"{duration((ended - began).total_seconds())} on {document['host']}{continued}"),
        ("batches", f"{verification['batch_count']:,} by header and checksum, {verification['opened_batch_count']:,} by records"),
        ("bytes read", f"{verification['source_bytes']:,} from the source, {verification['target_bytes']:,} from the target"),
        ("verification", verification["audit_id"] or "not begun"),
        ("(1)", "batches that differ there, or were rebuilt, are opened and compared record by record"),
    ]


def _side(side: Mapping[str, Any]) -> str:
    cluster_id = side["cluster_id"] or "not known"
    if side["kind"] == "archive":
        return f"archive {side['tables']} (objects: {side['objects']}) of the cluster with id {cluster_id}"
    return f"{side['alias']}: cluster id {cluster_id}, {side['bootstrap_servers']}"


def _not_covered(verification: Mapping[str, Any]) -> str:
    lines = list(verification["uncovered"])
    lines += [f"closed by an operator (`forget`): {topic}" for topic in verification["closed"]]
    if verification["stopped_by"] is not None:
        lines.append("whatever lies behind the ranges below: the verification was stopped before its end")
    lines += [f"{count:,} source offsets {reason}" for reason, count in verification["unchecked"].items()]
    if verification["behind_offsets"]:
        lines.append(
            f"not copied when the verification began: {counted(verification['behind_offsets'], 'offset')} in "
            f"{counted(verification['behind_partitions'], 'partition')}"
        )
    return _list(lines)


def _about_differences(verification: Mapping[str, Any]) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(verification["difference_counts"].items()))
    return f"by kind: {kinds}" if kinds else ""


def _differences(verification: Mapping[str, Any]) -> str:
    shown = [difference["sentence"] for difference in verification["differences"]]
    total = sum(verification["difference_counts"].values())
    return _list(shown, most=DIFFERENCES_SHOWN, total=total)


def _partitions(partitions: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"{partition['source_topic']}-{partition['source_partition']}",
            _range(partition["source_start"], partition["source_end"]),
            f"{partition['target_topic']}-{partition['target_partition']}",
            _range(partition["target_start"], partition["target_end"]),
            partition["record_count"],
            sum(partition["unchecked"].values()),
            sum(partition["difference_counts"].values()),
        )
        for partition in partitions[:PARTITIONS_SHOWN]
    ]
    columns = ("source", "offsets", "target", "offsets", "equal records", "not checkable", "differences")
    return table(columns, rows) + _more(len(partitions) - len(rows))


def _digests(partitions: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (f"{partition['source_topic']}-{partition['source_partition']}", partition["digest"] or "not known")
        for partition in partitions[:PARTITIONS_SHOWN]
    ]
    return table(("source", "digest"), rows, wide=(1,)) + _more(len(partitions) - len(rows))


def _range(start: int | None, end: int | None) -> str:
    return "none" if start is None or end is None else f"[{start:,}, {end:,})"


def _check(document: Mapping[str, Any], json_name: str, sha256: str) -> str:
    page_name = f"{json_name.removesuffix('.json')}.html"
    lines = [f"SHA-256 of {json_name}: {sha256}"]
    signed_with = document["signed_with"]
    if signed_with is None:
        lines.append("Neither file is signed.")
    else:
        lines.append(
            f"Signed with {signed_with['algorithm']}; SHA-256 of the public key (DER): {signed_with['public_key_sha256']}"
        )
    body = "".join(f"<p>{escape(line)}</p>" for line in lines)
    if signed_with is not None:
        body += "".join(
            f"<p><code>openssl pkeyutl -verify -pubin -inkey public.pem -rawin -in {escape(name)} "
            f"-sigfile {escape(name)}.sig</code></p>"
            for name in (json_name, page_name)
        )
    return body + f"<p>Digest: {escape(document['digest'])}.</p>"


def _list(lines: Sequence[str], *, most: int = SENTENCES_SHOWN, total: int | None = None) -> str:
    if not lines and not total:
        return "<p>Nothing.</p>"
    more = (len(lines) if total is None else total) - min(len(lines), most)
    items = "".join(f"<li>{escape(line)}</li>" for line in lines[:most])
    return f"<ul>{items}</ul>{_more(more)}"


def _more(count: int) -> str:
    return f"<p>and {count:,} more in the JSON file</p>" if count > 0 else ""


def _moment(iso: str) -> str:
    return datetime.fromisoformat(iso).strftime("%Y-%m-%d %H:%M:%S")
