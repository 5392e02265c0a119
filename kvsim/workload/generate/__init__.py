"""Synthetic requests: arrival processes x lengths x content x requests that follow others."""

from kvsim.workload.generate.arrivals import ARRIVALS, Arrivals, Constant, Gamma, Poisson, Weibull
from kvsim.workload.generate.closed import Closed
from kvsim.workload.generate.content import Documents, SharedPrefixes, Templates
from kvsim.workload.generate.durations import (
    DURATIONS,
    Duration,
    ExponentialTime,
    FixedTime,
    LognormalTime,
    UniformTime,
)
from kvsim.workload.generate.empirical import Empirical
from kvsim.workload.generate.generated import Generated
from kvsim.workload.generate.lengths import LENGTHS, Fixed, GammaLength, Length, Lognormal, Uniform, Zipf
from kvsim.workload.generate.pairs import Pairs
from kvsim.workload.generate.piecewise import OnOff, Window, Windows
from kvsim.workload.generate.sessions import Agents, Sessions
from kvsim.workload.generate.streams import random_stream
from kvsim.workload.generate.traffic import Traffic

__all__ = [
    "ARRIVALS",
    "DURATIONS",
    "LENGTHS",
    "Agents",
    "Arrivals",
    "Closed",
    "Constant",
    "Documents",
    "Duration",
    "Empirical",
    "ExponentialTime",
    "Fixed",
    "FixedTime",
    "Gamma",
    "GammaLength",
    "Generated",
    "Length",
    "Lognormal",
    "LognormalTime",
    "OnOff",
    "Pairs",
    "Poisson",
    "Sessions",
    "SharedPrefixes",
    "Templates",
    "Traffic",
    "Uniform",
    "UniformTime",
    "Weibull",
    "Window",
    "Windows",
    "Zipf",
    "random_stream",
]
