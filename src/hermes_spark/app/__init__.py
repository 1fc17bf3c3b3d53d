"""Puts the pieces together: the only package that chooses concrete stores, clients and sinks.

`driver` is the driver's job; `host` is an agent host, named by `streaming.launcher` and run inside a Spark task.
"""
