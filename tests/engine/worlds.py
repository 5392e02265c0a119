"""Random little worlds in the format of a recorded case: a config and requests that get into each other's way.

Pools are small, lengths lie near block boundaries, prompts share heads, go on where others left off (also before
these have got there), outputs are equal, arrivals come in bursts with ties. Groups of layers are one of full
attention, or up to four of mixed kinds and windows, some of them alike.
"""

from typing import Any

from hypothesis import strategies as st

from tests.oracle import World

UNLIMITED = 10_000
"""Blocks on the host: more than are ever there."""

Runs = list[list[int]]
Groups = list[dict[str, Any]]


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


ONE_FULL: Groups = [{"type": "full"}]


@st.composite
def mixed_groups(draw: st.DrawFn, block_size: int) -> Groups:
    """One to four groups of two windows, two chunks and full attention, windows mostly about as long as a few blocks.

    With only so many kinds to choose from groups are often alike, and kinds of one type often differ in their window.
    """
    sizes = st.integers(1, 4 * block_size) | st.sampled_from([block_size, 2 * block_size, 2 * block_size + 1])
    windows = [{"type": "sliding_window", "window": draw(sizes)} for _ in range(2)]
    chunks = [{"type": "chunked_local", "chunk": draw(sizes)} for _ in range(2)]
    kinds = [*ONE_FULL, windows[0], windows[0], windows[1], *chunks]
    return draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))


@st.composite
def configs(draw: st.DrawFn, windows: bool) -> dict[str, Any]:
    block_size = draw(st.sampled_from([1, 2, 2, 3, 4, 4, 5, 8, 16]))
    groups = draw(mixed_groups(block_size)) if windows else ONE_FULL
    num_blocks = draw(st.integers(3, 20)) * len(groups) - len(groups) + 1
    pool_tokens = (num_blocks - 1) // len(groups) * block_size
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
        "groups": groups,
        "prefix_cache_retention_interval": draw(
            st.sampled_from([0, None, None, block_size, 2 * block_size, 3 * block_size]) if windows else st.just(0)
        ),
    }


@st.composite
def worlds(draw: st.DrawFn, windows: bool = False) -> World:
    config = draw(configs(windows))
    block_size = config["block_size"]
    most_blocks = min(5, (config["num_gpu_blocks"] - 1) // len(config["groups"]))
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


@st.composite
def pressed_worlds(draw: st.DrawFn, windows: bool = False, **fixed: Any) -> World:
    """The same with policies of admission, and swap to a host that has room for all, for some or for nothing."""
    world = draw(worlds(windows))
    config = world["config"]
    block_size = config["block_size"]
    config |= {
        "admission": draw(st.sampled_from([None, "first_chunk", "known", "worst_case", "expected"])),
        "max_output_tokens": draw(st.none() | lengths(block_size, 3)),
        "expected_output_tokens": draw(lengths(block_size, 2)),
        "admission_margin": draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        "preemption": draw(st.sampled_from(["swap", "swap", "swap", "recompute"])),
        "host_blocks": draw(st.just(UNLIMITED) | st.integers(0, 12)),
        **fixed,
    }
    return world
