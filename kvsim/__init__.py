"""kvsim: how much KV-cache memory a model and its traffic need, and how much of it is waste."""

__version__ = "0.1.0"
