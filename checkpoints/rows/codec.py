"""Pure: rows of a table as dataclasses: the fields of the class are the columns, in their order.

| field | columns |
|---|---|
| `str`, `int`, `float`, `bool`, `bytes`, `datetime`, or one annotated with an Arrow type (`Int32`) | one |
| `x_ms: TimeMs` | `x`, a timestamp |
| a named tuple `x` | its fields, with the prefix `x_`; all null where it is None; numbers of partitions have 32 bits |
| a dataclass annotated with `Inline()` | its columns; all null where it is None |
| `Mapping[str, str]` | one, a map |
| a tuple of scalars or of dataclasses | one, a list |
| an enum | one, with its value |
| annotated with `Json()` | one, a text |

`Column("name")` gives a column another name than its field has. A column that a table lacks, or that is null although its field
cannot be None, takes the default of the field: so columns can be added to tables that exist. A field with `init=False` is written
and not read.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")

Row = TypeVar("Row")


def ms_of(at: datetime) -> int:
    """Return the value of a TIMESTAMP column as milliseconds since the epoch."""
    return round(at.timestamp() * 1000)


@dataclasses.dataclass(frozen=True)
class Column:
    """Names the column of a field."""

    name: str


@dataclasses.dataclass(frozen=True)
class Json:
    """The field is stored as JSON."""


@dataclasses.dataclass(frozen=True)
class Inline:
    """The columns of the field's dataclass are columns of the table, with this prefix."""

    prefix: str = ""


@dataclasses.dataclass(frozen=True)
class _TimeMs:
    """Milliseconds since the epoch, stored as a timestamp in a column without the `_ms` of its field."""


Int32 = Annotated[int, pa.int32()]
TimeMs = Annotated[int, _TimeMs()]

_SCALARS: Mapping[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
    datetime: TIMESTAMP,
}


class RowCodec(Generic[Row]):
    """Converts rows to Arrow and back. Made once for each class: `row_codec(Row)`."""

    def __init__(self, kind: type[Row]) -> None:
        hints = typing.get_type_hints(kind, include_extras=True)
        self._kind = kind
        self._fields = [_field(field, hints[field.name]) for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        self._always_read = {field.name: field.read for field in self._fields if not (field.has_default or field.is_derived)}
        self._sometimes_read = [field for field in self._fields if field.has_default and not field.is_derived]
        self.schema = pa.schema([column for field in self._fields for column in field.columns])

    def to_arrow(self, rows: Sequence[Row]) -> pa.Table:
        columns: list[Sequence[Any]] = []
        for field in self._fields:
            values = list(map(operator.attrgetter(field.name), rows))
            if field.is_plain:
                columns.append(values)
            elif field.is_single:
                columns.append(list(map(field.write, values)))
            else:
                columns += zip(*map(field.write, values), strict=True) if values else [()] * len(field.columns)
        arrays = [pa.array(values, column.type) for values, column in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def values(self, row: Row) -> list[Any]:
        """Return the values of the columns."""
        values: list[Any] = []
        for field in self._fields:
            written = field.write(getattr(row, field.name))
            values += (written,) if field.is_single else written
        return values

    def row(self, values: Mapping[str, Any]) -> Row:
        """Return the row of these columns. Raises KeyError if one without a default is missing."""
        return self._kind(**self.fields(values))

    def fields(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the row by name, without those that take their default. Raises KeyError as `row`."""
        fields = {name: read(values) for name, read in self._always_read.items()}
        for field in self._sometimes_read:
            if not field.takes_default(values):
                fields[field.name] = field.read(values)
        return fields

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
        return [self.row(values) for values in rows]


_codecs: dict[type[Any], RowCodec[Any]] = {}


def row_codec(kind: type[Row]) -> RowCodec[Row]:
    """Return the codec of a dataclass. It is made once."""
    if kind not in _codecs:
        _codecs[kind] = RowCodec(kind)
    return _codecs[kind]


_Write = Callable[[Any], Any]
_Read = Callable[[Mapping[str, Any]], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """A field of the dataclass. `write` returns the values of its columns in order, `read` takes those of the row by name."""

    name: str
    columns: Sequence[pa.Field]
    write: _Write
    read: _Read
    is_optional: bool
    has_default: bool
    is_derived: bool
    """Computed from other fields: written, and not read."""
    is_single: bool
    """It has one column: `write` returns its value, and not a sequence of values."""
    is_plain: bool
    """It is single, and its value is that of the column."""

    def takes_default(self, values: Mapping[str, Any]) -> bool:
        """Return whether the column of a field with a default is missing, or null although the field cannot be None."""
        first = self.columns[0].name
        return first not in values or (values[first] is None and not self.is_optional)


def _field(field: dataclasses.Field[Any], hint: Any) -> _Field:
    hint, marks, is_optional = _unwrapped(hint)
    columns, write, read = _conversion(field.name, hint, marks)
    is_single = not _is_named_tuple(hint) and not any(isinstance(mark, Inline) for mark in marks)
    is_plain = is_single and write is _same
    return _Field(
        name=field.name,
        columns=columns,
        write=_or_null(write, None if is_single else (None,) * len(columns)) if is_optional and not is_plain else write,
        read=_or_none(read, columns[0].name) if is_optional and not isinstance(read, operator.itemgetter) else read,
        is_optional=is_optional,
        has_default=field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING,
        is_derived=not field.init,
        is_single=is_single,
        is_plain=is_plain,
    )


def _or_null(write: _Write, null: Any) -> _Write:
    return lambda value: null if value is None else write(value)


def _or_none(read: _Read, first: str) -> _Read:
    return lambda values: None if values[first] is None else read(values)


_Conversion = tuple[Sequence[pa.Field], _Write, _Read]


def _conversion(name: str, hint: Any, marks: Sequence[Any]) -> _Conversion:
    """Return the columns of a field, and how its value, which is not None, is written and read."""
    column = next((mark.name for mark in marks if isinstance(mark, Column)), name)
    inline = next((mark for mark in marks if isinstance(mark, Inline)), None)
    if inline is not None:
        return _inlined(hint, inline.prefix)
    if _is_named_tuple(hint):
        return _of_parts(hint, column)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return _of_list(column, typing.get_args(hint)[0])
    if any(isinstance(mark, _TimeMs) for mark in marks):
        at = column.removesuffix("_ms")
        return _of_one(at, TIMESTAMP, lambda ms: ms * 1000, ms_of)
    if any(isinstance(mark, Json) for mark in marks):
        return _of_one(column, pa.string(), json.dumps, json.loads)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, value = map(_arrow_type, typing.get_args(hint))
        return _of_one(column, pa.map_(key, value), lambda pairs: sorted(pairs.items()), dict)  # Spark reads a mapping already
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _of_one(column, pa.string(), operator.attrgetter("value"), hint)
    if hint is datetime:
        return _of_one(column, TIMESTAMP, _same, lambda at: at.astimezone(UTC))
    given = next((mark for mark in marks if isinstance(mark, pa.DataType)), None)
    return _of_one(column, given or _arrow_type(hint), _same, _same)


def _same(value: Any) -> Any:
    return value


def _of_one(column: str, kind: pa.DataType, write: Callable[[Any], Any], read: Callable[[Any], Any]) -> _Conversion:
    columns = [pa.field(column, kind)]
    if read is _same:
        return columns, write, operator.itemgetter(column)
    return columns, write, lambda values: read(values[column])


def _inlined(kind: type[Any], prefix: str) -> _Conversion:
    inner = row_codec(kind)
    names = {prefix + name: name for name in inner.schema.names}
    columns = [column.with_name(prefix + column.name) for column in inner.schema]
    return (
        columns,
        inner.values,
        lambda values: inner.row({name: values[column] for column, name in names.items() if column in values}),
    )


def _of_parts(kind: Any, column: str) -> _Conversion:
    hints = typing.get_type_hints(kind, include_extras=True)
    columns = [pa.field(f"{column}_{part}", pa.int32() if hint is int else _arrow_type(hint)) for part, hint in hints.items()]
    names = [part.name for part in columns]
    values_of = operator.itemgetter(*names)
    return columns, tuple, lambda values: kind(*values_of(values))


def _of_list(column: str, item: Any) -> _Conversion:
    if not dataclasses.is_dataclass(item):
        return _of_one(column, pa.list_(_arrow_type(item)), list, tuple)
    inner: RowCodec[Any] = row_codec(item)  # type: ignore[arg-type]
    names = inner.schema.names
    return _of_one(
        column,
        pa.list_(pa.struct(list(inner.schema))),
        lambda items: [dict(zip(names, inner.values(each), strict=True)) for each in items],
        lambda structs: tuple(inner.rows(structs)),
    )


def _unwrapped(hint: Any) -> tuple[Any, list[Any], bool]:
    """Return the type without Annotated and Optional, its annotations, and whether it can be None."""
    marks: list[Any] = []
    is_optional = False
    while True:
        if typing.get_origin(hint) is Annotated:
            hint, *added = typing.get_args(hint)
            marks += added
        elif typing.get_origin(hint) in (typing.Union, types.UnionType):
            (hint,) = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
            is_optional = True
        else:
            return hint, marks, is_optional


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _arrow_type(hint: Any) -> pa.DataType:
    hint, marks, _ = _unwrapped(hint)
    given = next((mark for mark in marks if isinstance(mark, pa.DataType)), None)
    if given is None and typing.get_origin(hint) is typing.Literal:
        return pa.string()
    return _SCALARS[hint] if given is None else given
