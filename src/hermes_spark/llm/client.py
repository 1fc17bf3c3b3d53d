"""The model behind two methods, so that agent hosts, tests and the benchmark need not know Triton."""

from __future__ import annotations

from typing import Protocol

import msgspec

from hermes_spark.messages import Message, Reply, ToolSpec, Usage


class CompletionRequest(msgspec.Struct, frozen=True):
    """One completion to make."""

    messages: tuple[Message, ...]
    """System first (if any), then history; ends with a user or tool message."""
    tools: tuple[ToolSpec, ...] = ()
    """Empty: the model is told of no tools, so that an answer is forced."""
    max_tokens: int = 1024
    thinking: bool = True
    timeout_s: float = 60.0
    """Total time for the completion, retries included."""


class Completion(msgspec.Struct, frozen=True):
    """What the model answered, read."""

    reply: Reply
    usage: Usage
    finish_reason: str
    """`stop` or `length`."""


class ChatModel(Protocol):
    """A model that completes chats. Made inside the process and event loop that use it; never before a fork."""

    async def complete(self, request: CompletionRequest) -> Completion:
        """One completion.

        Called concurrently; an implementation bounds what is in flight. Cancelling the task gives the request up. Raises
        `ModelBusy`, `ModelUnavailable`, `ModelTimeout` or `ModelContractError`, never a library's own error.
        """
        ...

    async def check(self) -> None:
        """Verify that the model is there and keeps its contract.

        Raises `ModelUnavailable` or `ModelContractError` with a sentence that says what to do. Called once at the start.
        """
        ...

    async def close(self) -> None:
        """Release connections. Called once, on the same loop."""
        ...
