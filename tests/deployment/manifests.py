"""The Kubernetes manifests of the repository, as documents."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from shallow_mirror.commands.mirror_files import expand_folders, load_mirrors
from shallow_mirror.config import MirrorConfig

MIRROR_FILE, KUSTOMIZATION = "mirror.yaml", "kustomization.yaml"
ONE, SEVERAL = "kubernetes", "kubernetes-several"
"""Folders of `conf/`: one mirror in a pod, and several."""


def manifests(repository: Path) -> dict[str, Any]:
    """Return the document of each file that Kubernetes reads, by file name."""
    files = sorted((repository / "conf" / "kubernetes").glob("*.yaml"))
    return {file.name: _document(file) for file in files if file.name not in (MIRROR_FILE, KUSTOMIZATION)}


def load_mirror(repository: Path) -> MirrorConfig:
    """Load the mirror file as a pod does, with the secret in its environment."""
    with patch.dict(os.environ, manifests(repository)["secret.yaml"]["stringData"]):
        return MirrorConfig.load(repository / "conf" / "kubernetes" / MIRROR_FILE)


def load_several(repository: Path, folder: Path) -> list[MirrorConfig]:
    """Load the mirror files of a pod with several as that pod does: in `folder` are the files of its ConfigMap."""
    (config_map,) = kustomization(repository, SEVERAL)["configMapGenerator"]
    for name in config_map["files"]:
        (folder / name).write_text((repository / "conf" / SEVERAL / name).read_text(encoding="utf-8"), encoding="utf-8")
    paths, problems = expand_folders([folder])
    with patch.dict(os.environ, manifests(repository)["secret.yaml"]["stringData"]):
        return load_mirrors(paths, problems, "run")


def kustomization(repository: Path, folder: str = ONE) -> Any:
    return _document(repository / "conf" / folder / KUSTOMIZATION)


def pod_specs(documents: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield file name and pod specification of whatever starts pods."""
    for name, document in documents.items():
        template = document.get("spec", {}).get("template")
        if template is not None:
            yield name, template["spec"]


def _document(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))
