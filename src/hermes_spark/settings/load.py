"""Where the values of settings come from: the file, then the environment, then Spark's conf; the later one wins.

The same setting under its three names: `state: {shards: 32}` in the file, `HERMES_STATE_SHARDS=32` in the environment,
`--conf spark.hermes.state.shards=32` for Spark. Whatever names no setting is an error, so that a slip of the finger cannot
silently leave a default in place.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import yaml

from hermes_spark.errors import SettingsError
from hermes_spark.settings.schema import Settings

ENV_PREFIX = "HERMES_"
CONF_PREFIX = "spark.hermes."

FILE_VARIABLE = "HERMES_FILE"
"""Names the settings file; `scripts/dgx-spark-submit` points it at `conf/hermes.yaml` unless it is set."""
FILE_CONF = "spark.hermes.file"
"""Names the settings file; goes before `HERMES_FILE`."""

OTHER_VARIABLES = frozenset(
    {
        FILE_VARIABLE,
        "HERMES_DRIVER_NOTE",  # where the driver tells the program that submitted it how it fares
        "HERMES_FAULTS",  # which crash points are armed, for recovery tests
        "HERMES_FAULTS_DIR",  # where a crash point notes that it has fired
        "HERMES_KAFKA_JARS",  # scripts/kafka: where the jars of broker and connector lie
        "HERMES_TRITON_VENV",  # scripts/triton: where Triton's own environment lies
        "HERMES_PYTHON",  # scripts/setup: the interpreter that .venv is built from
    }
)
"""Variables that begin like a setting and are none."""

Scalar = str | int | float | bool


def load(*, file: Path | None, environment: Mapping[str, str], spark_conf: Mapping[str, str]) -> Settings:
    """The settings of a job: defaults, overridden by the file, the environment and the Spark conf, in this order.

    `file` is the settings file if the caller knows it; otherwise `spark.hermes.file` or `HERMES_FILE` may name one. Variables
    that do not begin with `HERMES_` and confs that do not begin with `spark.hermes.` are passed over.

    Raises `SettingsError` for a file that cannot be read, an unknown name, and a value of the wrong type. Whether the values
    make sense, alone and together, is `validate`'s question.
    """
    chosen = file or _file_named(environment, spark_conf)
    values = _from_file(chosen) if chosen else {}
    values |= _from_environment(environment)
    values |= _from_spark_conf(spark_conf)
    return msgspec.convert(_nested(values), Settings)


def as_dict(settings: Settings) -> dict[str, Scalar]:
    """Every setting by its full name, such as `state.shards`, in the order of the schema."""
    return dict(_leaves(msgspec.to_builtins(settings)))


def to_json(settings: Settings) -> str:
    """The settings as JSON, to be sent to hosts. `from_json` reads it."""
    return msgspec.json.encode(settings).decode()


def from_json(text: str) -> Settings:
    """The settings that `to_json` wrote. Raises `SettingsError` if another version of this package wrote them."""
    try:
        return msgspec.json.decode(text, type=Settings)
    except msgspec.MsgspecError as exc:
        raise SettingsError(
            f"the settings sent to this process cannot be read ({exc}); run one version of hermes-spark on all machines"
        ) from None


def _file_named(environment: Mapping[str, str], spark_conf: Mapping[str, str]) -> Path | None:
    name = spark_conf.get(FILE_CONF) or environment.get(FILE_VARIABLE)
    return Path(name) if name else None


def _from_file(file: Path) -> dict[str, Scalar]:
    values = {}
    for setting, value in _leaves(_read_yaml(file)):
        if setting in _SECTIONS:
            if value is None:  # all its lines are commented out
                continue
            raise SettingsError(f"{setting} is {_shown(value)} in {file}; expected a section with settings below it")
        _refuse_unknown(setting, _TYPES, str(file))
        values[setting] = _fitting(setting, value, str(file))
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Scalar]:
    values = {}
    for name in sorted(environment):
        if name.startswith(ENV_PREFIX) and name not in OTHER_VARIABLES:
            _refuse_unknown(name, _VARIABLES, "the environment", ENV_PREFIX)
            setting = _VARIABLES[name]
            values[setting] = _parsed(setting, environment[name], f"the environment ({name})")
    return values


def _from_spark_conf(spark_conf: Mapping[str, str]) -> dict[str, Scalar]:
    values = {}
    for name in sorted(spark_conf):
        if name.startswith(CONF_PREFIX) and name != FILE_CONF:
            _refuse_unknown(name, _CONFS, "Spark's conf", CONF_PREFIX)
            setting = _CONFS[name]
            values[setting] = _parsed(setting, spark_conf[name], f"Spark's conf ({name})")
    return values


def _read_yaml(file: Path) -> dict[Any, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        tree = yaml.safe_load(text)
    except OSError as exc:
        raise SettingsError(f"the settings file {file} cannot be read: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"the settings file {file} is not UTF-8 text; save it as UTF-8") from None
    except (yaml.YAMLError, ValueError) as exc:
        raise SettingsError(f"the settings file {file} is not YAML: {' '.join(str(exc).split())}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsError(f"the settings file {file} holds {_shown(tree)}; expected sections such as `state:`")
    _refuse_repeats(yaml.compose(text, Loader=yaml.SafeLoader), file)
    return tree


def _refuse_repeats(node: yaml.Node | None, file: Path) -> None:
    """YAML keeps the last of two equal keys, so a section written twice would silently lose its first half."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen = set()
    for key, value in node.value:
        if key.value in seen:
            line = key.start_mark.line + 1
            raise SettingsError(f"{key.value} stands twice in {file}, the second time in line {line}; write it once")
        seen.add(key.value)
        _refuse_repeats(value, file)


def _refuse_unknown(name: str, known: Iterable[str], origin: str, prefix: str = "") -> None:
    if name in known:
        return
    # Compared without the prefix, which all of them share and which would make any two names look alike.
    close = difflib.get_close_matches(name.removeprefix(prefix), [n.removeprefix(prefix) for n in known], n=1)
    hint = f"did you mean {prefix}{close[0]}?" if close else "conf/hermes.yaml lists all settings"
    raise SettingsError(f"{name} in {origin} is no setting; {hint}")


def _fitting(setting: str, value: object, origin: str) -> Scalar:
    """A value that has a type already must have the right one."""
    try:
        return msgspec.convert(value, _TYPES[setting])  # type: ignore[no-any-return]
    except msgspec.ValidationError:
        raise _ill_typed(setting, value, origin) from None


def _parsed(setting: str, text: str, origin: str) -> Scalar:
    """A value that came as text is read as the setting's type."""
    try:
        return msgspec.convert(text, _TYPES[setting], strict=False)  # type: ignore[no-any-return]
    except msgspec.ValidationError:
        raise _ill_typed(setting, text, origin) from None


def _ill_typed(setting: str, value: object, origin: str) -> SettingsError:
    return SettingsError(f"{setting} is {_shown(value)} in {origin}; expected {_wording(_TYPES[setting])}")


def _wording(expected: Any) -> str:
    if get_origin(expected) is Literal:
        return " or ".join(get_args(expected))
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[expected]


def _shown(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, (dict, list)):
        return "a section" if isinstance(value, dict) else "a list"
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def _leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _nested(values: Mapping[str, Scalar]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for setting, value in values.items():
        *sections, name = setting.split(".")
        below = tree
        for section in sections:
            below = below.setdefault(section, {})
        below[name] = value
    return tree


def _types(kind: type[msgspec.Struct], prefix: str = "") -> tuple[dict[str, Any], frozenset[str]]:
    """The type of every setting by its full name, and the names of the sections."""
    types: dict[str, Any] = {}
    sections: set[str] = set()
    for field in msgspec.structs.fields(kind):
        name = f"{prefix}{field.name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            inner, below = _types(field.type, f"{name}.")
            types |= inner
            sections |= {name} | below
        else:
            types[name] = field.type
    return types, frozenset(sections)


_TYPES, _SECTIONS = _types(Settings)
_VARIABLES = {ENV_PREFIX + setting.replace(".", "_").upper(): setting for setting in _TYPES}
_CONFS = {CONF_PREFIX + setting: setting for setting in _TYPES}
