"""hermes-spark: a Spark Structured Streaming agent service whose finished tool calls never run again.

Read `agent/turn.py` first: a turn is two pure functions. `app/` wires the rest.
"""

__version__ = "0.1.0"
