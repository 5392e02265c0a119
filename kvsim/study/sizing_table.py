"""The static answers as a person reads them: both accountings side by side, and how they came about."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.model.accounting import Accounting, MixAnswers
from kvsim.model.budget import KVBudget
from kvsim.model.sizing import CLAIM, Sizing
from kvsim.units import format_bytes

_KIB = 2**10
_NOT_GIVEN = ": not given"

Figure = Callable[[Accounting], str]


def sizing_table(sizing: Sizing, budget: KVBudget) -> RenderableType:
    """The formulas with their numbers, the answers of both accountings, and every assumption."""
    accountings = [sizing.ideal] if sizing.engine is None else [sizing.ideal, sizing.engine]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for accounting in accountings:
        table.add_column(accounting.name, justify="right", no_wrap=True)
    for heading, rows in _sections(sizing):
        table.add_row(Text(heading, style="bold"))
        for name, figure in rows:
            table.add_row(f"  {name}", *(figure(accounting) for accounting in accountings))
    return Group(
        Text(f"{sizing.model}, {sizing.engine_name}, {ranks_counted(sizing)}", style="bold"),
        Padding(table, (1, 0)),
        *(Text(line) for line in formulas(sizing, budget)),
        *(Text(line, style="yellow") for line in remarks(sizing)),
        Text(CLAIM, style="dim italic"),
    )


def _sections(sizing: Sizing) -> list[tuple[str, list[tuple[str, Figure]]]]:
    sequences = f"{sizing.num_sequences:,} x {sizing.num_tokens:,} tokens"
    sections: list[tuple[str, list[tuple[str, Figure]]]] = [
        (
            "What a request costs",
            [
                ("bytes per token", lambda of: f"{of.bytes_per_token:,} B"),
                ("once windows are full", lambda of: f"{of.growth_bytes_per_token:,} B"),
                ("fixed bytes per request", lambda of: f"{of.fixed_bytes_per_request:,} B"),
                (
                    f"request of {sizing.max_model_len:,} tokens",
                    lambda of: format_bytes(of.bytes_per_request),
                ),
            ],
        ),
        (
            "What fits",
            [
                ("block", lambda of: f"{of.bytes_per_block:,} B"),
                ("tokens in a block", lambda of: " and ".join(f"{tokens:,}" for tokens in of.tokens_per_block)),
                ("blocks", lambda of: f"{of.num_blocks:,}"),
                ("capacity in tokens", lambda of: f"{of.capacity_tokens:,}"),
                ("max concurrency", lambda of: f"{of.max_concurrency:.2f}"),
                ("whole requests at their largest", lambda of: f"{of.whole_requests:,}"),
                ("longest length", lambda of: _length(of.longest_model_len)),
                ("fits", lambda of: "yes" if of.fits else f"misses {_exact(of.missing_bytes)}"),
            ],
        ),
        (
            sequences,
            [
                ("raw", lambda of: format_bytes(of.raw_bytes)),
                ("allocated", lambda of: format_bytes(of.allocated_bytes)),
                ("slack", lambda of: f"{format_bytes(of.slack_bytes)} ({of.slack_share:.2%})"),
                ("of it padding", lambda of: format_bytes(of.padding_bytes)),
                ("slots empty in a last block", lambda of: " and ".join(f"{slots:,}" for slots in of.tail_slots)),
                ("of all memory", lambda of: f"{of.used_share:,.2%}"),
                ("all fit, once computed", lambda of: "yes" if of.sequences_fit else "no"),
                ("held at most, during prefill", lambda of: format_bytes(of.peak_bytes)),
                ("most that fit during prefill", lambda of: f"{of.most_sequences:,}"),
                ("longest that fit during prefill", lambda of: _length(of.longest_of_sequences)),
                ("worst case at max_model_len", lambda of: format_bytes(of.provisioned_bytes)),
            ],
        ),
    ]
    if sizing.ideal.target_budget_bytes is not None:
        sections.append(
            (
                f"Budget for {sizing.target_concurrency:,} requests at once",
                [("of max_model_len", lambda of: _exact(of.target_budget_bytes))],
            )
        )
    if sizing.ideal.mix is not None:
        sections.append((f"Mix: {sizing.ideal.mix.origin}", _mix_rows(sizing.ideal.mix)))
    return sections


def _mix_rows(mix: MixAnswers) -> list[tuple[str, Figure]]:
    def of_mix(figure: Callable[[MixAnswers], str]) -> Figure:
        return lambda of: "" if of.mix is None else figure(of.mix)

    rows = [
        ("mean tokens", of_mix(lambda answers: f"{answers.mean_tokens:,.1f}")),
        ("mean bytes per request", of_mix(lambda answers: format_bytes(answers.mean_bytes_per_request))),
        ("requests at once", of_mix(lambda answers: f"{answers.concurrency:.2f}")),
        ("bytes of the sequences", of_mix(lambda answers: format_bytes(answers.mix_bytes))),
    ]
    if mix.target_budget_bytes is not None:
        rows.append(("budget for the target", of_mix(lambda answers: _exact(answers.target_budget_bytes))))
    return rows


def _length(num_tokens: int | None) -> str:
    return "any" if num_tokens is None else f"{num_tokens:,}"


def _exact(num_bytes: int | None) -> str:
    """To the byte, as rounded down it would be too small by a request, and as people say it."""
    if num_bytes is None:
        return ""
    return f"{num_bytes:,} B" + (f"\n{format_bytes(num_bytes)}" if num_bytes > _KIB else "")


def ranks_counted(sizing: Sizing) -> str:
    """Whose figures they are, where there are several ranks."""
    ranks = "1 rank" if sizing.num_ranks == 1 else f"the fullest of {sizing.num_ranks} ranks"
    replicas = "" if sizing.num_replicas == 1 else f", one of {sizing.num_replicas} replicas of attention"
    return ranks + replicas


def formulas(sizing: Sizing, budget: KVBudget) -> list[str]:
    """How the answers came about, a line each, with the numbers."""
    lines = [f"bytes per token = {sizing.formula}", f"budget = {budget.formula}"]
    if sizing.engine is not None:
        return lines + [f"{sizing.engine.name}: {formula}" for formula in sizing.engine.formulas]
    return [*lines, *sizing.ideal.formulas]


def remarks(sizing: Sizing) -> list[str]:
    """Every assumption, and why the engine's accounting is missing."""
    lines = [_assumed(assumption) for assumption in sizing.assumptions]
    if sizing.engine_refusal is not None:
        lines.append(f"{sizing.engine_name}: {sizing.engine_refusal}")
    return lines


def _assumed(assumption: str) -> str:
    """Such as "Assumed: 1 GiB of activations, none being given"; most say themselves why they were taken."""
    name, _, value = assumption.removesuffix(_NOT_GIVEN).partition(" ")
    return (
        f"Assumed: {value} of {name}, none being given" if assumption.endswith(_NOT_GIVEN) else f"Assumed: {assumption}"
    )
