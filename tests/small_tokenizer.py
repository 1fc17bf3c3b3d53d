"""A small tokenizer in the files of a checkpoint: byte-level BPE with merges, Qwen's added tokens, a template like Qwen's."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

# A ChatML template in the manner of Qwen's: trims contents, reads the history, dumps tools and arguments as JSON.
TEMPLATE = """
{%- if tools %}{{- '<|im_start|>system\\n# Tools\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\nCall as <tool_call>\\n<function=name>\\n</tool_call>' }}
{%- if messages[0].role == 'system' %}{{- '\\n\\n' + messages[0].content | trim }}{% endif %}{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content | trim + '<|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(query=false) %}
{%- for m in messages %}{%- set content = m.content | trim %}
{%- if m.role == 'user' %}
{%- if not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
{%- set ns.query = true %}{% endif %}
{{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{%- if m.reasoning_content is string %}{% set reasoning = m.reasoning_content %}
{%- else %}{% set reasoning = content.split('</think>')[0] %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|im_start|>assistant\\n<think>\\n' + reasoning + '\\n</think>\\n\\n' + content }}
{%- for call in m.tool_calls or [] %}
{{- ('\\n\\n' if content and loop.first else '') + '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{%- set nested = value is mapping or (value is sequence and value is not string) %}
{{- '<parameter=' + name + '>\\n' + (value | tojson if nested else value | string) + '\\n</parameter>\\n' }}
{%- endfor %}{{- '</function>\\n</tool_call>' }}{% endfor %}{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif m.role != 'system' %}{{- raise_exception('Unexpected message role.') }}{% endif %}
{%- endfor %}
{%- if not ns.query %}{{- raise_exception('No user query found in messages.') }}{% endif %}
{{- '<|im_start|>assistant\\n<think>\\n' if enable_thinking else '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}
"""


def write_tokenizer(directory: Path, template: str | None) -> Path:
    """A byte-level BPE tokenizer with merges and Qwen's added tokens, in the files of a checkpoint."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    corpus = [
        TEMPLATE,
        "type object properties name description 客户",
        "<|im_start|> <|im_end|> <tool_call> </think> order status",
    ] * 3
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP])
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    return directory
