"""What a Weibull distribution's shape and coefficient of variation have to do with each other."""

import math

LEAST_SHAPE, MOST_SHAPE = 0.1, 100.0


def weibull_cv(shape: float) -> float:
    """Standard deviation over mean; falls as the shape rises."""
    return math.sqrt(math.expm1(math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)))


def weibull_shape(cv: float) -> float:
    """The shape with this coefficient of variation, by bisection to the last bit."""
    low, high = LEAST_SHAPE, MOST_SHAPE
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if weibull_cv(middle) > cv else (low, middle)
    return low
