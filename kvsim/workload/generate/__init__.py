"""Synthetic requests: arrival processes x lengths x shared prefixes."""

from kvsim.workload.generate.arrivals import ARRIVALS, Constant, Gamma, Generated, Poisson
from kvsim.workload.generate.lengths import LENGTHS, Fixed, Length, Lognormal, Uniform
from kvsim.workload.generate.prefixes import SharedPrefixes
from kvsim.workload.generate.streams import random_stream

__all__ = [
    "ARRIVALS",
    "LENGTHS",
    "Constant",
    "Fixed",
    "Gamma",
    "Generated",
    "Length",
    "Lognormal",
    "Poisson",
    "SharedPrefixes",
    "Uniform",
    "random_stream",
]
