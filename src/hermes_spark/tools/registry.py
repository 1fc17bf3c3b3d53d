"""The tools: what each one is, what the model is told about it, which calls may run, and how a caller looks.

`Registry` is a value made once from the tool file (setting `tools.file`) and shared by everything that needs tools; it does no
I/O after `load`. Calling a tool is a `ToolCaller`'s work (`http.HttpToolCaller`).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import msgspec
import yaml

from hermes_spark.errors import SettingsError
from hermes_spark.events import ToolChoice
from hermes_spark.messages import JsonObject, ToolSpec
from hermes_spark.settings import ToolSettings
from hermes_spark.tools.arguments import argument_problems, quoted, schema_fault
from hermes_spark.tools.definition import tool_fault, undo_fault

Policy = Literal["unknown", "idempotent", "reconcile"]
"""What is done with a call that was under way when its owner died. `idempotent`: it is sent again under the same
`Idempotency-Key`, and must have no second effect. `reconcile`: the tool is asked at `reconcile_url` what became of it.
`unknown`: nothing, it is reported as unknown."""

MAX_NAMES_SHOWN = 20
"""Tool names listed to a model that asked for one that does not exist."""

_ENV_REFERENCE = re.compile(r"\$\{([^}]*)\}")


class UndoRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a call is undone when its turn fails or is cancelled."""

    tool: str
    """A tool whose policy is `idempotent`, because an undo may be sent again. It is not asked for approval."""
    arguments: dict[str, str] = {}
    """Where each comes from: `/arguments/...` of the call, or `/result/...` of its JSON answer."""


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool: an HTTP service that takes a call's arguments as JSON and answers JSON or plain text."""

    name: str
    """`[A-Za-z_][A-Za-z0-9_.-]{0,63}`, unique."""
    description: str
    parameters: JsonObject
    """A JSON schema of type `object`."""
    url: str
    """Absolute http(s) URL; in the tool file also a path below the setting `tools.base_url`."""
    timeout_s: float | None = None
    """Total time of one call; None: the setting `tools.timeout_s`."""
    policy: Policy = "unknown"
    reconcile_url: str = ""
    """Where the policy `reconcile` asks; given like `url`. See `reconcile` for what it answers."""
    approval: bool = False
    """True: a call runs only once somebody has approved it (an `approval` event)."""
    approval_timeout_s: float | None = None
    """How long somebody has for that, before the call is denied; None: the setting `tools.approval_timeout_s`."""
    undo: UndoRule | None = None
    side_effects: bool = True
    """False: repeating the call changes nothing, so a call from a cut reply may be used."""
    headers: dict[str, str] = {}
    """Sent with every call. In the tool file a value may hold `${ENV_NAME}`; here it is resolved, so never log it."""

    def __repr__(self) -> str:
        """Name, place and header names: queries and header values are secrets."""
        return f"Tool({self.name!r}, {self.url.partition('?')[0]!r}, headers={sorted(self.headers)})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The same for rich, which would show every field otherwise."""
        return [("name", self.name), ("url", self.url.partition("?")[0]), ("headers", sorted(self.headers))]


class ToolRequest(msgspec.Struct, frozen=True):
    """One call to make."""

    call_id: str
    """Stable over restarts; also the `Idempotency-Key`."""
    session_id: str
    turn_id: str
    arguments: JsonObject


class ToolResult(msgspec.Struct, frozen=True):
    """What became of one call."""

    status: Literal["ok", "error", "timeout", "unknown", "not_run"]
    """`timeout` (no answer in time) and `unknown` (the connection broke): nobody knows whether it happened. `not_run`: the
    tool says that it never saw the call and will never run it."""
    content: str
    """What the model reads; at most `tools.max_result_chars` characters."""
    attempts: int
    """1 plus how often a connection that could not be opened was tried again."""
    sent: bool = True
    """False: nothing of the request left, so that this request changed nothing."""


class ToolCaller(Protocol):
    """Calls tools. Made inside the process and event loop that use it; never before a fork."""

    async def call(self, tool: Tool, request: ToolRequest) -> ToolResult:
        """Make one call, at most once on the wire, and wait for its answer within the tool's time limit.

        Called concurrently; an implementation bounds what is in flight. Never raises for what the tool or the network does
        wrong: that is a result of another status than `ok`. Cancelling the task gives the answer up, not the effect.
        """
        ...

    async def reconcile(self, tool: Tool, request: ToolRequest) -> ToolResult:
        """Ask, at the tool's `reconcile_url`, what became of a call that an earlier owner had under way.

        The result is that of the call, or `not_run`; `unknown` when the tool does not say within its time limit. Never raises,
        as `call`.
        """
        ...

    async def close(self) -> None:
        """Release connections. Called once, on the same loop."""
        ...


class Registry:
    """All tools of a job, in the order of the tool file."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        """Raises `SettingsError` for a tool that cannot be used and for a name that is given twice."""
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            fault = tool_fault(tool)
            if tool.name in self._tools:
                fault = "the name is given twice; every tool needs its own"
            if fault:
                raise SettingsError(f"tool {quoted(tool.name)}: {fault}")
            self._tools[tool.name] = tool
        for tool in self._tools.values():
            if fault := undo_fault(tool, self._tools):
                raise SettingsError(f"tool {quoted(tool.name)}: {fault}")
        self._all = tuple(ToolSpec(tool.name, tool.description, tool.parameters) for tool in self._tools.values())

    @classmethod
    def load(cls, settings: ToolSettings) -> Registry:
        """The tools of the YAML file `settings.file`. Raises `SettingsError` as `read` and `parse` do."""
        return cls.parse(cls.read(settings), settings)

    @staticmethod
    def read(settings: ToolSettings) -> str:
        """The text of the tool file, for hosts that have no such file. Raises `SettingsError`."""
        try:
            return Path(settings.file).read_text(encoding="utf-8")
        except OSError as exc:
            raise SettingsError(f"tools.file: cannot read {settings.file}: {exc.strerror}") from None
        except UnicodeDecodeError as exc:
            raise SettingsError(f"{settings.file}: expected UTF-8 text: {exc.reason} at byte {exc.start}") from None

    @classmethod
    def parse(cls, text: str, settings: ToolSettings) -> Registry:
        """The tools of a tool file's text: `{tools: [{name: ..., ...}, ...]}`, see `conf/tools.yaml`.

        Raises `SettingsError` naming file, tool and what was expected. Reads the environment variables that headers name.
        """
        try:
            return cls(_tool_of(entry, index, settings) for index, entry in enumerate(_entries(text)))
        except SettingsError as exc:
            raise SettingsError(f"{settings.file}: {exc}") from None

    def get(self, name: str) -> Tool | None:
        """The tool of that name; None if there is none."""
        return self._tools.get(name)

    def specs(self, choice: ToolChoice) -> tuple[ToolSpec, ...]:
        """What the model is told: all tools in file order for None, else those of `choice` in its order.

        A full definition in `choice` takes the place of the registered description and parameters. Names that are not
        registered are left out: an old session may have asked for a tool that is gone since.
        """
        if choice is None:
            return self._all
        return tuple(self._spec(item) for item in choice if _name_of(item) in self._tools)

    def refuse_choice(self, choice: ToolChoice) -> str:
        """Why an event with this choice cannot be served, as the reason of its dead letter; empty when it can."""
        seen: set[str] = set()
        for item in choice or ():
            name = _name_of(item)
            if name not in self._tools:
                return f"tools: {self._unknown(name, tuple(self._tools))}"
            if name in seen:
                return f"tools: {quoted(name)} is given twice"
            seen.add(name)
            fault = "" if isinstance(item, str) else schema_fault(item.parameters)
            if fault:
                return f"tools: {quoted(name)}: {fault}"
        return ""

    def check(self, name: str, arguments: JsonObject, choice: ToolChoice) -> str:
        """Empty if the model's call may run, else one or a few short sentences that tell the model what to do better.

        `choice` is the event's: a call must name a tool that it offers and fit the schema that the model was shown.
        """
        if not name.strip():  # a phantom call: no list of tools, which would only invite more of them
            return "the call names no tool"
        offered = {spec.name: spec for spec in self.specs(choice)}
        spec = offered.get(name)
        if spec is None:
            return self._unknown(name, tuple(offered))
        fault = "" if spec.parameters is self._tools[name].parameters else schema_fault(spec.parameters)
        problems = (fault,) if fault else argument_problems(spec.parameters, arguments)
        return f"{name}: {'; '.join(problems)}" if problems else ""

    def approve_within_ms(self, name: str, default_s: float) -> int:
        """How long somebody has to approve a call of that tool; 0 when it needs no approval."""
        tool = self._tools.get(name)
        if tool is None or not tool.approval:
            return 0
        return round((tool.approval_timeout_s or default_s) * 1000)

    def _spec(self, item: str | ToolSpec) -> ToolSpec:
        tool = self._tools[_name_of(item)]
        if isinstance(item, str):
            return ToolSpec(tool.name, tool.description, tool.parameters)
        return ToolSpec(tool.name, item.description or tool.description, item.parameters)

    def _unknown(self, name: str, names: tuple[str, ...]) -> str:
        why = "is not offered in this conversation" if name in self._tools else "is no tool"
        return f"{quoted(name)} {why}; available: {_closest_first(name, names) or 'none'}"


def _name_of(item: str | ToolSpec) -> str:
    return item if isinstance(item, str) else item.name


def _closest_first(name: str, names: tuple[str, ...]) -> str:
    matcher = difflib.SequenceMatcher(b=name[:64].lower(), autojunk=False)

    def likeness(candidate: str) -> float:
        matcher.set_seq1(candidate.lower())
        return matcher.ratio()

    shown = sorted(names, key=likeness, reverse=True)[:MAX_NAMES_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more


def _entries(text: str) -> list[Any]:
    """The list under `tools`, as plain JSON values (YAML's dates become text)."""
    try:
        document = msgspec.json.decode(msgspec.json.encode(yaml.safe_load(text)))
    except yaml.MarkedYAMLError as exc:
        line = f" (line {exc.problem_mark.line + 1})" if exc.problem_mark else ""
        raise SettingsError(f"not YAML: {exc.problem}{line}") from None
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as exc:
        raise SettingsError(f"not YAML that JSON could hold: {exc}") from None
    if not isinstance(document, dict) or set(document) != {"tools"} or not isinstance(document["tools"], list):
        raise SettingsError("expected a mapping with the one key `tools`, a list of tools")
    return document["tools"]


def _tool_of(entry: Any, index: int, settings: ToolSettings) -> Tool:
    """The tool that entry `index` of the file describes, its URL made absolute and its headers resolved."""
    where = f"tool {quoted(entry['name']) if isinstance(entry, dict) and 'name' in entry else index + 1}"
    policy = entry.get("policy", "unknown") if isinstance(entry, dict) else "unknown"
    if policy not in get_args(Policy):
        raise SettingsError(f"{where}: policy is {quoted(policy)}; expected {', '.join(get_args(Policy))}")
    try:
        tool = msgspec.convert(entry, Tool)
    except msgspec.ValidationError as exc:
        raise SettingsError(f"{where}: {exc}; a tool has {', '.join(Tool.__struct_fields__)}") from None
    headers = {name: _resolve(value, f"{where}: header {name}") for name, value in tool.headers.items()}
    return msgspec.structs.replace(
        tool,
        url=_absolute(tool.url, settings.base_url, where),
        reconcile_url=tool.reconcile_url and _absolute(tool.reconcile_url, settings.base_url, where),
        headers=headers,
    )


def _absolute(url: str, base_url: str, where: str) -> str:
    if "://" in url:
        return url
    if not base_url:
        raise SettingsError(f"{where}: url is only a path; give a full http(s) URL or set tools.base_url")
    return f"{base_url.rstrip('/')}/{url.lstrip('/')}"


def _resolve(value: str, where: str) -> str:
    """`value` with every `${NAME}` replaced by the environment's; errors name the variable, never a value."""

    def lookup(reference: re.Match[str]) -> str:
        found = os.environ.get(reference[1])
        if found is None:
            raise SettingsError(f"{where} needs the environment variable {reference[1]!r}, which is not set")
        return found

    return _ENV_REFERENCE.sub(lookup, value)
