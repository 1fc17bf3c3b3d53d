"""The `reference` engine: a rule-based planner on a CPU that behaves like a served model, for tests, demos and load.

It is **not** a language model: it understands nothing. It reads the rendered prompt as a model would have to (tools, turns,
tool responses, whether thinking is on), matches words of the last user message with words of the tools, fills arguments by
their JSON schema, and writes the reply in the format that the prompt teaches. The same prompt always gets the same reply.
Because it reads the prompt strictly, a prompt that is rendered wrongly is refused with a sentence that says what is wrong.

The way of a request: `prompt` (ids to turns and tools) -> `planner` (what to say or call; uses `words`, `tools`,
`arguments`, `answers`) -> `reply` (the format) -> `vocabulary` (ids), delayed by a latency profile. `misbehaviour` spoils
replies on demand.
"""

from engines.reference.engine import ReferenceEngine

__all__ = ["ReferenceEngine"]
