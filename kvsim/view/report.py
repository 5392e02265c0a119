"""One page that says and draws all of one run or several, in a file of its own that asks nobody for anything.

All figures are those of `Results`, all pictures those of the other modules here; the page is `templates/report.html`.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attrs import field, frozen
from bokeh.embed import components
from bokeh.models import Model
from bokeh.resources import Resources
from markupsafe import Markup

from kvsim.engine.results import CLAIM, Results
from kvsim.errors import OutputError
from kvsim.memory.block_map import BlockMap
from kvsim.study.answer import answer
from kvsim.study.assumptions import Assumption, assumptions
from kvsim.study.block_maps import read_block_maps
from kvsim.study.diff import differences
from kvsim.study.diff_effects import ORDER
from kvsim.study.files import FILES, read_results
from kvsim.study.formulas import Formula, formulas
from kvsim.study.results_table import Section, sections
from kvsim.study.scenario import named_overrides
from kvsim.view.bars import prefix_hits_bars, slack_by_cause, worst_case_beside_observed
from kvsim.view.block_chart import BlockChart, moments_in_words
from kvsim.view.chart import Chart
from kvsim.view.distributions import distributions, prefix_hits_of_each
from kvsim.view.over_time import SCRIPTS, OverTime
from kvsim.view.pages import TEMPLATES, static_text
from kvsim.view.run_rows import LANES, Lane, lanes_of

MOST_RUNS = 8
"""Of one report: more than can be looked at side by side belong into a sweep."""

_SCRIPTS = (*SCRIPTS, "report.js")
_STYLES = ("page.css", "report.css")

_CONTENT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""What a browser lets the page do: nothing that would ask anybody. Bokeh makes functions of the text of callbacks."""


@frozen(kw_only=True)
class ReportedRun:
    """A run as the folder `name` has it. `block_maps` is empty where the folder keeps none."""

    name: str
    results: Results
    block_maps: Sequence[BlockMap] = ()


def read_run(directory: Path, name: str | None = None) -> ReportedRun:
    """What `kvsim run` wrote to a folder; raises OutputError where it is not that."""
    results = read_results(directory)
    maps = directory / FILES["blocks"]
    return ReportedRun(
        name=str(directory) if name is None else name,
        results=results,
        block_maps=read_block_maps(maps) if os.path.lexists(maps) else (),
    )


def run_names(directories: Sequence[Path]) -> list[str]:
    """What to call the runs of these folders: as short as still tells them apart."""
    short = [directory.resolve().name for directory in directories]
    return short if len(set(short)) == len(short) else [str(directory) for directory in directories]


def write_report(runs: Sequence[ReportedRun], path: Path) -> None:
    """Raises OutputError for no runs or too many."""
    path.write_text(report_page(runs), encoding="utf-8")


def report_page(runs: Sequence[ReportedRun]) -> str:
    """The whole page. Raises OutputError for no runs or too many."""
    if not 1 <= len(runs) <= MOST_RUNS:
        raise OutputError(f"a report is of 1 to {MOST_RUNS} runs, got {len(runs)}: leave some out, or see kvsim sweep")
    shown = [_ShownRun.of(number, run) for number, run in enumerate(runs)]
    models = {name: model for run in shown for name, model in run.models.items()}
    script, divs = components(models, wrap_script=True)
    return TEMPLATES.get_template("report.html").render(
        runs=shown,
        lanes=_lanes(shown),
        saved=_saved_as(len(shown)),
        differences=[differences(runs[0].results, other.results) for other in runs[1:]],
        order_of_effects=ORDER,
        divs={name: Markup(div) for name, div in divs.items()},
        plot_script=Markup(script),
        bokeh_script=Markup(Resources(mode="inline", components=["bokeh", "bokeh-widgets"]).render_js()),
        styles=[Markup(static_text(name)) for name in _STYLES],
        scripts=[Markup(static_text(name)) for name in _SCRIPTS],
        content_policy=_CONTENT_POLICY,
        claim=CLAIM,
    )


def _lanes(shown: Sequence["_ShownRun"]) -> dict[Lane, str]:
    """What happened to requests in any of the runs for want of memory, and what that means."""
    happened = {lane for run in shown for lane in lanes_of(run.results.pressure)}
    return {lane: meaning for lane, meaning in LANES.items() if lane in happened}


class _Saved(NamedTuple):
    """Names for who runs it again."""

    file: str
    folder: str


def _saved_as(num_runs: int) -> list[_Saved]:
    if num_runs == 1:
        return [_Saved("scenario.toml", "out")]
    return [_Saved(f"scenario_{number}.toml", f"out_{number}") for number in range(1, num_runs + 1)]


@frozen(kw_only=True, eq=False)
class _ShownRun:
    """All that the page says of a run, ready to be placed. `models` have the names by which their places are known."""

    number: int
    name: str
    results: Results
    answer: str
    overrides: str
    charts: dict[str, list[Chart]]
    models: dict[str, Model] = field(repr=False)
    moments: Chart
    has_blocks: bool

    @classmethod
    def of(cls, number: int, run: ReportedRun) -> "_ShownRun":
        results = run.results
        charts = {
            "worst": [worst_case_beside_observed(results)],
            "slack": [slack_by_cause(results)],
            "requests": list(distributions(results)),
            "hits": [prefix_hits_bars(results), prefix_hits_of_each(results)],
        }
        over_time = OverTime(run.name)
        over_time.show(results.shape, results.timeline, results.pressure)
        models: dict[str, Model] = {f"{name}-{number}": model for name, model in over_time.figures.items()}
        if run.block_maps:
            blocks = BlockChart()
            blocks.show(run.block_maps)
            models |= {f"{name}-{number}": model for name, model in blocks.figures.items()}
        for part, drawn in charts.items():
            models |= {
                f"{part}-{place}-{number}": chart.figure
                for place, chart in enumerate(drawn)
                if chart.figure is not None
            }
        return cls(
            number=number,
            name=run.name,
            results=results,
            answer=answer(results),
            overrides=named_overrides(results.description["overrides"]),
            charts=charts,
            models=models,
            moments=moments_in_words(run.block_maps),
            has_blocks=bool(run.block_maps),
        )

    @property
    def description(self) -> dict[str, Any]:
        return self.results.description

    @property
    def sections(self) -> list[Section]:
        return sections(self.results)

    @property
    def assumptions(self) -> list[Assumption]:
        return assumptions(self.results)

    @property
    def formulas(self) -> list[Formula]:
        return formulas(self.results)

    @property
    def independent(self) -> list[str]:
        """Figures that do not depend on step times."""
        names: list[str] = self.results.summary["independent_of_step_times"]
        return names
