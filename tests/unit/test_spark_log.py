import os
from pathlib import Path

import pytest

from hermes_spark.errors import StateError
from hermes_spark.streaming.spark_log import settle


def test_what_spark_wrote_about_a_batch_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("offsets/3", "offsets/4", "sources/0/3", "sources/0/4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("v1")
    os.utime(tmp_path / "sources/0/3", ns=(1, 1))
    (tmp_path / "sources/0/.4.crc").write_text("written last, by Hadoop")
    (tmp_path / "sources/1").mkdir()
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    settle(tmp_path, 4)
    wanted = {"offsets/4", "offsets", "sources/0/4", "sources/0"}
    assert set(synced) == {str(tmp_path / name) for name in wanted}


def test_a_batch_that_spark_does_not_know_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StateError):
        settle(tmp_path, 0)
