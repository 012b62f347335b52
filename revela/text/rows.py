"""Rows of JSON, CSV and Parquet files, read, sampled and written in constant memory."""

import contextlib
import csv
import io
import json
import lzma
import random
import sys
import zlib
from collections.abc import Container, Iterable, Iterator
from itertools import chain, compress, islice
from pathlib import Path
from typing import Any, TypeVar

from revela.common.errors import RevelaError, reading
from revela.config.text import First
from revela.text.formats import ALLOWED, OPENERS, delimiter, encoding_of, row_format

_HEAD = 200  # lines of a table that tell whether its cells have quotes
_ROWS = 1024  # read or written at a time

T = TypeVar("T")

REMEDY = "if it is in another encoding, give the corpus `encoding:`"


def json_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[str, Any]]:
    """Yield (`path:line`, row) of JSON lines, compressed or not; a bad line's row is its error."""
    for number, line in enumerate(_lines(path, encoding), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(str(line, "utf-8-sig"))
            if rb"\ud" in line.lower():
                row = _writable(row)
        except UnicodeDecodeError as error:
            row = ValueError(f"invalid UTF-8: {error.reason}; {REMEDY}")
        except (ValueError, RecursionError) as error:
            row = ValueError(f"broken JSON: {error}")
        yield f"{path}:{number}", row


def json_array(path: Path, encoding: str = "utf-8") -> Iterator[tuple[str, Any]]:
    """Yield (`path:number`, row) of a file that is one JSON array, which is read as a whole."""
    with reading(path, "a JSON array"):
        rows = json.loads(b"".join(_lines(path, encoding)))
    for number, row in enumerate(rows, start=1):
        yield f"{path}:{number}", _writable(row)


def _writable(row: Any) -> Any:
    """Return a row, or an error if half a surrogate pair in it cannot be written."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return ValueError(f"invalid UTF-8: {error.reason}")
    return row


def csv_rows(path: Path, kind: str, encoding: str = "utf-8") -> Iterator[tuple[str, Any]]:
    """Yield (`path:line`, row) of a .csv or .tsv file with a header; errors as `json_lines`.

    Cells of .csv may have quotes; those of .tsv are taken as they are unless all of them that begin
    with a quote end with one.
    """
    csv.field_size_limit(sys.maxsize)  # a cell may hold a book; the library's limit is 131,072
    stream = (str(line, "utf-8-sig") for line in _lines(path, encoding))
    try:
        head = list(islice(stream, _HEAD))
        between = delimiter(head[0], kind)
        quoted = kind == "csv" or _has_quotes(head, between)
        quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        reader = csv.reader(chain(head, stream), delimiter=between, quoting=quoting)
        names = [name.strip() for name in next(reader)]
        for cells in filter(None, reader):
            row: Any = dict(zip(names, cells, strict=False))
            if len(cells) != len(names):
                row = ValueError(f"{len(cells)} cells below {len(names)} names")
            yield f"{path}:{reader.line_num}", row
    except UnicodeDecodeError as error:
        raise RevelaError(f"{path}: not UTF-8: {error.reason}; {REMEDY}") from error
    except csv.Error as error:
        raise RevelaError(f"{path}:{reader.line_num}: broken: {error}") from error


def _has_quotes(head: list[str], between: str) -> bool:
    """Return whether the first lines are rows of equal width if quotes enclose cells."""
    reader, widths, end = csv.reader(head, delimiter=between, strict=True), set(), 0
    with contextlib.suppress(csv.Error):  # a quote is a mark of the text, or the cell goes on
        for cells in reader:
            end = reader.line_num
            if cells:
                widths.add(len(cells))
    whole = len(head) < _HEAD
    return len(widths) == 1 and (end == reader.line_num if whole else end > _HEAD // 2)


def _lines(path: Path, encoding: str) -> Iterator[bytes]:
    """Yield the lines of a file, compressed or not, in UTF-8 if the encoding is known."""
    number = 0
    try:
        with OPENERS.get(path.suffix.lower(), open)(path, "rb") as stream:
            encoding = encoding_of(stream.peek(4)[:4], encoding)
            lines: Iterable[bytes] = stream
            if encoding != "utf-8":
                decoded = io.TextIOWrapper(stream, encoding, newline="\n")
                lines = (line.encode() for line in decoded)
            for line in lines:
                yield line
                number += 1
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise RevelaError(f"{path}:{number + 1}: cannot be read: {reason}") from error
    except UnicodeError as error:
        reason = getattr(error, "reason", error)
        raise RevelaError(f"{path}:{number + 1}: not {encoding}: {reason}") from error


def parquet_rows(
    path: Path, columns: list[str] | None = None, schema: Any = None, optional: Container[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, all columns or some; see `check_columns` for a schema."""
    import pyarrow.parquet as pq  # not at the top: the workflow imports this module at each start

    with reading(path, "a readable Parquet file"):
        file = pq.ParquetFile(path)
        if missing := [name for name in columns or () if name not in file.schema_arrow.names]:
            raise KeyError(missing[0])
        for rows in file.iter_batches(_ROWS, columns=columns):
            if schema:
                check_columns(path, rows, schema, optional)
            yield from rows.to_pylist()


def check_columns(path: Path, table: Any, schema: Any, optional: Container[str] = ()) -> None:
    """Raise a `RevelaError` if columns of a table have other types than a schema, or have nulls.

    Columns in `optional` may be null.
    """
    import pyarrow.compute as pc

    for name in table.schema.names:
        column = table.column(name)
        kind, expected = _kind(column.type), _kind(schema.field(name).type)
        if kind != expected and not (kind == "null" and name in optional):
            raise RevelaError(f"{path}: column {name!r} has the type {kind}, not {expected}")
        if name not in optional:
            lists = kind.startswith("list")
            if column.null_count or (lists and pc.list_flatten(column).null_count):
                raise RevelaError(f"{path}: column {name!r} has null values")


def _kind(kind: Any) -> str:
    """Return the name of an Arrow type, the same for all ways to store texts and lists."""
    import pyarrow.types as pt

    if pt.is_dictionary(kind):
        return _kind(kind.value_type)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        # Lists of null are empty, or have null values.
        return f"list of {_kind(kind.value_type)}".replace(" null", " string")
    return "string" if pt.is_large_string(kind) or pt.is_string_view(kind) else str(kind)


def numbered_rows(
    path: Path, columns: list[str] | None = None, encoding: str = "utf-8"
) -> Iterator[tuple[str, Any]]:
    """Yield (`path:number`, row) of a file of rows; a bad row is the error that it gave.

    Of a Parquet file some columns are read, or all.

    Raises:
        RevelaError: the file cannot be read, or its format is unknown.
    """
    with reading(path, "a file of rows"):
        kind = row_format(path)
    if kind is None:
        raise RevelaError(f"{path}: unknown format; allowed: {ALLOWED}")
    if kind in ("lines", "array"):
        return (json_lines if kind == "lines" else json_array)(path, encoding)
    if kind != "parquet":
        return csv_rows(path, kind, encoding)
    rows = enumerate(parquet_rows(path, columns), start=1)
    return ((f"{path}:{number}", row) for number, row in rows)


def column_kinds(path: Path) -> dict[str, str]:
    """Return the columns of a Parquet file with their types, none of another file."""
    import pyarrow.parquet as pq

    if path.suffix.lower() != ".parquet":
        return {}
    with reading(path, "a readable Parquet file"):
        return {column.name: _kind(column.type) for column in pq.read_schema(path)}


def count_rows(path: Path) -> int:
    """Return the number of rows of a Parquet file."""
    import pyarrow.parquet as pq

    with reading(path, "a readable Parquet file"):
        return pq.read_metadata(path).num_rows


def write_parquet(path: Path, schema: Any, rows: Iterable[dict[str, Any]]) -> int:
    """Write rows of a pyarrow schema to a Parquet file and return their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream, count = iter(rows), 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while some := list(islice(stream, _ROWS)):
            writer.write_table(pa.Table.from_pylist(some, schema=schema))
            count += len(some)
    return count


def take(items: Iterable[T], available: int, count: int | First, seed: int) -> Iterator[T]:
    """Return `count` of `available` items: the first ones, or a seeded sample in their order.

    Raises:
        RevelaError: fewer are available.
    """
    number = count.first if isinstance(count, First) else count
    if number > available:
        verb = "take the first" if isinstance(count, First) else "sample"
        raise RevelaError(f"cannot {verb} {number} rows: only {available} are available")
    if isinstance(count, First):
        return islice(items, number)
    chosen = bytearray(available)
    for index in random.Random(seed).sample(range(available), number):
        chosen[index] = 1
    return compress(items, chosen)
