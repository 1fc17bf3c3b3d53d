"""The agent: `apply(state, record) -> state` and `next_effects(state) -> effects`. Pure: no I/O, no clock, no chance."""
