"""What is imported before workers are forked, which every one of them has in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shallow_mirror.streaming.sources.admission_control import has_admission_control
from shallow_mirror.streaming.spark import worker_daemon

_DRIVERS_ONLY = ("deltalake", "obstore", "pandas", "pydantic", "yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imported", "unneeded"),
    [
        (worker_daemon._IMPORTED_TO_COPY, _DRIVERS_ONLY),
        pytest.param(
            worker_daemon._IMPORTED_TO_READ_PLANS,
            (*_DRIVERS_ONLY, "shallow_mirror.broker.cluster.cluster", "confluent_kafka", "ssl"),
            marks=pytest.mark.skipif(not has_admission_control(), reason="this PySpark streams no data source of ours"),
        ),
    ],
)
def test_tasks_do_not_import_what_they_do_not_need(imported: tuple[str, ...], unneeded: tuple[str, ...]) -> None:
    program = (
        f"import importlib, sys\nfor name in {imported!r}: importlib.import_module(name)\n"
        f"print([name for name in {unneeded!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_pyspark_is_imported_from_the_installed_package_instead_of_the_zip_file_in_it(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    (installed / "pyspark").mkdir(parents=True)
    (installed / "pyspark" / "__init__.py").touch()
    zip_file = str(installed / "pyspark" / "python" / "lib" / "pyspark.zip")
    assert worker_daemon.installed_pyspark_first([zip_file, "/mine", str(installed)]) == ["/mine", str(installed)]
    of_another_spark = "/opt/spark/python/lib/pyspark.zip"
    for path in ([of_another_spark, str(installed)], [zip_file, "/mine"]):
        assert worker_daemon.installed_pyspark_first(path) == path


@pytest.mark.slow
def test_the_daemon_chooses_before_it_imports_pyspark() -> None:
    program = "import sys, shallow_mirror.streaming.spark.worker_daemon; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.thorough
def test_pyarrow_does_not_import_pandas_before_something_is_converted_to_it() -> None:
    program = """
import sys, pyarrow
from shallow_mirror.streaming.spark.pyarrow_alone import keep_pandas_out
keep_pandas_out()
table = pyarrow.Table.from_pylist([{"a": 1}, {"a": None}])
print("pandas" in sys.modules)
frame = table.to_pandas()
print(pyarrow.array(frame["a"]).null_count)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n1\n"


@pytest.mark.thorough
def test_tables_are_grouped_without_datasets_which_can_be_imported_later() -> None:
    program = """
import sys, pyarrow
from shallow_mirror.streaming.spark.pyarrow_alone import keep_datasets_out
keep_datasets_out()
table = pyarrow.table({"a": [2, 1, 2], "b": [1, 2, 3]})
print(table.group_by("a").aggregate([("b", "max")]).sort_by("a").to_pydict())
print("pyarrow.dataset" in sys.modules)
import pyarrow.dataset
print(pyarrow.dataset.dataset(table).count_rows())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "{'a': [1, 2], 'b_max': [2, 3]}\nFalse\n3\n"
