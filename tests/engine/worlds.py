"""Random little worlds in the format of a recorded case: a config and requests that get into each other's way.

Pools are small, lengths lie near block boundaries, prompts share heads, go on where others left off (also before
these have got there), outputs are equal, arrivals come in bursts with ties.
"""

from typing import Any

from hypothesis import strategies as st

from tests.oracle import World

Runs = list[list[int]]


def num_tokens(runs: Runs) -> int:
    return sum(count for _first, count in runs)


def cut(runs: Runs, length: int) -> Runs:
    """The first `length` tokens."""
    out = []
    for first, count in runs:
        if length > 0:
            out.append([first, min(count, length)])
            length -= count
    return out


@st.composite
def lengths(draw: st.DrawFn, block_size: int, most_blocks: int, least: int = 1) -> int:
    """Tokens, mostly a whole number of blocks or one off."""
    off = draw(st.sampled_from([0, 0, 1, -1, block_size // 2]))
    return max(least, draw(st.integers(0, most_blocks)) * block_size + off)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    block_size = draw(st.sampled_from([1, 2, 2, 3, 4, 4, 5, 8, 16]))
    num_blocks = draw(st.integers(3, 20))
    pool_tokens = (num_blocks - 1) * block_size
    max_num_seqs = draw(st.integers(1, 8) | st.just(8))
    return {
        "block_size": block_size,
        "num_gpu_blocks": num_blocks,
        "max_num_seqs": max_num_seqs,
        "max_num_active_seqs": draw(st.none() | st.none() | st.integers(1, max_num_seqs)),
        "max_num_batched_tokens": draw(st.integers(1, 8) | st.integers(1, 4 * block_size) | st.just(1000)),
        "max_model_len": draw(
            st.just(10_000) | st.just(10_000) | st.just(10_000) | st.integers(2, pool_tokens + 2 * block_size)
        ),
        "enable_chunked_prefill": draw(st.sampled_from([True, True, True, True, False])),
        "long_prefill_token_threshold": draw(st.just(0) | st.integers(1, 2 * block_size)),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.01, 0.07, 0.1, 0.26, 0.5])),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "groups": [{"type": "full"}],
        "prefix_cache_retention_interval": 0,
    }


@st.composite
def worlds(draw: st.DrawFn) -> World:
    config = draw(configs())
    block_size = config["block_size"]
    most_blocks = min(5, config["num_gpu_blocks"] - 1)
    heads = [10_000 * (1 + head) for head in range(2)]
    requests: list[dict[str, Any]] = []
    for id in range(draw(st.integers(1, 10) | st.integers(6, 10))):
        kind = draw(st.sampled_from(["own", "head", "head", "follow_up", "again"])) if requests else "head"
        own = [1_000_000 + 10_000 * id, draw(lengths(block_size, most_blocks // 2))]
        prompt: Runs = []
        if kind == "head":
            prompt = [[draw(st.sampled_from(heads)), draw(lengths(block_size, most_blocks))]]
        elif kind != "own":
            earlier = draw(st.sampled_from(requests))
            whole = [*earlier["prompt_runs"], [earlier["output_base"], earlier["output_len"]]]
            prompt = earlier["prompt_runs"]
            if kind == "follow_up":
                prompt = cut(whole, draw(st.just(10_000) | lengths(block_size, most_blocks + 1)))
        if not prompt or draw(st.booleans()):
            prompt = [*prompt, own]
        arrival = draw(st.sampled_from([0, 0, 1, 2]) | st.integers(0, 20))
        # Outputs may be those of another request, or go on as a shared head does.
        bases = [2_000_000, heads[0] + block_size, 3_000_000 + 10_000 * id]
        request: dict[str, Any] = {
            "id": id,
            "arrival_step": arrival,
            "prompt_runs": prompt,
            "output_len": draw(lengths(block_size, 1) | lengths(block_size, most_blocks)),
            "output_base": draw(st.sampled_from(bases)),
            "priority": draw(st.integers(0, 2)),
        }
        if draw(st.sampled_from([False] * 7 + [True])):
            request["abort_step"] = arrival + draw(st.integers(0, 12))
        requests.append(request)
    return {"config": config, "requests": requests}
