"""Chats to token ids and token ids to text, with the tokenizer of the checkpoint.

The prompt is rendered by the checkpoint's own chat template when there is one, else by `chat_format`. Either way it is known
which parts of it the template wrote and which came from outside (users, tools, the model, tool files). Added tokens such as
`<|im_end|>` or `<tool_call>` are recognised in the template's parts only; everything between two of them is tokenized as plain
text by a copy of the tokenizer that has no added tokens at all. So no outside text can end its own message or open a call, and
harmless text gets the same ids as from `apply_chat_template(tokenize=True)`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from hermes_spark.errors import ModelContractError, SettingsError
from hermes_spark.llm.chat_format import TEMPLATE_SHA256, Format, Piece, by_message, render
from hermes_spark.llm.slots import Slots
from hermes_spark.messages import JsonObject, Message, ToolSpec

Ids = npt.NDArray[np.int32]

_END = "<|im_end|>"  # closes every message of ChatML, which both formats are built on
_CACHE_BYTES = 96 * 1024 * 1024  # ids of messages seen lately: about 100,000 short ones, 1,600 histories of 60
_TOOL_SETS = 64
_LAYOUTS = 1024  # rendered layouts kept; one per shape of a chat, 5 to 50 kB each with tools

# A placeholder is an ASCII control character around a number. Outside text never reaches the template, so nothing else can
# look like one; JSON escapes the character, so a placeholder also tells whether the template wrote it raw or by `tojson`.
_PLACEHOLDER = re.compile(r"\x1a(\d+)\x1a|\\u001a(\d+)\\u001a")
_HALF_PLACEHOLDER = re.compile(r"\x1a|\\u001a")
_WORD = re.compile(r"[\w.$-]*", re.ASCII)
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class ChatTokenizer:
    """Encodes chats and decodes replies for one checkpoint. Used by one thread; holds caches bounded in bytes and entries."""

    def __init__(self, hf_tokenizer: Any, *, format: Format, directory: Path) -> None:
        from tokenizers import Tokenizer

        self._hf = hf_tokenizer
        self._format: Format = format
        self._directory = directory
        self._backend = hf_tokenizer.backend_tokenizer
        self._added: dict[str, Ids] = {
            text: np.array([token], np.int32) for text, token in hf_tokenizer.get_added_vocab().items()
        }
        longest_first = sorted(self._added, key=len, reverse=True)
        self._added_pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self._plain = Tokenizer.from_str(_without_added_tokens(self._backend.to_str()))
        self._ids_by_text: LRUCache[str, tuple[Ids, int]] = LRUCache(_CACHE_BYTES, getsizeof=lambda entry: entry[1])
        self._layouts: LRUCache[str, list[_Part]] = LRUCache(_LAYOUTS)
        self._tools: LRUCache[bytes, _Functions] = LRUCache(_TOOL_SETS)
        template = hf_tokenizer.chat_template or ""
        digest = hashlib.sha256(str(template).encode()).hexdigest()
        self._is_rendered = format == "qwen3.5" and digest == TEMPLATE_SHA256
        self.vocab_size: int = self._backend.get_vocab_size(with_added_tokens=True)
        """Ids are in `[0, vocab_size)`."""
        self.end_id: int = self._end_id()
        """The id that ends a reply, `<|im_end|>`."""
        self._check_plain_text_is_plain()

    @classmethod
    def load(cls, directory: str | Path, *, format: Format) -> ChatTokenizer:
        """Load from local files only; takes seconds, most of them for importing transformers.

        `directory` holds `tokenizer.json` and `tokenizer_config.json` as in a checkpoint, and `chat_template.jinja` if there
        is a template. Raises `SettingsError` when it cannot be used.
        """
        path = Path(directory)
        if not (path / "tokenizer.json").is_file():
            raise SettingsError(
                f"model.tokenizer: {path} holds no tokenizer.json; name the local directory of the checkpoint's tokenizer."
            )
        # It advises to install PyTorch, which a tokenizer does not need.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        from transformers import AutoTokenizer

        try:
            hf_tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise SettingsError(
                f"model.tokenizer: {path} cannot be loaded ({error}); expected the files of a Hugging Face tokenizer."
            ) from error
        return cls(hf_tokenizer, format=format, directory=path)

    def encode(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, thinking: bool) -> Ids:
        """The prompt as ids, shape `[tokens]`, ending where the assistant's reply begins.

        Deterministic. Raises `ModelContractError` when the chat template refuses the messages.
        """
        try:
            if self._hf.chat_template and not self._is_rendered:
                return self._joined(self._from_template(messages, tools, thinking=thinking), self._plain_ids)
            pieces = render(messages, tools, format=self._format, thinking=thinking)
        except RecursionError as error:
            raise ModelContractError(
                "A tool or a call is nested too deeply to be rendered; expected it flatter."
            ) from error
        except ValueError as error:
            raise ModelContractError(f"The chat cannot be rendered: {error}.") from error
        return np.concatenate([self._message_ids(message) for message in by_message(pieces)])

    def decode(self, ids: Ids) -> str:
        """The text of a whole reply, up to its end token; all other added tokens are kept as text.

        Raises `ModelContractError` when an id is none of this tokenizer's.
        """
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size):
            raise ModelContractError(
                f"The model answered token ids from {ids.min()} to {ids.max()}, but the tokenizer in {self._directory} has "
                f"ids 0 to {self.vocab_size - 1}; give model.tokenizer the directory that belongs to the served model."
            )
        ends = np.flatnonzero(ids == self.end_id)
        if ends.size:
            ids = ids[: ends[0]]
        text: str = self._backend.decode(ids.tolist(), skip_special_tokens=False)
        return text

    def _message_ids(self, message: tuple[Piece, ...]) -> Ids:
        """Most of a prompt is history, which was in the prompt before."""
        key = "\0".join([f"{piece.trusted:d}{piece.text}" for piece in message])
        split = (self._split(piece.text) if piece.trusted else [piece.text] for piece in message)
        return self._cached(key, lambda: self._joined(chain.from_iterable(split), self._tokenized))

    def _joined(self, parts: Iterable[str | Ids], tokenize: Callable[[str], Ids]) -> Ids:
        """Plain text between two added tokens is one run, as long as it can be: BPE merges across pieces."""
        ids: list[Ids] = []
        plain: list[str] = []
        for part in parts:
            if isinstance(part, str):
                plain.append(part)
                continue
            ids += [tokenize("".join(plain)), part]
            plain.clear()
        ids.append(tokenize("".join(plain)))
        return np.concatenate(ids)

    def _from_template(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, thinking: bool
    ) -> Iterator[str | Ids]:
        functions = self._functions(tools)
        slots = Slots(self._is_word, functions.values)
        chat = [self._as_chat(message, slots) for message in messages]
        key = repr((chat, functions.key, thinking))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._layout(chat, functions.listed, thinking=thinking)
        for part in layout:
            if not isinstance(part, tuple):
                yield part
                continue
            index, as_json = part
            value = slots.values[index]
            yield json.dumps(value, ensure_ascii=False)[1:-1] if as_json else value

    def _functions(self, tools: Sequence[ToolSpec]) -> _Functions:
        """Most chats name the same few sets of tools, and walking their schemas takes longer than all the rest."""
        key = msgspec.msgpack.encode(tools)
        functions = self._tools.get(key)
        if functions is None:
            slots = Slots(self._is_word)
            listed = [slots.tree(tool.as_function(), slots.word) for tool in tools]
            functions = self._tools[key] = _Functions(listed, tuple(slots.values), repr(listed))
        return functions

    def _layout(self, chat: list[JsonObject], functions: list[Any], *, thinking: bool) -> list[_Part]:
        """Render the template over placeholders; it is taken to be a pure function of its input."""
        from jinja2 import TemplateError

        try:
            text = self._hf.apply_chat_template(
                chat, tools=functions or None, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
            )
        except (TemplateError, ValueError, TypeError) as error:
            raise ModelContractError(
                f"The chat template in {self._directory} cannot render a chat of the roles "
                f"{', '.join(message['role'] for message in chat) or 'none'} ({error}); expected a system message first, if "
                "any, then user, assistant and tool messages with at least one of a user."
            ) from error
        layout: list[_Part] = []
        end = 0
        for match in _PLACEHOLDER.finditer(text):
            layout += [*self._split(text[end : match.start()]), (int(match[1] or match[2]), match[1] is None)]
            end = match.end()
        layout += self._split(text[end:])
        if any(isinstance(part, str) and _HALF_PLACEHOLDER.search(part) for part in layout):
            raise ModelContractError(
                f"The chat template in {self._directory} cuts, escapes or rewrites the texts it is given, so they cannot be "
                "told from its own; use a template that pastes them, or remove it to use the built-in format."
            )
        return layout

    def _as_chat(self, message: Message, slots: Slots) -> JsonObject:
        # Qwen3.5's template trims contents; it would trim the placeholder instead, so the text is trimmed before.
        content = message.content.strip() if self._format == "qwen3.5" else message.content
        chat: JsonObject = {"role": slots.word(message.role), "content": slots.put(content)}
        if message.role == "assistant":
            # Always a string: without one, Qwen's templates search the content for `</think>`.
            chat["reasoning_content"] = slots.put(message.reasoning)
        if message.calls:
            chat["tool_calls"] = [
                {
                    "type": "function",
                    "function": {"name": slots.word(call.name), "arguments": slots.tree(call.arguments, slots.put)},
                }
                for call in message.calls
            ]
        return chat

    def _is_word(self, text: str) -> bool:
        return _WORD.fullmatch(text) is not None and self._added_pattern.search(text) is None

    def _split(self, text: str) -> list[str | Ids]:
        """Text of the template, with the added tokens in it recognised."""
        parts = self._added_pattern.split(text)
        return [self._added[part] if position % 2 else part for position, part in enumerate(parts)]

    def _plain_ids(self, text: str) -> Ids:
        return self._cached(f"t{text}", lambda: self._tokenized(text))

    def _tokenized(self, text: str) -> Ids:
        # Half a surrogate pair (JSON can write one) has no UTF-8 form.
        return np.array(self._plain.encode(_SURROGATE.sub("\ufffd", text), add_special_tokens=False).ids, np.int32)

    def _cached(self, key: str, make: Callable[[], Ids]) -> Ids:
        entry = self._ids_by_text.get(key)
        if entry is None:
            ids = make()
            entry = (ids, ids.nbytes + 4 * len(key) + 256)  # at most 4 bytes a character, and the objects themselves
            if entry[1] < self._ids_by_text.maxsize // 8:
                self._ids_by_text[key] = entry
        return entry[0]

    def _end_id(self) -> int:
        if _END not in self._added:
            raise SettingsError(
                f"model.tokenizer: {self._directory} has no token {_END}; expected the tokenizer of a Qwen or Hermes model."
            )
        return int(self._added[_END][0])

    def _check_plain_text_is_plain(self) -> None:
        added = {int(ids[0]) for ids in self._added.values()}
        for text in self._added:
            if not added.isdisjoint(self._plain_ids(text).tolist()):
                raise SettingsError(
                    f"model.tokenizer: {self._directory} makes the token {text!r} from plain text, so a user could forge it; "
                    "use a tokenizer whose model does not contain its added tokens as words."
                )


_Part = str | Ids | tuple[int, bool]
"""A part of a layout: plain text, an added token's ids, or the index of an outside string and whether it stands in JSON."""


class _Functions(NamedTuple):
    """Tools as a template lists them."""

    listed: list[Any]
    values: tuple[str, ...]
    """The outside strings behind placeholders 0, 1, ..."""
    key: str


def _without_added_tokens(tokenizer_json: str) -> str:
    spec = json.loads(tokenizer_json)
    return json.dumps({**spec, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None})
