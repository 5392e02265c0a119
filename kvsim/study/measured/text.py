"""The text of a metrics file, and Prometheus' text exposition in it: one scrape, or many one after another.

The `prometheus_client` package parses one exposition, drops comments (`# scraped at ...`) and refuses a file whose
last line is cut off, so it would not save what is written here: one regular expression for a line, one for a label.
"""

import gzip
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from itertools import islice
from math import inf
from pathlib import Path
from typing import BinaryIO, cast

from attrs import Factory, define

from kvsim.errors import MeasuredError
from kvsim.rules import shown
from kvsim.units import format_bytes

Labels = tuple[tuple[str, str], ...]

NAMES: dict[str, str] = {
    "kv_cache_usage_perc": "kv_usage",
    "gpu_cache_usage_perc": "kv_usage",
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "num_preemptions": "preemptions",
    "prefix_cache_queries": "queried_tokens",
    "gpu_prefix_cache_queries": "queried_tokens",
    "prefix_cache_hits": "hit_tokens",
    "gpu_prefix_cache_hits": "hit_tokens",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "request_success": "finished",
}
"""vLLM's series, without vllm: before and _total behind, and the figure that each is; of two names the first counts."""

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(\{.*\})?\s+(\S+)(?:\s+(-?\d{1,19}))?\s*")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:\\.|[^"\\])*)"\s*(?:,|$)')
_ESCAPED = re.compile(r"\\(.)")
_SCRAPED = re.compile(r"#\s*(?:scraped?(?:\s+at)?|time(?:stamp)?)?\s*[:=]?\s*(\S.*?)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d{1,20}(\.\d{1,20})?(e[+-]?\d{1,3})?", re.IGNORECASE)
_FRACTION = re.compile(r"[.,](\d{7,9})(?=\D|$)")
_UNIX_UNITS = ((10**17, 1), (10**14, 10**3), (10**11, 10**6))
"""From which number on it counts what since 1970, in nanoseconds; less are seconds."""

_MAX_NS = 2**62
_LONGEST_TIME = 100
_DATE = re.compile(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d)(?: ([AP]M))?(?: (?:UTC|GMT|Z))? (\d{4})")
"""What `date` prints; other zones are names that several have."""

_HEAD_BYTES = 2**16

LONGEST_LINE = 2**16
_MOST_BYTES = 4 * 2**30
_MOST_VALUES = 10_000_000
"""Bounds of what is read: bytes of a line, bytes of a file when it is unpacked, values that are kept."""

LARGEST = 2.0**53
"""Beyond it a number counts nothing exactly."""


class MetricsFile:
    """A file that a server or a scraper wrote, plain or gzip; what is cut off is read up to there, and said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []

    def lines(self, longest: int = LONGEST_LINE, *, only_whole: bool = False) -> Iterator[str]:
        """Without line ends; raises MeasuredError where it cannot be read.

        Bytes that are no UTF-8 are marked, and lines of more bytes than the longest are passed over. So is a last line
        that does not end, if `only_whole` ones are wanted: a number in it may have been cut, and would still be one.
        """
        number = size = num_long = 0
        try:
            with self._opened() as file:
                while line := file.readline(longest + 1):
                    number += 1
                    size += len(line)
                    is_long = len(line) > longest and not line.endswith(b"\n")
                    while is_long and (rest := file.readline(longest)):
                        size += len(rest)
                        if rest.endswith(b"\n") or size > _MOST_BYTES:
                            break
                    if size > _MOST_BYTES:
                        raise self.refuse(f"has more than {format_bytes(_MOST_BYTES)} of text when it is unpacked")
                    num_long += is_long
                    if only_whole and not is_long and not line.endswith(b"\n"):
                        self.notes.append(
                            f"{self.path.name}: its last line does not end, as where a file is cut off; passed over."
                        )
                    elif not is_long:
                        yield line.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace").rstrip("\r\n")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            why = "is cut off" if isinstance(error, EOFError) else "is not sound"
            if not number:
                raise MeasuredError(f"{self.path}: the gzip stream {why}, nothing can be read") from None
            self.notes.append(
                f"{self.path.name}: the gzip stream {why} after line {number:,}; what is before was read."
            )
        except OSError as error:
            raise MeasuredError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        if num_long:
            self.notes.append(f"{self.path.name}: {num_long:,} lines of over {longest:,} bytes were passed over.")

    def head(self) -> str:
        """Enough of the beginning to see what it is."""
        try:
            with self._opened() as file:
                head = file.read(_HEAD_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            head = "\n".join(islice(self.lines(), 1_000)).encode()
            self.notes.clear()
        except OSError as error:
            raise MeasuredError(f"{self.path}: cannot be read: {error.strerror or error}") from None
        if head.startswith((b"\xff\xfe", b"\xfe\xff")) and b"\0" in head:
            raise self.refuse("is UTF-16; it must be UTF-8")
        return head.decode("utf-8-sig", errors="replace")

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        self._need_file()
        with self.path.open("rb") as plain:
            packed = plain.peek(2)[:2] == b"\x1f\x8b"
            with gzip.open(plain) if packed else plain as file:
                yield cast(BinaryIO, file)

    @property
    def written_ns(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError as error:
            raise MeasuredError(f"{self.path}: cannot be read: {error.strerror or error}") from None

    def refuse(self, why: str) -> MeasuredError:
        return MeasuredError(f"{self.path}: {why}")

    def record(self) -> dict[str, str | int]:
        """What says later which file it was."""
        digest = sha256()
        try:
            with self.path.open("rb") as file:
                while piece := file.read(2**20):
                    digest.update(piece)
            return {"name": self.path.name, "bytes": self.path.stat().st_size, "sha256": digest.hexdigest()}
        except OSError as error:
            raise MeasuredError(f"{self.path}: cannot be read: {error.strerror or error}") from None

    def _need_file(self) -> None:
        if not stat.S_ISREG(self.path.stat().st_mode):
            raise self.refuse("is not a regular file")


@define
class Scrapes:
    """All samples of scraped files, by the series' whole name and labels; times in ns since 1970.

    Scrapes without a time are numbered through all files, and lie `interval_ns` apart if that is given.
    """

    interval_ns: int | None = None
    samples: dict[tuple[str, Labels], tuple[list[int], list[float]]] = Factory(dict)
    config: list[dict[str, str]] = Factory(list)
    """Labels of each vllm:cache_config_info."""
    notes: list[str] = Factory(list)
    hits_unit: str | None = None
    """What the counters of the prefix cache are said to count: tokens, or blocks as in vLLM's first V1 versions."""
    num_untimed: int = 0
    num_timed: int = 0
    num_values: int = 0
    has_tables: bool = False
    """Whether any is from a table, where a moment has one value of a series."""

    def add(self, name: str, labels: Labels, time_ns: int, value: float) -> None:
        self.num_values += 1
        if self.num_values > _MOST_VALUES:
            raise MeasuredError(f"there are more than {_MOST_VALUES:,} values: keep fewer scrapes of fewer series")
        times, values = self.samples.setdefault((name, labels), ([], []))
        times.append(time_ns)
        values.append(value)


def figure_name(name: str) -> str | None:
    """The key of NAMES that the name of a series is, however it is written; None if it is another series."""
    bare = name.removeprefix("vllm:").removeprefix("vllm_")
    for form in (bare, bare.removesuffix("_total")):
        if form in NAMES:
            return form
    return None


def is_config(name: str) -> bool:
    return name in ("vllm:cache_config_info", "vllm_cache_config_info", "cache_config_info")


def parse_labels(text: str | None) -> Labels | None:
    """Labels of `{engine="0",model_name="a"}`, sorted; None where it is not well formed."""
    if not text or not text.strip("{} "):
        return ()
    inside = text[1:-1]
    labels, at = [], 0
    while at < len(inside):
        match = _LABEL.match(inside, at)
        if match is None:
            return None
        value = _ESCAPED.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], match[2])
        labels.append((match[1], value))
        at = match.end()
    return tuple(sorted(labels))


def split_series(text: str) -> tuple[str, Labels] | None:
    """Name and labels of a series that stands alone, as at the top of a column."""
    name, brace, rest = text.strip().partition("{")
    labels = parse_labels(brace + rest) if brace else ()
    if labels is not None and not name:
        name = dict(labels).get("__name__", "")
        labels = tuple(pair for pair in labels if pair[0] != "__name__")
    return None if labels is None else (name, labels)


def parse_time_ns(text: str, unit_ns: int | None = None) -> int | None:
    """Nanoseconds since 1970 of unix seconds, ms, us or ns (told apart by size) or an ISO time; UTC without a zone."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        number = Decimal(text)
        if unit_ns is None:
            unit_ns = next((unit for least, unit in _UNIX_UNITS if abs(number) >= least), 10**9)
        nanoseconds = int(number * unit_ns)
    else:
        fraction = _FRACTION.search(text)
        date = _DATE.fullmatch(text)
        try:
            if date is not None:
                written = f"{date[5]} {date[1]} {date[2]} {date[3]} {date[4] or ''}"
                moment = datetime.strptime(written, f"%Y %b %d {'%I:%M:%S %p' if date[4] else '%H:%M:%S '}")
            else:
                moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        passed = moment - datetime(1970, 1, 1, tzinfo=UTC)
        nanoseconds = (passed.days * 86_400 + passed.seconds) * 10**9 + passed.microseconds * 1_000
        if fraction is not None:  # datetime has no room for what is finer
            nanoseconds += int(fraction[1][6:].ljust(3, "0"))
    return nanoseconds if abs(nanoseconds) < _MAX_NS else None


def is_exposition(head: str) -> bool:
    """Whether it has comments or samples of the text format."""
    return any(
        line.startswith(("# HELP ", "# TYPE ")) or (line.startswith(("vllm:", "vllm_")) and _SAMPLE.fullmatch(line))
        for line in head.splitlines()
    )


def read_exposition(file: MetricsFile, into: Scrapes) -> None:
    """A new scrape begins with a comment that is a time, such as `# scraped at 2026-11-29T12:34:56Z`, or a line that is
    one, with a series that this scrape has had, or after `# EOF`. A line's own time goes before that of its scrape.
    """
    scrape = _Scrape(file, into)
    bad = 0
    for line in file.lines(only_whole=True):
        if line.startswith("#"):
            scrape.comment(line)
        elif line.strip():
            match = _SAMPLE.fullmatch(line)
            labels = None if match is None else parse_labels(match[2])
            value = None if match is None else _float(match[3])
            if match is None or labels is None or value is None or LARGEST < abs(value) < inf:
                moment = parse_time_ns(line) if match is None and len(line) < _LONGEST_TIME else None
                if moment is not None:
                    scrape.begin(moment)
                else:
                    bad += 1
                continue
            scrape.sample(match[1], labels, value, match[4])
    scrape.end()
    if bad:
        into.notes.append(f"{file.path.name}: {bad:,} lines are no samples, as where a file is cut off; passed over.")


class _Scrape:
    """The scrape that is being read."""

    def __init__(self, file: MetricsFile, into: Scrapes) -> None:
        self._file = file
        self._into = into
        self._time_ns: int | None = None
        self._seen: set[tuple[str, Labels]] = set()
        self._untimed: list[tuple[str, Labels, float]] = []
        self._has_timed = False

    def comment(self, line: str) -> None:
        if line.startswith("# HELP "):
            if "prefix_cache_" in line and "external" not in line:
                self._into.hits_unit = next((unit for unit in ("blocks", "tokens") if unit in line), None)
            return
        if line.startswith("# TYPE "):
            return
        if line.startswith("# EOF"):
            self.end()
            return
        if len(line) >= _LONGEST_TIME:
            return
        match = _SCRAPED.fullmatch(line)
        moment = None if match is None else parse_time_ns(match[1])
        if moment is not None:
            self.begin(moment)
        elif line.lower().startswith(("# scraped at", "#scraped at")):
            raise self._file.refuse(f"the time cannot be read in {shown(line)}; write it as date -Is does")

    def begin(self, moment_ns: int) -> None:
        self.end()
        self._time_ns = moment_ns

    def sample(self, name: str, labels: Labels, value: float, own_ms: str | None) -> None:
        key = (name, labels)
        own_ns = None if own_ms is None else int(own_ms) * 10**6
        if key in self._seen and own_ns is None:
            self.end()
        self._seen.add(key)
        if is_config(name):
            self._into.config.append(dict(labels))
            return
        bare = figure_name(name)
        if bare is None or not name.startswith(("vllm:", "vllm_")):
            return
        time_ns = self._time_ns if own_ns is None else own_ns
        if time_ns is not None and abs(time_ns) < _MAX_NS:
            self._into.add(bare, labels, time_ns, value)
            self._has_timed = True
        else:
            self._untimed.append((bare, labels, value))

    def end(self) -> None:
        """What had no time gets the number of its scrape for one."""
        if self._untimed:
            number = self._into.num_untimed
            self._into.num_untimed += 1
            for name, labels, value in self._untimed:
                self._into.add(name, labels, number * (self._into.interval_ns or 1), value)
        if self._has_timed:
            self._into.num_timed += 1
        self._time_ns, self._has_timed = None, False
        self._seen.clear()
        self._untimed.clear()


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def number_of(file: MetricsFile, place: str, name: str, text: object) -> float:
    """A value of a table; raises MeasuredError for what is no number."""
    value = _float(str(text))
    if value is None:
        raise file.refuse(f"{place}: {name} must be a number, got {shown(text)}")
    if LARGEST < abs(value) < inf:
        raise file.refuse(f"{place}: {name} must be at most 2^53, got {shown(text)}")
    return value
