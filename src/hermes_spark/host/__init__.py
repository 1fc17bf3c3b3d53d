"""The agent host: a long-running Spark task that owns shards and runs their turns on one event loop."""
