"""databricks.yml, as far as it can be checked without Databricks: its form, and that it fits this checkout."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import nbformat
import pytest
import yaml

from shallow_mirror.checkpoints import schema_of
from shallow_mirror.config import MirrorConfig
from shallow_mirror.streaming.spark import spark_session

_VARIABLE = re.compile(r"\$\{var\.(\w+)\}")
_PARAMETER = re.compile(r'parameter\("(\w+)"|for name in \(([^)]*)\)')


@pytest.fixture(scope="module")
def text(repository: Path) -> str:
    return (repository / "databricks.yml").read_text(encoding="utf-8")


def values_of(text: str, target: str) -> dict[str, str]:
    """Return the values of the bundle's variables in a target."""
    bundle = yaml.safe_load(text)
    defaults = {name: variable["default"] for name, variable in bundle["variables"].items() if "default" in variable}
    return {**defaults, **bundle["targets"][target].get("variables", {})}


@pytest.fixture(scope="module", params=["dev", "lts-18", "lts-17-3", "standard", "prod"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bundle(text: str, target: str) -> Any:
    for name in ("spark_version", "data_security_mode"):
        text = text.replace(f"${{var.{name}}}", values_of(text, target)[name])
    return yaml.safe_load(text)


@pytest.fixture(scope="module")
def tasks(bundle: Any) -> list[Any]:
    return [task for job in bundle["resources"]["jobs"].values() for task in job["tasks"]]


@pytest.fixture(scope="module")
def clusters(bundle: Any) -> list[Any]:
    return [cluster["new_cluster"] for job in bundle["resources"]["jobs"].values() for cluster in job["job_clusters"]]


def parameters_of(notebook: Path) -> set[str]:
    (cell,) = (cell for cell in nbformat.read(notebook, as_version=4).cells if cell.id == "parameters")
    parameters = [(single, several) for single, several in _PARAMETER.findall(str(cell.source))]
    return {single for single, _ in parameters if single} | {
        name.strip(' "') for _, several in parameters for name in several.split(",") if name
    }


def test_it_has_the_form_of_a_bundle(repository: Path, bundle: Any) -> None:
    schema = json.loads((repository / "tests" / "databricks" / "bundle.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(bundle)


def test_variables_are_those_that_are_used(text: str, bundle: Any) -> None:
    assert set(_VARIABLE.findall(text)) == set(bundle["variables"])
    assert {name for target in bundle["targets"].values() for name in target.get("variables", ())} <= set(bundle["variables"])


def test_the_targets_are_the_runtimes_and_access_modes_of_the_guide(text: str, repository: Path) -> None:
    targets = yaml.safe_load(text)["targets"]
    runtimes = {name: (values_of(text, name)["spark_version"], values_of(text, name)["data_security_mode"]) for name in targets}
    assert runtimes == {
        "dev": ("19.x-scala2.13", "DATA_SECURITY_MODE_DEDICATED"),
        "lts-18": ("18.x-scala2.13", "DATA_SECURITY_MODE_DEDICATED"),
        "lts-17-3": ("17.3.x-scala2.13", "DATA_SECURITY_MODE_DEDICATED"),
        "standard": ("19.x-scala2.13", "DATA_SECURITY_MODE_STANDARD"),
        "prod": ("19.x-scala2.13", "DATA_SECURITY_MODE_DEDICATED"),
    }
    guide = (repository / "docs" / "how-to" / "databricks.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in guide for name in targets)


def test_one_job_catches_up_and_one_continues(bundle: Any) -> None:
    jobs = bundle["resources"]["jobs"]
    modes = {name: job["tasks"][0]["notebook_task"].get("base_parameters", {}).get("mode") for name, job in jobs.items()}
    assert modes == {"catch_up": "available-now", "continuous": "continuous", "failover": None}
    assert "continuous" in jobs["continuous"]


def test_notebooks_are_there_and_take_the_parameters_they_get(repository: Path, bundle: Any) -> None:
    for job in bundle["resources"]["jobs"].values():
        given = {parameter["name"] for parameter in job.get("parameters", ())}
        for task in job["tasks"]:
            given |= set(task["notebook_task"].get("base_parameters", {}))
            assert given <= parameters_of(repository / task["notebook_task"]["notebook_path"])
            assert "conf" in given


def test_tasks_run_on_a_cluster_of_their_job_with_the_wheel(bundle: Any, tasks: list[Any]) -> None:
    for job in bundle["resources"]["jobs"].values():
        assert {task["job_cluster_key"] for task in job["tasks"]} <= {
            cluster["job_cluster_key"] for cluster in job["job_clusters"]
        }
    assert all(task["libraries"] == [{"whl": "dist/*.whl"}] for task in tasks)
    assert bundle["artifacts"]["wheel"]["build"] == "python3 -m build --wheel"


def test_the_session_of_its_clusters_is_one_that_the_mirror_accepts(clusters: list[Any]) -> None:
    for cluster in clusters:
        assert all(cluster["spark_conf"].get(name, value) == value for name, (value, _) in spark_session.REQUIRED.items())
        assert float(cluster["spark_version"].removesuffix(".x-scala2.13")) >= 17.3  # the first LTS runtime with Spark 4.0


def test_the_mirror_file_of_the_jobs_fits_the_bundle(
    repository: Path, bundle: Any, clusters: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in clusters[0]["spark_env_vars"]:
        monkeypatch.setenv(name, "broker:9092")
    config = MirrorConfig.load(repository / "conf" / "databricks.yaml")
    defaults = {name: variable.get("default") for name, variable in bundle["variables"].items()}
    assert schema_of(config.tables) == f"{defaults['catalog']}.{defaults['schema']}"
    volume = bundle["resources"]["volumes"]["checkpoints"]["name"]
    assert config.checkpoint.startswith(f"/Volumes/{defaults['catalog']}/{defaults['schema']}/{volume}/")
    assert defaults["conf"] == "${workspace.file_path}/conf/databricks.yaml"


def test_standard_access_mode_loops_with_tables_in_an_object_store(
    repository: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SOURCE_BOOTSTRAP", "TARGET_BOOTSTRAP"):
        monkeypatch.setenv(name, "broker:9092")
    conf = values_of(text, "standard")["conf"].removeprefix("${workspace.file_path}/")
    config = MirrorConfig.load(repository / conf)
    assert config.micro_batches == "loop"
    assert schema_of(config.tables) is None
    assert not config.table_location.is_read_by_spark


def test_it_holds_no_secret_and_no_address(text: str) -> None:
    assert not re.search(r"password:|\d+\.\d+\.\d+\.\d+|https?://", text)
    assert text.count("{{secrets/${var.secret_scope}/") == 2
