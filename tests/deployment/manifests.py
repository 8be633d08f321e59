"""The Kubernetes manifests of the repository, as documents."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from shallow_mirror.config import MirrorConfig

MIRROR_FILE, KUSTOMIZATION = "mirror.yaml", "kustomization.yaml"


def manifests(repository: Path) -> dict[str, Any]:
    """Return the document of each file that Kubernetes reads, by file name."""
    files = sorted((repository / "conf" / "kubernetes").glob("*.yaml"))
    return {file.name: _document(file) for file in files if file.name not in (MIRROR_FILE, KUSTOMIZATION)}


def load_mirror(repository: Path) -> MirrorConfig:
    """Load the mirror file as a pod does, with the secret in its environment."""
    with patch.dict(os.environ, manifests(repository)["secret.yaml"]["stringData"]):
        return MirrorConfig.load(repository / "conf" / "kubernetes" / MIRROR_FILE)


def kustomization(repository: Path) -> Any:
    return _document(repository / "conf" / "kubernetes" / KUSTOMIZATION)


def pod_specs(documents: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield file name and pod specification of whatever starts pods."""
    for name, document in documents.items():
        template = document.get("spec", {}).get("template")
        if template is not None:
            yield name, template["spec"]


def _document(file: Path) -> Any:
    return yaml.safe_load(file.read_text(encoding="utf-8"))
