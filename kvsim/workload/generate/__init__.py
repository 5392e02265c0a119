"""Synthetic requests: arrival processes x lengths x content."""

from kvsim.workload.generate.arrivals import ARRIVALS, Arrivals, Constant, Gamma, Poisson, Weibull
from kvsim.workload.generate.empirical import Empirical
from kvsim.workload.generate.generated import Generated
from kvsim.workload.generate.lengths import LENGTHS, Fixed, GammaLength, Length, Lognormal, Uniform, Zipf
from kvsim.workload.generate.pairs import Pairs
from kvsim.workload.generate.piecewise import OnOff, Window, Windows
from kvsim.workload.generate.prefixes import SharedPrefixes
from kvsim.workload.generate.streams import random_stream

__all__ = [
    "ARRIVALS",
    "LENGTHS",
    "Arrivals",
    "Constant",
    "Empirical",
    "Fixed",
    "Gamma",
    "GammaLength",
    "Generated",
    "Length",
    "Lognormal",
    "OnOff",
    "Pairs",
    "Poisson",
    "SharedPrefixes",
    "Uniform",
    "Weibull",
    "Window",
    "Windows",
    "Zipf",
    "random_stream",
]
