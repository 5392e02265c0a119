"""The commands about traces: what they print and refuse."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvsim.workload.traces import read_rows
from tests.study.makers import AZURE_ROWS
from tests.test_cli import kvsim, refused

BLOCKS = 512
ASKED = [(0, 600, 5, [0, 1]), (1_000, 1_100, 7, [0, 2, 3]), (2_500, 1_100, 9, [0, 2, 3]), (9_000, 100, 1, [9])]


def write_mooncake(path: Path) -> Path:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in ASKED))
    return path


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    return write_mooncake(tmp_path / "trace.jsonl")


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE_ROWS)
    return path


def figures(*arguments: str | Path) -> Any:
    done = kvsim(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_hits_are_given_for_each_capacity(mooncake: Path) -> None:
    found = figures("hits", mooncake, "--block-size", "512", "--capacity", "2", "--capacity", "inf")
    results = found.pop("results")
    assert found == {
        "block_size": 512,
        "order": "head",
        "policies": [],
        "touches": 9,
        "distinct_blocks": 5,
        "prompt_tokens": 2_900,
        "prompts": 4,
        "smallest_prefix_tokens": 512,
        "prompts_too_short": 1,
        "block_bytes": None,
    }
    # Blocks 0 1, 0 2 3, 0 2 3, 9: of two places LRU has block 0 once, the optimum also 0 and 3 the second time; with
    # no end of places 2 and 3 (76 tokens) come again as well.
    assert results[0] == {
        "capacity_blocks": 2,
        "hit_blocks": 1,
        "hit_tokens": 512,
        "engine_hit_blocks": 1,
        "engine_hit_tokens": 512,
        "optimum_hit_blocks": 3,
        "optimum_engine_hit_blocks": None,
        "policies": [],
    }
    assert results[1] == {
        "capacity_blocks": None,
        "hit_blocks": 4,
        "hit_tokens": 3 * 512 + 76,
        "engine_hit_blocks": 3,
        "engine_hit_tokens": 3 * 512,
        "optimum_hit_blocks": 4,
        "optimum_engine_hit_blocks": 3,
        "policies": [],
    }


def test_hits_by_block_size_are_a_list_and_a_picture(mooncake: Path, tmp_path: Path) -> None:
    sizes = ("--block-size", "512", "--block-size", "64")
    model = ("--model", "llama-3.1-8b", "--capacity", "1 GiB", "--no-optimum")
    plot = tmp_path / "deep" / "hits.png"
    found = figures("hits", mooncake, *sizes, *model, "--order", "tail", "--plot", plot)
    assert [of_size["block_bytes"] for of_size in found] == [512 * 131_072, 64 * 131_072]
    assert [of_size["results"][0]["capacity_blocks"] for of_size in found] == [16, 128]
    assert found[0]["results"][0]["optimum_hit_blocks"] is None
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_hits_are_printed_as_a_table(mooncake: Path) -> None:
    done = kvsim("hits", mooncake, "--block-size", "512", "--model", "llama-3.1-8b", "--limit", "3")
    assert done.returncode == 0, done.stderr
    assert "Block size 512: 8 touches of 4 blocks, 2,800 prompt tokens" in done.stdout
    assert "0 of 3 prompts have no token beyond that" in done.stdout
    assert "infinite" in done.stdout
    assert "bytes per token = 32 layers" in done.stdout


def test_policies_stand_side_by_side(mooncake: Path, tmp_path: Path) -> None:
    """Blocks 0 1, 0 2 3, 0 2 3, 9 in two places: all find block 0 when 0 2 3 comes for the first time.

    Of that LRU leaves 0 2, and LFU too, as 0 has a hit. FIFO, whose oldest block is 0, and the tail-last LRU leave
    2 3, which are there the second time, but not behind their head.
    """
    size = ("--block-size", "512", "--capacity", "2")
    plot = tmp_path / "hits.png"
    found = figures("hits", mooncake, *size, "--policy", "all", "--policy", "lru", "--plot", plot)
    assert found["order"] == "tail"
    (result,) = found["results"]
    assert result["optimum_engine_hit_blocks"] == 3
    by_policy = {under["policy"]: (under["hit_blocks"], under["engine_hit_blocks"]) for under in result["policies"]}
    assert by_policy == {"lru": (3, 3), "fifo": (3, 1), "lfu": (3, 3), "tail_last_lru": (3, 1)}
    assert plot.read_bytes().startswith(b"\x89PNG")
    done = kvsim("hits", mooncake, *size, "--policy", "fifo", "--policy", "lru")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["blocks", "fifo", "lru", "optimum"] in rows
    assert ["2", "17.66%", "52.97%", "52.97%"] in rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capacity", "4 GiB"], "capacity '4 GiB' is in bytes, which needs a model to be turned into blocks"),
        *(
            (
                ["--capacity", capacity],
                "capacity must be a whole number of blocks from 1 to 1,000,000,000,000, inf, or a size such as '40 GiB', "
                f"got '{capacity}'",
            )
            for capacity in ("few", "0", "-5", "1.5", "", "9" * 30)
        ),
        (
            ["--capacity", "1 B", "--model", "llama-3.1-8b"],
            "capacity must hold from 1 to 1,000,000,000,000 blocks of 16 tokens, each of 2,097,152 B, got '1 B'",
        ),
        (["--columns", "output=out"], "--columns must say which column is the prompt's tokens, as prompt=NAME, got"),
        (["--columns", "prompt"], "--columns must say each of prompt, output, time, hash_ids once at most, as prompt="),
        (["--columns", "prompt=a,prompt=b"], "--columns must say each of prompt, output, time, hash_ids once at most"),
        (["--columns", "prompt=a,time=a"], "--columns: prompt, output, time and hash_ids must be different columns"),
        (["--columns", "prompt="], "--columns: prompt must not be empty"),
        (["--time-unit", "h"], "--time-unit must be one of s, ms, us, ns, got 'h'"),
        (["--block-size", "0"], "--block-size must be between 1 and 1,000,000,000, got 0"),
        (["--block-size", str(2**63)], "--block-size must be between 1 and 1,000,000,000, got 9223372036854775808"),
        (["--limit", "0"], "--limit must be between 1 and 1,000,000,000,000, got 0"),
        (["--limit", "9" * 40], "--limit must be between 1 and 1,000,000,000,000, got a number of over 30 digits"),
        (["--order", "up"], "order must be one of head, tail, got 'up'"),
        (["--policy", "lru", "--policy", "mru"], "policy must be one of lru, fifo, lfu, tail_last_lru, got 'mru'"),
        (
            ["--policy", "lru", "--order", "head"],
            "policies are compared in the order tail, in which requests come whole",
        ),
        (["--format", "tape"], "the format of a trace must be one of "),
        (["--model", "nobody"], "nobody"),
    ],
)
def test_hits_that_cannot_be_counted_are_refused(mooncake: Path, arguments: list[str], message: str) -> None:
    assert message in refused("hits", mooncake, *arguments)


@pytest.mark.parametrize(
    ("command", "option", "message"),
    [
        (["hits"], ["--kv-dtype", "fp8"], "--kv-dtype goes with --model, which is not given"),
        (["hits"], ["--tensor-parallel", "1"], "--tensor-parallel goes with --model, which is not given"),
        (["hits"], ["--pipeline-parallel", "2"], "--pipeline-parallel goes with --model, which is not given"),
        (["trace", "convert", "-o", "out"], ["--seed", "0"], "--seed goes with --sample, which is not given"),
        (["hits"], ["--tokenizer", "t.json"], "tokenizer is for the formats sharegpt, vllm_custom, not for mooncake"),
        (
            ["trace", "fit"],
            ["--tokenizer", "t.json"],
            "tokenizer is for the formats sharegpt, vllm_custom, not for moo",
        ),
    ],
)
def test_options_that_change_nothing_are_refused(
    mooncake: Path, command: list[str], option: list[str], message: str
) -> None:
    assert message in refused(*command, mooncake, *option)


def test_options_on_content_are_refused_where_there_is_none(azure: Path, tmp_path: Path) -> None:
    assert f"{azure}: has no content: the format azure" in refused("trace", "info", azure, "--block-size", "16")
    message = refused("trace", "convert", azure, "-o", tmp_path / "out", "--block-tokens", "16")
    assert message.startswith(f"{azure}: block_tokens is for the formats bailian, weka, dynamo_requests, moon")
    assert message.endswith(", not for azure")


def test_hits_of_a_trace_without_content_are_refused(azure: Path) -> None:
    assert "trace.csv: has no content" in refused("hits", azure)


def test_a_file_of_another_format_is_refused_as_what_it_is_not(mooncake: Path) -> None:
    assert f"{mooncake}:1: must be CSV with a header, got JSON" in refused("hits", mooncake, "--format", "azure")


def test_columns_are_named_for_every_command(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text('at,in,out,ids\n0,20,4,"[1, 2]"\n250,33,9,"[1, 3, 4]"\n400,5,5,[9]\n')
    columns = ("--columns", "prompt=in,output=out,time=at,hash_ids=ids", "--time-unit", "ms", "--block-tokens", "16")
    assert figures("hits", path, *columns, "--capacity", "inf")["results"][0]["hit_tokens"] == 16
    found = figures("trace", "info", path, *columns)
    assert (found["rows"], found["duration_s"], found["ideal_hit_tokens"]["16"]) == (3, 0.4, 16)
    assert figures("trace", "fit", path, *columns)["likeness"][0]["trace"] == 5.0
    done = kvsim("trace", "convert", path, *columns, "-o", tmp_path / "out.parquet")
    assert done.returncode == 0, done.stderr
    assert [row.time_ns for row in read_rows(tmp_path / "out.parquet")] == [0, 250_000_000, 400_000_000]


def test_files_of_windows_are_called_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "client-trace.csv"
    path.write_text("0,0,0,,0,0\n600,2,1.5,Gamma,1,2\n")
    for command in (("hits",), ("trace", "fit"), ("trace", "convert", "-o", tmp_path / "out")):
        assert refused(*command, path) == (
            f"{path}: has servegen rates by window, not requests; a generated [workload] draws from it: "
            'kind = "windows", path = "FILE"'
        )


def test_hits_of_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused("hits", tmp_path / "nothing")


def test_info_says_what_a_trace_is_like(mooncake: Path, tmp_path: Path) -> None:
    plot = tmp_path / "info.png"
    assert figures("trace", "info", mooncake, "--block-size", "512", "--block-size", "100", "--plot", plot) == {
        "format": "mooncake",
        "rows": 4,
        "prompt": {"mean": 725.0, "median": 850.0, "p99": 1_100.0, "min": 100, "max": 1_100},
        "output": {"mean": 5.5, "median": 6.0, "p99": 8.94, "min": 1, "max": 9},
        "duration_s": 9.0,
        "rate_per_s": pytest.approx(1 / 3),
        "gap_cv": pytest.approx(0.8277591348),  # gaps of 1, 1.5 and 6.5 s
        "iod": pytest.approx(0.6),
        "sessions": None,
        "missing": ["sessions"],
        "odd_rows": {},
        "bad_rows": 0,
        "first_bad_row": None,
        "prompt_tokens": 2_900,
        "ideal_hit_tokens": {"512": 512 + 1_100, "100": 500 + 1_100},
        "reuse_block_size": 512,
        "reuse_distance": {"mean": 1.75, "median": 2.0, "p99": 2.0, "min": 1, "max": 2},
    }
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_info_is_printed_as_a_table(mooncake: Path, azure: Path) -> None:
    done = kvsim("trace", "info", mooncake)
    assert done.returncode == 0, done.stderr
    assert "trace.jsonl: format mooncake, 4 requests" in done.stdout
    assert "shared at block size 512" in done.stdout
    assert "blocks (512 tokens) between two uses" in done.stdout
    assert "An id of this trace stands for 512 tokens: sizes that divide that cannot differ" in done.stdout
    done = kvsim("trace", "info", azure)
    assert "Missing in this format: content, sessions." in done.stdout
    assert "shared" not in done.stdout


def test_info_of_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd").write_text("nothing known\n")
    assert "its format is not recognised; name one of" in refused("trace", "info", tmp_path / "odd")


def test_convert_writes_a_part_that_reads_back(mooncake: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "part.jsonl.gz"
    done = kvsim("trace", "convert", mooncake, "--start", "1 s", "--speedup", "2", "-o", out)
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", f"wrote {out}: 3 requests\n")
    found = figures("trace", "info", out)
    assert (found["rows"], found["duration_s"]) == (3, 4.0)


@pytest.mark.parametrize("name", ["", "picture", "picture.foo", "..", ".png", "picture.png.gz"])
def test_pictures_of_no_known_format_are_refused(mooncake: Path, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.iterdir())
    for command in (("hits",), ("trace", "info")):
        assert ": must end in .png, .svg or .pdf" in refused(*command, mooncake, "--plot", name)
    assert sorted(tmp_path.iterdir()) == before


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "blank").write_text("\n \n")
    assert "blank: is empty" in refused("trace", "info", tmp_path / "blank")


def test_a_broken_line_is_named_though_the_format_is_recognised(mooncake: Path) -> None:
    with mooncake.open("ab") as file:
        file.write(b"\xff\xfe\n")
    assert f"{mooncake}:5: not UTF-8 text" in refused("trace", "info", mooncake)


def test_bad_rows_are_errors_or_passed_over_and_counted(mooncake: Path, tmp_path: Path) -> None:
    with mooncake.open("a") as file:
        file.write('{"timestamp": 99000, "input_length": 0, "output_length": 5, "hash_ids": []}\n')
    commands = (("hits", mooncake), ("trace", "fit", mooncake), ("trace", "convert", mooncake, "-o", tmp_path / "c"))
    for command in commands:
        assert f"{mooncake}:5: " in refused(*command)
        done = kvsim(*command, "--on-bad-row", "skip")
        assert done.returncode == 0, done.stderr
        assert f"passed over 1 bad rows of {mooncake}\n" in done.stderr


def test_info_names_the_first_of_the_rows_that_cannot_be_read(mooncake: Path) -> None:
    bad = '{"timestamp": 99000, "output_length": 5, "hash_ids": []}\n'
    with mooncake.open("a") as file:
        file.write(bad + bad)
    first = f"{mooncake}:5: input_length is missing"
    said = f"2 of 6 rows could not be read; the first is {first}\n"
    assert kvsim("trace", "info", mooncake).stderr == said
    done = kvsim("trace", "info", mooncake, "--json")
    assert done.stderr == said
    found = json.loads(done.stdout)
    assert (found["rows"], found["bad_rows"], found["first_bad_row"]) == (4, 2, first)
    mooncake.write_text(bad)
    only = (
        f"{mooncake}: has no requests that can be read, of 1 rows; the first is {mooncake}:1: input_length is missing"
    )
    assert refused("trace", "info", mooncake, "--format", "mooncake") == only


def test_info_of_a_size_out_of_bounds_is_refused(mooncake: Path) -> None:
    said = refused("trace", "info", mooncake, "--block-size", str(2**63))
    assert said == "--block-size must be between 1 and 1,000,000,000, got 9223372036854775808"


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_convert_keeps_sessions_and_says_that_outputs_are_not_kept(tmp_path: Path, name: str) -> None:
    row = {"chat_id": 4, "parent_chat_id": -1, "timestamp": 1, "input_length": 5, "output_length": 5, "hash_ids": [1]}
    (tmp_path / "with.jsonl").write_text(json.dumps(row))
    done = kvsim("trace", "convert", tmp_path / "with.jsonl", "-o", tmp_path / name)
    assert done.stderr.endswith("1 requests; what was generated is not kept, so later prompts do not find it\n")
    assert [row.session for row in read_rows(tmp_path / name)] == ["4"]


def test_convert_says_where_sharing_gets_coarser(mooncake: Path, tmp_path: Path) -> None:
    done = kvsim("trace", "convert", mooncake, "-o", tmp_path / "t", "--out-block-tokens", "1024")
    assert done.stderr.endswith("4 requests; shared in ids of 1,024 tokens, where the trace is finer\n")
    for tokens in ("512", "16"):
        done = kvsim("trace", "convert", mooncake, "-o", tmp_path / "t", "--out-block-tokens", tokens)
        assert done.stderr.endswith("4 requests\n")


def test_convert_writes_parquet_where_the_name_says_so(mooncake: Path, tmp_path: Path) -> None:
    kvsim("trace", "convert", mooncake, "-o", tmp_path / "a.parquet")
    kvsim("trace", "convert", mooncake, "--to", "parquet", "-o", tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_convert_says_where_nothing_can_be_shared(azure: Path, tmp_path: Path) -> None:
    done = kvsim("trace", "convert", azure, "--to", "parquet", "-o", tmp_path / "a.parquet")
    assert done.stderr == f"wrote {tmp_path}/a.parquet: 3 requests; no content: nothing in it is shared\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--start", "soon"], "--start must be a time with its unit such as '8 ms' or '40 us', got 'soon'"),
        (["--start", "2 s", "--end", "1 s"], "--end must be later than --start = 2 s, got 1 s"),
        (["--speedup", "1e-300"], "at a speedup of 1e-300 its times do not fit in 64 bits"),
        (["--out-block-tokens", "99999999999"], "block tokens must be between 1 and 1,000,000,000, got 99999999999"),
        (["--on-bad-row", "hide"], "--on-bad-row must be error or skip, got 'hide'"),
        (["--sample", "2"], "share must be > 0 and at most 1, got 2.0"),
        (["--limit", "0"], "limit must be between 1 and 1,000,000,000,000, got 0"),
        (["--limit", "9" * 23], f"limit must be between 1 and 1,000,000,000,000, got {'9' * 23}"),
        (["--to", "tape"], "the format to write must be one of mooncake, parquet, got 'tape'"),
        (["--start", "1 h"], "has no requests in that part"),
    ],
)
def test_parts_that_make_no_sense_are_refused(
    mooncake: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    assert message in refused("trace", "convert", mooncake, "-o", tmp_path / "out" / "part.jsonl", *arguments)
    assert not (tmp_path / "out").exists()


def test_fit_prints_a_workload_and_how_far_it_is_off(mooncake: Path, tmp_path: Path) -> None:
    done = kvsim("trace", "fit", mooncake)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "#   CV of gaps: 0.82776, " in done.stdout
    assert tomllib.loads(done.stdout)["workload"]["num_requests"] == 4
    written = kvsim("trace", "fit", mooncake, "-o", tmp_path / "deep" / "workload.toml")
    assert written.stderr == f"wrote {tmp_path}/deep/workload.toml\n"
    assert (tmp_path / "deep" / "workload.toml").read_text() == done.stdout
    assert set(figures("trace", "fit", mooncake)) == {"workload", "likeness", "notes"}


def test_fit_of_a_single_request_is_refused(mooncake: Path, tmp_path: Path) -> None:
    kvsim("trace", "convert", mooncake, "--limit", "1", "-o", tmp_path / "one.jsonl")
    assert "one.jsonl: has only one request, so no rate follows" in refused("trace", "fit", tmp_path / "one.jsonl")


def test_info_shows_windows_as_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "client-trace.csv"
    path.write_text("0,0,0,,0,0\n600,2,1.5,Gamma,1,2\n")
    found = figures("trace", "info", path)
    assert (found["format"], found["rows"], found["windows"]) == ("servegen rates", 0, 2)
    done = kvsim("trace", "info", path)
    assert "client-trace.csv: servegen rates, 2 windows of 600 s" in done.stdout
    assert "requests      1,200 to be expected" in done.stdout
    assert "rate          1.0000/s on average, 2.0000/s at most" in done.stdout
    assert "A [workload] draws from it" in done.stdout
    message = f"{path}: has servegen rates, not requests, so --block-tokens changes nothing"
    assert message in refused("trace", "info", path, "--block-tokens", "16")
