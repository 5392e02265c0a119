"""The scenario file: what it may say, and how it is told what is wrong."""

from pathlib import Path

import pytest
from attrs import evolve

from kvsim.engine.latency import LatencyModel
from kvsim.errors import ScenarioError
from kvsim.study.scenario import Scenario, load_scenario, load_study, scenario_dict, scenario_text
from kvsim.units import exact_size, parse_bytes
from kvsim.workload.generate import Fixed, Gamma, Lognormal, Poisson, Uniform
from kvsim.workload.traces import Trace
from tests.study.makers import TINY_TRACE, write_scenario


def problems(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides)
    return caught.value.problems


def test_every_table_becomes_its_class(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    assert scenario.question == "Does a tiny pool do?"
    assert scenario.base == tmp_path
    assert isinstance(scenario.workload, Poisson)
    assert scenario.workload.prompt == Uniform(1, 30)
    assert scenario.memory.block_size == 4
    assert scenario.engine.max_num_seqs == 8
    assert scenario.engine.latency == LatencyModel(base=9_000_000)


def test_trace_workload(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path, TINY_TRACE))
    assert scenario.workload == Trace(path="trace.csv", format="azure")


def test_sizes_and_times_carry_units(tmp_path: Path) -> None:
    scenario = load_scenario(
        write_scenario(tmp_path),
        (
            "memory.num_blocks=",
            "memory.budget=1.5 MiB",
            "engine.timeout=2.5 s",
            "engine.latency.base=7 ms",
            "engine.latency.per_context_token=3 ns",
            "workload.duration=2 min",
        ),
    )
    assert scenario.memory.budget == 1_572_864
    assert scenario.engine.timeout == 2_500_000_000
    assert scenario.engine.latency.base == 7_000_000
    assert scenario.engine.latency.per_context_token == 3
    assert scenario.workload.duration == 120 * 10**9  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("written", "budget"),
    [("24 GiB", 24 * 2**30), ("24 GB", 24 * 10**9), ("4096", 4096), ("'8 kB'", 8000), ("0.5KiB", 512)],
)
def test_gb_and_gib_are_told_apart(tmp_path: Path, written: str, budget: int) -> None:
    scenario = load_scenario(write_scenario(tmp_path), ("memory.num_blocks=", f"memory.budget={written}"))
    assert scenario.memory.budget == budget


@pytest.mark.parametrize(
    ("written", "bandwidth"), [("25 GB/s", 25 * 10**9), ("'1.5 GiB / s'", 3 * 2**29), ("1000", 1000)]
)
def test_a_bandwidth_is_bytes_per_second(tmp_path: Path, written: str, bandwidth: int) -> None:
    overrides = f"engine.swap_bandwidth={written}", "engine.swap_space=1 MiB"
    engine = load_scenario(write_scenario(tmp_path), overrides).engine
    assert (engine.swap_bandwidth, engine.swap_space) == (bandwidth, 2**20)


@pytest.mark.parametrize("admission", ["", "first_chunk"])
def test_the_gate_may_be_off_by_either_key_or_both(tmp_path: Path, admission: str) -> None:
    overrides = ["engine.scheduler_reserve_full_isl=false", *([f"engine.admission={admission}"] if admission else [])]
    assert load_scenario(write_scenario(tmp_path), overrides).engine.admission_policy == "first_chunk"


def test_an_override_is_as_good_as_the_file(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    overridden = load_scenario(path, ("workload.kind=gamma", "workload.cv=2", "seed=9", "workload.prompt.max=7"))
    assert overridden.seed == 9
    assert overridden.workload == Gamma(
        rate=100.0, cv=2.0, num_requests=40, prompt=Uniform(1, 7), output=Uniform(1, 20)
    )


def test_an_override_may_make_a_table(tmp_path: Path) -> None:
    scenario = load_scenario(
        write_scenario(tmp_path), ("study.write=['summary']", "workload.prompt={kind='fixed',value=3}")
    )
    assert scenario.study.write == ("summary",)
    assert scenario.workload.prompt == Fixed(3)  # type: ignore[union-attr]


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    assert problems(
        write_scenario(tmp_path),
        "question=",
        "seed=1.5",
        "model.kv_dtype=fp6",
        "model.config=llama-3.1-8b",
        "memory.block_size=0",
        "memory.bugdet=24 GiB",
        "memory.prefix_sharing=1",
        "workload.rate=-1.0",
        "workload.cv=2",
        "workload.prompt.max='x'",
        "workload.output.min=900",
        "engine.latency.base=8",
        "engine.policy=fcsf",
    )[:-1] == [
        "question is missing",
        "seed must be a whole number, got 1.5",
        "model.kv_dtype must be one of bf16, fp16, fp32, fp8, int8, int4, fp8_per_token_head, int8_per_token_head, "
        "int4_per_token_head, mxfp8, mxfp4, nvfp4, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, kivi4_g32, kivi2_g32, "
        "kivi4_g64, kivi2_g64, fp8_ds_mla, nvfp4_ds_mla, got 'fp6'",
        "model: config and num_layers, num_kv_heads, head_dim contradict each other: give one or the other",
        "memory.block_size must be between 1 and 1,000,000,000, got 0",
        "memory.prefix_sharing must be true or false, got 1",
        "memory.bugdet: unknown key (did you mean budget?)",
        "workload.prompt.max must be a whole number, got 'x'",
        "workload.output: max must be >= min = 900, got 20",
        "workload.rate must be > 0 and at most 1,000,000, got -1.0",
        "workload.cv: unknown key (known: samples, beam_width, beam_concentration, prompt, output, pairs, correlation, prefixes, templates, documents, sessions, agents, priority, num_requests, duration, rate)",
        "engine.policy must be one of fcfs, priority, got 'fcsf'",
    ]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "model.num_layers=",
            "model: config, or else num_layers, num_kv_heads, head_dim, must be given; missing: num_layers",
        ),
        ("model.num_layers=0", "model.num_layers must be between 1 and 10,000, got 0"),
        ("memory.num_blocks=1", "memory.num_blocks must be between 2 and 16,777,216, got 1"),
        ("memory.budget=8 GiB", "memory: one of budget and num_blocks must be given, and not both"),
        ("memory.num_blocks=", "memory: one of budget and num_blocks must be given, and not both"),
        ("memory.block_size='16'", "memory.block_size must be a whole number, got '16'"),
        ("memory.block_size=16.0", "memory.block_size must be a whole number, got 16.0"),
        ("memory.watermark=1.5", "memory.watermark must be between 0 and 1, got 1.5"),
        ("memory.watermark=nan", "memory.watermark must be a number, got nan"),
        (
            "engine.admission=max",
            "engine.admission must be one of first_chunk, known, worst_case, expected, got 'max'",
        ),
        ("engine.preemption=drop", "engine.preemption must be one of recompute, swap, got 'drop'"),
        (
            "engine.admission=expected",
            'engine.expected_output_tokens must be given with admission = "expected"',
        ),
        (
            "engine={admission='known',scheduler_reserve_full_isl=false}",
            'engine.scheduler_reserve_full_isl = false contradicts admission = "known": leave one of them out',
        ),
        ("engine.max_output_tokens=0", "engine.max_output_tokens must be between 1 and 1,000,000,000, got 0"),
        ("engine.admission_margin=-0.1", "engine.admission_margin must be between 0 and 100, got -0.1"),
        ("engine.swap_space=-1", "engine.swap_space must be between 0 and 1,125,899,906,842,624, got -1"),
        (
            "engine.swap_space=much",
            "engine.swap_space must be a size such as '24 GiB', '24 GB' or a whole number of bytes, got 'much'",
        ),
        ("engine.swap_bandwidth=0", "engine.swap_bandwidth must be >= 1, got 0"),
        (
            "engine.swap_bandwidth=25 GB",
            "engine.swap_bandwidth must be a bandwidth such as '25 GB/s' or a whole number of bytes per second, "
            "got '25 GB'",
        ),
        (
            "engine.swap_bandwidth=25 Gb/s",
            "engine.swap_bandwidth must be a bandwidth such as '25 GB/s' or a whole number of bytes per second; units "
            "are B, kB, KB, MB, GB, TB, KiB, MiB, GiB, TiB, got '25 Gb/s'",
        ),
        ("memory=3", "memory must be a table, got 3"),
        ("memory.allocator=pow3", "memory.allocator must be one of paged, max, pow2, oracle, predicted, got 'pow3'"),
        ("memory.placement=worst_fit", "memory.placement must be one of buddy, first_fit, best_fit, got 'worst_fit'"),
        ("memory.prediction_error=1.5", "memory.prediction_error must be between 0 and 1, got 1.5"),
        ("memory.allocator=predicted", "memory: prediction_error must be given with allocator = predicted"),
        (
            "workload.kind=",
            "workload needs a kind: one of poisson, gamma, weibull, constant, onoff, windows, closed, trace",
        ),
        (
            "workload.kind=weird",
            "workload must have a kind that is one of poisson, gamma, weibull, constant, onoff, windows, closed, trace, got 'weird'",
        ),
        ("workload.rate=", "workload.rate is missing"),
        ("workload.rate=1e308", "workload.rate must be > 0 and at most 1,000,000, got 1e+308"),
        (
            "workload.prefixes={count=3,tokens=4,popularity=1e308}",
            "workload.prefixes.popularity must be between 0 and 10, got 1e+308",
        ),
        (
            "workload.sessions={turns={kind='fixed',value=2},think={kind='fixed',value='0 s'}}",
            "workload.sessions.think.value must be between 1 ns and 1000000000 s, got 0 s",
        ),
        (
            "workload.sessions={turns={kind='fixed',value=2},think={kind='uniform',min='5 s',max='1 s'}}",
            "workload.sessions.think: max must be >= min = 5 s, got 1 s",
        ),
        (
            "workload.prompt={kind='empirical',values=[1],weights=[1e308]}",
            "workload.prompt.weights[0] must be at most 1e+300 in size, got 1e+308",
        ),
        (
            "study.write=['plot','x']",
            "study.write[1] must be one of summary, timeline, requests, pressure, blocks, plot, got 'x'",
        ),
        ("workload.rate=inf", "workload.rate must be a number, got inf"),
        ("workload.rate=true", "workload.rate must be a number, got True"),
        ("workload.num_requests=", "workload: num_requests or duration must be given"),
        ("workload.num_requests=0", "workload.num_requests must be between 1 and 1,000,000,000,000, got 0"),
        ("workload.prompt=7", "workload.prompt must be a table with a kind, got 7"),
        (
            "workload.prompt.kind=normal",
            "workload.prompt must have a kind that is one of fixed, uniform, lognormal, gamma, zipf, empirical, got 'normal'",
        ),
        ("workload.prompt.min=0", "workload.prompt.min must be between 1 and 1,000,000,000, got 0"),
        (
            "workload.prompt={kind='lognormal',mean=9}",
            "workload.prompt: two of mean, p50 and sigma must be given, and not the third",
        ),
        ("workload.prompt={kind='lognormal',mean=9,p50=12}", "workload.prompt: mean must be >= p50 = 12.0, got 9.0"),
        ("workload.prompt=", "workload: prompt is missing: prompt and output, or else pairs, must be given"),
        (
            "workload.pairs={values=[[1,2]]}",
            "workload: pairs and prompt, output contradict each other: give one or the other",
        ),
        ("workload.correlation=1.1", "workload.correlation must be between -1 and 1, got 1.1"),
        (
            "workload.prompt={kind='empirical',values=[3,0]}",
            "workload.prompt.values[1] must be between 1 and 1,000,000,000, got 0",
        ),
        (
            "workload.prompt={kind='empirical',values=[3,'x']}",
            "workload.prompt.values[1] must be a whole number, got 'x'",
        ),
        ("workload.prompt={kind='empirical'}", "workload.prompt: one of values and path must be given, and not both"),
        (
            "workload={kind='weibull',rate=1,num_requests=1,prompt={kind='fixed',value=1},output={kind='fixed',value=1}}",
            "workload: one of cv and shape must be given, and not both",
        ),
        (
            "workload={kind='windows',windows=[{duration='1 s',rate=1},{duration='1 s',rate=-1}],prompt={kind='fixed',value=1},output={kind='fixed',value=1}}",
            "workload.windows[1].rate must be between 0 and 1,000,000, got -1.0",
        ),
        (
            "workload={kind='onoff',rate=1,on='1 s',off=1,num_requests=1,prompt={kind='fixed',value=1},output={kind='fixed',value=1}}",
            "workload.off must be a time with its unit such as '8 ms' or '40 us', got 1",
        ),
        (
            "workload.sessions={turns={kind='fixed',value=2},think={kind='fixed',value=5}}",
            "workload.sessions.think.value must be a time with its unit such as '8 ms' or '40 us', got 5",
        ),
        (
            "workload.sessions={turns={kind='fixed',value=20000}}",
            "workload.sessions: turns must be at most 10,000, got up to 20,000: set its max",
        ),
        (
            "workload.sessions={turns={kind='fixed',value=2},think={kind='weird'}}",
            "workload.sessions.think must have a kind that is one of fixed, uniform, exponential, lognormal, got 'weird'",
        ),
        (
            "workload.sessions={turns={kind='fixed',value=2},think_from='start'}",
            "workload.sessions.think_from must be one of end, arrival, got 'start'",
        ),
        (
            "workload.agents={branches={kind='fixed',value=0}}",
            "workload.agents.branches.value must be between 1 and 1,000,000,000, got 0",
        ),
        (
            "workload.documents={count=3,tokens={kind='fixed',value=9},per_request={kind='fixed',value=4}}",
            "workload.documents: per_request must be at most 3, got up to 4",
        ),
        ("workload.templates={count=3}", "workload.templates.tokens is missing"),
        (
            "workload={kind='closed',clients=0,num_requests=1,prompt={kind='fixed',value=1},output={kind='fixed',value=1}}",
            "workload.clients must be between 1 and 1,000,000, got 0",
        ),
        ("workload.prefixes={count=0,tokens=5}", "workload.prefixes.count must be between 1 and 1,000,000, got 0"),
        ("engine.max_num_seqs=0", "engine.max_num_seqs must be >= 1, got 0"),
        ("engine.timeout=30", "engine.timeout must be a time with its unit such as '8 ms' or '40 us', got 30"),
        ("engine.timeout=0 s", "engine.timeout must be >= 1 ns, got 0 s"),
        ("engine.latency.base=0 ms", "engine.latency.base must be >= 1 ns, got 0 s"),
        ("engine.max_num_batched_tokens=4", "engine.max_num_batched_tokens must be >= max_num_seqs = 8, got 4"),
        (
            "engine.enable_chunked_prefill=false",
            "engine.max_num_batched_tokens must be >= max_model_len = 128 with enable_chunked_prefill = false, got 64",
        ),
        (
            "study.write=['memory']",
            "study.write[0] must be one of summary, timeline, requests, pressure, blocks, plot, got 'memory'",
        ),
        ("study.write=plot", "study.write must be a list, got 'plot'"),
        ("study.vary=3", "study.vary must be a table of keys and their values, got 3"),
        (
            "study.vary={seed=[1]}",
            "study.vary cannot be: seed is varied by a number of seeds: use --seeds, or [study] seeds, got {'seed': [1]}",
        ),
        ("study.seeds=0", "study.seeds must be between 1 and 10,000, got 0"),
        ("extra=1", "extra: unknown key (known: question, seed, model, memory, workload, engine, study)"),
        ("seed=-1", "seed must be between 0 and 9,223,372,036,854,775,807, got -1"),
        ("question=' '", "question must not be empty"),
    ],
)
def test_one_problem_has_one_sentence(tmp_path: Path, override: str, problem: str) -> None:
    assert problems(write_scenario(tmp_path), override) == [problem]


def test_a_message_names_the_file(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, ("memory.block_size=0",))
    assert str(caught.value) == f"{path}: memory.block_size must be between 1 and 1,000,000,000, got 0"


@pytest.mark.parametrize("override", ["memory.block_size", "=3", "memory.=3"])
def test_an_override_is_a_key_and_a_value(tmp_path: Path, override: str) -> None:
    assert problems(write_scenario(tmp_path), override) == [f"must be key=value or table.key=value, got {override!r}"]


def test_an_override_cannot_go_below_a_value(tmp_path: Path) -> None:
    assert problems(write_scenario(tmp_path), "seed.x=3") == ["seed is not a table, got 'seed.x=3'"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"question = ", "not TOML: Invalid value (at end of document)"),
        (b"\xff\xfe", "not UTF-8 text"),
    ],
)
def test_what_is_no_toml_is_said(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "scenario.toml"
    path.write_bytes(content)
    assert problems(path) == [problem]


def test_missing_files_and_folders_are_said(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.toml") == ["cannot be read: No such file or directory"]
    assert problems(tmp_path) == ["cannot be read: Is a directory"]


def test_the_tables_come_back_with_defaults_filled_in(tmp_path: Path) -> None:
    tables = scenario_dict(load_scenario(write_scenario(tmp_path)))
    assert tables["workload"] == {
        "kind": "poisson",
        "prompt": {"kind": "uniform", "min": 1, "max": 30},
        "output": {"kind": "uniform", "min": 1, "max": 20},
        "num_requests": 40,
        "rate": 100.0,
    }
    assert tables["memory"] == {
        "num_blocks": 33,
        "block_size": 4,
        "prefix_sharing": True,
        "watermark": 0.0,
        "prefix_cache_retention": "boundaries",
        "eviction": "lru",
        "block_ids": False,
        "allocator": "paged",
    }
    assert tables["engine"]["latency"]["base"] == 9_000_000
    assert "base" not in tables


def test_rules_hold_from_python_too(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    assert isinstance(scenario, Scenario)
    with pytest.raises(ValueError, match="rate must be > 0"):
        evolve(scenario.workload, rate=0.0)
    with pytest.raises(ValueError, match="max must be >= min"):
        Uniform(5, 4)
    with pytest.raises(ValueError, match="two of mean, p50 and sigma"):
        Lognormal(mean=5.0)


def test_tables_of_every_depth_come_back(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    override = (
        "workload={kind='windows',windows=[{duration='1 s',rate=3.0}],pairs={values=[[3,4]],weights=[2]},"
        "sessions={turns={kind='fixed',value=2},think={kind='exponential',mean='1 s'}}}"
    )
    assert scenario_dict(load_scenario(path, override))["workload"] == {
        "kind": "windows",
        "windows": [{"duration": 10**9, "rate": 3.0, "cv": 1.0, "distribution": "gamma"}],
        "repeat": False,
        "pairs": {"values": [[3, 4]], "weights": [2.0]},
        "sessions": {
            "turns": {"kind": "fixed", "value": 2},
            "think": {"kind": "exponential", "mean": 10**9},
            "think_from": "end",
        },
    }


def test_what_a_sweep_varies_is_kept_as_it_was_written(tmp_path: Path) -> None:
    vary = {"memory": {"block_size": [1, 2]}, "workload": {"rate": "2:12:2"}}
    text = "study.vary={memory={block_size=[1, 2]}, workload.rate='2:12:2'}"
    scenario = load_scenario(write_scenario(tmp_path), (text, "study.seeds=3"))
    assert (scenario.study.vary, scenario.study.seeds) == (vary, 3)
    assert scenario_dict(scenario)["study"]["vary"] == vary
    assert "vary" not in scenario_dict(load_scenario(write_scenario(tmp_path)))["study"]


def test_the_study_is_known_before_the_rest_is_sound(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    assert load_study(path, ("memory.block_size=0", "study.seeds=3")).seeds == 3
    with pytest.raises(ScenarioError, match=r"study\.seeds must be between 1 and 10,000, got 0"):
        load_study(path, ("study.seeds=0",))


SHIPPED = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_scenario_as_text_says_the_same(path: Path, tmp_path: Path) -> None:
    scenario = load_scenario(path, ("seed=7", 'question="a \\"b\\" [c] \\u00e9 \\u007f"', "engine.timeout=1500 ms"))
    again = tmp_path / "again.toml"
    again.write_text(scenario_text(scenario), encoding="utf-8")
    assert (
        evolve(load_scenario(again), base=scenario.base, source=scenario.source, overrides=scenario.overrides)
        == scenario
    )


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (7, "7 B"), (3 * 2**20, "3 MiB"), (4 * 2**30, "4 GiB"), (25 * 10**9, "25 GB"), (1536, "1536 B")],
)
def test_sizes_are_written_so_that_they_are_read_back(num_bytes: int, text: str) -> None:
    assert exact_size(num_bytes) == text
    assert parse_bytes(text) == num_bytes
