"""Gives load.jsonl to vLLM's own scheduler and loggers, without a model, and keeps what they said.

`scrapes.prom.gz`: what its PrometheusStatLogger exports, through prometheus_client, every 0.5 s, without histograms.
`server.log`: what it prints at the start, and what its LoggingStatLogger says every second, by its own formatter.

Needs vllm and nothing of kvsim: `python make.py` writes both anew. The clock is a made one, on which a step takes 20 ms,
so the files are the same each time. Written for vLLM 0.32.0.
"""

import gzip
import heapq
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ["TZ"] = "UTC"
time.tzset()

STEP_NS = 20_000_000
SCRAPE_NS = 500_000_000
LOG_NS = 1_000_000_000
BEGAN_NS = 1_796_000_000 * 10**9
BLOCK_TOKENS = 8
LOAD = {"num_blocks": 121, "block_size": 8, "max_num_seqs": 24, "max_num_batched_tokens": 256, "max_model_len": 512}


class Clock:
    now_ns = BEGAN_NS

    def time(self):
        return self.now_ns / 1e9


clock = Clock()

import torch  # noqa: E402
import vllm  # noqa: E402
from prometheus_client import REGISTRY, generate_latest  # noqa: E402
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig  # noqa: E402
from vllm.logger import _DATE_FORMAT, _FORMAT, init_logger  # noqa: E402
from vllm.logging_utils import NewLineFormatter  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
    update_kv_cache_capacity,
)
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs  # noqa: E402
from vllm.v1.engine import EngineCoreRequest  # noqa: E402
from vllm.v1.engine.output_processor import OutputProcessor  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.metrics.loggers import LoggingStatLogger, PrometheusStatLogger  # noqa: E402
from vllm.v1.metrics.stats import IterationStats  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

HERE = Path(__file__).parent

TOY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1_000,
    "max_position_embeddings": 1 << 16,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def make_config() -> VllmConfig:
    folder = Path(tempfile.gettempdir(), "toy-llama")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TOY))
    model = ModelConfig(
        model=str(folder),
        served_model_name='toy "llama"',  # a label that must be escaped
        skip_tokenizer_init=True,
        max_model_len=LOAD["max_model_len"],
        dtype="bfloat16",
    )
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=LOAD["block_size"], enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_model_len=LOAD["max_model_len"],
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
            max_num_seqs=LOAD["max_num_seqs"],
            max_num_batched_tokens=LOAD["max_num_batched_tokens"],
        ),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.block_size = LOAD["block_size"]
    config.cache_config.num_gpu_blocks = LOAD["num_blocks"]
    config.model_config.model = config.model_config.tokenizer = "toy/llama"  # and not where it lay
    assert config.scheduler_config.max_num_batched_tokens == LOAD["max_num_batched_tokens"]
    return config


def make_scheduler(config: VllmConfig) -> tuple[Scheduler, int, KVCacheConfig]:
    register_all_kvcache_specs(config)
    spec = FullAttentionSpec(block_size=LOAD["block_size"], num_kv_heads=2, head_size=16, dtype=torch.bfloat16)
    blocks = KVCacheConfig(
        num_blocks=LOAD["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["l.0", "l.1"], spec)]
    )
    block_size, hash_block_size = resolve_kv_cache_block_sizes(blocks, config)
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=True,
    )
    return scheduler, hash_block_size, blocks


def core_request(number: int, row: dict) -> EngineCoreRequest:
    tokens = [token for id in row["hash_ids"] for token in range(id * BLOCK_TOKENS, (id + 1) * BLOCK_TOKENS)]
    return EngineCoreRequest(
        request_id=str(number),
        external_req_id=str(number),
        prompt_token_ids=tokens[: row["input_length"]],
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=row["output_length"], ignore_eos=True, temperature=0.0),
        pooling_params=None,
        arrival_time=clock.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


def next_token(request: Request) -> list[int]:
    if request.num_computed_tokens < request.num_tokens:
        return []
    return [2_000_000 + request.num_output_tokens * 4_096 + int(request.request_id)]


def log_into(path: Path) -> None:
    """vLLM's own formatter, as its handler has it, into a file; the clock is ours."""
    handler = logging.FileHandler(path, mode="w")
    handler.setFormatter(NewLineFormatter(_FORMAT, datefmt=_DATE_FORMAT))

    def stamped(record: logging.LogRecord) -> bool:
        record.created = clock.time()
        record.msecs = 0.0
        record.process = 4242  # else another number each time
        record.vllm_process_name = "EngineCore"
        return True

    handler.addFilter(stamped)
    said = logging.getLogger("vllm")
    said.handlers, said.propagate = [handler], False
    said.setLevel(logging.INFO)


def main() -> None:
    rows = [json.loads(line) for line in (HERE / "load.jsonl").read_text().splitlines()]
    config = make_config()
    scheduler, hash_block_size, blocks = make_scheduler(config)
    hash_of = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(hash_of)
    hasher = get_request_block_hasher(hash_block_size, hash_of)
    time.monotonic = clock.time
    log_into(HERE / "server.log")
    init_logger("vllm.v1.engine.core").info(
        "Initializing a V1 LLM engine (v%s) with config: %s", vllm.__version__, config
    )
    config.device_config.device_type = "cuda"  # so that its lines are those of a GPU
    update_kv_cache_capacity(config, blocks)
    stat_logger = LoggingStatLogger(config)
    prometheus = PrometheusStatLogger(config)
    prometheus.log_engine_initialized()
    outputs = OutputProcessor(None, log_stats=True)
    scrapes = []

    def scrape() -> None:
        kept = ("_info", "usage", "num_requests", "num_preempt", "prefix_cache", "prompt_tokens", "generation_tokens")
        text = generate_latest(REGISTRY).decode()
        lines = [line for line in text.splitlines() if "vllm:" in line and "_created" not in line]
        lines = [line for line in lines if any(word in line for word in (*kept, "request_success"))]
        lines = [line for line in lines if "_bucket" not in line and "histogram" not in line]
        scrapes.append(f"# scraped at {clock.now_ns / 1e9:.3f}\n" + "\n".join(lines) + "\n")

    ticks = [(BEGAN_NS, 0, scrape, SCRAPE_NS), (BEGAN_NS + LOG_NS, 1, stat_logger.log, LOG_NS)]

    def pass_to(until_ns: int) -> None:
        """What is due before then, in its order; what comes at the very moment sees what was before."""
        while ticks[0][0] <= until_ns:
            due, order, act, every = heapq.heappop(ticks)
            clock.now_ns = due
            act()
            heapq.heappush(ticks, (due + every, order, act, every))
        clock.now_ns = until_ns

    waiting = [(BEGAN_NS + int(row["timestamp"] * 10**6), number, row) for number, row in enumerate(rows)]
    while waiting or scheduler.get_num_unfinished_requests():
        if not scheduler.get_num_unfinished_requests():
            pass_to(max(clock.now_ns, waiting[0][0]))
        while waiting and waiting[0][0] <= clock.now_ns:
            _due, number, row = waiting.pop(0)
            request = core_request(number, row)
            outputs.add_request(request, None)
            scheduler.add_request(Request.from_engine_core_request(request, hasher))
        step = scheduler.schedule()
        ids = list(step.num_scheduled_tokens)
        sampled = [next_token(scheduler.requests[id]) for id in ids]
        pass_to(clock.now_ns + STEP_NS)
        made = scheduler.update_from_output(
            step,
            ModelRunnerOutput(
                req_ids=ids, req_id_to_index={id: at for at, id in enumerate(ids)}, sampled_token_ids=sampled
            ),
        )
        for core_outputs in made.values():
            iteration = IterationStats() if core_outputs.outputs else None
            outputs.process_outputs(core_outputs.outputs, core_outputs.timestamp, iteration)
            for each in (stat_logger, prometheus):
                if core_outputs.scheduler_stats is not None:
                    each.record(core_outputs.scheduler_stats, iteration)
    pass_to(clock.now_ns + 3 * LOG_NS)
    (HERE / "scrapes.prom.gz").write_bytes(gzip.compress("".join(scrapes).encode(), mtime=0))
    print(f"{len(scrapes)} scrapes", file=sys.stderr)


if __name__ == "__main__":
    main()
