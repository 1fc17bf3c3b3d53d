"""What the crash matrix of `scripts/chaos` is made of: a scenario's world, what happens in it, and what is counted."""
