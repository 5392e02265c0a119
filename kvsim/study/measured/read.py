"""Files that a real server's metrics and logs are in, put together to one set of series and facts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from attrs import field, frozen

from kvsim.errors import MeasuredError
from kvsim.rules import shown
from kvsim.study.measured.log import Logged, is_log, read_log
from kvsim.study.measured.rows import is_api, is_csv, read_api, read_csv, read_parquet
from kvsim.study.measured.series import COUNTERS, Series
from kvsim.study.measured.text import LARGEST, NAMES, Labels, MetricsFile, Scrapes, is_exposition, read_exposition
from kvsim.workload.traces.parquet import is_parquet

Kind = Literal["prometheus", "api", "csv", "parquet", "log"]

SCRAPE_READERS: dict[str, Callable[[MetricsFile, Scrapes], None]] = {
    "prometheus": read_exposition,
    "api": read_api,
    "csv": read_csv,
    "parquet": read_parquet,
}
"""Formats of scrapes; the other one is a log."""

KINDS = (*SCRAPE_READERS, "log")

ABOUT = {
    "prometheus": "Prometheus text",
    "api": "Prometheus query_range",
    "csv": "CSV of a scrape",
    "parquet": "Parquet of a scrape",
    "log": "vLLM log",
}

_SUMMED = "finished_reason"
_NO_ANSWER = ("abort", "error")
"""Reasons with which vLLM counts a request that was not answered among request_success."""

_CONFIG_FACTS: dict[str, str] = {
    "block_size": "block_size",
    "num_gpu_blocks": "num_blocks",
    "cache_dtype": "cache_dtype",
    "enable_prefix_caching": "prefix_caching",
    "kv_cache_size_tokens": "kv_cache_tokens",
    "kv_cache_max_concurrency": "max_concurrency",
    "gpu_memory_utilization": "gpu_memory_utilization",
}
"""Labels of vllm:cache_config_info, and the fact that each is."""

_SMALLEST = ("kv_cache_tokens", "max_concurrency", "num_blocks", "available_gib")
"""Said by every rank: the one that has least bounds all."""

_FRACTIONS = ("max_concurrency", "gpu_memory_utilization")
_NUMBERS = ("block_size", "num_blocks", "kv_cache_tokens", *_FRACTIONS)


class Fact(NamedTuple):
    """What a server is known by, and where it is said."""

    value: int | float | str
    source: str


@frozen(eq=False, kw_only=True)
class Measured:
    """What a server measured. Times of `series` are ns of its own clock; counters may begin anew.

    `single` is whether all is from one moment. With `ratio_only` the counters of the prefix cache count blocks, or it
    is not known what. `newer_sizes` is whether its size in tokens was counted as vLLM does since 0.20.
    """

    series: Mapping[str, Series]
    facts: Mapping[str, Fact]
    files: tuple[Mapping[str, str | int], ...]
    source: str
    notes: tuple[str, ...] = field(default=())
    ratio_only: bool = False
    newer_sizes: bool = False

    @property
    def num_moments(self) -> int:
        return len(np.unique(np.concatenate([each.times for each in self.series.values()]))) if self.series else 0


def read_measured(
    paths: Sequence[Path],
    *,
    kind: str | None = None,
    labels: Mapping[str, str] | None = None,
    scrape_interval_ns: int | None = None,
    facts: Mapping[str, str] | None = None,
) -> Measured:
    """All files together; raises MeasuredError where one cannot be read, or what it says can be taken in two ways.

    Series come from scrapes if there are any, else from a log, whose lines are rounded; facts from both. `labels` says
    which of several engines, and `facts` what no file does.
    """
    scrapes, logged = Scrapes(interval_ns=scrape_interval_ns), Logged(interval_ns=scrape_interval_ns)
    records: list[Mapping[str, str | int]] = []
    notes: list[str] = []
    for path in paths:
        file = MetricsFile(path)
        found = kind or _recognise(file)
        if found not in KINDS:
            raise MeasuredError(f"--format must be one of {', '.join(KINDS)}, got {shown(found)}")
        if found == "log":
            read_log(file, logged)
        else:
            SCRAPE_READERS[found](file, scrapes)
        records.append({**file.record(), "kind": ABOUT[found]})
        notes += file.notes
    _need_times(scrapes, logged)
    if scrapes.num_untimed > 1:
        notes.append(
            f"{scrapes.num_untimed:,} scrapes without a time were taken to be --scrape-interval apart: one that is "
            "missing, as of a failed request, moves all that follow."
        )
    chosen = dict(labels or {})
    series, ratio_only = _scraped(scrapes, chosen, notes)
    said = _facts(scrapes, logged, chosen, notes)
    source = "scrapes"
    if series and logged.num_lines:
        notes.append("The periodic lines of the log are not compared: the scrapes say the same without rounding.")
    elif logged.num_lines:
        series, source = _from_log(logged, chosen, notes), "log"
    if not series and not said:
        names = ", ".join(str(path) for path in paths)
        raise MeasuredError(f"{names}: nothing of vLLM's is in it, neither a series that is compared nor a size")
    said |= {name: Fact(value, "--fact") for name, value in (facts or {}).items()}
    return Measured(
        series=series,
        facts=said,
        files=tuple(records),
        source=source,
        notes=(*notes, *scrapes.notes, *logged.notes),
        ratio_only=ratio_only,
        newer_sizes=logged.has_newer_size_line or any("kv_cache_size_tokens" in info for info in scrapes.config),
    )


def _recognise(file: MetricsFile) -> str:
    if is_parquet(file.path):
        return "parquet"
    head = file.head()
    if is_api(head):
        return "api"
    if is_exposition(head):
        return "prometheus"
    if is_log(head):
        return "log"
    if is_csv(head):
        return "csv"
    what = "is empty" if not head.strip() else f"is not recognised: it begins {shown(head[:60].rstrip())}"
    raise file.refuse(f"{what}; --format says what it is: {', '.join(KINDS)}")


def _need_times(scrapes: Scrapes, logged: Logged) -> None:
    if scrapes.num_untimed and scrapes.num_timed:
        raise MeasuredError("some scrapes say when they were made and some do not: they cannot be put in order")
    for untimed, what, timed in (
        (scrapes.num_untimed, "scrapes", False),
        (logged.num_untimed, "periodic lines", logged.num_untimed < logged.num_lines),
    ):
        interval_ns = scrapes.interval_ns
        if timed and untimed:
            raise MeasuredError(f"some {what} say when they were made and some do not: they cannot be put in order")
        if untimed > 1 and interval_ns is None:
            raise MeasuredError(
                f"{untimed:,} {what} do not say when they were made: give --scrape-interval, such as '5 s', or write "
                "a comment like '# scraped at 2026-11-29T12:34:56Z' before each"
            )


def _scraped(scrapes: Scrapes, chosen: Mapping[str, str], notes: list[str]) -> tuple[dict[str, Series], bool]:
    """A series a figure; of two names for the same, the first of NAMES that is there."""
    by_name: dict[str, list[tuple[Labels, tuple[list[int], list[float]]]]] = {}
    for (name, labels), sampled in scrapes.samples.items():
        if not _is_chosen(dict(labels), chosen):
            continue
        by_name.setdefault(name, []).append((labels, sampled))
    if scrapes.samples and not by_name:
        wanted = ", ".join(f"{name}={value}" for name, value in chosen.items())
        raise MeasuredError(f"no series has the label {wanted}; there are {_varying(_all_labels(scrapes))}")
    series: dict[str, Series] = {}
    taken: dict[str, str] = {}
    for name, figure in NAMES.items():
        if name not in by_name or figure in series:
            continue
        _need_one(name, [labels for labels, _sampled in by_name[name]])
        made = _joined(by_name[name], figure, scrapes, notes)
        if made is not None:
            series[figure], taken[figure] = made, name
    _need_shares(series)
    ratio_only = taken.get("hit_tokens", "").startswith("gpu_") and scrapes.hits_unit != "tokens"
    return series, ratio_only or scrapes.hits_unit == "blocks"


def _is_chosen(labels: Mapping[str, str], chosen: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in chosen.items())


def _need_one(name: str, found: list[Labels]) -> None:
    """Raises MeasuredError unless all are of one engine of one server."""
    kinds = {tuple(pair for pair in labels if pair[0] != _SUMMED) for labels in found}
    if len(kinds) > 1:
        raise MeasuredError(
            f"vllm:{name} has {len(kinds):,} series, with {_varying(kinds)}: kvsim simulates one engine, say which "
            "with --label NAME=VALUE"
        )


def _all_labels(scrapes: Scrapes) -> set[Labels]:
    return {tuple(pair for pair in labels if pair[0] != _SUMMED) for _name, labels in scrapes.samples}


def _varying(kinds: Iterable[Labels]) -> str:
    """The labels by which series differ, with their values; all labels where they do not."""
    values: dict[str, set[str]] = {}
    count = 0
    for labels in kinds:
        count += 1
        for name, value in labels:
            values.setdefault(name, set()).add(value)
    differing = {name: some for name, some in values.items() if len(some) > 1} or values
    told = [f"{name} {' or '.join(sorted(map(shown, some))[:5])}" for name, some in sorted(differing.items())]
    return "; ".join(told) or f"{count} without labels"


def _joined(
    parts: list[tuple[Labels, tuple[list[int], list[float]]]], figure: str, scrapes: Scrapes, notes: list[str]
) -> Series | None:
    """One series, of requests that were answered over all reasons; None where no value is a number."""
    if scrapes.has_tables:
        for _labels, (times, values) in parts:
            _need_one_value(figure, times, values)
    if figure == "finished":
        parts = [part for part in parts if dict(part[0]).get(_SUMMED) not in _NO_ANSWER]
    several = [Series.of(times, values) for _labels, (times, values) in parts]
    several = [each for each in several if len(each.times)]
    _note_odd(parts, several, figure, notes)
    if not several:
        return None
    if len(several) == 1:
        return several[0]
    # Each for itself past restarts, as one that is missing for a while after it would count as begun anew otherwise.
    several = [Series(each.times, each.values[0] + each.grown().values) for each in several]
    moments = np.unique(np.concatenate([each.times for each in several]))
    total = np.zeros(len(moments))
    for each in several:
        held = np.searchsorted(each.times, moments, side="right")
        total += np.concatenate([[0.0], each.values])[held]
    return Series(moments, total)


def _need_one_value(figure: str, times: list[int], values: list[float]) -> None:
    """Raises MeasuredError where a table has two values of one moment, as of two series that are not told apart."""
    said: dict[int, float] = {}
    for time_ns, value in zip(times, values, strict=True):
        if said.setdefault(time_ns, value) != value and value == value:
            raise MeasuredError(
                f"{figure} is both {said[time_ns]:g} and {value:g} at one moment: are these several series that no "
                "column tells apart?"
            )


def _note_odd(
    parts: list[tuple[Labels, tuple[list[int], list[float]]]], kept: list[Series], figure: str, notes: list[str]
) -> None:
    given = sum(len(times) for _labels, (times, _values) in parts)
    finite = sum(int(np.isfinite(np.array(values, dtype=np.float64)).sum()) for _labels, (_times, values) in parts)
    left = sum(len(each.times) for each in kept)
    if given > finite:
        notes.append(f"{figure}: {given - finite:,} values are not numbers (NaN) and were left out.")
    if finite > left:
        notes.append(f"{figure}: {finite - left:,} values have the moment of another; the one written last counts.")
    if any((np.diff(np.array(times, dtype=np.int64)) < 0).any() for _labels, (times, _values) in parts):
        said = "Times are not in order in some series, and were sorted."
        notes += [] if said in notes else [said]


def _need_shares(series: Mapping[str, Series]) -> None:
    usage = series.get("kv_usage")
    if usage is not None and not (good := (usage.values >= 0) & (usage.values <= 1 + 1e-9)).all():
        worst = float(usage.values[~good][0])
        hint = ": per cent?" if worst > 1 else ""
        raise MeasuredError(
            f"kv_cache_usage_perc must be a share between 0 and 1, as vLLM exports it, got {worst:,.6g}{hint}"
        )
    for name in ("running", "waiting", *(figure.name for figure in COUNTERS)):
        if name in series and (series[name].values < 0).any():
            raise MeasuredError(f"{name} must be a count of 0 or more, got {float(series[name].values.min()):,.6g}")


def _from_log(logged: Logged, chosen: Mapping[str, str], notes: list[str]) -> dict[str, Series]:
    engines = {engine: some for engine, some in logged.samples.items() if chosen.get("engine", engine) == engine}
    if len(engines) != 1:
        names = " and ".join(sorted(logged.samples))
        raise MeasuredError(f"the log has lines of engine {names}: say which with --label engine=NUMBER")
    (engine, samples), *_ = engines.items()
    if engine.endswith("Aggregated"):
        notes.append(f"{engine}: running and waiting are sums over them and KV usage a mean; kvsim simulates one.")
    if logged.is_v0:
        notes.append("vLLM V0 counts swapped requests apart from those that wait; they are left out.")
    times, since = samples["preemptions"]
    order = np.argsort(times, kind="stable")
    counted = Series.of([times[at] for at in order], np.cumsum(np.array(since)[order]).tolist())
    series = {name: Series.of(*sampled) for name, sampled in samples.items()} | {"preemptions": counted}
    if not series["preemptions"].values.any():
        del series["preemptions"]
        notes.append("The log names no preemptions, which does not say that there were none (vLLM 0.32 never does).")
    notes.append("The log rounds shares to 0.1 % and times to the second, and is silent while the engine idles.")
    return series


def _facts(scrapes: Scrapes, logged: Logged, chosen: Mapping[str, str], notes: list[str]) -> dict[str, Fact]:
    """Of the log, and of vllm:cache_config_info, which says block sizes and numbers after start-up."""
    found: dict[str, Fact] = {}
    for name, values in logged.facts.items():
        different = list(dict.fromkeys(values))
        value = min(different, key=lambda each: float(each)) if name in _SMALLEST else different[-1]
        if len(different) > 1:
            which = "the smallest" if name in _SMALLEST else "the last"
            notes.append(f"The log says {name} {', '.join(map(str, different[:4]))}: {which} counts.")
        found[name] = Fact(value, "log")
    engine = {name: value for name, value in chosen.items() if name == "engine"}
    for info in scrapes.config:
        if not _is_chosen(info, engine if "engine" in info else {}):
            continue
        for label, name in _CONFIG_FACTS.items():
            stated = _config_value(name, info.get(label))
            if stated is not None:
                found[name] = Fact(stated, "vllm:cache_config_info")
    names = {dict(labels).get("model_name") for _name, labels in scrapes.samples if _is_chosen(dict(labels), chosen)}
    if "model" not in found and len(names) == 1 and (served := names.pop()) is not None:
        found["model"] = Fact(served, "label model_name")
    if logged.num_lines or scrapes.samples or logged.facts:
        found["engine"] = Fact("vLLM", "its log" if logged.facts or logged.num_lines else "names of series")
    return found


def _config_value(name: str, text: Any) -> int | float | str | None:
    if text in (None, "None", ""):
        return None
    if name not in _NUMBERS:
        return str(text)
    try:
        number = float(text)
    except ValueError:
        return None
    if not 0 <= number <= LARGEST:
        return None
    return number if name in _FRACTIONS or number != int(number) else int(number)
