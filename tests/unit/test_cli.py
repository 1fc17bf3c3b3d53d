"""The command: what it prints, what it writes, and what it says when there is nothing to show."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from checkpoints import Checkpoint, busy
from hermes_spark.cli import command
from hermes_spark.state.arrow import AGENT_STATE, describe, from_struct
from hermes_spark.streaming.committed import SESSIONS

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def made(tmp_path) -> Checkpoint:
    return busy(tmp_path)


def lines(capfdbinary) -> list[str]:
    out, err = capfdbinary.readouterr()
    assert err == b""
    return out.decode().splitlines()


def refusal(capfdbinary, *arguments: str) -> str:
    assert command(arguments) == 2
    out, err = capfdbinary.readouterr()
    assert out == b""
    assert err.startswith(b"hermes-spark: ")
    assert err.count(b"\n") == 1
    return err.decode()


def test_sessions_are_listed(made, capfdbinary):
    assert command(["state", "ls", "--checkpoint", str(made.path)]) == 0
    head, *rows = lines(capfdbinary)
    assert head.split() == ["updated", "shard", "turns", "calls", "messages", "waiting", "turn", "session"]
    by_session = {row.split()[-1]: row.split()[2:7] for row in rows}
    assert by_session == {
        "张三": ["3", "3", "11", "0", "-"],
        "s-reset": ["1", "0", "0", "0", "-"],
        "s-cancel": ["1", "1", "4", "0", "-"],
        "s-open": ["0", "0", "2", "2", "stopping"],
    }
    assert command(["state", "ls", "--checkpoint", str(made.path), "--batch", "0"]) == 0
    assert {row.split()[-1] for row in lines(capfdbinary)[1:]} == {"张三", "s-reset"}


def test_an_id_that_would_command_the_terminal_is_escaped(made, capfdbinary):
    made.turn("evil\x1b[2J\nid", "hello")
    made.commit()
    assert command(["state", "ls", "--checkpoint", str(made.path)]) == 0
    assert any(line.endswith(r"'evil\x1b[2J\nid'") for line in lines(capfdbinary))


def test_a_session_is_shown(made, capfdbinary):
    assert command(["state", "show", "张三", "--checkpoint", str(made.path), "--batch", "1"]) == 0
    told = json.loads("\n".join(lines(capfdbinary)))
    assert [message["role"] for message in told["messages"]][-2:] == ["user", "assistant"]
    assert told["messages"][-1]["content"] == "不客气"
    assert command(["state", "show", "s-open", "--checkpoint", str(made.path)]) == 0
    assert json.loads("\n".join(lines(capfdbinary))) == describe(made.states["s-open"])


def test_exported_lines(made, capfdbinary, tmp_path):
    assert command(["state", "export", "--checkpoint", str(made.path)]) == 0
    printed = lines(capfdbinary)
    rows = [json.loads(line) for line in printed]
    assert all(list(row) == SESSIONS.names for row in rows)
    assert {row["session_id"]: row["batch_id"] for row in rows} == dict.fromkeys(
        ["张三", "s-open", "s-reset", "s-cancel"], 2
    )
    file = tmp_path / "sessions.jsonl"
    assert command(["state", "export", "--checkpoint", str(made.path), "--output", str(file)]) == 0
    assert file.read_text(encoding="utf-8").splitlines() == printed


def test_an_exported_file(made, tmp_path):
    out = tmp_path / "exports"
    out.mkdir()
    file = out / "sessions.parquet"
    arguments = ["--format", "parquet", "--output", str(file), "--batch", "1"]
    assert command(["state", "export", "--checkpoint", str(made.path), *arguments]) == 0
    table = pyarrow.parquet.read_table(file)
    assert table.schema.names == SESSIONS.names
    states = from_struct(table.select(AGENT_STATE.names).combine_chunks().to_struct_array().combine_chunks())
    assert {state.session_id: state.turns for state in states} == {"张三": 2, "s-open": 0, "s-reset": 1}
    assert list(out.iterdir()) == [file]


def test_an_export_that_fails_leaves_the_older_file(made, tmp_path, capfdbinary):
    file = tmp_path / "sessions.jsonl"
    file.write_text("older")
    next(path for path in made.root.rglob("*.log") if path.stat().st_size > 500).write_bytes(b"damaged")
    assert command(["state", "export", "--checkpoint", str(made.path), "--output", str(file)]) == 1
    assert b"is damaged at byte" in capfdbinary.readouterr().err
    assert file.read_text() == "older"
    assert not list(tmp_path.glob(".*"))


def test_the_calls_of_a_session_are_printed(made, capfdbinary):
    assert command(["audit", "张三", "--checkpoint", str(made.path)]) == 0
    head, *calls = lines(capfdbinary)
    assert head.split() == ["done", "status", "turn", "step", "hash", "call"]
    assert [line.split(maxsplit=5)[5] for line in calls] == [
        'look {"name":"张三"}',
        'look {"n":1,"deep":[1.5,null,{"x":true}]}',
        'look {"name":"now"}',
    ]
    assert calls[-1].split()[4] == made.states["张三"].audit_head[:12]


def test_a_sink_that_fits_is_verified(made, capfdbinary):
    assert command(["audit", "--verify", "--checkpoint", str(made.path), "--sink", str(made.sink)]) == 0
    assert lines(capfdbinary) == ["5 outcomes with 4 calls: all as they were recorded"]


def test_a_sink_that_does_not_fit_is_told_row_by_row(made, capfdbinary):
    max(made.sink.glob("outcomes/*/*.parquet")).unlink()
    assert command(["audit", "--verify", "--checkpoint", str(made.path), "--sink", str(made.sink)]) == 1
    *found, verdict = lines(capfdbinary)
    assert len(found) == 3
    assert all(line.endswith("was removed") for line in found)
    assert verdict == "2 outcomes with 2 calls: 3 findings"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["state", "ls", "--checkpoint", "/nowhere"],
            "/nowhere is no checkpoint of a job: it holds no hermes/meta.json",
        ),
        (["state", "show", "nobody"], "There is no session 'nobody' at batch 2"),
        (["state", "ls", "--batch", "9"], "no commit of batch 9; those of batches 0 to 2 are kept"),
        (["state", "export", "--format", "parquet"], "--output FILE"),
        (["audit"], "Name a SESSION"),
        (["audit", "s1", "--verify"], "Name a SESSION"),
        (["audit", "s-open"], "No turn of a session 's-open' has ended up to batch 2"),
        (["audit", "--verify"], "give --sink PATH"),
        (["audit", "--verify", "--sink", "/nowhere"], "/nowhere is no directory of published tables"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(made, capfdbinary, arguments, said):
    place = [] if "--checkpoint" in arguments else ["--checkpoint", str(made.path)]
    assert said in refusal(capfdbinary, *arguments, *place)


@pytest.mark.parametrize(
    "arguments", [[], ["state"], ["state", "ls"], ["state", "show", "--checkpoint", "x"], ["stat"]]
)
def test_half_a_command_is_a_usage_error(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        command(arguments)
    assert ended.value.code == 2
    assert "usage: hermes-spark" in capsys.readouterr().err


def test_looking_needs_no_spark(made):
    script = "import sys; from hermes_spark.cli import command; command(sys.argv[1:]); print('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, "state", "ls", "--checkpoint", str(made.path)],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.decode().splitlines()[-1] == "False"


def test_a_reader_that_has_seen_enough_ends_it_quietly(made):
    for n in range(400):
        made.turn(f"s-{n}", "long " * 100)
    made.commit()
    script = "from hermes_spark.cli import main; main()"
    arguments = [sys.executable, "-c", script, "state", "export", "--checkpoint", str(made.path)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(60) == 1
    process.stderr.close()


def readme_commands() -> list[str]:
    """The commands of the README that only look, as they are written there."""
    section = README.read_text(encoding="utf-8").partition("## Look at the state")[2].partition("\n## ")[0]
    block = re.search(r"```bash\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return [line.partition("#")[0].strip() for line in block[1].splitlines()]


@pytest.fixture(scope="module")
def readmes_checkpoint(tmp_path_factory) -> Checkpoint:
    checkpoint = Checkpoint(tmp_path_factory.mktemp("readme"), shards=1)
    checkpoint.turn("s1", "look", {"n": 1})
    for _ in range(42):
        checkpoint.commit()
    return checkpoint


@pytest.mark.parametrize("line", readme_commands())
def test_the_commands_of_the_readme_run(line, readmes_checkpoint, tmp_path, capfdbinary, monkeypatch):
    checkpoint = readmes_checkpoint
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(line)
    assert program == "hermes-spark"
    places = {"/data/agent/checkpoint": str(checkpoint.path), "/data/agent/out": str(checkpoint.sink)}
    assert command([places.get(argument, argument) for argument in arguments]) == 0
    assert lines(capfdbinary) or (tmp_path / "sessions.parquet").stat().st_size
