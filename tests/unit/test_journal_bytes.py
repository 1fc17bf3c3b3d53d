"""What a turn costs in the journal. Every fact is in it once, and the outcome repeats what a reader of outcomes must see."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench_journal import bytes_per_turn

GOAL = 5_600


@pytest.mark.parametrize("together", [False, True])
async def test_a_turn_of_three_steps_with_messages_of_400_characters_stays_under_its_bytes(
    tmp_path: Path, together: bool
) -> None:
    found = await bytes_per_turn(tmp_path, together=together)
    # Six messages are 2,400 bytes, and the outcome repeats the answer and the results: less would be a turn that did not run.
    assert 3_600 < found < GOAL
