"""Limits on figures: what may be typed, what breaks them, and what is said then."""

from fractions import Fraction

import pytest

from kvsim.engine.metrics import METRICS, SAMPLE_METRICS, Number
from kvsim.errors import KvsimError
from kvsim.study.gate import OPERATORS, Limit, broken_limits, parse_limits

GIB = 2**30


def limit(expression: str) -> Limit:
    (parsed,) = parse_limits([expression], has_samples=True)
    return parsed


def said(expression: str, value: Number) -> str | None:
    """What is said of a limit and a value of its figure; None where it holds."""
    parsed = limit(expression)
    sentences = broken_limits([parsed], {parsed.figure.name: value})
    return sentences[0] if sentences else None


def problem(*expressions: str, has_samples: bool = True) -> list[str]:
    with pytest.raises(KvsimError) as raised:
        parse_limits(expressions, has_samples=has_samples)
    return str(raised.value).splitlines()


@pytest.mark.parametrize(
    ("operator", "below", "equal", "above"),
    [
        ("<", True, False, False),
        ("<=", True, True, False),
        (">", False, False, True),
        (">=", False, True, True),
        ("==", False, True, False),
        ("!=", True, False, True),
    ],
)
def test_every_operator_on_either_side_of_its_bound(operator: str, below: bool, equal: bool, above: bool) -> None:
    assert list(OPERATORS) == ["<", "<=", ">", ">=", "==", "!="]
    refused = limit(f"refused {operator} 5")
    assert [refused.is_broken_by(value) for value in (4, 5, 6)] == [below, equal, above]


@pytest.mark.parametrize(
    ("expression", "bound"),
    [
        ("refused > 0", Fraction(0)),
        ("refused>1e3", Fraction(1000)),
        ("running_mean < 2.5", Fraction(5, 2)),
        ("running_mean < .5", Fraction(1, 2)),
        ("slack_share > 0.04", Fraction(1, 25)),
        (" slack_share  >= 4% ", Fraction(1, 25)),
        ("slack_share <= 4.5 %", Fraction(9, 200)),
        ("allocated_peak_bytes > 4 GiB", Fraction(4 * GIB)),
        ("allocated_peak_bytes > 4.5GB", Fraction(4_500_000_000)),
        ("allocated_mean_bytes > 1.5", Fraction(3, 2)),
        ("waited_p99_ns > 200 ms", Fraction(200_000_000)),
        ("blocked_ns != 12", Fraction(12)),
        ("sample_copies == 3", Fraction(3)),
    ],
)
def test_a_number_is_taken_exactly_with_the_units_of_its_figure(expression: str, bound: Fraction) -> None:
    assert limit(expression).bound == bound


def test_every_figure_of_a_summary_may_have_a_limit() -> None:
    for metric in (*METRICS, *SAMPLE_METRICS):
        assert limit(f"{metric.name} > 0").figure is metric


@pytest.mark.parametrize(
    ("expression", "value", "words"),
    [
        ("slack_share > 0.04", 0.0512, "slack_share > 0.04: slack_share is 0.0512 (5.12%), 1.12 points over the limit (28.0% of it)"),
        ("slack_share > 4%", 0.04, None),
        ("slack_share>4%", 0.0400001, "slack_share > 4%: slack_share is 0.0400001 (4.00%), 1e-05 points over the limit (0.00025% of it)"),
        ("refused > 0", 17, "refused > 0: refused is 17 requests, 17 requests over the limit"),
        ("refused > 0", 1, "refused > 0: refused is 1 request, 1 request over the limit"),
        ("refused > 0", 0, None),
        ("finished < 2000", 1990, "finished < 2000: finished is 1,990 requests, 10 requests under the limit (0.5% of it)"),
        ("finished <= 2000", 2000, "finished <= 2000: finished is 2,000 requests, the limit itself"),
        ("preemptions != 4", 3, "preemptions != 4: preemptions is 3 times, 1 time under the limit (25.0% of it)"),
        ("allocated_peak_bytes > 4 GiB", 4 * GIB + 1, "allocated_peak_bytes > 4 GiB: allocated_peak_bytes is 4,294,967,297 B (4.00 GiB), 1 B over the limit (2.3e-08% of it)"),
        ("waited_p99_ns > 200 ms", 350_000_000, "waited_p99_ns > 200 ms: waited_p99_ns is 350,000,000 ns (350 ms), 150 ms over the limit (75.0% of it)"),
        ("waited_p99_ns > 200", 350, "waited_p99_ns > 200 ns: waited_p99_ns is 350 ns (350 ns), 150 ns over the limit (75.0% of it)"),
        ("allocated_peak_bytes>4.", 5, "allocated_peak_bytes > 4. B: allocated_peak_bytes is 5 B (5 B), 1 B over the limit (25.0% of it)"),
        ("running_mean > 3", 3.51234, "running_mean > 3: running_mean is 3.51234 requests (3.51 requests), 0.51 requests over the limit (17.1% of it)"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_broken_limit(expression: str, value: Number, words: str | None) -> None:
    assert said(expression, value) == words


def test_whole_numbers_are_compared_exactly_and_shares_as_they_were_rounded() -> None:
    assert limit("allocated_peak_bytes > 9007199254740992").is_broken_by(2**53 + 1), "no float tells these apart"
    for parts in range(1, 200):
        assert not limit(f"slack_share > {100 * parts / 200}%").is_broken_by(parts / 200)
        assert limit(f"slack_share >= {100 * parts / 200}%").is_broken_by(parts / 200)


def test_a_figure_without_a_value_does_not_pass() -> None:
    words = "hit_share has no value in this run, as there is nothing to divide by"
    for expression in ("hit_share < 0.5", "hit_share > 0.5", "hit_share == 1"):
        assert said(expression, None) == f"{expression}: {words}"


def test_limits_are_named_in_the_order_in_which_they_were_typed() -> None:
    limits = parse_limits(["refused > 1", "preempted > 1", "refused > 0", "refused > 9"], has_samples=False)
    sentences = broken_limits(limits, {"refused": 5, "preempted": 1})
    assert [sentence.partition(":")[0] for sentence in sentences] == ["refused > 1", "refused > 0"]


def test_an_unknown_name_is_answered_with_the_known_ones_and_the_nearest_first() -> None:
    first, known = problem("slak_share > 0.04")
    near = "slack_share, tail_share, slack_share_at_peak"
    assert (
        first == f"--fail-if: no figure of a run is called 'slak_share' (did you mean {near}?), got 'slak_share > 0.04'"
    )
    names = known.removeprefix("  known: ").split(", ")
    assert names[:3] == near.split(", ")
    assert sorted(names) == sorted(metric.name for metric in (*METRICS, *SAMPLE_METRICS))
    first, known = problem("zzz > 1", has_samples=False)
    assert first == "--fail-if: no figure of a run is called 'zzz', got 'zzz > 1'"
    assert known == f"  known: {', '.join(metric.name for metric in METRICS)}", "in the order of the summary"


RULE = 'must be FIGURE OPERATOR NUMBER, such as "slack_share > 0.04"'
COUNT = "the limit of refused must be a number of requests, without a unit"
SHARE = "the limit of slack_share must be a share such as 0.04 or 4%"
BYTES = "the limit of pool_bytes must be a number of bytes, or a size such as '4 GiB', in B, kB, KB, MB, GB, TB, KiB, MiB, GiB, TiB"
TIME = "the limit of blocked_ns must be a number of nanoseconds, or a time such as '200 ms', in ns, us, ms, s, min, h"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", RULE),
        ("refused", RULE),
        ("refused 0", RULE),
        ("> 0", RULE),
        ("refused or preempted > 0", RULE),
        ("refused = 0", f"{RULE}, with one of < <= > >= == !="),
        ("refused => 0", f"{RULE}, with one of < <= > >= == !="),
        ("refused >", COUNT),
        ("refused > 4 GiB", COUNT),
        ("refused > preempted", COUNT),
        ("refused > ٣", COUNT),
        ("refused > 0; print(1)", COUNT),
        ("refused > 1 > 0", COUNT),
        ("refused > 1e999", COUNT),
        ("refused > nan", COUNT),
        ("refused > 4%", COUNT),
        ("slack_share > 4 GiB", SHARE),
        ("slack_share > 4", f"{SHARE}, from 0 to 1"),
        ("slack_share > 400%", f"{SHARE}, from 0 to 1"),
        ("slack_share < -1%", f"{SHARE}, from 0 to 1"),
        ("slack_share > 4%%", SHARE),
        ("pool_bytes > 4 Gib", BYTES),
        ("pool_bytes > much", BYTES),
        ("pool_bytes > 4 ms", BYTES),
        ("blocked_ns > 4 B", TIME),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_rule(expression: str, words: str) -> None:
    assert problem(expression) == [f"--fail-if: {words}, got {expression!r}"]


def test_a_long_expression_is_cut() -> None:
    (line,) = problem("refused > " + "9" * 5000)
    assert line.endswith("999...")
    assert len(line) < 250


def test_figures_of_several_outputs_need_several_outputs() -> None:
    assert problem("sample_copies > 4", has_samples=False) == [
        "--fail-if: sample_copies is a figure of several outputs from one prompt: it needs workload.samples or workload.beam_width, got 'sample_copies > 4'"
    ]


def test_all_problems_are_reported_at_once() -> None:
    lines = problem("refusd > 0", "refused", "preempted > 0", "waitd_p99_ns > 1")
    assert len(lines) == 4
    assert [line.rpartition(", got ")[2] for line in lines[:3]] == ["'refusd > 0'", "'refused'", "'waitd_p99_ns > 1'"]
    assert lines[3].startswith("  known: refused, refusals")
