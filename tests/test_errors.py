"""Every error of `errors.py` keeps its type, fields and message on its way between processes."""

from __future__ import annotations

import ast
import glob
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shallow_mirror import errors
from shallow_mirror.errors import MirrorError
from shallow_mirror.streaming.planning.error_transport import deserialize_error, serialize_errors
from shallow_mirror.types import TopicPartition

_PARTITION = TopicPartition("t", 3)

_ERRORS: tuple[MirrorError, ...] = (
    errors.MirrorError("text"),
    errors.ConfigError("text"),
    errors.ConfigError(["one", "two"]),
    errors.StoreRefusedError("write", "s3://b", "403", "grant it"),
    errors.TopicAccessError("denied", ["a", "b"]),
    errors.TopicSettingsError(["changed"], ["a"]),
    errors.TopicGoneError(["gone"], ["a"]),
    errors.AuthenticationError("refused"),
    errors.BrokerTooOldError("old"),
    errors.NotABrokerError("controller"),
    errors.CorruptBatchError(_PARTITION, 5, 7, "crc"),
    errors.DataLossError(_PARTITION, 5, 9, "expired"),
    errors.DataLossError(_PARTITION, 5, None, "gone"),
    errors.LogTruncatedError(_PARTITION, 5, "cut", 4, 3, "id"),
    errors.LogTruncatedError(_PARTITION, 5, "cut"),
    errors.TxnOutcomeChangedError(_PARTITION, 5, "other outcome", divergent_offset=2),
    errors.TopicRecreatedError(_PARTITION, 5, "before", "after"),
    errors.TargetDataLossError(_PARTITION, 9, 4, 1),
    errors.PreservedLogDamagedError(_PARTITION, 4, "foreign batch"),
    errors.BatchRefusedError(_PARTITION, 5, "too large", "raise it"),
    errors.OffsetDeltasError(_PARTITION, 5, "offsets fall"),
    errors.FencedError("run 7"),
    errors.RetriableError("NETWORK_EXCEPTION", "reset"),
    errors.ProducerEpochFencedError("PRODUCER_FENCED", "fenced"),
    errors.TransactionBlockedError("id", "PrepareCommit", 4, 2),
    errors.OutcomeUnknownError("text"),
    errors.StoreUnreachableError("write", "s3://b/t", "timeout", "wait"),
    errors.StoreUnreachableError("write", "s3://b/t", "403", "grant it", is_refused=True),
    errors.ObjectMissingError("s3://b", "o", "no such object", "restore it"),
    errors.ObjectExistsError("s3://b", "o"),
    errors.RecoverNeededError("micro-batch 4"),
    errors.MicroBatchInDoubtError("batch 4"),
    errors.RecordRefusedError(3, 17, "its topic is null", "give it one"),
    errors.OlderTablesError("run 1", "run 2", 8),
    errors.CopiesDifferError(["missing"], "west", "east", "m.yaml", "f.yaml"),
    errors.LateWritesError("one", "west", "east", ["t-3: 5"], "shallow-mirror migrate settle f"),
    errors.HookFailedError("close", "before check", "exit code 3", "`x` calls it again"),
    errors.SparkLostError("text"),
    errors.IncompleteRunError([f"t-{n}" for n in range(7)]),
    errors.OffsetMapConflictError("text"),
    errors.ArchiveFormatError("o", "cut", "verify it"),
)


def test_every_error_is_in_the_list() -> None:
    classes = {kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, MirrorError)}
    assert {type(error) for error in _ERRORS} == classes


@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_pickle(error: MirrorError) -> None:
    read = pickle.loads(pickle.dumps(error))
    assert (type(read), str(read), read.args, vars(read)) == (type(error), str(error), error.args, vars(error))


@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_after_the_text_of_spark(error: MirrorError) -> None:
    with pytest.raises(MirrorError) as raised, serialize_errors():
        raise pickle.loads(pickle.dumps(error))
    read = deserialize_error("\n".join(raised.value.__notes__))
    assert read is not None
    assert (type(read), str(read), vars(read)) == (type(error), str(error), vars(error))


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the string literals with their lines, without docstrings."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_no_message_names_a_file_that_only_the_repository_has() -> None:
    """The wheel has neither the documentation nor the examples."""
    package = Path(errors.__file__).parent
    files = sorted(Path(file) for file in glob.glob(f"{package}/**/*.py", recursive=True))
    named = [
        f"{file.relative_to(package)}:{line}: {text}"
        for file in files
        for line, text in _texts(ast.parse(file.read_text(encoding="utf-8")))
        if re.search(r"\b(docs|conf|tests|benchmarks)/|\w\.md\b", text)
    ]
    assert len(files) > 500
    assert named == []
