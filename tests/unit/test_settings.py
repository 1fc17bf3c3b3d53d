"""Settings: three places they come from, what is refused, and that conf/hermes.yaml tells the truth."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import pytest
import yaml

from hermes_spark.errors import SettingsError
from hermes_spark.settings import (
    AgentSettings,
    HostSettings,
    IntakeSettings,
    ModelSettings,
    Settings,
    SourceSettings,
    StateSettings,
    ToolSettings,
    as_dict,
    from_json,
    load,
    to_json,
    validate,
)
from hermes_spark.settings.checks import STATE_URLS
from hermes_spark.settings.load import OTHER_VARIABLES
from hermes_spark.state.storage import is_remote

HERMES_YAML = Path(__file__).parents[2] / "conf" / "hermes.yaml"

VALID = Settings(checkpoint="/tmp/checkpoint")


def loaded(text: str | None = None, tmp_path: Path | None = None, env=None, conf=None) -> Settings:
    file = None
    if text is not None and tmp_path is not None:
        file = tmp_path / "settings.yaml"
        file.write_text(text, encoding="utf-8")
    return load(file=file, environment=env or {}, spark_conf=conf or {})


# conf/hermes.yaml


def test_the_file_holds_every_setting_with_its_default_and_its_type():
    expected = msgspec.to_builtins(Settings())
    written = yaml.safe_load(HERMES_YAML.read_text(encoding="utf-8"))
    assert written == expected
    assert [(k, type(v)) for k, v in flat(written)] == [
        (k, type(v)) for k, v in flat(expected)
    ]  # same order, same types
    assert load(file=HERMES_YAML, environment={}, spark_conf={}) == Settings()


def flat(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def test_numbers_in_the_file_read_the_same_in_every_yaml():
    values = [line.split("#")[0].partition(":")[2] for line in HERMES_YAML.read_text().splitlines()]
    assert not [v for v in values if re.search(r"\d_\d", v)]  # YAML 1.1 reads 1_000 as a number, YAML 1.2 as text


# precedence


def test_defaults_without_any_source():
    assert loaded() == Settings()


def test_the_later_place_wins(tmp_path):
    text = "state: {shards: 2, max_open_files: 30}\nagent: {max_steps: 7}\n"
    env = {"HERMES_STATE_SHARDS": "3", "HERMES_STATE_MAX_OPEN_FILES": "31"}
    settings = loaded(text, tmp_path, env, {"spark.hermes.state.shards": "4"})
    assert (settings.state.shards, settings.state.max_open_files, settings.agent.max_steps) == (4, 31, 7)


def test_the_file_may_be_named_by_environment_and_conf(tmp_path):
    for name, shards in (("a", 2), ("b", 3), ("c", 5)):
        (tmp_path / f"{name}.yaml").write_text(f"state: {{shards: {shards}}}")
    env = {"HERMES_FILE": str(tmp_path / "a.yaml")}
    conf = {"spark.hermes.file": str(tmp_path / "b.yaml")}
    assert load(file=None, environment=env, spark_conf={}).state.shards == 2
    assert load(file=None, environment=env, spark_conf=conf).state.shards == 3
    assert load(file=tmp_path / "c.yaml", environment=env, spark_conf=conf).state.shards == 5


def test_what_is_not_ours_is_passed_over():
    env = {"PATH": "/bin", "SPARK_HERMES_X": "1", **dict.fromkeys(OTHER_VARIABLES - {"HERMES_FILE"}, "x")}
    assert loaded(env=env, conf={"spark.master": "local", "spark.hermesx": "1"}) == Settings()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("hosts", "2", 2),
        ("stop.idle_s", "1.5", 1.5),
        ("stop.idle_s", "2", 2.0),
        ("trigger.available_now", "true", True),
        ("trigger.available_now", "FALSE", False),
        ("model.format", "hermes", "hermes"),
        ("state.path", "null", "null"),
        ("state.path", "", ""),
        ("checkpoint", "123", "123"),
    ],
)
def test_text_is_read_as_the_type_of_its_setting(name, text, value):
    settings = loaded(conf={f"spark.hermes.{name}": text})
    assert as_dict(settings)[name] == value
    assert type(as_dict(settings)[name]) is type(value)
    assert loaded(env={f"HERMES_{name.replace('.', '_').upper()}": text}) == settings


def test_sections_whose_lines_are_commented_out_and_empty_files_keep_the_defaults(tmp_path):
    assert loaded("state:\n  # shards: 3\n", tmp_path) == Settings()
    assert loaded("# nothing\n", tmp_path) == Settings()


# refusals


@pytest.mark.parametrize(
    ("env", "conf", "words"),
    [
        ({"HERMES_STATE_SHARD": "4"}, {}, ["HERMES_STATE_SHARD in the environment", "HERMES_STATE_SHARDS?"]),
        ({"HERMES_ZZZZQ": "4"}, {}, ["HERMES_ZZZZQ in the environment", "conf/hermes.yaml"]),
        ({}, {"spark.hermes.source.rowsPerSecond": "1"}, ["Spark's conf", "spark.hermes.source.rows_per_second?"]),
        (
            {"HERMES_STATE_SHARDS": "many"},
            {},
            ["state.shards is 'many'", "environment (HERMES_STATE_SHARDS)", "a whole number"],
        ),
        ({}, {"spark.hermes.stop.idle_s": "soon"}, ["'soon' in Spark's conf (spark.hermes.stop.idle_s)", "a number"]),
        ({}, {"spark.hermes.sink.console": "maybe"}, ["sink.console is 'maybe'", "true or false"]),
        ({}, {"spark.hermes.source.kind": "pulsar"}, ["source.kind is 'pulsar'", "rate or files or load or kafka"]),
        ({}, {"spark.hermes.state.shards": ""}, ["state.shards is ''", "a whole number"]),
    ],
)
def test_an_unknown_name_or_ill_typed_text_is_refused(env, conf, words):
    with pytest.raises(SettingsError) as caught:
        loaded(env=env, conf=conf)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("state: {shard: 1}", ["state.shard in", "did you mean state.shards?"]),
        ("stat: {shards: 1}", ["stat.shards in", "state.shards?"]),
        ("state: {shards: '16'}", ["state.shards is '16'", "a whole number"]),
        ("state: {shards: 1.5}", ["state.shards is 1.5", "a whole number"]),
        ("state: {shards: true}", ["state.shards is true", "a whole number"]),
        ("state: {shards: }", ["state.shards is empty", "a whole number"]),
        ("state: {path: 12}", ["state.path is 12", "text"]),
        ("state: {shards: [1]}", ["state.shards is a list", "a whole number"]),
        ("hosts: {a: 1}", ["hosts.a in", "no setting"]),
        ("hosts: {}", ["hosts is a section", "a whole number"]),
        ("state: 5", ["state is 5", "a section"]),
        ("state: {shards: 1}\nagent: {max_steps: 1}\nstate: {path: x}", ["state stands twice", "line 3"]),
        ("state:\n  shards: 1\n  shards: 2", ["shards stands twice", "line 3"]),
        ("state: [", ["is not YAML"]),
        ("? [a]\n: 1", ["is not YAML"]),
        ("when: 2025-13-45", ["is not YAML"]),
        ("just words", ["holds 'just words'", "sections"]),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path, text, words):
    with pytest.raises(SettingsError) as caught:
        loaded(text, tmp_path)
    message = str(caught.value)
    assert all(word in message for word in [*words, "settings.yaml"]), message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"nowhere\.yaml cannot be read: No such file"):
        load(file=tmp_path / "nowhere.yaml", environment={}, spark_conf={})
    (tmp_path / "latin.yaml").write_bytes("checkpoint: gr\xfcn".encode("latin-1"))
    with pytest.raises(SettingsError, match="is not UTF-8"):
        load(file=tmp_path / "latin.yaml", environment={}, spark_conf={})


# sending


def test_settings_travel_as_json():
    settings = loaded(conf={"spark.hermes.agent.system_prompt": '你好 "x"', "spark.hermes.stop.idle_s": "0.25"})
    assert from_json(to_json(settings)) == settings
    with pytest.raises(SettingsError, match="one version"):
        from_json('{"state": {"shards": 1, "colour": 2}}')
    with pytest.raises(SettingsError, match="one version"):
        from_json("{")


# sense


def test_the_defaults_with_a_checkpoint_are_valid():
    validate(VALID)


def with_section(name: str, section: object) -> Settings:
    return msgspec.structs.replace(VALID, **{name: section})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(), "checkpoint is empty"),
        (with_section("state", StateSettings(shards=0)), "state.shards is 0; expected 1 to 4096"),
        (with_section("state", StateSettings(shards=4097)), "state.shards is 4097; expected 1 to 4096"),
        (with_section("state", StateSettings(max_open_files=-1)), "state.max_open_files is -1; expected 20 or more"),
        (
            with_section("state", StateSettings(path="hdfs://b/x")),
            "state.path is 'hdfs://b/x'; expected a local directory",
        ),
        (with_section("agent", AgentSettings(max_steps=0)), "agent.max_steps is 0; expected 1 or more"),
        (with_section("agent", AgentSettings(token_budget=10)), "agent.token_budget is 10; expected at least"),
        (with_section("tools", ToolSettings(timeout_s=0)), "tools.timeout_s is 0; expected more than 0"),
        (with_section("tools", ToolSettings(timeout_s=math.inf)), "tools.timeout_s is inf; expected a finite number"),
        (with_section("tools", ToolSettings(base_url="localhost:1")), "tools.base_url is 'localhost:1'"),
        (with_section("model", ModelSettings(temperature=math.nan)), "model.temperature is nan"),
        (with_section("model", ModelSettings(top_p=1.5)), "model.top_p is 1.5; expected at most 1"),
        (with_section("model", ModelSettings(url="http://a:8001")), "model.url is 'http://a:8001'; expected host:port"),
        (with_section("model", ModelSettings(url="triton")), "model.url is 'triton'; expected host:port"),
        (with_section("model", ModelSettings(url="a:99999")), "model.url is 'a:99999'; expected host:port"),
        (with_section("model", ModelSettings(name="")), "model.name is empty"),
        (with_section("source", SourceSettings(kind="files")), "source.path is empty"),
        (with_section("source", SourceSettings(sessions=0)), "source.sessions is 0"),
        (with_section("host", HostSettings(max_queued_bytes=9)), "host.max_queued_bytes is 9, less than"),
        (with_section("intake", IntakeSettings(handoff_timeout_s=120)), "intake.handoff_timeout_s is 120; expected"),
        (msgspec.structs.replace(VALID, hosts=17), "hosts is 17 and state.shards is 16"),
        (
            msgspec.structs.replace(VALID, checkpoint="hdfs://n/x"),
            "checkpoint is hdfs://n/x; expected a directory of this machine",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(SettingsError) as caught:
        validate(settings)
    assert words in str(caught.value)


@pytest.mark.parametrize("url", ["127.0.0.1:8001", "triton.svc:1", "[::1]:8001"])
def test_addresses_of_triton(url):
    validate(with_section("model", ModelSettings(url=url)))


@pytest.mark.parametrize("checkpoint", ["file:///tmp/x", "/tmp/x", "relative/x"])
def test_local_checkpoints_are_fine(checkpoint):
    validate(msgspec.structs.replace(VALID, checkpoint=checkpoint))


def test_state_may_lie_wherever_the_storage_can():
    for url in STATE_URLS:
        validate(with_section("state", StateSettings(path=f"{url}bucket/x")))
        assert is_remote(f"{url}bucket/x") == (url != "file://")


def changed(name: str, value: object) -> Settings:
    section, _, field = name.rpartition(".")
    if not section:
        return msgspec.structs.replace(VALID, **{field: value})
    return with_section(section, msgspec.structs.replace(getattr(VALID, section), **{field: value}))


def refusal_of(settings: Settings) -> str:
    try:
        validate(settings)
    except SettingsError as exc:
        return str(exc)
    return ""


def test_every_number_has_a_bound():
    """A setting added without a thought about its range fails here."""
    wrong = {name: -1 for name, value in as_dict(VALID).items() if type(value) in (int, float)}
    unbounded = [name for name, value in wrong.items() if name not in refusal_of(changed(name, value))]
    assert unbounded == ["source.seed"]  # any number is a seed


def test_all_problems_are_told_at_once():
    with pytest.raises(SettingsError) as caught:
        validate(Settings(state=StateSettings(shards=0), tools=ToolSettings(timeout_s=0)))
    message = str(caught.value)
    assert "checkpoint" in message
    assert "state.shards" in message
    assert "tools.timeout_s" in message


def test_kafka_is_told_where_it_is_and_which_topic():
    kafka = SourceSettings(kind="kafka")
    with pytest.raises(SettingsError, match=r"source\.topic is empty.*kafka\.bootstrap_servers is empty"):
        validate(msgspec.structs.replace(VALID, source=kafka))
    early = load(
        file=None, environment={}, spark_conf={"spark.hermes.sink.kafka.mode": "early", "spark.hermes.checkpoint": "/c"}
    )
    with pytest.raises(SettingsError, match=r"sink\.kafka\.outcomes_topic is empty"):
        validate(early)
