"""What a sweep came to: a row a run, and the rows that have the same values."""

from functools import cached_property
from typing import NamedTuple

import polars as pl
from attrs import frozen

from kvsim.study.sweep_plan import named
from kvsim.study.vary import Axis, Scalar


class Combination(NamedTuple):
    """The runs with the same values, a row a seed; figures are of those that did not fail."""

    parameters: dict[str, Scalar]
    rows: pl.DataFrame

    def mean(self, figure: str) -> float | None:
        return self.rows[figure].cast(pl.Float64).mean()  # type: ignore[return-value]  # of floats

    def spread(self, figure: str) -> float | None:
        """Standard deviation over the seeds; None for less than two."""
        return self.rows[figure].cast(pl.Float64).std()  # type: ignore[return-value]  # of floats


@frozen(eq=False, kw_only=True)
class Sweep:
    """The outcome of all runs. `table` has a row a run: the varied keys, seed, outcome, error and all figures.

    `overrides` are the keys set anew in all of them; `num_kept` runs had been kept by an earlier sweep that was
    stopped. A note says which runs it is about.
    """

    question: str
    axes: tuple[Axis, ...]
    num_seeds: int
    table: pl.DataFrame
    notes: tuple[str, ...]
    num_kept: int
    overrides: tuple[str, ...] = ()

    @cached_property
    def combinations(self) -> tuple[Combination, ...]:
        keys = [axis.key for axis in self.axes]
        slices = (self.table[start : start + self.num_seeds] for start in range(0, self.table.height, self.num_seeds))
        return tuple(Combination(rows.select(keys).row(0, named=True) if keys else {}, rows) for rows in slices)

    @property
    def failures(self) -> list[str]:
        """Which runs failed, and why."""
        keys = [axis.key for axis in self.axes]
        failed = self.table.filter(pl.col("outcome") == "failed").iter_rows(named=True)
        return [f"{named({key: row[key] for key in (*keys, 'seed')})}: {row['error']}" for row in failed]
