"""What the job cannot work with is said in one sentence, before anything is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from hermes_spark.app.driver import run_job
from hermes_spark.errors import (
    CheckpointMismatch,
    ModelUnavailable,
    StartError,
    StorageFull,
)
from hermes_spark.settings import (
    ModelSettings,
    Settings,
    SinkSettings,
    SourceSettings,
    StateSettings,
    StopSettings,
    ToolSettings,
)
from hermes_spark.streaming.preflight import check_spark, divide_slots
from hermes_spark.streaming.publish import read_table
from jobs import Job, question
from stack import Stack, ToolService, free_ports

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[3]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "events").mkdir()
    return Settings(
        checkpoint=str(tmp_path / "checkpoint"),
        source=SourceSettings(kind="files", path=str(tmp_path / "events")),
        sink=SinkSettings(path=str(tmp_path / "out"), publish_interval_ms=0),
        state=StateSettings(local_path=str(tmp_path / "rocksdb")),
        stop=StopSettings(idle_s=1),
        tools=ToolSettings(file=str(ROOT / "conf/tools.yaml"), base_url="http://127.0.0.1:9"),
    )


def drop(settings: Settings, *events: object) -> None:
    lines = b"\n".join(msgspec.json.encode(event) for event in events)
    (Path(settings.source.path) / f"{len(list(Path(settings.source.path).iterdir())):03d}.jsonl").write_bytes(lines)


def test_no_triton(spark: SparkSession, settings: Settings) -> None:
    nobody = ModelSettings(url=f"127.0.0.1:{free_ports(1)[0]}", connect_timeout_s=2)
    with pytest.raises(ModelUnavailable, match=r"127\.0\.0\.1"):
        run_job(spark, msgspec.structs.replace(settings, model=nobody))


@pytest.mark.triton
def test_triton_without_the_model(spark: SparkSession, settings: Settings, triton: str) -> None:
    other = ModelSettings(url=triton, name="other", tokenizer=str(ROOT / "model_repository/qwen35b_a3b/tokenizer"))
    with pytest.raises(ModelUnavailable, match="other"):
        run_job(spark, msgspec.structs.replace(settings, model=other))


def test_too_few_slots() -> None:
    with pytest.raises(StartError, match=r"need at least 2 slots and Spark has 1.*local\[2\]"):
        divide_slots(1, 0)
    assert divide_slots(3, 0).tasks == 2
    assert divide_slots(16, 0).hosts == 8


@pytest.mark.parametrize("conf", ["spark.speculation", "spark.speculation.task.duration.threshold"])
def test_speculation_would_start_hosts_twice(conf: str) -> None:
    class Context:
        def getConf(self) -> Context:
            return self

        def get(self, name: str, default: str) -> str:
            return "true" if name == conf else default

        def contains(self, name: str) -> bool:
            return name == conf

    with pytest.raises(StartError, match=conf):
        check_spark(Context())


@pytest.mark.triton
def test_a_changed_shard_count_is_refused(spark: SparkSession, settings: Settings, triton: str) -> None:
    settings = msgspec.structs.replace(settings, model=ModelSettings(url=triton))
    assert run_job(spark, settings).reason == "idle"
    more = msgspec.structs.replace(settings.state, shards=32)
    with pytest.raises(CheckpointMismatch, match=r"made with 16 shards and state\.shards is 32"):
        run_job(spark, msgspec.structs.replace(settings, state=more))


@pytest.mark.triton
def test_state_that_is_not_the_checkpoints_is_refused(
    spark: SparkSession, settings: Settings, triton: str, tmp_path: Path
) -> None:
    settings = msgspec.structs.replace(settings, model=ModelSettings(url=triton))
    drop(settings, question("s", "hello"))
    run_job(spark, settings)
    elsewhere = msgspec.structs.replace(settings.state, path=str(tmp_path / "other-state"))
    with pytest.raises(CheckpointMismatch, match="do not belong together"):
        run_job(spark, msgspec.structs.replace(settings, state=elsewhere))


@pytest.mark.triton
def test_a_full_disk_stops_the_job_and_space_lets_it_go_on(
    spark: SparkSession, settings: Settings, triton: str, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(small)], check=True)
    try:
        settings = msgspec.structs.replace(
            settings,
            model=ModelSettings(url=triton),
            state=msgspec.structs.replace(settings.state, path=str(small / "state")),
        )
        run_job(spark, settings)
        filler = small / "filler"
        filler.write_bytes(b"x" * 380_000)
        drop(settings, *(question(f"s{n}", "hello " + "x" * 5000) for n in range(40)))
        with pytest.raises(StorageFull, match="small"):
            run_job(spark, settings)
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", str(small)], check=True)
        assert run_job(spark, settings).reason == "idle"
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    outcomes = read_table(settings.sink.path, "outcomes").to_pylist()
    assert len({row["turn_id"] for row in outcomes}) == len(outcomes) == 40


@pytest.mark.triton
@pytest.mark.parametrize("mode", ["down", "html", "slow"])
def test_bad_tool_services_are_told_to_the_model(
    spark: SparkSession, settings: Settings, triton: str, tools: ToolService, mode: str
) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}" if mode == "down" else tools.url
    if mode != "down":
        tools.control(mode=mode)
    settings = msgspec.structs.replace(
        settings,
        model=ModelSettings(url=triton),
        tools=msgspec.structs.replace(settings.tools, base_url=url, timeout_s=1.0),
    )
    drop(settings, question("s", "What is the status of order A-1001?"))
    run_job(spark, settings)
    (outcome,) = read_table(settings.sink.path, "outcomes").to_pylist()
    assert outcome["status"] == "completed"
    (call,) = outcome["calls"]
    assert (call["status"], {"down": "could not be reached", "html": "HTML", "slow": "may or may not"}[mode]) == (
        {"down": "error", "html": "error", "slow": "timeout"}[mode],
        next(word for word in ("could not be reached", "HTML", "may or may not") if word in call["content"]),
    )


def test_an_unknown_setting_stops_the_job_with_its_name(stack: Stack, tmp_path: Path) -> None:
    part = stack.job({"checkpoint": tmp_path / "c", "state.shrads": 3})
    assert part.wait(120) == 2
    assert "spark.hermes.state.shrads" in part.tail()
    assert "state.shards" in part.tail()


def test_workers_without_the_package_are_named(stack: Stack, tmp_path: Path, triton: str, tools: ToolService) -> None:
    bare = tmp_path / "bare"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(bare)], check=True)
    job = Job(stack, triton, tools)
    part = job.start(environment={"PYSPARK_PYTHON": str(bare / "bin/python")})
    assert part.wait(120) == 2, part.tail(40)
    assert "No module named" in part.tail()
    assert "PYSPARK_PYTHON" in part.tail()
