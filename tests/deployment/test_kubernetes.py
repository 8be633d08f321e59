"""The manifests, by the schemas of Kubernetes, and by what the mirror does. No Kubernetes runs here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from tests.deployment.manifests import KUSTOMIZATION, MIRROR_FILE, kustomization, load_mirror, manifests, pod_specs
from typer.main import get_command

from shallow_mirror.cli import app
from shallow_mirror.commands.options import EXIT_CONFIG, EXIT_FENCED, EXIT_RECOVER
from shallow_mirror.config import MirrorConfig
from shallow_mirror.streaming.watch.metrics_server import LIVE_PATH, READY_PATH

VERSIONS = ("1.29", "1.33", kubernetes_validate.latest_version())
"""The oldest one whose schemas have all fields with their meaning of today, and newer ones."""


@pytest.fixture(scope="module")
def documents(repository: Path) -> dict[str, Any]:
    return manifests(repository)


@pytest.fixture(scope="module")
def mirror(repository: Path) -> MirrorConfig:
    return load_mirror(repository)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid_by_the_schemas_of_kubernetes_and_has_no_unknown_field(
    documents: dict[str, Any], version: str
) -> None:
    assert {document["kind"] for document in documents.values()} == {
        "Deployment", "Job", "PersistentVolumeClaim", "PodDisruptionBudget", "Secret", "Service",
    }  # fmt: skip
    for document in documents.values():
        kubernetes_validate.validate(document, version, strict=True)


def test_a_field_that_is_misspelt_would_be_found(documents: dict[str, Any]) -> None:
    misspelt = yaml.safe_load(yaml.safe_dump(documents["deployment.yaml"]))
    misspelt["spec"]["template"]["spec"]["terminationGracePeriod"] = 1
    with pytest.raises(jsonschema.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(misspelt, VERSIONS[0], strict=True)


def test_the_kustomization_names_files_images_and_labels_that_exist(repository: Path, documents: dict[str, Any]) -> None:
    document = kustomization(repository)
    assert {*document["resources"], "job.yaml"} == documents.keys(), f"in {KUSTOMIZATION}; the Job is applied by itself"
    (config_map,) = document["configMapGenerator"]
    assert config_map["files"] == [MIRROR_FILE]
    assert document["generatorOptions"]["disableNameSuffixHash"] is True
    images = {container["image"] for _, spec in pod_specs(documents) for container in spec["containers"]}
    assert images == {image["name"] for image in document["images"]}
    for _, spec in pod_specs(documents):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert volumes["mirror-file"]["configMap"]["name"] == config_map["name"]
        assert volumes["state"]["persistentVolumeClaim"]["claimName"] == documents["volume.yaml"]["metadata"]["name"]
    labels = documents["deployment.yaml"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        documents["deployment.yaml"]["spec"]["selector"]["matchLabels"],
        documents["disruption-budget.yaml"]["spec"]["selector"]["matchLabels"],
        documents["service.yaml"]["spec"]["selector"],
    ]
    assert selectors == [labels] * 3
    assert documents["job.yaml"]["spec"]["template"]["metadata"]["labels"] != labels, "the Job is not part of the budget"


def test_the_mirror_file_is_accepted_and_its_secrets_are_in_the_environment(
    repository: Path, documents: dict[str, Any], mirror: MirrorConfig
) -> None:
    text = (repository / "conf" / "kubernetes" / MIRROR_FILE).read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{env:(\w+)\}", text)) == documents["secret.yaml"]["stringData"].keys()
    for _, spec in pod_specs(documents):
        (container,) = spec["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": documents["secret.yaml"]["metadata"]["name"]}}]
    assert mirror.mirror == "orders-east-west"


def test_ports_and_probes_are_those_of_the_mirror(documents: dict[str, Any], mirror: MirrorConfig) -> None:
    assert mirror.metrics.host == "0.0.0.0"
    (port,) = documents["service.yaml"]["spec"]["ports"]
    for _, spec in pod_specs(documents):
        (container,) = spec["containers"]
        assert container["ports"] == [{"name": "metrics", "containerPort": mirror.metrics.port}]
        assert (port["port"], port["targetPort"]) == (mirror.metrics.port, "metrics")
        probes = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
        expected = {"startupProbe": LIVE_PATH, "livenessProbe": LIVE_PATH, "readinessProbe": READY_PATH}
        assert probes == {name: {"path": expected[name], "port": "metrics"} for name in probes}
    assert set(documents["deployment.yaml"]["spec"]["template"]["spec"]["containers"][0]) >= set(expected)


def test_a_store_that_hangs_while_it_holds_the_interpreter_does_not_restart_the_mirror(documents: dict[str, Any]) -> None:
    for _, spec in pod_specs(documents):
        probe = spec["containers"][0]["livenessProbe"]
        assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) > 2 * 40, "docs/design/waits.md: two requests of 40 s"


def test_commands_and_options_exist(documents: dict[str, Any], repository: Path) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    conf = str(repository / "conf" / "kubernetes" / MIRROR_FILE)
    for name, spec in pod_specs(documents):
        (container,) = spec["containers"]
        command, path, *options = container["args"]
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert path == f"/etc/shallow-mirror/{MIRROR_FILE}"
        assert mounts["/etc/shallow-mirror"]["readOnly"] is True
        context = commands[command].make_context("shallow-mirror run", [conf, *options])
        assert context.params["available_now"] is (name == "job.yaml")
        assert "command" not in container, "the image's entry point passes signals on"


def test_a_stop_has_time_for_the_micro_batch_that_runs(documents: dict[str, Any], mirror: MirrorConfig) -> None:
    for _, spec in pod_specs(documents):
        assert spec["terminationGracePeriodSeconds"] * 1000 > mirror.write.transaction_timeout_ms


def test_one_pod_runs_the_mirror_and_exit_codes_for_operators_end_the_job(documents: dict[str, Any]) -> None:
    deployment, job = documents["deployment.yaml"]["spec"], documents["job.yaml"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    (failing,) = [rule for rule in job["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert failing["onExitCodes"] == {
        "containerName": job["template"]["spec"]["containers"][0]["name"],
        "operator": "In",
        "values": [EXIT_CONFIG, EXIT_FENCED, EXIT_RECOVER],
    }
    assert job["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy requires it"


def test_pods_run_as_the_user_of_the_image_on_a_file_system_that_they_cannot_write(
    documents: dict[str, Any], mirror: MirrorConfig, repository: Path
) -> None:
    image = (repository / "conf" / "container" / "Containerfile").read_text(encoding="utf-8")
    (user,) = re.findall(r"^USER (\d+):\1$", image, re.MULTILINE)
    for _, spec in pod_specs(documents):
        security = spec["securityContext"]
        assert {security[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(user)}
        assert (security["runAsNonRoot"], spec["automountServiceAccountToken"]) == (True, False)
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
        assert "/tmp" in writable
        for path in (mirror.tables, mirror.checkpoint):
            assert any(Path(path).is_relative_to(folder) for folder in writable), path


def test_the_job_runs_in_the_pod_of_the_deployment(documents: dict[str, Any]) -> None:
    def plain(name: str) -> Any:
        spec = dict(documents[name]["spec"]["template"]["spec"])
        spec.pop("restartPolicy", None)
        (container,) = spec.pop("containers")
        return spec, {key: value for key, value in container.items() if key != "args" and not key.endswith("Probe")}

    assert plain("job.yaml") == plain("deployment.yaml")
