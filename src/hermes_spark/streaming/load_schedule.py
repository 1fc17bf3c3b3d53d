"""When each row of the `load` source arrives: fixed by its number alone, so that lateness can be counted from it.

The rate climbs linearly from zero over the ramp-up and stays at `rows_per_second` afterwards. Everything is integer
arithmetic: the same settings give the same milliseconds in every process and on every replay.
"""

from __future__ import annotations

import math

import msgspec


class Schedule(msgspec.Struct, frozen=True):
    """The arrival times of a stream of rows numbered from 0, in milliseconds after its start."""

    rows_per_second: int
    ramp_up_s: int = 0
    duration_s: int = 0
    """No row arrives so long after the start; 0 means that rows never end."""

    def arrival_ms(self, row: int) -> int:
        """When row number `row` arrives, whatever the duration. Never falls with `row`."""
        if 2 * row < self.rows_per_second * self.ramp_up_s:
            # By time t of a ramp R to rate r, r*t*t/(2R) rows have come.
            return math.isqrt(2 * self.ramp_up_s * row * 1_000_000 // self.rows_per_second)
        return row * 1000 // self.rows_per_second + 500 * self.ramp_up_s

    def rows_due(self, elapsed_ms: int) -> int:
        """How many rows have arrived: those with `arrival_ms(row) <= elapsed_ms` and before the duration's end."""
        if self.duration_s:
            elapsed_ms = min(elapsed_ms, 1000 * self.duration_s - 1)
        end_ms = elapsed_ms + 1
        if end_ms <= 0:
            return 0
        if end_ms <= 1000 * self.ramp_up_s:
            return _ceil_div(self.rows_per_second * end_ms * end_ms, 2 * self.ramp_up_s * 1_000_000)
        return _ceil_div(self.rows_per_second * (end_ms - 500 * self.ramp_up_s), 1000)


def partition_ends(rows: int, partitions: int) -> list[int]:
    """How many of the first `rows` rows each partition holds.

    Row `i` is number `i // partitions` of partition `i % partitions`.
    """
    return [_ceil_div(rows - partition, partitions) for partition in range(partitions)]


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
