"""What Spark says when the Python of its workers is not one that can run the mirror."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.micro_batches import find_unfit_python, raising_unfit_python

MISSING = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
  File "pyspark/serializers.py", line 454, in loads
ModuleNotFoundError: No module named 'shallow_mirror'
 SQLSTATE: 38000"""
MISMATCH = """org.apache.spark.api.python.PythonException: Traceback (most recent call last):
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11."""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (MISSING, "cannot run the tasks: No module named 'shallow_mirror'. Install"),
        (MISSING.replace("shallow_mirror", "crc32c"), "No module named 'crc32c'"),
        (MISMATCH, "Python in worker has different version: 3.9 than that in driver: 3.11"),
    ],
)
def test_it_becomes_one_sentence_that_says_what_to_install_and_to_set(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught, raising_unfit_python():
        raise PySparkException(text)
    assert says in str(caught.value)
    assert "PYSPARK_PYTHON" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_errors_stay_what_they_are() -> None:
    assert find_unfit_python("java.lang.OutOfMemoryError: Java heap space") is None
    with pytest.raises(PySparkException, match="heap space"), raising_unfit_python():
        raise PySparkException("java.lang.OutOfMemoryError: Java heap space")
