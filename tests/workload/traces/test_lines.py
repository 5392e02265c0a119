import io
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvsim.errors import TraceError, TraceRowError
from kvsim.workload.traces import lines as lines_module
from kvsim.workload.traces.documents import json_documents
from kvsim.workload.traces.lines import Lines

MAGIC = b"\x28\xb5\x2f\xfd"


class StubError(Exception):
    pass


def stub_open(file: io.BufferedReader) -> io.BytesIO:
    file.read(4)
    try:
        return io.BytesIO(zlib.decompress(file.read()))
    except zlib.error as error:
        raise StubError(str(error)) from None


Compress = Callable[[bytes], bytes]


@pytest.fixture(params=["stand-in", "compression.zstd", "backports.zstd"])
def compress(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Compress:
    """What packs for the library, a stand-in of which is there where it is not installed."""
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "compression.zstd", None)
        monkeypatch.setitem(sys.modules, "backports.zstd", SimpleNamespace(open=stub_open, ZstdError=StubError))
        return lambda data: MAGIC + zlib.compress(data)
    library: Any = pytest.importorskip(request.param)
    pack: Compress = library.compress
    return pack


def test_zstd_files_are_unpacked(tmp_path: Path, compress: Compress) -> None:
    (tmp_path / "t").write_bytes(compress("\ufeffa\r\nb".encode()))
    assert list(Lines(tmp_path / "t")) == ["a\r\n", "b"]
    assert "".join(Lines(tmp_path / "t").pieces()) == "a\r\nb"


@pytest.mark.parametrize("library", ["compression.zstd", "backports.zstd"])
def test_zstd_files_may_have_several_frames_and_are_refused_cut_off(tmp_path: Path, library: str) -> None:
    zstd: Any = pytest.importorskip(library)
    text = b"".join(b"%d\n" % number for number in range(1_000))
    packed: bytes = zstd.compress(text[:700]) + zstd.compress(text[700:])
    (tmp_path / "t").write_bytes(packed)
    assert "".join(Lines(tmp_path / "t")) == text.decode()
    for cut in (5, len(packed) // 2, len(packed) - 1):
        (tmp_path / "t").write_bytes(packed[:cut])
        with pytest.raises(TraceError, match="t: the zstd stream is cut off after line"):
            list(Lines(tmp_path / "t"))


@pytest.mark.usefixtures("compress")
def test_a_damaged_zstd_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(MAGIC + b"junkjunk")
    with pytest.raises(TraceError, match=r"t: not a sound zstd stream \(.*\) after line 0"):
        list(Lines(tmp_path / "t"))


def test_zstd_without_its_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "t").write_bytes(MAGIC)
    with pytest.raises(TraceError, match=r"t: is packed with zstd, which needs Python 3\.14 or `pip install"):
        list(Lines(tmp_path / "t"))


OBJECTS = [{"a": '}]"\\', "b": [{"c": "é\n"}]}, {"d": {}}, {"e": "\\\\"}]


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 2**16])
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(OBJECTS),
        json.dumps(OBJECTS, indent=2, ensure_ascii=False),
        "\n".join(json.dumps(record) for record in OBJECTS),
        "".join(json.dumps(record, indent=2) for record in OBJECTS) + "\n\n",
    ],
    ids=["array", "array over lines", "lines", "one after the other"],
)
def test_objects_are_found_however_they_are_written(
    text: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "_PIECE_BYTES", piece)
    (tmp_path / "t").write_text(text, encoding="utf-8")
    assert list(json_documents(Lines(tmp_path / "t"))) == OBJECTS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}, 3]', "t:1: not JSON objects, alone or in one array"),
        ('[\n{"a": 1}\n', "t: not JSON: what begins on line 1 does not end"),
        ('{"a": 1}\n}', "t:2: not JSON: } closes nothing"),
        ('[{"a": 1}]]', "t:1: not JSON: ] closes nothing"),
        ('{"a": 1}\n{"a": ', "t: not JSON: what begins on line 2 does not end"),
        ('\n{"a": "', "t: not JSON: what begins on line 2 does not end"),
        ("[[1]]", "t:1: must be a JSON object"),
        ('{"a": 1]', "t:1: not JSON: Expecting ',' delimiter"),
        ("nothing", "t:1: not JSON objects, alone or in one array"),
    ],
)
def test_what_is_not_objects_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(TraceError) as caught:
        list(json_documents(Lines(tmp_path / "t")))
    assert str(caught.value) == f"{tmp_path / message}"


def test_only_bad_rows_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("1\n")
    lines = Lines(tmp_path / "t", skip_bad_rows=True)
    assert list(lines.each([1, 2, 3], lambda _: lines.refuse("bad"))) == []
    assert lines.skipped == 3
    with pytest.raises(TraceError, match="t: broken"):
        list(lines.each([1], lambda _: lines.refuse_file("broken")))
    with pytest.raises(TraceRowError, match="t:0: bad"):
        list(Lines(tmp_path / "t").each([1], lambda _: Lines(tmp_path / "t").refuse("bad")))
