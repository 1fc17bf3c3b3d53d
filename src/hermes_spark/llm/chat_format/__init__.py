"""The text that goes to the model and the text that comes back: Qwen3.5's XML calls and Hermes' JSON calls. Pure functions.

`render` writes a chat as a prompt, in pieces that say which parts may hold special tokens; `parse_reply` reads a reply.
Inside: `document` (the tags of a text), `scan` (which of them are calls), `xml_calls` and `json_calls` (one block each),
`values` and `literals` (typed arguments), `parse` (thinking, and the whole reply). Names such as T26 are cases in
`tests/cases/toolcalls.jsonl`, each a reply that some reader got wrong; where a case leaves a choice, the code says which.
"""

from hermes_spark.llm.chat_format.parse import parse_reply
from hermes_spark.llm.chat_format.render import TEMPLATE_SHA256, Format, Piece, by_message, render, render_calls

__all__ = ["TEMPLATE_SHA256", "Format", "Piece", "by_message", "parse_reply", "render", "render_calls"]
