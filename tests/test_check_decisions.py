"""The judge is judged: a record with one number changed must not match."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.check_decisions import END_FIELDS, SCALE_FIELDS, STEP_FIELDS, main
from tests.oracle import Oracle
from tests.replay import Case, read_case
from tests.replay_clocked import NAMES_BLOCKS, is_in_scope

GOLDEN = Path(__file__).parent / "golden" / "vllm_scheduler"

Alteration = Callable[[Case], None]


SEVERAL_GROUPS = {
    "name": "several_groups",
    "config": {
        "block_size": 2,
        "num_gpu_blocks": 30,
        "max_num_seqs": 4,
        "max_num_active_seqs": None,
        "max_num_batched_tokens": 8,
        "max_model_len": 24,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,
        "watermark": 0.0,
        "policy": "fcfs",
        "enable_prefix_caching": True,
        "groups": [
            {"type": "full"},
            {"type": "sliding_window", "window": 3},
            {"type": "sliding_window", "window": 5},
        ],
        "prefix_cache_retention_interval": 0,
    },
    "requests": [
        {"id": 0, "arrival_step": 0, "prompt_runs": [[100, 6], [1000, 1]], "output_len": 3, "output_base": 5000},
        {"id": 1, "arrival_step": 0, "prompt_runs": [[100, 6], [2000, 1]], "output_len": 5, "output_base": 10000},
        {"id": 2, "arrival_step": 1, "prompt_runs": [[100, 6], [3000, 2]], "output_len": 8, "output_base": 15000},
        {
            "id": 3,
            "arrival_step": 1,
            "prompt_runs": [[100, 6], [4000, 6]],
            "output_len": 5,
            "output_base": 20000,
            "abort_step": 5,
        },
        {"id": 4, "arrival_step": 1, "prompt_runs": [[100, 24]], "output_len": 2, "output_base": 9000},
    ],
}
"""A workload in whose log every field occurs; the recorded cases with several groups have no preemptions or aborts."""


def named_case(name: str) -> Case:
    """A recorded case, or the log that the naive judge writes of the workload with several groups."""
    if name == "several_groups":
        return {**SEVERAL_GROUPS, **Oracle(SEVERAL_GROUPS).run(max_steps=100)}
    return read_case(GOLDEN / f"{name}.json")


def plus_one(value: Any) -> Any:
    """The same value with its first number one larger."""
    if isinstance(value, list):
        return [plus_one(value[0]), *value[1:]]
    return value + 1


def in_last_step_that_has(field: str) -> Alteration:
    def alter(case: Case) -> None:
        step = [step for step in case["steps"] if step.get(field)][-1]
        step[field] = plus_one(step[field])

    return alter


def in_first_step_that_has(field: str) -> Alteration:
    def alter(case: Case) -> None:
        step = next(step for step in case["steps"] if step.get(field))
        step[field] = plus_one(step[field])

    return alter


def with_tables(case: Case) -> None:
    """Whole tables instead of what was appended to them, as cases with windows have it."""
    tables: dict[int, list[int]] = {}
    for step in case["steps"]:
        for id, _hit in step.get("new", []) + step.get("resumed", []):
            tables[id] = []
        for id, blocks in step.pop("alloc", []):
            tables[id] = tables[id] + blocks
        step["tables"] = [tables[id] for id in step["running"]]


def in_a_table(case: Case) -> None:
    with_tables(case)
    in_last_step_that_has("tables")(case)


def in_table_of_last_group(case: Case) -> None:
    step = next(step for step in reversed(case["steps"]) if step.get("tables"))
    step["tables"][-1][-1][-1] += 1


def in_outcome(field: str) -> Alteration:
    def alter(case: Case) -> None:
        row = next(row for row in case["outcome"] if type(row[field]) is int)
        row[field] += 1

    return alter


def turn(field: str, value: object) -> Alteration:
    def alter(case: Case) -> None:
        case[field] = value

    return alter


def no_reason(case: Case) -> None:
    case["outcome"][0]["reason"] = None


def in_queue_end(case: Case) -> None:
    case["final_free_queue"][-1] += 1


def one_step_less(case: Case) -> None:
    del case["steps"][-1]


# One case each that has the field. Numbers are altered at both ends of the log: the comparison neither starts late
# nor ends early.
ALTERATIONS: list[tuple[str, str, Alteration]] = [
    *(
        ("aborts" if field == "aborted" else "preempt_heavy_cache", field, alter(field))
        for field in STEP_FIELDS
        if field != "tables"
        for alter in (in_first_step_that_has, in_last_step_that_has)
    ),
    ("aborts", "tables", in_a_table),
    *(("hybrid_full_sw", field, in_last_step_that_has(field)) for field in ("tables", "nblocks")),
    ("sliding_window_cache", "tables", in_first_step_that_has("tables")),
    ("chunked_local", "tables", in_last_step_that_has("tables")),
    *(
        ("several_groups", field, alter(field))
        for field in STEP_FIELDS
        if field != "alloc"  # whole tables stand instead of it
        for alter in (in_first_step_that_has, in_last_step_that_has)
    ),
    *(
        ("hybrid_full_sw_cache", field, alter(field))
        for field in ("step", "sched", "new", "running", "free", "nblocks", "tables", "keys", "finished", "free_end")
        for alter in (in_first_step_that_has, in_last_step_that_has)
    ),
    *(
        (name, "tables", in_table_of_last_group)
        for name in ("several_groups", "hybrid_full_sw", "hybrid_full_sw_cache", "hybrid_full_sw_cache_dense")
    ),
    *(
        ("several_groups", "outcome", in_outcome(field))
        for field in ("id", "cached", "first_token_step", "finish_step", "preemptions", "output_len")
    ),
    ("several_groups", "stalled", turn("stalled", True)),
    ("several_groups", "truncated", turn("truncated", True)),
    ("several_groups", "rejected_by_front_end", turn("rejected_by_front_end", [])),
    ("several_groups", "final_free_queue", in_queue_end),
    *(
        ("preempt_heavy_cache", "outcome", in_outcome(field))
        for field in ("id", "cached", "first_token_step", "finish_step", "preemptions", "output_len")
    ),
    ("aborts", "outcome", no_reason),
    ("never_fits_prompt", "stalled", turn("stalled", False)),
    ("aborts", "stalled", turn("stalled", True)),
    ("never_fits_prompt_gate_off", "truncated", turn("truncated", False)),
    ("aborts", "truncated", turn("truncated", True)),
    ("max_model_len_stop", "rejected_by_front_end", turn("rejected_by_front_end", [3])),
    ("max_model_len_stop", "rejected_by_front_end", turn("rejected_by_front_end", [])),
    ("aborts", "final_free_queue", in_queue_end),
]


def write_case(folder: Path, case: Case) -> None:
    (folder / "case.json").write_text(json.dumps(case))


IN_CHAINS = "in chains of blocks"


def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """What is said of the form that goes block by block."""
    code = main([str(folder)])
    lines = capsys.readouterr().out.splitlines(keepends=True)
    return code, "".join(line for line in lines if IN_CHAINS not in line)


def test_every_field_is_altered_by_some_test() -> None:
    assert {field for _case, field, _alter in ALTERATIONS} == {*STEP_FIELDS, *END_FIELDS}


def test_every_field_is_altered_with_windows_and_several_groups() -> None:
    altered = {field for case, field, _alter in ALTERATIONS if case == "several_groups"}
    assert altered == {*STEP_FIELDS, *END_FIELDS} - {"alloc"}
    # Blocks have gone out of both windows, and a hit was found.
    steps = named_case("several_groups")["steps"]
    for number in (1, 2):
        assert any(0 in tables[number] for step in steps for tables in step["tables"])
    assert any(hit for step in steps for _id, hit in step["new"])


@pytest.mark.parametrize("case", sorted({case for case, _field, _alter in ALTERATIONS}))
def test_an_unaltered_copy_matches(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_case(tmp_path, named_case(case))
    assert check(tmp_path, capsys) == (0, "1 of 1 match\n")


def test_whole_tables_match_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = read_case(GOLDEN / "preempt_heavy_cache.json")
    with_tables(case)
    write_case(tmp_path, case)
    assert check(tmp_path, capsys) == (0, "1 of 1 match\n")


@pytest.mark.parametrize(("name", "field", "alter"), ALTERATIONS)
def test_one_altered_number_is_found_in_its_field(
    name: str, field: str, alter: Alteration, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = named_case(name)
    alter(case)
    write_case(tmp_path, case)
    code, out = check(tmp_path, capsys)
    found, count = out.splitlines()
    where, _comma, what = found.removeprefix(f"{name}: ").partition(", ")
    assert (code, count) == (1, "0 of 1 match")
    assert where == ("end" if field in END_FIELDS else where)
    assert what.startswith((f"{field}:", f"{field}["))


TOLD_IN_CHAINS = [
    (name, field, alter)
    for name, field, alter in ALTERATIONS
    if is_in_scope(named_case(name)) and field not in (*NAMES_BLOCKS, "keys")
]


@pytest.mark.parametrize("step", [(), ("--step",)], ids=["windows", "steps"])
@pytest.mark.parametrize(("name", "field", "alter"), TOLD_IN_CHAINS)
def test_one_altered_number_is_found_in_chains_too(
    name: str, field: str, alter: Alteration, step: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = named_case(name)
    alter(case)
    write_case(tmp_path, case)
    code = main([str(tmp_path), *step])
    found, count = [line for line in capsys.readouterr().out.splitlines() if IN_CHAINS in line]
    assert (code, count.startswith("0 of 1 match")) == (1, True)
    assert f", {field}:" in found or f", {field}[" in found


@pytest.mark.parametrize("name", ["aborts", "never_fits_prompt"])
def test_a_log_that_ends_early_is_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = read_case(GOLDEN / f"{name}.json")
    one_step_less(case)
    write_case(tmp_path, case)
    code, out = check(tmp_path, capsys)
    assert code == 1
    assert out.endswith("0 of 1 match\n")


def test_a_step_too_many_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = read_case(GOLDEN / "aborts.json")
    case["steps"].append({**case["steps"][-1], "step": case["steps"][-1]["step"] + 1})
    write_case(tmp_path, case)
    code, out = check(tmp_path, capsys)
    assert code == 1
    assert "end, number of steps: expected 14, got 13" in out


SCALE_TOTALS = (
    "steps",
    "scheduled_tokens",
    "preemptions",
    "hit_tokens_new",
    "hit_tokens_resumed",
    "least_free_blocks",
)


@pytest.mark.parametrize("field", [*SCALE_TOTALS, "digests"])
def test_an_altered_total_or_digest_of_a_long_run_is_found(
    field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = read_case(GOLDEN / "scale" / "scale_shared_heads.json.gz")
    assert set(SCALE_FIELDS) < set(case)
    assert set(SCALE_TOTALS) == set(case["totals"])
    if field == "digests":
        case["digests"][-1][1] = case["digests"][-1][1][::-1]
    else:
        case["totals"][field] += 1
    (tmp_path / "scale").mkdir()
    with gzip.open(tmp_path / "scale" / "case.json.gz", "wt") as file:
        json.dump(case, file)
    code, out = check(tmp_path, capsys)
    assert code == 1
    assert f"end, {'digests[' if field == 'digests' else 'totals'}" in out


def test_an_empty_folder_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(tmp_path, capsys) == (1, "0 of 0 match\n")
