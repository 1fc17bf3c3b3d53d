"""Every row that somebody changed, removed or added in the sink is found, and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import Checkpoint, busy
from hermes_spark.agent.turn import apply
from hermes_spark.errors import JournalCorrupt, SettingsError, StateError
from hermes_spark.state.records import Position, ShardRecord
from hermes_spark.streaming.audit import (
    Bounds,
    broken_links,
    outcome_rows,
    published_rows,
    session_rows,
    verify,
    verify_shard,
)
from hermes_spark.streaming.committed import Committed, Start
from hermes_spark.streaming.publish import read_table, table_files
from hermes_spark.streaming.table_schemas import OUTCOMES

Row = dict[str, Any]


@pytest.fixture
def made(tmp_path) -> Checkpoint:
    return busy(tmp_path)


def findings(made: Checkpoint) -> list[str]:
    return verify(str(made.path), str(made.sink)).findings


def rewrite(made: Checkpoint, session_id: str, nth: int, change: Callable[[Row], Row | None]) -> None:
    """Change or remove (None) the nth outcome of a session in its file, as somebody who can write to the sink might."""
    left = nth
    for file in sorted(table_files(made.sink, "outcomes"), key=lambda path: int(path.parent.name.partition("=")[2])):
        rows = pyarrow.parquet.ParquetFile(file).read().to_pylist()
        for i, row in enumerate(rows):
            if row["session_id"] == session_id:
                left -= 1
                if left < 0:
                    new = change(row)
                    rows[i : i + 1] = [] if new is None else [new]
                    write(file, rows)
                    return
    raise AssertionError("no such row")


def write(file: Path, rows: list[Row]) -> None:
    schema = OUTCOMES.remove(OUTCOMES.get_field_index("batch_id"))
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema=schema), file)


def with_call(row: Row, nth: int, **fields: Any) -> Row:
    calls = [{**call, **(fields if i == nth else {})} for i, call in enumerate(row["calls"])]
    return {**row, "calls": calls}


def test_nothing_is_found_where_nothing_was_done(made):
    report = verify(str(made.path), str(made.sink))
    assert report == (5, 4, 0, [])


def test_the_hashes_are_chained_over_the_turns_of_a_session(made):
    rows = session_rows(Committed.at(str(made.path)), "张三", None)
    calls = [(row["turn_id"], call) for row in rows for call in row["calls"]]
    assert len(calls) == 3
    previous = ""
    for turn_id, call in calls:
        assert call["previous_hash"] == previous
        times = [str(int(call[name].timestamp() * 1000)) for name in ("sent_at", "done_at")]
        names = ("call_id", "name", "arguments", "status", "content", "step", "attempts")
        h = hashlib.blake2b(digest_size=16)
        for field in [previous, "张三", turn_id, *(str(call[name]) for name in names), *times]:
            h.update(len(field.encode()).to_bytes(4, "big") + field.encode())
        assert call["hash"] == h.hexdigest()
        previous = call["hash"]
    assert made.states["张三"].audit_head == previous


def test_a_replay_gives_the_same_rows(made):
    committed = Committed.at(str(made.path))
    by_lsn = {shard: outcome_rows(committed, shard, Position()) for shard in committed.shards}
    for row in read_table(made.sink, "outcomes").to_pylist():
        again = by_lsn[row["shard"]][row["lsn"]]
        assert {**again, "batch_id": row["batch_id"]} == row


CHANGES = {
    "arguments": lambda row: with_call(row, 1, arguments="{}"),
    "content": lambda row: with_call(row, 0, content="forged"),
    "status": lambda row: with_call(row, 0, status="error"),
    "sent": lambda row: with_call(row, 0, sent_at=None),
    "done": lambda row: with_call(row, 1, done_at=row["finished_at"]),
    "hash": lambda row: with_call(row, 1, hash="0" * 32),
    "a call less": lambda row: {**row, "calls": row["calls"][:1]},
    "another order": lambda row: {**row, "calls": row["calls"][::-1]},
    "reply": lambda row: {**row, "reply": "forged"},
    "session": lambda row: {**row, "session_id": "s-open"},
    "older version": lambda row: {**row, "schema_version": 1, "reply": None},
    "no calls": lambda row: {**row, "calls": None},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_row_is_found(made, name):
    rewrite(made, "张三", 0, CHANGES[name])
    (found,) = findings(made)
    assert "(session '张三') was changed in " in found


@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_removed_row_is_found_also_the_last(made, nth):
    rewrite(made, "张三", nth, lambda row: None)
    (found,) = findings(made)
    assert "(session '张三') was removed" in found


def test_a_removed_file_is_found(made):
    newest = max(table_files(made.sink, "outcomes"), key=lambda path: int(path.parent.name.partition("=")[2]))
    newest.unlink()
    assert len(findings(made)) == 3


ADDED = {
    "twice": ({}, "stands there twice"),
    "elsewhere": ({"lsn": 2}, "was added: the journal has no outcome there"),
    "later": ({"lsn": 10_000}, "was added: the journal has no outcome there (the last commit ends at "),
    "in no shard": ({"shard": 99}, "was added: there is no such place"),
    "in a null shard": ({"shard": None}, "was added: there is no such place"),
    "of no query": ({"query_id": None}, "was added: there is no such place"),
    "nowhere": ({"lsn": None}, "was added: it has no place"),
}


@pytest.mark.parametrize("name", ADDED)
def test_an_added_row_is_found(made, name):
    changes, said = ADDED[name]
    file = table_files(made.sink, "outcomes")[0]
    rows = pyarrow.parquet.ParquetFile(file).read().to_pylist()
    write(file, [*rows, {**rows[0], **changes}])
    (found,) = findings(made)
    assert said in found


def test_rows_of_another_checkpoint_are_left_out_and_counted(made, tmp_path):
    other = Checkpoint(tmp_path / "other")
    other.sink = made.sink
    other.turn("s1", "hello", {"n": 1})
    other.commit()
    assert verify(str(made.path), str(made.sink)) == (5, 4, 1, [])
    assert verify(str(other.path), str(made.sink)) == (1, 1, 5, [])


def test_a_batch_that_is_still_being_published_is_not_missed(made):
    made.commit(to_sink=False)
    assert findings(made) == []
    made.turn("s-late", "and again")
    made.commit(publish=False)
    (found,) = findings(made)
    assert "'s-late') was removed" in found, "batch 4 follows, so batch 3 has published"


def test_a_published_row_that_is_not_committed_is_found(made):
    """The commit was taken back: what was published of it has nothing behind it."""
    made.commit()
    (made.root / "commits" / "000000000003.json").unlink()
    (found,) = findings(made)
    assert "'s-late') was added" in found


def test_a_journal_changed_along_with_the_sink_is_found(made):
    for file in made.root.rglob("*.log"):
        data = file.read_bytes()
        if "已发货".encode() in data:
            file.write_bytes(data.replace("已发货".encode(), "未发货".encode()))
    with pytest.raises(JournalCorrupt):
        findings(made)


def test_rows_of_before_the_hashes_are_compared_without_them(made):
    def older(row: Row) -> Row:
        return {
            **row,
            "schema_version": 1,
            "calls": [{**call, "previous_hash": None, "hash": None} for call in row["calls"]],
            "undos": None,
        }

    rewrite(made, "张三", 0, older)
    assert findings(made) == []
    rewrite(made, "张三", 0, lambda row: with_call(row, 0, content="forged"))
    assert len(findings(made)) == 1


def test_files_without_the_columns_are_read(made):
    file = table_files(made.sink, "outcomes")[0]
    table = pyarrow.parquet.ParquetFile(file).read()
    calls = pa.list_(
        pa.struct([field for field in OUTCOMES.field("calls").type.value_type if "hash" not in field.name])
    )
    schema = pa.schema(
        [
            field if field.name != "calls" else pa.field("calls", calls)
            for field in table.schema
            if field.name != "undos"
        ]
    )
    rows = [{**row, "schema_version": 1} for row in table.to_pylist()]
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows, schema=schema), file)
    assert findings(made) == []


def test_a_file_that_cannot_be_read_is_named(made):
    file = table_files(made.sink, "outcomes")[0]
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(StateError, match="cannot be read"):
        findings(made)


def test_a_sink_that_is_not_there(made):
    with pytest.raises(SettingsError, match=r"/nowhere is no directory of published tables"):
        verify(str(made.path), "/nowhere")


# where the journal has gone


class FromSnapshot(Committed):
    """As if the journal began behind batch 1, with the sessions of that time in a snapshot."""

    def start(self, shard: int) -> Start:
        plain = Committed.at(str(self.root), 1)
        return Start(plain.commit.positions[shard], {state.session_id: state for state in plain.sessions(shard)})


def found_without_journal(made: Checkpoint) -> list[str]:
    whole = Committed.at(str(made.path))
    committed = FromSnapshot(whole.root, whole.meta, whole.commit)
    return [
        found
        for shard in committed.shards
        for found in verify_shard(
            committed,
            shard,
            published_rows(table_files(made.sink, "outcomes"), committed, shard),
            Bounds(whole.commit.positions[shard].lsn, whole.commit.positions[shard].lsn),
        )
    ]


def test_a_snapshot_is_where_the_fold_begins(made):
    whole = Committed.at(str(made.path))
    committed = FromSnapshot(whole.root, whole.meta, whole.commit)
    for shard in whole.shards:
        assert committed.sessions(shard) == whole.sessions(shard)
    assert committed.session("张三") == whole.session("张三")
    assert found_without_journal(made) == []
    assert len(session_rows(committed, "张三", None)) == 1
    assert session_rows(committed, "张三", str(made.sink)) == [
        {**row, "batch_id": was["batch_id"]}
        for row, was in zip(
            session_rows(whole, "张三", None), session_rows(committed, "张三", str(made.sink)), strict=True
        )
    ]


@pytest.mark.parametrize("name", sorted(CHANGES.keys() - {"reply", "older version", "no calls", "sent"}))
def test_a_call_changed_before_the_journal_is_found(made, name):
    rewrite(made, "张三", 0, CHANGES[name])
    assert any("张三" in found or "s-open" in found for found in found_without_journal(made))


def test_a_call_removed_before_the_journal_is_found(made):
    rewrite(made, "张三", 0, lambda row: None)
    assert any("'张三' were removed or changed" in found for found in found_without_journal(made))


# the law of links


def rows_of(made: Checkpoint) -> list[Row]:
    committed = Committed.at(str(made.path))
    rows = [row for shard in committed.shards for row in outcome_rows(committed, shard, Position()).values()]
    return sorted(rows, key=lambda row: (row["shard"], row["lsn"]))


@pytest.fixture(scope="module")
def long_chain(tmp_path_factory) -> tuple[list[Row], dict[str, str]]:
    made = Checkpoint(tmp_path_factory.mktemp("long"), shards=1)
    for n in range(6):
        made.turn("a", f"turn {n}", *({"n": i} for i in range(n % 3)))
        made.turn("b", f"turn {n}", {"n": n})
    made.commit()
    return rows_of(made), {name: state.audit_head for name, state in made.states.items()}


@given(data=st.data())
def test_any_row_with_calls_that_is_missing_breaks_a_chain(long_chain, data):
    rows, heads = long_chain
    assert list(broken_links(rows, heads)) == []
    removed = data.draw(st.sets(st.integers(0, len(rows) - 1)))
    left = [row for i, row in enumerate(rows) if i not in removed]
    assert bool(list(broken_links(left, heads))) == any(rows[i]["calls"] for i in removed)


@given(data=st.data())
def test_any_changed_field_of_a_call_breaks_a_chain(long_chain, data):
    rows, heads = long_chain
    i = data.draw(st.sampled_from([i for i, row in enumerate(rows) if row["calls"]]))
    nth = data.draw(st.integers(0, len(rows[i]["calls"]) - 1))
    call = rows[i]["calls"][nth]
    name = data.draw(st.sampled_from(sorted(call)))
    value = {str: f"{call[name]}x", int: 77}.get(type(call[name]))
    changed = [*rows[:i], with_call(rows[i], nth, **{name: value}), *rows[i + 1 :]]
    assert list(broken_links(changed, heads))


def test_a_session_that_began_anew_is_no_break(tmp_path):
    made = Checkpoint(tmp_path)
    made.turn("a", "before", {"n": 1})
    del made.states["a"]
    made.turn("a", "after it expired", {"n": 2})
    made.commit()
    assert list(broken_links(rows_of(made), {"a": made.states["a"].audit_head})) == []


def test_calls_of_before_the_hashes_are_where_the_chain_begins(long_chain):
    rows, heads = long_chain
    of_b = [row for row in rows if row["session_id"] == "b"]
    older = {
        **of_b[0],
        "schema_version": 1,
        "calls": [{**call, "previous_hash": None, "hash": None} for call in of_b[0]["calls"]],
    }
    assert list(broken_links([older, *of_b[1:]], {"b": heads["b"]})) == []
    assert list(broken_links([with_call(older, 0, content="x"), *of_b[1:]], {"b": heads["b"]}))


def test_the_state_of_a_session_knows_its_newest_hash_however_it_is_folded(made):
    committed = Committed.at(str(made.path))
    for shard in committed.shards:
        states: dict[str, Any] = {}
        for _, record in committed.records(shard, Position()):
            if not isinstance(record, ShardRecord):
                states[record.session_id] = apply(states.get(record.session_id), record)
        for name, state in states.items():
            assert state.audit_head == made.states[name].audit_head
