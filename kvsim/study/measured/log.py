"""What vLLM's log says: the periodic lines of its LoggingStatLogger, and what it printed when it started.

Times are to the second, local, and mostly without a year: good for differences, which is all that is asked of them.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from attrs import Factory, define

from kvsim.study.measured.text import LARGEST, MetricsFile, parse_time_ns

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_OWN_TIME = re.compile(
    r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+((?:\d{4}-)?\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
)
_ANY_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)")
_PERIODIC = re.compile(
    r"(?:Engine (\d{1,6}): |(\d{1,6} Engines Aggregated): )?Avg prompt throughput: [\d.]+ tokens/s, (.*\bRunning: .*)"
)
_USAGE = re.compile(r"\b(\w{1,16}) KV cache usage: (\d+(?:\.\d+)?)%")
_COUNT = re.compile(r"(Running|Waiting|Pending|Preemptions): (\d+)")
_HIT_RATE = re.compile(r"(?<!External )Prefix cache hit rate: (\d+(?:\.\d+)?)%")
_CONFIG = re.compile(r"Initializing (?:a V[01]|an) LLM engine \(v?([^)\s]+)\) with config: (.*)")

_HALF_A_YEAR_NS = 183 * 86_400 * 10**9


class Said(NamedTuple):
    """A fact that lines of one form state, and how it is read from their match."""

    name: str
    pattern: re.Pattern[str]
    read: Callable[[str], int | float | str]


def _whole(text: str) -> int:
    return int(_bounded(int(text.replace(",", ""))))


def _part(text: str) -> float:
    return _bounded(float(text))


def _bounded(number: float) -> float:
    if number > LARGEST:
        raise ValueError("too large a number")
    return number


def _decimal(text: str) -> str:
    """As it was printed, for its digits count."""
    _part(text)
    return text.rstrip(".")


def _word(text: str) -> str:
    return text.strip("'\"")


SAID: tuple[Said, ...] = (
    Said("kv_cache_tokens", re.compile(r"\b\w{1,16} KV cache size: ([\d,]+) tokens"), _whole),
    Said("max_model_len", re.compile(r"Maximum concurrency for ([\d,]+) tokens per request"), _whole),
    Said("max_concurrency", re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"), _part),
    Said("num_blocks", re.compile(r"# \w+ blocks: ([\d,]+), # CPU blocks"), _whole),
    Said("num_blocks", re.compile(r"after num_gpu_blocks is: (\d+)"), _whole),
    Said("available_gib", re.compile(r"Available KV cache memory: ([\d.]+) GiB"), _decimal),
    Said("max_num_batched_tokens", re.compile(r"hunked prefill is enabled with max_num_batched_tokens=(\d+)"), _whole),
    Said("max_num_seqs", re.compile(r"non-default args: .*'max_num_seqs': (\d+)"), _whole),
    Said("block_size", re.compile(r"non-default args: .*'block_size': (\d+)"), _whole),
    Said("gpu_memory_utilization", re.compile(r"non-default args: .*'gpu_memory_utilization': ([\d.]+)"), _part),
    Said("engine_version", re.compile(r"vLLM API server version (\S+)"), _word),
)
"""Lines of vLLM V0 and V1, as its `kv_cache_utils.py`, `gpu_worker.py`, `scheduler.py` and `loggers.py` write them."""

_IN_CONFIG = {
    "model": "model",
    "model_revision": "revision",
    "model_dtype": "dtype",
    "max_model_len": "max_seq_len",
    "tensor_parallel": "tensor_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "cache_dtype": "kv_cache_dtype",
    "prefix_caching": "enable_prefix_caching",
}
"""Facts, and the names that the line which states the engine's config has for them."""


@define
class Logged:
    """Periodic lines by engine and figure, as times in ns and values; facts as they were stated, all of them."""

    interval_ns: int | None = None
    samples: dict[str, dict[str, tuple[list[int], list[float]]]] = Factory(dict)
    facts: dict[str, list[int | float | str]] = Factory(dict)
    notes: list[str] = Factory(list)
    num_lines: int = 0
    num_untimed: int = 0
    is_v0: bool = False
    written_ns: int = 0
    """When the first file was written, for lines do not say the year: one that has a 29 February or not."""
    has_newer_size_line: bool = False
    """Size and concurrency in one line, as vLLM prints them since it counts tokens by the concurrency."""
    _year: int | None = None
    _last_ns: int = 0

    def state(self, name: str, value: int | float | str) -> None:
        self.facts.setdefault(name, []).append(value)

    def time_ns(self, line: str) -> int | None:
        """The line's own time, by vLLM's prefix before any other; years are counted on where they are not said."""
        match = _OWN_TIME.search(line) or _ANY_TIME.search(line)
        if match is None:
            return None
        text = match[1].replace(",", ".").replace("T", " ")
        if text[4] == "-":
            return parse_time_ns(text)
        if self._year is None:
            self._year = _year_of(text, self.written_ns)
        time_ns = _in_year(self._year, text)
        if time_ns is not None and time_ns < self._last_ns - _HALF_A_YEAR_NS:
            self._year += 1
            time_ns = _in_year(self._year, text)
        self._last_ns = self._last_ns if time_ns is None else max(self._last_ns, time_ns)
        return time_ns


def _year_of(text: str, written_ns: int) -> int:
    """The last year in which a month and a day came before the file was written; a leap year for its own day."""
    written = datetime.fromtimestamp(written_ns // 10**9, tz=UTC)
    year = written.year - (text[:5] > f"{written.month:02}-{written.day:02}")
    return year - year % 4 if text[:5] == "02-29" else year


def _in_year(year: int, text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(f"{year}-{text[:14]}").replace(tzinfo=UTC)
    except ValueError:
        return None
    fraction = text[15:].ljust(9, "0")
    return int(moment.timestamp()) * 10**9 + int(fraction)


def is_log(head: str) -> bool:
    lines = [_COLOURS.sub("", line) for line in head.splitlines()]
    return any(
        _PERIODIC.search(line) or _CONFIG.search(line) or _OWN_TIME.search(line) or _states(line) for line in lines
    )


def _states(line: str) -> bool:
    return any(said.pattern.search(line) for said in SAID)


def read_log(file: MetricsFile, into: Logged) -> None:
    """Lines of any other kind are passed over; those of several files are read in their order."""
    into.written_ns = into.written_ns or file.written_ns
    bad = 0
    for raw in file.lines():
        line = _COLOURS.sub("", raw) if "\x1b" in raw else raw
        try:
            _read_line(line, into)
        except (ValueError, OverflowError):  # a number that is none, or has hundreds of digits
            bad += 1
            continue
        if "tokens, Maximum concurrency for" in line:
            into.has_newer_size_line = True
    if bad:
        into.notes.append(f"{file.path.name}: {bad:,} lines have numbers that cannot be read; passed over.")


def _read_line(line: str, into: Logged) -> None:
    periodic = _PERIODIC.search(line)
    if periodic is not None:
        _add_periodic(line, periodic, into)
        return
    config = _CONFIG.search(line)
    if config is not None:
        _add_config(config[1], config[2], into)
        return
    for said in SAID:
        match = said.pattern.search(line)
        if match is not None:
            into.state(said.name, said.read(match[1]))


def _add_periodic(line: str, match: re.Match[str], into: Logged) -> None:
    """Shares are printed to 0.1 %; preemptions are those since the line before, as they are kept here."""
    engine = match[2] or str(int(match[1] or 0))
    counts = {name: _whole(number) for name, number in _COUNT.findall(match[3])}
    usages = {name: _part(number) for name, number in _USAGE.findall(match[3])}
    time_ns = into.time_ns(line)
    if time_ns is None:
        time_ns = into.num_untimed * (into.interval_ns or 1)
        into.num_untimed += 1
    into.num_lines += 1
    said: dict[str, float] = {}
    if "Running" in counts:
        said["running"] = counts["Running"]
    if "Waiting" in counts or "Pending" in counts:
        said["waiting"] = counts.get("Waiting", counts.get("Pending", 0))
    into.is_v0 = into.is_v0 or "Pending" in counts
    if usages:
        # V0 names the host's cache beside that of the device; V1 one device, whatever it is.
        said["kv_usage"] = usages.get("GPU", next(iter(usages.values()))) / 100
    hit_rate = _HIT_RATE.search(match[3])
    if hit_rate is not None:
        said["recent_hit_share"] = _part(hit_rate[1]) / 100
    said["preemptions"] = counts.get("Preemptions", 0)
    for name, value in said.items():
        times, values = into.samples.setdefault(engine, {}).setdefault(name, ([], []))
        times.append(time_ns)
        values.append(value)


def _add_config(version: str, config: str, into: Logged) -> None:
    into.state("engine_version", version)
    for name, key in _IN_CONFIG.items():
        match = re.search(rf"(?:^|, ){key}=('[^']*'|\"[^\"]*\"|[^,]*)", config)
        if match is None:
            continue
        value = _word(match[1].strip())
        if value in ("None", ""):
            continue
        is_count = name in ("max_model_len", "tensor_parallel", "pipeline_parallel")
        if is_count and not value.isdecimal():
            continue
        into.state(name, _whole(value) if is_count else value)
