"""The same truth in every format that scrapes come in, and what is wrong with files that are refused."""

import csv
import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl
import pytest

from kvsim.errors import KvsimError
from kvsim.study.measured.compare import compare_measured
from kvsim.study.measured.read import Measured, read_measured
from kvsim.study.measured.series import Series
from tests.study.measurements import GOLDEN, SERIES, scraped, tight_courses, tight_run

BEGAN_NS = 1_796_000_000 * 10**9
Truth = Mapping[str, Series]


def truth() -> Truth:
    """Scrapes every 333 ms of the run, in whole milliseconds as the formats have them."""
    run = tight_courses()
    return {
        name: each
        for name, each in scraped(run, range(0, run.duration_ns, 333_000_000), BEGAN_NS).items()
        if name in SERIES
    }


def rows(some: Truth) -> list[tuple[int, dict[str, float]]]:
    times = next(iter(some.values())).times.tolist()
    return [
        (at, {SERIES[name]: float(each.values[place]) for name, each in some.items()}) for place, at in enumerate(times)
    ]


def labelled(name: str, engine: str = "0") -> str:
    reason = ',finished_reason="length"' if "success" in name else ""
    return f'{name}{{engine="{engine}"{reason},model_name="a \\"b\\" {{c}}"}}'


def seconds(at_ns: int) -> str:
    return f"{at_ns // 10**9}.{at_ns % 10**9 // 10**6:03d}"


def write_text(path: Path, some: Truth) -> None:
    """With comments that say when, HELP and TYPE, series of others, and a counter that nobody asked for."""
    scrapes = []
    for at, values in rows(some):
        lines = [
            f"# scraped at {seconds(at)}",
            "# HELP vllm:num_requests_running Requests.",
            "process_cpu_seconds_total 3.5",
        ]
        lines += [f"{labelled(name)} {value!r}" for name, value in values.items()]
        lines += ['vllm:request_success_total{engine="0",finished_reason="abort",model_name="a \\"b\\" {c}"} 3.0']
        lines += [
            'vllm:num_preemptions_created{engine="0"} 1.7e9',
            'vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 2.0',
        ]
        scrapes.append("\n".join(lines) + "\n")
    path.write_text("".join(scrapes))


def write_stamped_text(path: Path, some: Truth) -> None:
    lines = [f"{labelled(name)} {value!r} {at // 10**6}" for at, values in rows(some) for name, value in values.items()]
    path.write_text("\n".join(lines) + "\n")


def write_gzip(path: Path, some: Truth) -> None:
    write_text(path, some)
    path.write_bytes(gzip.compress(path.read_bytes()))


def write_untimed_text(path: Path, some: Truth) -> None:
    path.write_text(
        "".join(
            f"python_info 1.0\n{''.join(f'{labelled(name)} {value!r}{chr(10)}' for name, value in values.items())}"
            for _at, values in rows(some)
        )
    )


def write_api(path: Path, some: Truth) -> None:
    answers = []
    for name, each in some.items():
        metric = {"__name__": SERIES[name], "engine": "0", "instance": "host:8000"}
        points = [[at / 1e9, repr(value)] for at, value in zip(each.times.tolist(), each.values.tolist(), strict=True)]
        answers.append(
            {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": metric, "values": points}]}}
        )
    path.write_text("\n".join(json.dumps(answer) for answer in answers))


def write_csv(path: Path, some: Truth, *, bare: bool = False, time: Callable[[int], object] = seconds) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = list(rows(some)[0][1])
        writer.writerow(
            ["timestamp", "host", *(name.removeprefix("vllm:") if bare else labelled(name) for name in names)]
        )
        writer.writerows([time(at), "a", *values.values()] for at, values in rows(some))


def write_bare_csv(path: Path, some: Truth) -> None:
    write_csv(
        path,
        some,
        bare=True,
        time=lambda at: (
            f"2026-11-29T{12 + at // 10**9 % 86400 // 3600 % 10:02d}:{at // 10**9 % 3600 // 60:02d}:{at // 10**9 % 60:02d}.{at % 10**9 // 10**6:03d}Z"
        ),
    )


def write_ms_csv(path: Path, some: Truth) -> None:
    write_csv(path, some, bare=True, time=lambda at: at // 10**6)


def write_long_csv(path: Path, some: Truth) -> None:
    lines = ["time;metric;engine;value"]
    lines += [f"{seconds(at)};{name};0;{value!r}" for at, values in rows(some) for name, value in values.items()]
    path.write_text("\n".join(lines) + "\n")


def write_parquet(path: Path, some: Truth) -> None:
    frame = pl.DataFrame([{"time": at, **values} for at, values in rows(some)])
    frame.with_columns(pl.from_epoch("time", time_unit="ns")).write_parquet(path)


WRITERS: dict[str, Callable[[Path, Truth], None]] = {
    "text": write_text,
    "stamped": write_stamped_text,
    "gzip": write_gzip,
    "untimed": write_untimed_text,
    "api": write_api,
    "csv": write_csv,
    "bare_csv": write_bare_csv,
    "ms_csv": write_ms_csv,
    "long_csv": write_long_csv,
    "parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_run_scraped_is_itself_in_every_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / "metrics"
    WRITERS[name](path, truth())
    measured = read_measured([path], scrape_interval_ns=333_000_000)
    assert set(measured.series) == set(truth())
    found = compare_measured(tight_run(), measured, offset=0)
    assert set(found.levels) == {"kv_usage", "running", "waiting"}
    assert all(each.largest_error == 0 for each in found.levels.values())
    assert all(each.num_moments == len(truth()["running"].times) > 9 for each in found.levels.values())
    assert {each.difference for name, each in found.counters.items() if name != "generation_tokens"} == {0}
    assert found.counters["preemptions"].measured == tight_run().metrics["preemptions"] > 0
    assert measured.notes == () or (name == "untimed" and "27 scrapes without a time" in measured.notes[0])


def written(folder: Path, text: str, name: str = "scrape.prom") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_files_are_put_together_whatever_their_order(tmp_path: Path) -> None:
    write_text(tmp_path / "all", truth())
    parts = (tmp_path / "all").read_text().split("# scraped")
    paths = [written(tmp_path, f"# scraped{part}", f"{at}") for at, part in enumerate(parts[1:])]
    whole, joined = read_measured([tmp_path / "all"]), read_measured(paths[::-1])
    for name, each in whole.series.items():
        assert (each.times.tolist(), each.values.tolist()) == (
            joined.series[name].times.tolist(),
            joined.series[name].values.tolist(),
        )
    assert "Times are not in order in some series, and were sorted." in joined.notes


def test_a_file_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    text = "# scraped at 10\nvllm:num_requests_running 1\n# scraped at 20\nvllm:num_requests_running 4\nvllm:num_requ"
    measured = read_measured([written(tmp_path, text)])
    assert measured.series["running"].values.tolist() == [1, 4]
    assert measured.notes == ("scrape.prom: its last line does not end, as where a file is cut off; passed over.",)


@pytest.mark.parametrize(
    "text",
    [
        "# scraped at 10\nvllm:num_requests_running 10\n# scraped at 20\nvllm:num_requests_running 4",
        "time,vllm:num_requests_running\n10,10\n20,4",
    ],
)
def test_a_number_that_is_cut_is_not_taken_for_another(tmp_path: Path, text: str) -> None:
    measured = read_measured([written(tmp_path, text)])
    assert measured.series["running"].values.tolist() == [10]
    assert "scrape.prom: its last line does not end, as where a file is cut off; passed over." in measured.notes


def test_a_gzip_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    write_text(tmp_path / "m", truth())
    packed = gzip.compress((tmp_path / "m").read_bytes(), compresslevel=0)
    (tmp_path / "m.gz").write_bytes(packed[: len(packed) // 2])
    measured = read_measured([tmp_path / "m.gz"])
    assert 1 < measured.num_moments < len(truth()["running"].times)
    assert "m.gz: the gzip stream is cut off after line" in measured.notes[0]


def test_values_that_are_none_are_left_out_and_said(tmp_path: Path) -> None:
    text = "time,running_is_not_it,num_requests_running\n1,9,NaN\n2,9,4\n2,9,4\n3,9,\n4,9\n"
    measured = read_measured([written(tmp_path, text, "a.csv")])
    assert (measured.series["running"].times.tolist(), measured.series["running"].values.tolist()) == ([2 * 10**9], [4])
    assert measured.notes == (
        "running: 1 values are not numbers (NaN) and were left out.",
        "running: 1 values have the moment of another; the one written last counts.",
        "a.csv: 1 rows have not as many cells as columns; passed over.",
    )


def test_of_an_older_and_a_newer_name_the_newer_counts(tmp_path: Path) -> None:
    text = "# scraped at 1\nvllm:gpu_cache_usage_perc 0.25\nvllm:kv_cache_usage_perc 0.5\nvllm:gpu_prefix_cache_hits_total 3\n"
    measured = read_measured([written(tmp_path, text)])
    assert measured.series["kv_usage"].values.tolist() == [0.5]
    assert measured.series["hit_tokens"].values.tolist() == [3]


@pytest.mark.parametrize(
    ("help", "name", "ratio_only"),
    [
        ("", "gpu_prefix_cache", True),
        (
            "# HELP vllm:gpu_prefix_cache_hits_total GPU prefix cache hits, in number of cached blocks.\n",
            "gpu_prefix_cache",
            True,
        ),
        (
            "# HELP vllm:gpu_prefix_cache_hits_total DEPRECATED: in terms of number of cached tokens.\n",
            "gpu_prefix_cache",
            False,
        ),
        ("", "prefix_cache", False),
    ],
)
def test_counters_of_blocks_are_only_compared_as_a_share(
    tmp_path: Path, help: str, name: str, ratio_only: bool
) -> None:
    text = "".join(
        f"# scraped at {at}\n{help}vllm:{name}_hits_total {at}\nvllm:{name}_queries_total {4 * at}\n" for at in (0, 1)
    )
    measured = read_measured([written(tmp_path, text)])
    assert measured.ratio_only == ratio_only
    found = compare_measured(tight_run(), measured, offset=0)
    assert ("hit_tokens" in found.counters) != ratio_only
    assert found.hit_share is not None
    assert found.hit_share.measured == 0.25


def test_requests_that_were_answered_are_counted_over_all_reasons(tmp_path: Path) -> None:
    reasons = {"stop": 2, "length": 5, "abort": 100, "error": 1000}
    text = "".join(
        f'vllm:request_success_total{{finished_reason="{reason}"}} {count}\n' for reason, count in reasons.items()
    )
    assert read_measured([written(tmp_path, text)]).series["finished"].values.tolist() == [7]


TWO_ENGINES = "".join(f'vllm:num_requests_running{{engine="{engine}"}} {engine + 3} 1000\n' for engine in (0, 1))


def test_one_of_several_engines_is_chosen_by_its_label(tmp_path: Path) -> None:
    path = written(tmp_path, TWO_ENGINES)
    assert read_measured([path], labels={"engine": "1"}).series["running"].values.tolist() == [4]


def test_what_the_server_says_of_its_cache_is_taken_from_its_labels(tmp_path: Path) -> None:
    info = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="7716",cache_dtype="auto",engine="ENGINE",sliding_window="None"} 1.0\n'
    text = info.replace("ENGINE", "0") + info.replace("ENGINE", "1").replace("7716", "9000") + TWO_ENGINES
    facts = read_measured([written(tmp_path, text)], labels={"engine": "1"}).facts
    assert {name: fact.value for name, fact in facts.items()} == {
        "block_size": 16,
        "num_blocks": 9000,
        "cache_dtype": "auto",
        "engine": "vLLM",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m: is empty; --format says what it is: prometheus, api, csv, parquet, log"),
        (
            "a\rb,c\r,time\n",
            "m: is not recognised: it begins 'a\\rb,c\\r,time'; --format says what it is: prometheus, api, csv, parquet, log",
        ),
        (
            "hello\n",
            "m: is not recognised: it begins 'hello'; --format says what it is: prometheus, api, csv, parquet, log",
        ),
        (
            TWO_ENGINES,
            "vllm:num_requests_running has 2 series, with engine '0' or '1': kvsim simulates one engine, say which with --label NAME=VALUE",
        ),
        ("vllm:lora_requests_info 3\n", "m: nothing of vLLM's is in it, neither a series that is compared nor a size"),
        (
            "vllm:num_requests_running 1\nvllm:num_requests_running 2\n",
            "2 scrapes do not say when they were made: give --scrape-interval, such as '5 s', or write a comment like '# scraped at 2026-11-29T12:34:56Z' before each",
        ),
        (
            "vllm:num_requests_running 1\n# scraped at 5\nvllm:num_requests_running 2\n",
            "some scrapes say when they were made and some do not: they cannot be put in order",
        ),
        (
            "time,kv_cache_usage_perc\n1,87.5\n",
            "kv_cache_usage_perc must be a share between 0 and 1, as vLLM exports it, got 87.5: per cent?",
        ),
        ("time,num_preemptions\n1,-4\n", "preemptions must be a count of 0 or more, got -4"),
        ("time,kv_cache_usage_perc\n1,0.5\n2,high\n", "m: line 3: kv_cache_usage_perc must be a number, got 'high'"),
        (
            "time,kv_cache_usage_perc\nnoon,0.5\n",
            "m: line 2: time must be unix time or look like 2026-11-29 12:34:56, got 'noon'",
        ),
        ("time,cpu\n1,0.5\n", "m: none of its columns is a series of vLLM's, found 'time, cpu'"),
        (
            '{"status":"error","error":"bad <b>","data":{"resultType":""}}',
            "m: Prometheus answered with an error: 'bad <b>'",
        ),
        (
            '{"data":{"resultType":"matrix","result":[{"metric":{},"val',
            "m: not JSON that can be read, at line 1: is the file cut off?",
        ),
        ('{"data":{"resultType":"scalar","result":[1,"2"]}}', "m: resultType must be matrix or vector, got 'scalar'"),
        (
            '{"data":{"resultType":"matrix","result":[{"metric":3}]}}',
            "m: not an answer of Prometheus: data.result must be a list of series with values",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text, "m")
    with pytest.raises(KvsimError) as refused:
        read_measured([path])
    assert str(refused.value).replace(f"{tmp_path}/", "") == message


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (Path("nowhere.prom"), "nowhere.prom: cannot be read: No such file or directory"),
        (Path("/dev/zero"), "/dev/zero: is not a regular file"),
        (Path("/tmp"), "/tmp: is not a regular file"),
    ],
)
def test_what_is_no_file_is_refused(path: Path, message: str) -> None:
    with pytest.raises(KvsimError) as refused:
        read_measured([path])
    assert str(refused.value) == message


def test_a_damaged_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(KvsimError, match="not Parquet that can be read"):
        read_measured([tmp_path / "m"])


def test_an_unknown_kind_or_label_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    path = written(tmp_path, TWO_ENGINES)
    with pytest.raises(KvsimError, match="--format must be one of prometheus, api, csv, parquet, log, got 'xml'"):
        read_measured([path], kind="xml")
    with pytest.raises(KvsimError, match="no series has the label engine=7; there are engine '0' or '1'"):
        read_measured([path], labels={"engine": "7"})


def vllm(*names: str) -> Measured:
    return read_measured([GOLDEN / name for name in names])


def test_what_vllm_exports_is_read_whole() -> None:
    """50 scrapes by prometheus_client of what vLLM 0.32's PrometheusStatLogger set."""
    measured = vllm("scrapes.prom.gz")
    assert set(measured.series) == set(SERIES)
    assert {len(each.times) for each in measured.series.values()} == {50}
    ends = {name: each.values[-1] for name, each in measured.series.items() if each.values[-1]}
    assert ends == {
        "preemptions": 9,
        "finished": 120,
        "prompt_tokens": 7209,
        "generation_tokens": 6024,
        "queried_tokens": 7209,
        "hit_tokens": 2600,
    }
    assert measured.facts["model"].value == 'toy "llama"'
    assert (measured.facts["block_size"].value, measured.facts["num_blocks"].value) == (8, 121)
    assert (measured.newer_sizes, measured.ratio_only, measured.notes) == (True, False, ())


def test_a_log_beside_scrapes_gives_what_they_do_not_say() -> None:
    measured = vllm("scrapes.prom.gz", "server.log")
    assert measured.source == "scrapes"
    assert (measured.facts["engine_version"].value, measured.facts["max_model_len"].value) == ("0.32.0", 512)
    assert measured.notes == (
        "The periodic lines of the log are not compared: the scrapes say the same without rounding.",
    )
    assert [(file["name"], file["kind"]) for file in measured.files] == [
        ("scrapes.prom.gz", "Prometheus text"),
        ("server.log", "vLLM log"),
    ]


@pytest.mark.parametrize("number", ["1e300", "-1.7e308", "9007199254740994"])
def test_numbers_that_count_nothing_exactly_are_not_taken(tmp_path: Path, number: str) -> None:
    scrape = f"# scraped at 1\nvllm:num_requests_running {number}\nvllm:num_requests_waiting 2\n"
    measured = read_measured([written(tmp_path, scrape)])
    assert list(measured.series) == ["waiting"]
    assert "1 lines are no samples" in measured.notes[0]
    with pytest.raises(KvsimError, match=r"line 2: num_requests_running must be at most 2\^53, got '"):
        read_measured([written(tmp_path, f"time,num_requests_running\n1,{number}\n", "a.csv")])


@pytest.mark.parametrize("value", ["inf", "1e999", "nan", "Infinity", "-1", "1e300"])
def test_sizes_that_are_none_are_not_known(tmp_path: Path, value: str) -> None:
    info = f'vllm:cache_config_info{{num_gpu_blocks="{value}",block_size="8",kv_cache_max_concurrency="{value}"}} 1.0\n'
    assert set(read_measured([written(tmp_path, info)]).facts) == {"block_size"}


@pytest.mark.parametrize("columns", ["host", "pod_name", "labels"])
def test_series_of_a_long_table_are_told_apart_by_every_column(tmp_path: Path, columns: str) -> None:
    cells = {"labels": ('"{""engine"": ""0""}"', '"{""engine"": ""1""}"')}.get(columns, ("a", "b"))
    text = f"time,metric,value,{columns}\n" + "".join(
        f"{at},num_requests_running,{at + of},{cell}\n" for at in (1, 2) for of, cell in enumerate(cells)
    )
    path = written(tmp_path, text)
    label = {"labels": ("engine", "0")}.get(columns, (columns, "a"))
    with pytest.raises(KvsimError, match=rf"has 2 series, with {label[0]} '"):
        read_measured([path])
    assert read_measured([path], labels=dict([label])).series["running"].values.tolist() == [1, 2]


def test_two_values_of_a_moment_in_a_table_are_two_series(tmp_path: Path) -> None:
    with pytest.raises(KvsimError, match="running is both 3 and 4 at one moment: are these several series"):
        read_measured([written(tmp_path, "time,num_requests_running\n1,3\n1,4\n")])


def test_reasons_go_on_past_a_restart_each_for_itself(tmp_path: Path) -> None:
    """`length` is missing until a request ends so again."""
    stop, length = (
        'vllm:request_success_total{finished_reason="stop"}',
        'vllm:request_success_total{finished_reason="length"}',
    )
    scrapes = (f"{stop} 5\n{length} 10\n", f"{stop} 1\n", f"{stop} 2\n{length} 3\n")
    text = "".join(f"# scraped at {at}\n{scrape}" for at, scrape in enumerate(scrapes, 1))
    assert read_measured([written(tmp_path, text)]).series["finished"].values.tolist() == [15, 16, 20]


@pytest.mark.parametrize(
    "line",
    ["# scraped at Sun Nov 29 12:34:56 UTC 2026", "# Sun Nov 29 12:34:56 PM UTC 2026", "2026-11-29T12:34:56+00:00"],
)
def test_times_as_date_prints_them_begin_a_scrape(tmp_path: Path, line: str) -> None:
    measured = read_measured([written(tmp_path, f"{line}\nvllm:num_requests_running 1\n")])
    assert measured.series["running"].times.tolist() == [1_795_955_696 * 10**9]


def test_a_time_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(KvsimError, match="the time cannot be read in '# scraped at noon'; write it as date -Is does"):
        read_measured([written(tmp_path, "# scraped at noon\nvllm:num_requests_running 1\n")])


@pytest.mark.parametrize(
    "text",
    [
        "sep=,\ntime,num_requests_running\n1,3\n",
        'time,"{__name__=""vllm:num_requests_running"", engine=""0""}"\n1,3\n',
        '[{"metric": {"__name__": "vllm:num_requests_running"}, "values": [[1, "3"]]}]',
    ],
)
def test_what_spreadsheets_grafana_and_jq_leave_is_read(tmp_path: Path, text: str) -> None:
    assert read_measured([written(tmp_path, text)]).series["running"].values.tolist() == [3]


def test_what_unpacks_to_no_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.study.measured.text._MOST_BYTES", 2**20)
    path = tmp_path / "bomb.gz"
    piece = gzip.compress(b"\n" + b"A" * 2**17)
    path.write_bytes(gzip.compress(b"# scraped at 1\nvllm:num_requests_running 1\n") + piece * 9)
    with pytest.raises(KvsimError, match=r"bomb.gz: has more than 1 MiB of text when it is unpacked"):
        read_measured([path])


def test_utf_16_is_named(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes("time,num_requests_running\n1,3\n".encode("utf-16"))
    with pytest.raises(KvsimError, match="is UTF-16; it must be UTF-8"):
        read_measured([tmp_path / "m"])
