"""kvsim compare-measured: what it prints, where, and how it ends."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.study.measurements import GOLDEN
from tests.test_cli import command, environment, kvsim, refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("measured")
    assert kvsim("run", GOLDEN / "load.toml", "--out", at / "out").returncode == 0
    return at / "out"


METRICS = ("--metrics", GOLDEN / "scrapes.prom.gz", "--metrics", GOLDEN / "server.log")


def test_it_prints_tables_and_leaves_a_picture_and_json(folder: Path) -> None:
    done = kvsim("compare-measured", folder, *METRICS, "--offset", "-142 ms", "--fact", "gpu=none, a made clock")
    assert done.returncode == 0
    assert done.stderr == f"wrote {folder / 'measured.png'}\nwrote {folder / 'measured.json'}\n"
    assert "KV cache used" in done.stdout
    assert "none, a made clock" in done.stdout
    assert (folder / "measured.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((folder / "measured.json").read_text())
    assert written["counters"]["preemptions"]["difference"] == 0
    assert written["missing"] == ["model_revision", "peak_memory"]
    assert [file["name"] for file in written["files"]] == ["scrapes.prom.gz", "server.log"]
    assert len(written["files"][0]["sha256"]) == 64


def test_the_commands_beside_the_golden_files_give_what_is_said_there(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "tests" / "golden" / "vllm_metrics")
    readme = (GOLDEN / "README.md").read_text(encoding="utf-8")
    commands = [shlex.split(line) for line in readme.splitlines() if line.startswith("    kvsim ")]
    assert [words[1] for words in commands] == ["run", "compare-measured"]
    for words in commands:
        done = subprocess.run(
            command(*words[1:]), capture_output=True, text=True, cwd=tmp_path, env={**environment(), "COLUMNS": "80"}
        )
        assert done.returncode == 0, done.stderr
    assert "Every counter is equal, and KV cache used differs by 0.73 points on average" in readme
    told = " ".join(done.stdout.split())
    assert told.startswith(
        "Does the run do what vLLM did? The run follows the server closely: KV cache used differs by 0.73 points on "
        "average (server 45.79%, run 46.52%), up to 13.59 points with the clocks set otherwise. All 6 counters are "
        "equal. All 9 sizes agree. Against scrapes.prom.gz"
    )
    assert (
        "the first scrape lies -0.16 s into the run, of -0.50 s to 0.00 s that the scrapes leave open where KV cache "
        "used differs least; at the ends of that by 13.59 points and 9.07 points, not 0.73 points." in told
    )
    assert "Warning" not in told


def test_json_is_alone_on_stdout(folder: Path, tmp_path: Path) -> None:
    (folder / "measured.json").unlink(missing_ok=True)
    plot = tmp_path / "deep" / "both.svg"
    done = kvsim("compare-measured", folder, *METRICS, "--offset", "best", "--plot", plot, "--json")
    assert (done.returncode, done.stderr) == (0, f"wrote {plot}\n")
    written = json.loads(done.stdout)
    assert written["levels"]["kv_usage"]["mean_absolute_error"] < 0.01
    assert written["sizes"]["num_blocks"]["agrees"] is True
    assert not (folder / "measured.json").exists()
    assert plot.read_text().startswith("<?xml")


def test_the_moment_at_which_the_run_began_sets_the_clocks(folder: Path) -> None:
    done = kvsim("compare-measured", folder, *METRICS, "--began", "2026-11-30T00:53:20.142Z", "--json")
    assert json.loads(done.stdout)["alignment"]["how"] == "the first scrape lies -142 ms into the run, as was said"
    log = refused("compare-measured", folder, "--metrics", GOLDEN / "server.log", "--began", "1796000000")
    assert log == "--began needs scrapes: a log's times have no year and no zone; use --offset"


def test_results_of_two_comparisons_are_not_mixed(folder: Path, tmp_path: Path) -> None:
    def left() -> list[str]:
        return sorted(path.name for path in folder.iterdir() if path.name.startswith("measured"))

    for name in ("measured.json", "measured.png"):
        (folder / name).write_text("of another comparison")
    assert kvsim("compare-measured", folder, *METRICS, "--json").returncode == 0
    assert left() == ["measured.png"]
    assert kvsim("compare-measured", folder, *METRICS, "--plot", tmp_path / "a.png").returncode == 0
    assert left() == ["measured.json"]


def test_a_terminal_is_not_told_what_to_do_by_a_file(folder: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a\x1b[31m.prom"
    odd.write_text('vllm:num_requests_running{model_name="\x1b]0;title\x07"} 0\n')
    done = kvsim("compare-measured", folder, "--metrics", odd, "--fact", "gpu=\x1b[2J")
    assert done.returncode == 0, done.stderr
    assert {"\x1b", "\x07"}.isdisjoint(done.stdout + done.stderr)
    assert "a\u241b[31m.prom" in done.stdout
    assert "\x1b" not in refused("compare-measured", folder, "--metrics", tmp_path / "none\x1b[2J")


def test_a_log_of_the_start_alone_is_compared_without_a_picture(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text("".join((GOLDEN / "server.log").read_text().splitlines(keepends=True)[:2]))
    (folder / "measured.png").unlink(missing_ok=True)
    done = kvsim("compare-measured", folder, "--metrics", log)
    assert (done.returncode, done.stderr) == (0, f"wrote {folder / 'measured.json'}\n")
    assert "kv cache tokens (tokens)" in done.stdout
    assert "No figures over time: the files hold sizes alone." in done.stdout
    assert not (folder / "measured.png").exists()


def test_a_run_takes_away_what_was_said_of_the_one_before(folder: Path) -> None:
    assert kvsim("compare-measured", folder, *METRICS).returncode == 0
    assert {"measured.json", "measured.png"} <= {path.name for path in folder.iterdir()}
    assert kvsim("run", GOLDEN / "load.toml", "--out", folder).returncode == 0
    assert not any(path.name.startswith("measured") for path in folder.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--offset", "soon"), "--offset must be a time with its unit such as '8 ms' or '40 us', got 'soon'"),
        (
            ("--offset", "3 h"),
            "no scrape lies in the run: it lasts from 0 s to 21.515 s, the scrapes from 10,800.000 s",
        ),
        (("--began", "noon"), "--began must be a time as date -Is writes it, or unix time, got 'noon'"),
        (("--began", "1796000000", "--offset", "1 s"), "--began and --offset say the same in two ways"),
        (("--scrape-interval", "-1 s"), "--scrape-interval must be more than 0 and at most a day, got '-1 s'"),
        (("--format", "xml"), "--format must be one of prometheus, api, csv, parquet, log, got 'xml'"),
        (("--label", "engine"), "--label must be NAME=VALUE, each name once, got 'engine'"),
        (("--label", "engine=3"), "no series has the label engine=3; there are engine '0'"),
        (
            ("--fact", "colour=red"),
            "--fact must name one of model, model_revision, engine, engine_version, gpu, allocator, kv_dtype, block_size, num_blocks, peak_memory, got 'colour'",
        ),
        (("--plot", "picture.bmp"), "picture.bmp: must end in .png, .svg or .pdf"),
    ],
)
def test_what_cannot_be_done_is_refused(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    before = sorted(folder.iterdir())
    assert message in refused("compare-measured", folder, *METRICS, *arguments)
    assert sorted(folder.iterdir()) == before


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    message = refused("compare-measured", tmp_path, *METRICS)
    assert message == f"{tmp_path / 'summary.json'}: cannot be read: No such file or directory"
    assert "nowhere: cannot be read" in refused("compare-measured", tmp_path, "--metrics", "nowhere")


def test_help_names_every_kind_of_file() -> None:
    text = kvsim("compare-measured", "--help").stdout
    for word in ("Prometheus", "query_range", "CSV", "Parquet", "log", "--offset", "--fact", "measured.json"):
        assert word in text
