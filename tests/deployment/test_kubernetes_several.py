"""The overlay with several mirrors in one pod, by what the mirrors and kustomize do. No Kubernetes runs here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.deployment.manifests import MIRROR_FILE, ONE, SEVERAL, kustomization, load_mirror, load_several, manifests


@pytest.mark.slow
def test_the_mirror_files_may_run_in_one_process_and_write_to_the_volume(repository: Path, tmp_path: Path) -> None:
    single = load_mirror(repository)
    mirrors = load_several(repository, tmp_path)
    assert [mirror.mirror for mirror in mirrors] == ["orders-east-west", "payments-east-west"]
    for mirror in mirrors:
        assert (mirror.metrics, mirror.source, mirror.target) == (single.metrics, single.source, single.target)
        assert Path(mirror.tables).parent == Path(single.tables).parent


def test_secrets_of_the_mirror_files_are_in_the_environment(repository: Path) -> None:
    (config_map,) = kustomization(repository, SEVERAL)["configMapGenerator"]
    texts = [(repository / "conf" / SEVERAL / name).read_text(encoding="utf-8") for name in config_map["files"]]
    names = {name for text in texts for name in re.findall(r"\$\{env:(\w+)\}", text)}
    assert names == manifests(repository)["secret.yaml"]["stringData"].keys()


@pytest.fixture(scope="module")
def built(repository: Path) -> dict[str, dict[str, Any]]:
    """Return what kustomize makes of both folders, by folder and kind."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: https://kubernetes.io/docs/tasks/tools")
    return {folder: _built(repository / "conf" / folder) for folder in (ONE, SEVERAL)}


def _built(folder: Path) -> dict[str, Any]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}


@pytest.mark.slow
def test_kustomize_changes_the_arguments_and_the_files_and_nothing_else(built: dict[str, dict[str, Any]]) -> None:
    one, several = built[ONE], built[SEVERAL]
    assert several["ConfigMap"]["data"].keys() == {"orders.yaml", "payments.yaml"}
    (container,) = several["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["run", "/etc/shallow-mirror", "--log-format", "json"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in several["Deployment"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes[mounts["/etc/shallow-mirror"]]["configMap"]["name"] == several["ConfigMap"]["metadata"]["name"]
    container["args"][1] = f"/etc/shallow-mirror/{MIRROR_FILE}"
    several["ConfigMap"]["data"] = one["ConfigMap"]["data"]
    assert several == one


@pytest.mark.parametrize("folder", [ONE, SEVERAL])
def test_what_kustomize_builds_is_valid(built: dict[str, dict[str, Any]], folder: str) -> None:
    for document in built[folder].values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
