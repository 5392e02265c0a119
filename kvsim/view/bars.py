"""Bars of a run: slack by its cause, the worst case beside what was observed, and what the prefix cache gave."""

from bokeh.models import NumeralTickFormatter, Range1d

from kvsim.engine.results import Results
from kvsim.study.colours import COLOURS
from kvsim.study.per_request import prefix_hits
from kvsim.units import byte_scale, format_bytes
from kvsim.view.chart import Chart, bars_figure, exact_bytes, legend_above

CAUSES = {
    "tail": "slots of partly filled blocks",
    "reserved": "kept for tokens still to come",
    "unused": "reserved and never used",
    "padding": "left by blocks of smaller groups of layers",
}

_CUT_ABOVE = 4
"""Times as large as all else is what is drawn cut, so that the rest can be seen."""

_OBSERVED = {
    "allocated_peak_bytes": "allocated at most",
    "allocated_mean_bytes": "allocated on average",
    "live_peak_bytes": "live at most",
    "logical_peak_bytes": "logical at most",
}


def slack_by_cause(results: Results) -> Chart:
    """On average over time and at most; causes that never came up are left out."""
    metrics, totals = results.metrics, results.totals
    title = "Slack by cause"
    causes = [cause for cause in CAUSES if metrics[f"{cause}_peak_bytes"]]
    if not causes or not totals.duration_ns:
        return Chart(title, None, ("Nothing that was allocated was slack.",))
    means = {cause: float(metrics[f"{cause}_mean_bytes"] or 0) for cause in causes}
    shares = {cause: float(metrics[f"{cause}_share"] or 0) for cause in causes}
    peaks = {cause: totals.peaks[f"{cause}_bytes"] for cause in causes}
    at_peak = totals.at_peak["allocated_bytes"]
    largest = max(causes, key=means.__getitem__)
    sentences = (
        f"{metrics['slack_share']:.2%} of what was allocated was slack, weighted by time; most of it was {largest}: "
        f"{CAUSES[largest]}.",
    )
    rows = tuple(
        (
            cause,
            CAUSES[cause],
            f"{shares[cause]:.2%}",
            exact_bytes(round(means[cause])),
            exact_bytes(peaks[cause]),
            f"{totals.at_peak[f'{cause}_bytes'] / at_peak:.2%}" if at_peak else "",
        )
        for cause in causes
    )
    columns = ("cause", "meaning", "share of allocated", "mean", "most", "share when most is allocated")
    labels = {cause: f"{cause}\n{shares[cause]:.2%}" for cause in causes}
    unit, size = byte_scale(max(peaks.values()))
    plot = bars_figure(list(labels.values()), f"slack on one device ({unit})", sentences[0])
    colours = [COLOURS[cause] for cause in causes]
    ys = list(labels.values())
    most = [peaks[cause] / size for cause in causes]
    mean = [means[cause] / size for cause in causes]
    plot.hbar(ys, right=most, height=0.7, color=colours, fill_alpha=0.3, line_width=1, legend_label="the most")
    plot.hbar(ys, right=mean, height=0.4, color=colours, line_color=None, legend_label="mean over time")
    plot.x_range = Range1d(start=0, end=1.05 * max(most))
    legend_above(plot)
    return Chart(title, plot, sentences, columns, rows)


def worst_case_beside_observed(results: Results) -> Chart:
    """What would be provisioned for the worst case, what there was, and what was used of it."""
    metrics = results.metrics
    pool, worst = results.shape.pool_bytes, results.worst_case_bytes
    values = {"worst case": worst, "pool": pool}
    values |= {name: round(metrics[metric] or 0) for metric, name in _OBSERVED.items()}
    others = max(value for name, value in values.items() if name != "worst case")
    is_cut = worst > _CUT_ABOVE * others
    end = 1.15 * others if is_cut else 1.03 * max(values.values())
    peak = values["allocated at most"]
    sentences = [
        f"The worst case, max_num_seqs x max_model_len, takes {exact_bytes(worst)}: {_times(worst, pool)} the pool."
    ]
    if peak:
        sentences.append(
            f"At most {exact_bytes(peak)} were allocated, {peak / pool:.2%} of the pool; the worst case is "
            f"{_times(worst, peak)} that."
        )
    if is_cut:
        sentences.append("Its bar is cut (hatched), so that the others can be seen.")
    unit, size = byte_scale(others)
    labels = [f"{name}\n{format_bytes(value)}" for name, value in values.items()]
    if is_cut:
        labels[0] += " (cut)"
    plot = bars_figure(labels, f"KV cache on one device ({unit})", " ".join(sentences))
    plot.x_range = Range1d(start=0, end=end / size)
    grey, blue = COLOURS["waiting"], COLOURS["live"]
    hatched = labels[0]
    plot.hbar(labels[1:2], right=[pool / size], height=0.6, color=grey)
    plot.hbar(labels[2:], right=[value / size for value in list(values.values())[2:]], height=0.6, color=blue)
    plot.hbar(
        [hatched],
        right=[min(worst, end) / size],
        height=0.6,
        fill_color=grey if not is_cut else None,
        line_color=grey,
        hatch_pattern="right_diagonal_line" if is_cut else None,
        hatch_color=grey,
    )
    rows = tuple((name, exact_bytes(value), f"{value / pool:.2%}") for name, value in values.items())
    return Chart("Worst case beside observed", plot, tuple(sentences), ("", "bytes", "of the pool"), rows)


def _times(value: int, of: int) -> str:
    """ "64.03 x" or "12.00% of"."""
    ratio = value / of
    return f"{ratio:.2%} of" if ratio < 1 else f"{ratio:,.2f} x"


def prefix_hits_bars(results: Results) -> Chart:
    """Tokens found in the prefix cache against those computed: prompts at first admission, and after preemptions."""
    title, found = "Prefix hits", prefix_hits(results)
    if not found.prompt_tokens:
        return Chart(title, None, ("No request was admitted.",))
    first, hit = "at first admission", found.hit_tokens
    parts = {first: (hit, found.missed_tokens)}
    sentences = [
        f"Of {found.prompt_tokens:,} prompt tokens, {hit:,} ({hit / found.prompt_tokens:.2%}) were found in the prefix "
        "cache at first admission."
    ]
    if found.resumed_hit_tokens or found.recomputed_tokens:
        parts["after preemptions"] = found.resumed_hit_tokens, found.recomputed_tokens
        sentences.append(
            f"After preemptions {found.resumed_hit_tokens:,} tokens were found there, and {found.recomputed_tokens:,} "
            "computed again."
        )
    shares = {name: hit / (hit + missed) for name, (hit, missed) in parts.items()}
    labels = [f"{name}\n{share:.2%} found" for name, share in shares.items()]
    plot = bars_figure(labels, "share of tokens", " ".join(sentences))
    plot.x_range = Range1d(start=0, end=1)
    plot.xaxis.formatter = NumeralTickFormatter(format="0%")
    found_share, grey = list(shares.values()), COLOURS["waiting"]
    plot.hbar(labels, right=found_share, height=0.6, color=COLOURS["live"], legend_label="found in the cache")
    plot.hbar(
        labels,
        left=found_share,
        right=1,
        height=0.6,
        fill_color=None,
        line_color=grey,
        hatch_pattern="right_diagonal_line",
        hatch_color=grey,
        legend_label="computed",
    )
    legend_above(plot)
    rows = tuple((name, f"{hit:,}", f"{missed:,}", f"{shares[name]:.2%}") for name, (hit, missed) in parts.items())
    return Chart(title, plot, tuple(sentences), ("", "tokens found", "tokens computed", "share found"), rows)
