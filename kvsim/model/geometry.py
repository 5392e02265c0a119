"""What a token costs: the KV layers of a model, one by one, and the bytes they take on a rank.

Bytes of one token in one layer (K and V, any attention that keeps both):

    num_kv_heads x (k_dim + v_dim) x bytes of one value
"""

from typing import Literal

from attrs import field, frozen, validators

from kvsim.errors import ModelError

KVDtype = Literal["bf16", "fp16", "fp32", "fp8", "int8", "int4"]

BITS_PER_VALUE: dict[str, int] = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8, "int8": 8, "int4": 4}
"""Width of one cached value. None of these stores scales beside the values."""

LayerKind = Literal["full"]


@frozen
class LayerKV:
    """What one layer keeps of each token, before it is split over ranks."""

    kind: LayerKind
    num_kv_heads: int = field(validator=validators.ge(1))
    k_dim: int = field(validator=validators.ge(1))
    v_dim: int = field(validator=validators.ge(1))

    def num_kv_heads_on_rank(self, tensor_parallel: int) -> int:
        """KV heads that one of `tensor_parallel` ranks holds; at least one, so heads are repeated beyond that.

        Raises ModelError where heads and ranks do not divide each other (vLLM refuses the same).
        """
        heads, ranks = self.num_kv_heads, tensor_parallel
        if heads % ranks and ranks % heads:
            raise ModelError(
                f"tensor_parallel must divide the number of KV heads or be a multiple of it, "
                f"got {ranks} for {heads} KV heads"
            )
        return max(1, heads // ranks)

    def bytes_per_token(self, kv_dtype: KVDtype, tensor_parallel: int = 1) -> int:
        """Bytes that one token takes in this layer on one rank."""
        values = self.num_kv_heads_on_rank(tensor_parallel) * (self.k_dim + self.v_dim)
        bits = values * BITS_PER_VALUE[kv_dtype]
        if bits % 8:
            raise ModelError(f"kv_dtype {kv_dtype} needs a whole number of bytes a token, got {bits} bits")
        return bits // 8


@frozen
class ModelGeometry:
    """The layers of a model that keep KV, in model order."""

    name: str
    layers: tuple[LayerKV, ...]
    max_model_len: int | None = None
    assumptions: tuple[str, ...] = ()

    def bytes_per_token(self, kv_dtype: KVDtype, tensor_parallel: int = 1, pipeline_parallel: int = 1) -> int:
        """Bytes that one token takes on the rank that holds most: the pool of that rank fills first."""
        if pipeline_parallel > len(self.layers):
            raise ModelError(
                f"pipeline_parallel must not exceed the number of layers, "
                f"got {pipeline_parallel} for {len(self.layers)} layers"
            )
        stage_layers = -(-len(self.layers) // pipeline_parallel)
        costs = [layer.bytes_per_token(kv_dtype, tensor_parallel) for layer in self.layers]
        return max(sum(costs[i : i + stage_layers]) for i in range(0, len(costs), stage_layers))

    def formula(self, kv_dtype: KVDtype, tensor_parallel: int = 1, pipeline_parallel: int = 1) -> str:
        """`bytes_per_token` written out with its numbers."""
        layer = self.layers[0]
        num_layers = -(-len(self.layers) // pipeline_parallel)
        heads = layer.num_kv_heads_on_rank(tensor_parallel)
        total = self.bytes_per_token(kv_dtype, tensor_parallel, pipeline_parallel)
        value_bytes = BITS_PER_VALUE[kv_dtype] / 8
        return (
            f"{num_layers} layers x {heads} KV heads x ({layer.k_dim} K + {layer.v_dim} V) "
            f"x {value_bytes:g} B = {total:,} B"
        )


def uniform_geometry(
    num_layers: int, num_kv_heads: int, head_dim: int, name: str = "given geometry"
) -> ModelGeometry:
    """A model of `num_layers` equal full-attention layers (MHA, GQA or MQA)."""
    layer = LayerKV("full", num_kv_heads, head_dim, head_dim)
    return ModelGeometry(name, (layer,) * num_layers)
