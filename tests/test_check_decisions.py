"""The judge is judged: a record with one number changed must not match."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.check_decisions import END_FIELDS, SCALE_FIELDS, STEP_FIELDS, main
from tests.replay import Case, read_case

GOLDEN = Path(__file__).parent / "golden" / "vllm_scheduler"

Alteration = Callable[[Case], None]


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


def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main([str(folder)])
    return code, capsys.readouterr().out


def test_every_field_is_altered_by_some_test() -> None:
    assert {field for _case, field, _alter in ALTERATIONS} == {*STEP_FIELDS, *END_FIELDS}


@pytest.mark.parametrize("case", sorted({case for case, _field, _alter in ALTERATIONS}))
def test_an_unaltered_copy_matches(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_case(tmp_path, read_case(GOLDEN / f"{case}.json"))
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
    case = read_case(GOLDEN / f"{name}.json")
    alter(case)
    write_case(tmp_path, case)
    code, out = check(tmp_path, capsys)
    found, count = out.splitlines()
    where, _comma, what = found.removeprefix(f"{name}: ").partition(", ")
    assert (code, count) == (1, "0 of 1 match")
    assert where == ("end" if field in END_FIELDS else where)
    assert what.startswith((f"{field}:", f"{field}["))


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
