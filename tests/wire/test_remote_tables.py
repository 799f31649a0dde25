"""Tables of pandas and Arrow that go to a process beside a device, and come back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from forebay_wire.remote import tables, values

NAN = float("nan")
FRAMES: dict[str, Callable[[], pd.DataFrame]] = {
    "numbers": lambda: pd.DataFrame({"a": [1, 2, 3], "b": [0.1, -0.0, NAN], "c": [True, False, True]}),
    "small types": lambda: pd.DataFrame({"a": np.array([1, 255], np.uint8), "b": np.array([0.5, np.inf], np.float32)}),
    "extremes": lambda: pd.DataFrame({"a": [2**63 - 1, -(2**63)], "b": [1.7976931348623157e308, 5e-324]}),
    "texts": lambda: pd.DataFrame({"a": ["x", "ä", ""], "b": ["x", None, "z"]}),
    "nullable": lambda: pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": pd.array([True, None], "boolean")}),
    "categories": lambda: pd.DataFrame({"a": pd.Categorical(["x", "y", "x"], ["y", "x", "unused"], ordered=True)}),
    "times": lambda: pd.DataFrame({"a": pd.to_datetime(["2026-11-30 12:00:00.123456789", None]).tz_localize("Asia/Seoul")}),
    "an index": lambda: pd.DataFrame({"a": [1, 2]}, index=pd.Index(["x", "y"], name="key")),
    "two levels": lambda: pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)], names=["one", None])),
    "days": lambda: pd.DataFrame({"a": [1, 2, 3]}, index=pd.date_range("2026-11-28", periods=3, freq="D")),
    "decimals": lambda: pd.DataFrame({"a": [Decimal("1.10"), Decimal("2.25")]}),
    "nothing": lambda: pd.DataFrame(),
    "no rows": lambda: pd.DataFrame({"a": np.array([], np.int16)}),
    "categories of no rows": lambda: pd.DataFrame({"a": pd.Categorical([], ["y", "x"], ordered=True), "b": pd.Categorical([], [2.5])}),
    "rows that were taken away": lambda: FRAMES["categories"]().iloc[:0],
    "attrs": lambda: pd.DataFrame({"a": [1]}),
}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "mixed": (lambda: pd.DataFrame({"a": [1, "x"]}), "mine is a DataFrame that Arrow does not take"),
    "objects": (lambda: pd.DataFrame({"a": [object()]}), "mine is a DataFrame that Arrow does not take"),
    "numbers as objects": (lambda: pd.DataFrame({"a": np.array([1, None], object)}), "of type object would be of type float64"),
    "names twice": (lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), "mine is a DataFrame that Arrow does not take"),
    "complex": (lambda: pd.DataFrame({"a": [1j]}), "mine is a DataFrame that Arrow does not take"),
    "lists": (lambda: pd.DataFrame({"a": [[1, 2], [3]]}), "would not come back as it is|does not take"),
    "sets": (lambda: pd.DataFrame({"a": [1, 2], "b": [{1}, {2, 3}]}), "some values of its column 'b' would be others"),
    "a series": (lambda: pd.Series([1]), "mine is a pandas.*Series, and only"),
    "a class of theirs": (lambda: type("Frame", (pd.DataFrame,), {})({"a": [1]}), "Frame, and only"),
}


def sent(folder: Path, **given: Any) -> dict[str, Any]:
    values.write(folder, given)
    return values.read(folder)


@pytest.mark.parametrize("kind", FRAMES)
def test_a_dataframe_comes_back_as_it_went(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow")
    frame = FRAMES[kind]()
    if kind == "attrs":
        frame.attrs["unit"] = "s"
    before = frame.copy(deep=True)
    found = sent(tmp_path / "values", frame=frame, other=3)
    assert found["other"] == 3 and type(found["frame"]) is pd.DataFrame
    pd.testing.assert_frame_equal(found["frame"], before, check_exact=True, check_freq=True)
    assert np.array_equal(np.signbit(found["frame"].select_dtypes("float")), np.signbit(before.select_dtypes("float")))
    assert found["frame"].attrs == before.attrs


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_come_back_otherwise_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow")
    make, why = REFUSED[kind]
    with pytest.raises(values.ValueRefused, match=why):
        values.write(tmp_path / "values", {"mine": make()})
    assert not (tmp_path / "values").exists()


def test_an_arrow_table_comes_back_with_its_schema(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"a": arrow.array([[1], None, []]), "b": arrow.array([1, 2, None], arrow.uint8())}, metadata={"mine": "x"})
    found = sent(tmp_path / "values", table=table)["table"]
    assert found.equals(table, check_metadata=True) and not any(b"forebay" in key for key in found.schema.metadata)
    extended = arrow.table({"a": arrow.ExtensionArray.from_storage(arrow.uuid(), arrow.array([bytes(16)], arrow.binary(16)))})
    with pytest.raises(values.ValueRefused, match="mine has columns of types that extend Arrow's, which do not go: a"):
        values.write(tmp_path / "others", {"mine": extended})


def test_categories_of_arrow_that_differ_from_part_to_part_come_back_with_their_values(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parts = [arrow.array(part, arrow.string()).dictionary_encode() for part in (["x", "y", None], ["z", "x"], [])]
    table = arrow.table({"a": arrow.chunked_array(parts)})
    found = sent(tmp_path / "values", table=table, none=table.slice(0, 0))
    assert found["table"].schema == table.schema and found["table"]["a"].to_pylist() == ["x", "y", None, "z", "x"]
    assert found["none"].schema == table.schema and found["none"].num_rows == 0


def test_a_file_that_is_none_is_refused_and_not_followed(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    values.write(tmp_path / "values", {"frame": FRAMES["texts"]()})
    file = tmp_path / "values" / "frame.arrow"
    whole = file.read_bytes()
    refused = 0
    for place in range(0, len(whole), 7):  # offsets, lengths, types and metadata among them
        file.write_bytes(whole[:place] + bytes((whole[place] ^ 0xFF,)) + whole[place + 1 :])
        try:
            values.read(tmp_path / "values")
        except ValueError:
            refused += 1
    file.write_bytes(whole[:100])
    with pytest.raises(values.ValueRefused, match=r"frame\.arrow cannot be read"):
        values.read(tmp_path / "values")
    assert refused


def test_without_pyarrow_a_table_is_refused_in_words_and_the_rest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(values.ValueRefused, match=r"^mine is a table, which goes by Arrow, and the environment lacks pyarrow$"):
        values.write(tmp_path / "values", {"mine": FRAMES["numbers"]()})
    assert sent(tmp_path / "values", array=np.arange(3))["array"].tolist() == [0, 1, 2]
    (tmp_path / "values" / "made.arrow").write_bytes(b"ARROW1")
    with pytest.raises(values.ValueRefused, match=r"^made is a table"):
        values.read(tmp_path / "values")


def test_a_pyarrow_that_unpickles_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    for version, goes in (("14.0.0", False), ("9.0.0", False), ("14.0.1", True), ("15.0.0.dev1", True)):
        monkeypatch.setattr(tables.metadata, "version", lambda _name, version=version: version)
        folder = tmp_path / version
        if goes:
            assert sent(folder, mine=FRAMES["numbers"]())["mine"].shape == (3, 3)
            continue
        with pytest.raises(values.ValueRefused, match=f"pyarrow {version} is not safe to read others' with"):
            values.write(folder, {"mine": FRAMES["numbers"]()})
