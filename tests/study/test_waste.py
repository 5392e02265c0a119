"""What allocators waste: the figures of the literature on public traces, and a count step by step on small ones."""

import re
import sys
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import KvsimError, TraceError, TraceRowError
from kvsim.study.allocators import AllocatorSpec, parse_allocator, parse_allocators
from kvsim.study.trace_file import TraceFile
from kvsim.study.waste import MAX_TOTAL, PARTS, AllocatorWaste, Bounds, Waste, count_waste, exact_sum
from kvsim.workload.traces import READERS, Columns, Options
from tests.workload.traces import samples_of_runs, samples_of_sessions
from tests.workload.traces.samples import SAMPLES
from tests.workload.traces.test_readers import StubTokenizer, write

assert samples_of_runs, "which adds to SAMPLES when it is imported, as the next does"
assert samples_of_sessions

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RESERVING = "max:2048,pow2:2048,oracle"
WIDE = Bounds(min_prompt=1, max_prompt=10**9, min_output=1, max_total=MAX_TOTAL)


def waste_of(requests: list[tuple[int, int]], names: str, bounds: Bounds = WIDE) -> Waste:
    specs = parse_allocators(names)
    waste = Waste("columns", bounds, False, False, tuple(AllocatorWaste(spec) for spec in specs))
    prompts, outputs = (np.array([request[at] for request in requests], dtype=np.int64) for at in (0, 1))
    waste.add(prompts, outputs)
    return waste


def shares(waste: Waste, digits: int = 6) -> dict[str, tuple[str, str, str, str]]:
    """Live, reserved, unused and tail, as they are printed."""
    return {
        each.spec.name: tuple(f"{each.share(part):.{digits}f}" for part in PARTS)  # type: ignore[misc]
        for each in waste.allocators
    }


def paged(live: list[str]) -> dict[str, tuple[str, str, str, str]]:
    zero = "0.000000"
    return {
        f"paged:{size}": (share, zero, zero, f"{1 - float(share):.6f}")
        for size, share in zip(BLOCK_SIZES, live, strict=True)
    }


def of_file(path: Path) -> Waste:
    names = ",".join(f"paged:{size}" for size in BLOCK_SIZES)
    return count_waste(TraceFile.of(path), parse_allocators(f"{names},{RESERVING}"))


@pytest.fixture(scope="module")
def azure(shared: Path) -> Waste:
    return of_file(shared / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv")


@pytest.fixture(scope="module")
def sharegpt(shared: Path) -> Waste:
    return of_file(shared / "traces" / "sharegpt" / "sharegpt_v3_part_turn_lengths.csv.gz")


def test_the_shares_of_the_azure_conversation_trace(azure: Waste) -> None:
    assert shares(azure) == {
        **paged([
            "1.000000", "0.999323", "0.997971", "0.995278", "0.989941", "0.979483", "0.958987", "0.920549", "0.862376",
        ]),
        "max:2048": ("0.360174", "0.062624", "0.577203", "0.000000"),
        "pow2:2048": ("0.774016", "0.134579", "0.091405", "0.000000"),
        "oracle": ("0.851882", "0.148118", "0.000000", "0.000000"),
    }  # fmt: skip


def test_the_token_steps_of_the_azure_conversation_trace(azure: Waste) -> None:
    assert azure.live_token_steps == 1_143_606_666
    assert {each.spec.name: each.allocated for each in azure.allocators} == {
        "paged:1": 1_143_606_666,
        "paged:2": 1_144_381_734,
        "paged:4": 1_145_931_988,
        "paged:8": 1_149_032_040,
        "paged:16": 1_155_226_912,
        "paged:32": 1_167_561_600,
        "paged:64": 1_192_515_712,
        "paged:128": 1_242_308_736,
        "paged:256": 1_326_112_000,
        "max:2048": 3_175_153_664,
        "pow2:2048": 1_477_497_334,
        "oracle": 1_342_446_902,
    }


def test_who_is_left_out_of_the_azure_conversation_trace(azure: Waste) -> None:
    assert (azure.kept, azure.num_rows) == (9_832, 19_366)
    assert azure.left_out == {"min_prompt": 6, "max_prompt": 9_528, "min_output": 0, "max_total": 0}
    assert not azure.first_turns


def test_the_shares_of_the_sharegpt_part(sharegpt: Waste) -> None:
    """Of its first turns: a later prompt holds what was said before, which the file does not add up."""
    found = shares(sharegpt)
    live = {size: found[f"paged:{size}"][0] for size in (16, 32, 64, 128, 256)}
    assert live == {16: "0.979529", 32: "0.958647", 64: "0.919345", 128: "0.848447", 256: "0.729312"}
    assert {name: found[name] for name in RESERVING.split(",")} == {
        "max:2048": ("0.175172", "0.128748", "0.696080", "0.000000"),
        "pow2:2048": ("0.430544", "0.316440", "0.253016", "0.000000"),
        "oracle": ("0.576376", "0.423624", "0.000000", "0.000000"),
    }
    assert (sharegpt.kept, sharegpt.num_rows, sharegpt.first_turns) == (15_355, 61_239, True)
    assert sharegpt.live_token_steps == 1_973_384_767


def test_all_turns_of_the_sharegpt_part_are_counted_where_that_is_asked_for(shared: Path) -> None:
    file = TraceFile.of(shared / "traces" / "sharegpt" / "sharegpt_v3_part_turn_lengths.csv.gz")
    waste = count_waste(file, parse_allocators("paged:16"), first_turns=False)
    assert (waste.kept, waste.num_rows, waste.live_token_steps) == (56_176, 61_239, 5_700_483_495)
    assert waste.turns_lack_history


def test_shares_add_up_to_one(azure: Waste, sharegpt: Waste) -> None:
    for waste in (azure, sharegpt):
        for row in waste.to_json()["rows"]:
            assert sum(row[f"{part}_share"] for part in PARTS) == pytest.approx(1, abs=1e-15)
            assert sum(row[f"{part}_token_steps"] for part in PARTS) == row["allocated_token_steps"]


# One request of 3 prompt and 5 output tokens: it holds 4, 5, 6, 7, 8 slots, 30 token-steps.
@pytest.mark.parametrize(
    ("name", "reserved", "unused", "tail"),
    [
        ("paged:1", 0, 0, 0),
        ("paged:4", 0, 0, 6),  # 4, 8, 8, 8, 8
        ("paged:100", 0, 0, 470),
        ("max:10", 10, 10, 0),  # 10 slots five times, of which 8 are filled in the end
        ("pow2", 10, 15, 0),  # 3 + 8
        ("oracle", 10, 0, 0),
        ("predicted:0", 10, 0, 0),
        ("predicted:0.25", 10, 10, 0),  # 5 x 1.25 = 6.25, so 7
        ("predicted:0.2", 10, 5, 0),  # exactly 6
    ],
)
def test_a_request_by_hand(name: str, reserved: int, unused: int, tail: int) -> None:
    (each,) = waste_of([(3, 5)], name).allocators
    assert (each.live, each.reserved, each.unused, each.tail) == (30, reserved, unused, tail)


@pytest.mark.parametrize(
    ("output", "power"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1023, 1024), (1024, 1024), (1025, 2048),
                          (2**29, 2**29), (2**29 + 1, 2**30), (10**9, 2**30)]
)  # fmt: skip
def test_pow2_is_the_next_power_of_two(output: int, power: int) -> None:
    (each,) = waste_of([(7, output)], "pow2").allocators
    assert each.unused == (power - output) * output


def step_by_step(prompt: int, output: int, spec: AllocatorSpec, longest: int) -> dict[str, int]:
    """Slot by slot: whether it is written by now, will be, or never is."""
    found = dict.fromkeys(PARTS, 0)
    power = 1
    while power < output:
        power *= 2
    guess = 0
    while spec.kind == "predicted" and guess < output * (1 + Fraction(spec.argument or 0)):
        guess += 1
    for step in range(1, output + 1):
        held = prompt + step
        slots = {
            "paged": held + -held % (spec.argument if isinstance(spec.argument, int) else 1),
            "max": longest,
            "pow2": prompt + power,
            "oracle": prompt + output,
            "predicted": prompt + guess,
        }[spec.kind]
        for slot in range(slots):
            if slot < held:
                found["live"] += 1
            elif spec.kind == "paged":
                found["tail"] += 1
            else:
                found["reserved" if slot < prompt + output else "unused"] += 1
    return found


names = st.one_of(
    st.integers(1, 50).map(lambda size: f"paged:{size}"),
    st.integers(40, 60).map(lambda size: f"max:{size}"),
    st.sampled_from(["max", "pow2", "pow2:40", "oracle", "predicted:0.1", "predicted:0.333333", "predicted:2"]),
)


@given(requests=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=6), name=names)
def test_closed_forms_are_a_count_step_by_step(requests: list[tuple[int, int]], name: str) -> None:
    bounds = Bounds(min_prompt=1, max_prompt=20, min_output=1, max_total=45)
    (each,) = waste_of(requests, name, bounds).allocators
    longest = each.spec.argument if isinstance(each.spec.argument, int) else 45
    counted = [step_by_step(*request, each.spec, longest) for request in requests]
    assert {part: getattr(each, part) for part in PARTS} == {part: sum(one[part] for one in counted) for part in PARTS}


@given(
    requests=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20),
    bounds=st.builds(
        Bounds,
        min_prompt=st.integers(1, 3),
        max_prompt=st.integers(3, 8),
        min_output=st.integers(1, 4),
        max_total=st.integers(7, 16),
    ),
)
def test_bounds_are_included_and_the_first_that_is_broken_counts(
    requests: list[tuple[int, int]], bounds: Bounds
) -> None:
    waste = waste_of(requests, "oracle", bounds)
    broken = dict.fromkeys(("min_prompt", "max_prompt", "min_output", "max_total"), 0)
    kept = []
    for prompt, output in requests:
        if prompt < bounds.min_prompt:
            broken["min_prompt"] += 1
        elif prompt > bounds.max_prompt:
            broken["max_prompt"] += 1
        elif output < bounds.min_output:
            broken["min_output"] += 1
        elif prompt + output > bounds.max_total:
            broken["max_total"] += 1
        else:
            kept.append((prompt, output))
    assert waste.left_out == broken
    assert waste.kept == len(kept)
    assert waste.live_token_steps == sum(prompt + step for prompt, out in kept for step in range(1, out + 1))


def test_the_longest_requests_are_counted_exactly() -> None:
    """In numbers of which even a few do not add up within 64 bits."""
    n = 10**9
    waste = waste_of([(n, n)] * 7, "paged:1,paged:1000000000,paged:999999999,max,oracle,predicted:5")
    live = 7 * (n * n + n * (n + 1) // 2)
    assert waste.live_token_steps == live > 2**63
    allocated = {each.spec.name: each.allocated for each in waste.allocators}
    assert allocated == {
        "paged:1": live,
        "paged:1000000000": 7 * 2 * n * n,
        # Steps up to 2 x 999,999,999 tokens are in the second block, the last two in the third.
        "paged:999999999": 7 * (n - 1) * (2 * (n - 2) + 3 * 2),
        "max": 7 * 2 * n * n,
        "oracle": 7 * 2 * n * n,
        "predicted:5": 7 * 7 * n * n,
    }


def test_exact_sum_goes_beyond_64_bits() -> None:
    assert exact_sum(np.full(1000, 2**63 - 1)) == 1000 * (2**63 - 1)
    assert exact_sum(np.array([], dtype=np.int64)) == 0


@pytest.mark.parametrize("format", SAMPLES)
def test_every_format_is_counted(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=StubTokenizer))
    sample = SAMPLES[format]()
    file = TraceFile.of(write(tmp_path, sample, sample.text), format, sample.options)
    specs = [parse_allocator("paged:16")]
    if any(row.output_tokens is None for row in sample.rows):
        with pytest.raises(TraceError, match="has no outputs, so how long its requests live is not known"):
            count_waste(file, specs, WIDE)
        return
    waste = count_waste(file, specs, WIDE, first_turns=False)
    assert waste.kept == len(sample.rows)
    assert waste.live_token_steps == sum(
        row.prompt_tokens + step for row in sample.rows for step in range(1, (row.output_tokens or 0) + 1)
    )


def test_every_reader_has_a_sample() -> None:
    assert set(SAMPLES) == set(READERS)


def write_turns(folder: Path, *turns: tuple[str, int, int]) -> TraceFile:
    lines = ["conversation,turn,human_tokens,gpt_tokens", *(f"{who},0,{human},{gpt}" for who, human, gpt in turns)]
    (folder / "turns.csv").write_text("\n".join(lines))
    return TraceFile.of(folder / "turns.csv")


def test_of_each_session_the_first_turn_counts_wherever_it_stands(tmp_path: Path) -> None:
    file = write_turns(tmp_path, ("a", 10, 5), ("b", 3, 9), ("a", 20, 5), ("b", 30, 7), ("c", 40, 6))
    waste = count_waste(file, parse_allocators("oracle"))
    assert waste.left_out == {"later_turns": 2, "min_prompt": 1, "max_prompt": 0, "min_output": 0, "max_total": 0}
    assert (waste.kept, waste.num_rows, waste.first_turns, waste.turns_lack_history) == (2, 5, True, False)
    assert waste.live_token_steps == 10 * 5 + 15 + 40 * 6 + 21


def plain(folder: Path, text: str, *, skip_bad_rows: bool = False) -> TraceFile:
    (folder / "plain.csv").write_text(text)
    options = Options(columns=Columns(prompt="in", output="out"))
    return TraceFile.of(folder / "plain.csv", None, options, skip_bad_rows=skip_bad_rows)


def test_requests_without_tokens_are_left_out_and_no_error(tmp_path: Path) -> None:
    waste = count_waste(plain(tmp_path, "in,out\n0,5\n5,0\n5,5\n"), parse_allocators("oracle"))
    assert (waste.kept, waste.left_out["min_prompt"], waste.left_out["min_output"]) == (1, 1, 1)


def test_bad_rows_are_an_error_or_passed_over(tmp_path: Path) -> None:
    text = "in,out\n5,five\n5,5\n"
    with pytest.raises(TraceRowError, match=r"plain.csv:2: out must be a whole number"):
        count_waste(plain(tmp_path, text), parse_allocators("oracle"))
    file = plain(tmp_path, text, skip_bad_rows=True)
    assert count_waste(file, parse_allocators("oracle")).num_rows == 1
    assert file.reading.bad_rows == 1


def test_parts_add_up_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "in,out\n" + "".join(f"{4 + at % 50},{4 + at * 7 % 90}\n" for at in range(100))
    specs = parse_allocators("paged:16,max,pow2,oracle,predicted:0.3")
    file = plain(tmp_path, text)
    whole = count_waste(file, specs)
    told: list[tuple[int, int | None]] = []
    monkeypatch.setattr("kvsim.study.waste.ROWS_AT_ONCE", 30)
    assert count_waste(file, specs, on_progress=lambda done, of: told.append((done, of))) == whole
    assert told == [(30, None), (60, None), (90, None), (100, None)]
    assert count_waste(file, specs, limit=40).num_rows == 40


@pytest.mark.parametrize(("name", "longest"), [("max:12", 12), ("pow2:12", 12)])
def test_a_request_that_an_allocator_cannot_hold_is_refused(name: str, longest: int) -> None:
    assert waste_of([(6, 6)], name).kept == 1
    with pytest.raises(KvsimError) as refused:
        waste_of([(6, 6), (6, 7)], name)
    assert str(refused.value) == (
        f"{name} holds requests of at most 12 tokens, got one of 13; --max-total 12 leaves longer ones out"
    )


def test_pow2_is_not_cut_at_its_longest_length_and_says_how_often() -> None:
    bounds = Bounds(min_prompt=1, min_output=1, max_total=12)
    waste = waste_of([(6, 5), (2, 5), (6, 4)], "pow2:12,pow2,max:12,predicted:2", bounds)
    assert [each.beyond for each in waste.allocators] == [1, 0, 0, 0]
    assert waste.allocators[0].allocated == waste.allocators[1].allocated == 14 * 5 + 10 * 5 + 10 * 4


@pytest.mark.parametrize(
    ("text", "bounds", "message"),
    [
        ("in,out\n", Bounds(), "has no requests"),
        ("in,out\nx,5\n", Bounds(), "has no requests but bad ones"),
        (
            "in,out\n2,5\n5,2\n5,3\n",
            Bounds(),
            "none of its 3 requests is kept: 1 with fewer than 4 prompt tokens, 2 with fewer than 4 output tokens",
        ),
        (
            "in,out\n2000,5\n50,80\n",
            Bounds(max_total=100),
            "none of its 2 requests is kept: 1 with more than 1,024 prompt tokens, 1 with more than 100 tokens in all",
        ),
    ],
)
def test_nothing_to_count_is_refused(tmp_path: Path, text: str, bounds: Bounds, message: str) -> None:
    with pytest.raises(TraceError) as refused:
        count_waste(plain(tmp_path, text, skip_bad_rows=True), parse_allocators("oracle"), bounds)
    assert str(refused.value) == f"{tmp_path / 'plain.csv'}: {message}"


def test_what_a_trace_lacks_is_refused(tmp_path: Path) -> None:
    file = plain(tmp_path, "in,out\n5,5\n")
    with pytest.raises(TraceError, match="has no sessions: the format columns does not say which turn is the first"):
        count_waste(file, parse_allocators("oracle"), first_turns=True)
    without = TraceFile.of(tmp_path / "plain.csv", None, Options(columns=Columns(prompt="in")))
    with pytest.raises(TraceError, match="has no outputs, so how long its requests live is not known"):
        count_waste(without, parse_allocators("oracle"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_prompt": 0}, "min_prompt must be between 1 and 1,000,000,000, got 0"),
        ({"max_total": 2 * 10**9 + 1}, "max_total must be between 2 and 2,000,000,000, got 2000000001"),
        ({"min_prompt": 2000}, "max_prompt must be >= min_prompt = 2,000, got 1,024"),
        ({"max_total": 7}, "max_total must be >= min_prompt + min_output = 8, got 7"),
    ],
)
def test_bounds_that_keep_nothing_are_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Bounds(**values)
