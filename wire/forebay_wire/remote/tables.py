"""Tables among the values of variables: pandas' DataFrames and Arrow's own, as files of Arrow's IPC format, one each.

``pyarrow`` is the user's own, and that of the worker's environment; where it is missing tables are refused. A DataFrame goes only if it
comes back as it was: Arrow has no column of mixed objects, and makes other types of some that pandas has.
"""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

SUFFIX = ".arrow"
KIND, DATAFRAME, TABLE = b"forebay.kind", b"pandas.DataFrame", b"pyarrow.Table"
"""The entry of the schema's metadata that says what the table was."""
FREQUENCY = b"forebay.freq"
"""Of a DataFrame whose index has one: Arrow keeps the moments alone."""
PYARROW_OLDEST = (14, 0, 1)
"""Earlier ones unpickle what a file's schema holds (CVE-2023-47248)."""


class ValueRefused(ValueError):
    """A value that does not go, or cannot be read here; the message says which and why."""


def is_table(value: Any) -> bool:
    """Whether it is one of pandas' or of Arrow's; neither is loaded for that. Classes made of theirs are not: they hold more."""
    kinds = (("pandas", "DataFrame"), ("pyarrow", "Table"))
    return any(type(value) is getattr(sys.modules.get(module), name, None) for module, name in kinds)


def table_of(name: str, value: Any) -> Any:
    """As Arrow's. Raises ValueRefused."""
    arrow = _pyarrow(name)
    kind, table = TABLE, value
    if type(value) is not arrow.Table:
        kind, table = DATAFRAME, _of_dataframe(arrow, name, value)
    extensions = [field.name for field in table.schema if isinstance(field.type, arrow.BaseExtensionType)]
    if extensions:
        raise ValueRefused(f"{name} has columns of types that extend Arrow's, which do not go: {', '.join(extensions)}")
    table = table.unify_dictionaries()  # a file has one of each column
    frequency = getattr(getattr(value, "index", None), "freqstr", None)
    told = {KIND: kind} if kind is TABLE or frequency is None else {KIND: kind, FREQUENCY: frequency.encode()}
    return table.replace_schema_metadata({**(table.schema.metadata or {}), **told})


def _of_dataframe(arrow: Any, name: str, value: Any) -> Any:
    try:
        table = arrow.Table.from_pandas(value)
        differs = _difference(value, table.to_pandas())
    except Exception as error:  # pandas and Arrow raise many kinds for what they do not take
        raise ValueRefused(f"{name} is a DataFrame that Arrow does not take: {' '.join(str(error).split())[:300]}") from None
    if differs:
        raise ValueRefused(f"{name} would not come back as it is: {differs}")
    return table


def _difference(sent: Any, back: Any) -> str:
    """What is otherwise in a DataFrame that came back; empty: nothing."""
    for column, before, after in zip(sent.columns, sent.dtypes, back.dtypes, strict=True):
        if before != after:
            return f"its column {column!r} of type {before} would be of type {after}"
    for what, before, after in (("index", sent.index, back.index), ("names of columns", sent.columns, back.columns)):
        if before.dtype != after.dtype or list(before.names) != list(after.names) or not before.equals(after):
            return f"its {what} would be others"
    if sent.attrs != back.attrs:
        return "its attrs would be others"
    for place, column in enumerate(sent.columns):
        if not _is_same(sent.iloc[:, place], back.iloc[:, place]):
            return f"some values of its column {column!r} would be others"
    return "" if sent.equals(back) else "some of its values would be others"


def _is_same(sent: Any, back: Any) -> bool:
    """Whether a column's values are the same; objects of the same classes, too: ``True`` equals ``1``."""
    same_kinds = sent.dtype.kind != "O" or all(type(one) is type(other) for one, other in zip(sent, back, strict=True))
    return same_kinds and bool(sent.equals(back))


def write(folder: Path, name: str, table: Any) -> None:
    """Of ``table_of``. Raises OSError."""
    arrow = _pyarrow(name)
    with arrow.OSFile(str(folder / f"{name}{SUFFIX}"), "wb") as file, arrow.ipc.new_file(file, table.schema) as writer:
        for batch in table.to_batches() or [_no_rows(arrow, table)]:
            writer.write_batch(batch)


def _no_rows(arrow: Any, table: Any) -> Any:
    """A batch of a table without rows: categories are written with the first batch."""
    columns = [column.chunk(0) if column.num_chunks else arrow.array([], column.type) for column in table.columns]
    return arrow.RecordBatch.from_arrays(columns, schema=table.schema)


def read(folder: Path) -> dict[str, Any]:
    """All tables in the folder. Raises ValueRefused."""
    return {path.stem: _read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))}


def _read(path: Path) -> Any:
    arrow = _pyarrow(path.stem)
    try:
        with arrow.OSFile(str(path), "rb") as file:
            table = arrow.ipc.open_file(file).read_all()
        table.validate(full=True)  # offsets that lead elsewhere would be followed
        kept = dict(table.schema.metadata or {})
        kind, frequency = kept.pop(KIND, None), kept.pop(FREQUENCY, None)
        table = table.replace_schema_metadata(kept or None)
        found = {TABLE: lambda: table, DATAFRAME: table.to_pandas}[kind]()
        if frequency is not None:
            found.index.freq = frequency.decode()
    except Exception as error:  # of a file that is none, Arrow raises many kinds
        raise ValueRefused(f"{path.name} cannot be read: {' '.join(str(error).split())[:300]}") from None
    return found


def _pyarrow(name: str) -> Any:
    """Raises ValueRefused."""
    try:
        version = metadata.version("pyarrow")
        arrow = import_module("pyarrow")
        import_module("pyarrow.ipc")
    except ImportError:
        raise ValueRefused(f"{name} is a table, which goes by Arrow, and the environment lacks pyarrow") from None
    oldest = ".".join(map(str, PYARROW_OLDEST))
    if tuple(int(part) for part in version.split(".")[:3] if part.isdecimal()) < PYARROW_OLDEST:
        raise ValueRefused(f"{name} is a table, and pyarrow {version} is not safe to read others' with: {oldest} is")
    return arrow
