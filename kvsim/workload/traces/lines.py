"""The text of a trace file, line by line or piece by piece, and where a reader stands in it."""

import gzip
import importlib
import stat
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar, cast

from kvsim.errors import TraceError, TraceRowError
from kvsim.workload.traces.row import Row

T = TypeVar("T")

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")
_PIECE_BYTES = 2**16


class Lines:
    """A plain, gzip or zstd text file; knows where it is, so that an error can name the line.

    `least_tokens` is the shortest length that is taken, 1 for a replay and 0 to look at odd rows too. Bad rows
    are errors, or passed over and counted in `skipped`. A UTF-8 byte order mark is dropped.
    """

    def __init__(self, path: Path, *, skip_bad_rows: bool = False, least_tokens: int = 1) -> None:
        self.path = path
        self.skip_bad_rows = skip_bad_rows
        self.least_tokens = least_tokens
        self.number = 0
        self.item = ""
        """Where in a line or document of many requests, such as requests[3]."""
        self.skipped = 0
        self.block_tokens: int | None = None
        """Tokens that an id stands for in the rows so far, or what divides all of them where rows differ."""
        self._packing = "gzip"
        self._unsound: tuple[type[Exception], ...] = (gzip.BadGzipFile, zlib.error)

    def __iter__(self) -> Iterator[str]:
        with self._reading() as file:
            for line in file:
                self.number += 1
                yield line.decode("utf-8-sig" if self.number == 1 else "utf-8")

    def pieces(self) -> Iterator[str]:
        """The text in pieces that may end anywhere, for files that are one long line; does not count lines."""
        decoder = getincrementaldecoder("utf-8-sig")()
        self.number = 1
        with self._reading() as file:
            while piece := file.read(_PIECE_BYTES):
                yield decoder.decode(piece)
            yield decoder.decode(b"", final=True)

    def each(self, records: Iterable[T], convert: Callable[[T], Row | None]) -> Iterator[Row]:
        """The row of each record that is a request; `convert` gives None for one that is something else."""
        for record in records:
            try:
                row = convert(record)
            except TraceRowError:
                if not self.skip_bad_rows:
                    raise
                self.skipped += 1
                continue
            if row is not None:
                yield row

    @property
    def place(self) -> str:
        """Line and item, which no other row of the file has."""
        return f"{self.number}:{self.item}" if self.item else str(self.number)

    def refuse(self, why: str) -> NoReturn:
        item = f"{self.item}: " if self.item else ""
        raise TraceRowError(f"{self.path}:{self.number}: {item}{why}")

    def refuse_file(self, why: str) -> NoReturn:
        raise TraceError(f"{self.path}: {why}")

    @contextmanager
    def _reading(self) -> Iterator[BinaryIO]:
        """The bytes of the file; whatever goes wrong while they are read is a TraceError."""
        try:
            mode = self.path.stat().st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                self.refuse_file("is a device, not a file")
            with self.path.open("rb") as file, self._unpacked(file) as unpacked:
                yield unpacked
        except EOFError:
            self._broken(f"the {self._packing} stream is cut off")
        except self._unsound as error:
            self._broken(f"not a sound {self._packing} stream ({error})")
        except UnicodeDecodeError:
            raise TraceError(f"{self.path}:{self.number}: not UTF-8 text") from None
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror}") from error

    def _unpacked(self, file: BufferedReader) -> BinaryIO:
        """The same file, or what is packed in it; it is opened once, as it may be a pipe."""
        magic = file.peek(4)[:4]
        if magic[:2] == _GZIP_MAGIC:
            return cast(BinaryIO, gzip.open(file))
        if magic == _ZSTD_MAGIC:
            return self._unpacked_zstd(file)
        return file

    def _unpacked_zstd(self, file: BufferedReader) -> BinaryIO:
        name = next((name for name in _ZSTD_MODULES if _is_there(name)), None)
        if name is None:
            self.refuse_file("is packed with zstd, which needs Python 3.14 or `pip install 'kvsim[zstd]'`")
        zstd = importlib.import_module(name)
        self._packing, self._unsound = "zstd", (zstd.ZstdError,)
        return cast(BinaryIO, zstd.open(file))

    def _broken(self, why: str) -> NoReturn:
        raise TraceError(f"{self.path}: {why} after line {self.number}") from None


def _is_there(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True
