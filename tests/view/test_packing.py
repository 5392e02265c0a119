import json
import zlib
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvsim.view.packing import Integers, chosen_rows, pack

INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-3, 3)


def unpack(packed: bytes) -> tuple[dict[str, dict[str, list[int]]], object]:
    """By the description of the format alone, in Python's own whole numbers."""
    length = int.from_bytes(packed[:4], "little")
    header = json.loads(packed[4 : 4 + length])
    rest = packed[4 + length :]
    tables: dict[str, dict[str, list[int]]] = {}
    for name, table in header["tables"].items():
        columns = tables[name] = {}
        for key, column in table["columns"].items():
            if "same" in column:
                columns[key] = columns[column["same"]]
                continue
            steps = [0] * (table["rows"] - 1)
            if "bytes" in column:
                planes, width = zlib.decompress(rest[: column["bytes"]]), column["width"]
                rest = rest[column["bytes"] :]
                steps = [
                    int.from_bytes(planes[row :: len(planes) // width], "little", signed=True)
                    for row in range(len(planes) // width)
                ]
            values = [int(column["first"])][: table["rows"]]
            for step in steps:
                values.append((values[-1] + step + 2**63) % 2**64 - 2**63)
            columns[key] = values
            assert column["exact"] == all(abs(value) < 2**53 for value in values)
    assert rest == b""
    return tables, header["note"]


def as_lists(columns: Mapping[str, Integers]) -> dict[str, list[int]]:
    return {name: column.tolist() for name, column in columns.items()}


@given(st.data())
def test_what_is_packed_is_unpacked(data: st.DataObject) -> None:
    tables = {
        name: {
            key: data.draw(arrays(np.int64, num_rows, elements=data.draw(st.sampled_from([INT64, SMALL]))))
            for key in ("time_ns", "live_bytes", "running")
        }
        for name, num_rows in (("timeline", data.draw(st.integers(0, 8))), ("pressure", data.draw(st.integers(0, 3))))
    }
    unpacked, note = unpack(pack(tables, {"name": "a </script> ü", "ns": 1}))
    assert unpacked == {name: as_lists(columns) for name, columns in tables.items()}
    assert note == {"name": "a </script> ü", "ns": 1}


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ([0, 127, -1], 1),
        ([0, 128, 0], 2),
        ([0, 2**15], 4),
        ([0, 2**31], 8),
        ([-(2**63), 2**63 - 1], 1),  # a step of -1, modulo 2^64
    ],
)
def test_steps_take_as_many_bytes_as_the_largest_needs(values: list[int], width: int) -> None:
    packed = pack({"t": {"c": np.array(values)}}, {})
    header = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])
    assert header["tables"]["t"]["columns"]["c"]["width"] == width
    assert unpack(packed)[0] == {"t": {"c": values}}


def test_equal_columns_are_packed_once_and_what_never_changes_has_no_bytes() -> None:
    tables = {"t": {"slack": np.array([1, 5, 2]), "pool": np.array([9, 9, 9]), "tail": np.array([1, 5, 2])}}
    packed = pack(tables, {})
    header = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])
    columns = header["tables"]["t"]["columns"]
    assert columns["tail"] == {"same": "slack"}
    assert columns["pool"] == {"first": "9", "exact": True}


def test_a_table_within_the_bound_is_held_whole() -> None:
    times = np.arange(100)
    assert chosen_rows(times, [times], 100).tolist() == list(range(100))
    assert chosen_rows(times[:0], [times[:0]], 4).tolist() == []


def test_of_a_longer_table_parts_of_time_keep_their_ends_and_extremes() -> None:
    times = np.arange(12) * 10
    level = np.array([5, 5, 9, 1, 9, 5, 3, 2, 3, 4, 3, 4])
    # Two parts: the first row, the first with the most, the first with the least, the last row.
    assert chosen_rows(times, [level], 8).tolist() == [0, 2, 3, 5, 6, 7, 9, 11]


@given(
    arrays(np.int64, st.integers(1, 60), elements=st.integers(0, 2**62)).map(np.sort),
    st.integers(4, 70),
    st.integers(0, 2**32),
)
def test_a_choice_is_in_order_within_its_bound_and_has_the_extremes(times: Integers, most: int, seed: int) -> None:
    level = np.random.default_rng(seed).integers(0, 10, len(times))
    rows = chosen_rows(times, [level], most)
    assert len(rows) <= max(most, 4)
    assert (np.diff(rows) > 0).all()
    assert {0, len(times) - 1, int(level.argmax()), int(level.argmin())} <= set(rows.tolist())
