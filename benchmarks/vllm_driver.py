"""Gives loads to vLLM's own Scheduler and KVCacheManager, unmodified, without a model; started by `against_vllm.py`.

Needs vllm and nothing of kvsim. One JSON object a line: a greeting goes out, then for each load that comes in what it
took and what was done. vLLM's own talk goes to stderr. Written for vLLM 0.32.0.
"""

import gc
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# What vllm needs to be imported where there is no device and no network.
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

# Only answers go to the caller: whatever else writes to stdout is sent to stderr.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def answer(**what: Any) -> None:
    print(json.dumps(what), file=_answers, flush=True)


try:
    import torch
    import vllm
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import (
        get_request_block_hasher,
        init_none_hash,
        resolve_kv_cache_block_sizes,
    )
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager
except ImportError as error:
    answer(error=f"{type(error).__name__}: {error}")
    sys.exit(2)

_HASH = "sha256"
"""What vLLM hashes blocks with by default."""

_TOY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1_000,
    "max_position_embeddings": 1 << 24,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
"""The engine's configuration wants a model's; its weights are never asked for."""


def toy_model(max_model_len: int) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_TOY))
        return ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=max_model_len, dtype="bfloat16")


def make_scheduler(model: ModelConfig, load: dict[str, Any]) -> tuple[Scheduler, int]:
    """A scheduler with one full-attention group, and the block size that requests are hashed by."""
    limits = {name: load[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(
            block_size=load["block_size"],
            enable_prefix_caching=load["prefix_sharing"],
            prefix_caching_hash_algo=_HASH,
        ),
        scheduler_config=SchedulerConfig(
            max_model_len=load["max_model_len"],
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=False,
            **limits,
        ),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.block_size = load["block_size"]
    config.cache_config.num_gpu_blocks = load["num_blocks"]
    used = config.scheduler_config
    assert all(getattr(used, name) == value for name, value in limits.items()), "the engine has changed the limits"
    assert config.model_config.max_model_len == load["max_model_len"], "the engine has changed the longest length"
    assert config.cache_config.enable_prefix_caching == load["prefix_sharing"], "the engine has changed what is shared"
    assert (used.policy, used.watermark, used.async_scheduling) == ("fcfs", 0.0, False), "other rules by default"
    register_all_kvcache_specs(config)
    spec = FullAttentionSpec(block_size=load["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    blocks = KVCacheConfig(
        num_blocks=load["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)]
    )
    block_size, hash_block_size = resolve_kv_cache_block_sizes(blocks, config)
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=False,
    )
    return scheduler, hash_block_size


def run(model: ModelConfig, load: dict[str, Any]) -> dict[str, Any]:
    """Seconds from the making of the first request to the end of the last; tokens are made before."""
    hash_of = get_hash_fn_by_name(_HASH)
    init_none_hash(hash_of)
    scheduler, hash_block_size = make_scheduler(model, load)
    hasher = get_request_block_hasher(hash_block_size, hash_of) if load["prefix_sharing"] else None
    head = list(range(100, 100 + load["shared_tokens"]))
    prompts = [
        head + list(range(1_000_000 + 1_000 * number, 1_000_000 + 1_000 * number + prompt_tokens))
        for number, (prompt_tokens, _output_tokens) in enumerate(load["lengths"])
    ]
    steps = preemptions = hit_tokens = 0
    gc.collect()
    began, cpu_began = time.perf_counter(), time.process_time()
    for number, (_prompt_tokens, output_tokens) in enumerate(load["lengths"]):
        request = Request(
            request_id=str(number),
            prompt_token_ids=prompts[number],
            sampling_params=SamplingParams(max_tokens=output_tokens, ignore_eos=True, temperature=0.0),
            pooling_params=None,
            arrival_time=float(number),
            block_hasher=hasher,
        )
        scheduler.add_request(request)
    while scheduler.get_num_unfinished_requests():
        step = scheduler.schedule()
        ids = list(step.num_scheduled_tokens)
        sampled = [next_token(scheduler.requests[request_id]) for request_id in ids]
        index = {request_id: place for place, request_id in enumerate(ids)}
        scheduler.update_from_output(
            step, ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=sampled)
        )
        steps += 1
        preemptions += len(step.preempted_req_ids or ())
        hit_tokens += sum(new.num_computed_tokens for new in step.scheduled_new_reqs)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "work": [steps, preemptions, hit_tokens]}


def next_token(request: Request) -> list[int]:
    """What a model would sample: a token that no other request has there, once all known ones are computed."""
    if request.num_computed_tokens < request.num_tokens:
        return []
    return [2_000_000 + request.num_output_tokens * 4_096 + int(request.request_id)]


def main() -> None:
    answer(engine=f"vLLM {vllm.__version__}", python=platform.python_version())
    models: dict[int, ModelConfig] = {}
    for line in sys.stdin:
        load = json.loads(line)
        if load["max_model_len"] not in models:
            models[load["max_model_len"]] = toy_model(load["max_model_len"])
        answer(**run(models[load["max_model_len"]], load))


if __name__ == "__main__":
    main()
