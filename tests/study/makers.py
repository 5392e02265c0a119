"""Small scenarios for tests, as TOML text and as files."""

from pathlib import Path

TINY = """
question = "Does a tiny pool do?"
seed = 3

[model]
num_layers = 2
num_kv_heads = 1
head_dim = 4

[memory]
num_blocks = 33
block_size = 4

[workload]
kind = "poisson"
rate = 100.0
num_requests = 40
prompt = { kind = "uniform", min = 1, max = 30 }
output = { kind = "uniform", min = 1, max = 20 }

[engine]
max_num_seqs = 8
max_num_batched_tokens = 64
max_model_len = 128
latency = { base = "9 ms" }
"""

TINY_TRACE = """
question = "Does a tiny trace do?"

[model]
num_layers = 2
num_kv_heads = 1
head_dim = 4

[memory]
num_blocks = 33
block_size = 4

[workload]
kind = "trace"
path = "trace.csv"
format = "azure"

[engine]
max_model_len = 128
latency = { base = "9 ms" }
"""

AZURE_ROWS = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,12,4\r
2023-11-16 18:15:47.0000000,30,9\r
2023-11-16 18:15:47.5000001,7,1"""


def write_scenario(folder: Path, text: str = TINY) -> Path:
    """A scenario file in the folder, and beside it the trace that TINY_TRACE names."""
    path = folder / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    (folder / "trace.csv").write_bytes(AZURE_ROWS.encode())
    return path
