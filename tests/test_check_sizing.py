"""Every case of `tests/golden/vllm_sizing`, and a check that the check sees a wrong number."""

import json
from pathlib import Path

import pytest

from tests.check_sizing import check_case, main

CASES = sorted((Path(__file__).parent / "golden" / "vllm_sizing").glob("*.json"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case_equals_the_engine(path):
    assert check_case(path) == (path.stem, [], None)


def leaves(value, place=()):
    """The places of all numbers and words in a JSON value."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*place, key))
    else:
        yield place


def test_any_altered_number_is_found(tmp_path, capsys):
    case = json.loads((CASES[0].parent / "gpt_oss_20b.json").read_text(encoding="utf-8"))
    places = list(leaves(case["result"]))
    assert len(places) == 78
    for place in places:
        altered = json.loads(json.dumps(case))
        inner = altered["result"]
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = f"{inner[place[-1]]}1" if isinstance(inner[place[-1]], str) else inner[place[-1]] + 1
        (tmp_path / "altered.json").write_text(json.dumps(altered), encoding="utf-8")
        assert main([str(tmp_path)]) == 1
        assert capsys.readouterr().out.startswith(f"0 of 1 match\naltered: {place[0]}")


def test_missing_number_is_found(tmp_path, capsys):
    case = json.loads(CASES[0].read_text(encoding="utf-8"))
    del case["result"]["num_blocks"]
    (tmp_path / "lacking.json").write_text(json.dumps(case), encoding="utf-8")
    assert main([str(tmp_path)]) == 1
    assert "lacking: num_blocks: expected None, got 2560" in capsys.readouterr().out


def test_refused_layout_is_listed(tmp_path, capsys):
    case = json.loads((CASES[0].parent / "mixed_pages_padded.json").read_text(encoding="utf-8"))
    case["input"]["kv_cache_layout"] = "BLHNC"
    (tmp_path / "packed.json").write_text(json.dumps(case), encoding="utf-8")
    assert main([str(tmp_path)]) == 0
    assert "packed: refused: kv_cache_layout BLHNC" in capsys.readouterr().out


def test_empty_folder_is_no_success(tmp_path, capsys):
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == "0 of 0 match\n"
