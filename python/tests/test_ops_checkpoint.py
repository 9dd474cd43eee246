"""The raw checkpoint ops: MxrecSave, MxrecLoad, MxrecSaverSave, MxrecSaverRestore."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf
from ops_harness import (
  ADAGRAD,
  Table,
  c_api_fixture,  # noqa: F401
  normal,
  ops,
  tf1,
)


@pytest.fixture(autouse=True)
def _fresh_graph():
  tf1.reset_default_graph()


class Saved:
  """A table with its four checkpoint ops."""

  def __init__(self, name: str = "t", **fields):
    self.table = Table(name, dim=4, initializer=normal(), **fields)
    self.place, self.step = tf1.placeholder(tf.string, []), tf1.placeholder(tf.int64, [])
    self.marker = tf1.placeholder(tf.int64, [])
    handle = self.table.handle
    self.save_op = ops.mxrec_save([handle], self.place, self.step, tf.constant(0, tf.int64))
    self.load_op = ops.mxrec_load([handle], self.place, self.step)
    self.side_save_op = ops.mxrec_saver_save(handle, self.place)
    self.side_load_op = ops.mxrec_saver_restore(handle, self.place, self.marker)
    self.ids = tf1.placeholder(tf.int64, [None])
    self.train_op = self.table.train(self.ids, 0.5, ADAGRAD)
    self.export_op = self.table.export()

  def contents(self, session):
    keys, values = session.run(self.export_op)
    return keys.tobytes() + values.tobytes()


def flip(path: pathlib.Path, where: float = 0.5) -> None:
  data = bytearray(path.read_bytes())
  data[int(len(data) * where)] ^= 0x10
  path.write_bytes(bytes(data))


def side_files(folder: pathlib.Path) -> list[str]:
  return sorted(p.name for p in folder.iterdir() if p.name.endswith("-of-mxrec"))


@pytest.mark.parametrize("folder", ["plain", "with blank", "umlaut-ä", "deep/er/still"])
def test_fact_24_save_and_load_in_a_new_session_go_on_bit_equal(tmp_path, folder):
  s = Saved()
  directory = str(tmp_path / folder)
  with tf1.Session() as session:
    session.run(s.train_op, {s.ids: np.arange(-500, 500)})
    assert session.run(s.save_op, {s.place: directory, s.step: 3}) > 0
    at_save = s.contents(session)
    session.run(s.train_op, {s.ids: np.arange(100)})
    went_on = s.contents(session)
  with tf1.Session() as session:
    report = json.loads(session.run(s.load_op, {s.place: directory, s.step: -1}))
    assert report["step"] == 3 and report["tables"][0]["table"] == "t" and report["tables"][0]["rows"] == 1000
    assert not report["tables"][0]["slots_fresh"] and report["tables"][0]["file_optimizer"] == "adagrad"
    assert s.contents(session) == at_save
    session.run(s.train_op, {s.ids: np.arange(100)})
    assert s.contents(session) == went_on


def test_a_missing_checkpoint_is_not_found_and_names_the_folder(tmp_path):
  s = Saved()
  with tf1.Session() as session:
    session.run(s.train_op, {s.ids: [1]})
    before = s.contents(session)
    for step in (-1, 7):
      with pytest.raises(tf.errors.NotFoundError, match=str(tmp_path)):
        session.run(s.load_op, {s.place: str(tmp_path / "none"), s.step: step})
    for bad in ({s.place: str(tmp_path), s.step: -1}, {s.place: "", s.step: 1}):
      with pytest.raises(tf.errors.InvalidArgumentError):
        session.run(s.save_op, bad)
    assert s.contents(session) == before


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_checkpoint_is_data_loss_and_the_table_is_untouched(tmp_path, damage):
  s = Saved()
  with tf1.Session() as session:
    session.run(s.train_op, {s.ids: np.arange(300)})
    session.run(s.save_op, {s.place: str(tmp_path), s.step: 1})
    session.run(s.train_op, {s.ids: np.arange(10)})
    before = s.contents(session)
    (file,) = (tmp_path / "mxrec-1").glob("*.mxt")
    if damage == "flip":
      flip(file)
    else:
      os.truncate(file, 0 if damage == "empty" else file.stat().st_size - 5)
    with pytest.raises(tf.errors.DataLossError, match=file.name):
      session.run(s.load_op, {s.place: str(tmp_path), s.step: 1})
    assert s.contents(session) == before


def test_one_table_twice_is_refused(tmp_path):
  table = Table()
  with tf1.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match='table "t" is given twice'):
    session.run(ops.mxrec_save([table.handle, table.handle], str(tmp_path), np.int64(1), np.int64(0)))


def test_several_tables_and_keep(tmp_path):
  tables = [Table(name, dim=2) for name in ("a", "b")]
  step = tf1.placeholder(tf.int64, [])
  save = ops.mxrec_save([t.handle for t in tables], str(tmp_path), step, np.int64(2))
  with tf1.Session() as session:
    session.run([t.train(np.array([1, 2], np.int64)) for t in tables])
    for i in range(5):
      session.run(save, {step: i})
  assert sorted(p.name for p in tmp_path.glob("mxrec-*")) == ["mxrec-3", "mxrec-4"]


def test_fact_17_cold_rows_go_before_a_save(tmp_path, c_api):
  s = Saved(max_cold_secs=10)
  with tf1.Session() as session:
    for now, key in ((1_000_000, 1), (1_001_000, 2)):
      c_api.mxrec_set_clock_ms(now)
      session.run(s.train_op, {s.ids: [key]})
    c_api.mxrec_set_clock_ms(1_011_000)
    session.run(s.side_save_op, {s.place: str(tmp_path / "model-1")})
    assert session.run(s.export_op).keys.tolist() == [2]
    c_api.mxrec_set_clock_ms(1_012_000)
    session.run(s.save_op, {s.place: str(tmp_path), s.step: 1})
    assert session.run(s.export_op).keys.tolist() == []


def test_side_files_have_the_names_that_tensorflow_deletes_and_hold_the_table(tmp_path):
  s = Saved()
  prefix = str(tmp_path / "not" / "yet" / "model-5")
  with tf1.Session() as session:
    session.run(s.train_op, {s.ids: np.arange(300)})
    marker = session.run(s.side_save_op, {s.place: prefix})
    contents = s.contents(session)
    # Equal contents: the same name. Other contents at the same step: another name, and the first file stays.
    assert session.run(s.side_save_op, {s.place: prefix}) == marker
    session.run(s.train_op, {s.ids: [1]})
    second = session.run(s.side_save_op, {s.place: prefix})
    assert second != marker
  folder = tmp_path / "not" / "yet"
  names = side_files(folder)
  assert len(names) == 2 and sorted(p.name for p in folder.iterdir()) == names
  for name in names:
    assert name.startswith("model-5.data-") and len(name) == len("model-5.data-00000-of-mxrec")
  with tf1.Session() as session:
    session.run(s.train_op, {s.ids: np.arange(1000, 1300)})
    session.run(s.side_load_op, {s.place: prefix, s.marker: marker})
    assert s.contents(session) == contents
  assert tf.io.gfile.glob(prefix + ".data-?????-of-?????")
  tf1.train.remove_checkpoint(prefix)
  assert not side_files(folder)


def test_a_missing_or_swapped_side_file_is_named(tmp_path):
  s = Saved()
  prefix = str(tmp_path / "m")
  with tf1.Session() as session:
    session.run(s.train_op, {s.ids: np.arange(300)})
    first = session.run(s.side_save_op, {s.place: prefix})
    (first_name,) = side_files(tmp_path)
    session.run(s.train_op, {s.ids: [1]})
    session.run(s.side_save_op, {s.place: prefix})
    (second_name,) = set(side_files(tmp_path)) - {first_name}
    before = s.contents(session)
    shutil.copy(tmp_path / second_name, tmp_path / first_name)
    with pytest.raises(tf.errors.DataLossError, match=rf"{first_name}: expected the contents of marker {first}, found"):
      session.run(s.side_load_op, {s.place: prefix, s.marker: first})
    flip(tmp_path / first_name, 0.0)
    with pytest.raises(tf.errors.DataLossError, match=first_name):
      session.run(s.side_load_op, {s.place: prefix, s.marker: first})
    (tmp_path / first_name).unlink()
    with pytest.raises(tf.errors.NotFoundError, match=first_name):
      session.run(s.side_load_op, {s.place: prefix, s.marker: first})
    assert s.contents(session) == before


def test_two_contents_with_one_tag_get_two_files(tmp_path):
  s = Saved()
  with tf1.Session() as session:
    session.run(s.train_op, {s.ids: [1]})
    session.run(s.side_save_op, {s.place: str(tmp_path / "a")})
    session.run(s.train_op, {s.ids: [1]})
    marker = session.run(s.side_save_op, {s.place: str(tmp_path / "b")})
    contents = s.contents(session)
    (other,), (name,) = ([n for n in side_files(tmp_path) if n[0] == x] for x in "ab")
    taken = tmp_path / name.replace("b.", "c.")
    shutil.copy(tmp_path / other, taken)  # someone else's contents under the name that this table wants
    kept = taken.read_bytes()
    assert session.run(s.side_save_op, {s.place: str(tmp_path / "c")}) == marker
    assert taken.read_bytes() == kept and len([n for n in side_files(tmp_path) if n[0] == "c"]) == 2
    session.run(s.train_op, {s.ids: [2]})
    session.run(s.side_load_op, {s.place: str(tmp_path / "c"), s.marker: marker})
    assert s.contents(session) == contents


def test_many_tables_save_beside_one_checkpoint_at_once(tmp_path):
  tables = [Table(f"t{i}", dim=2) for i in range(12)]
  saves = [ops.mxrec_saver_save(t.handle, str(tmp_path / "x" / "m")) for t in tables]
  with tf1.Session() as session:
    session.run([t.train(np.array([1], np.int64)) for t in tables])
    markers = session.run(saves)
    assert len(set(markers)) == 12 == len(side_files(tmp_path / "x"))
    session.run([ops.mxrec_table_reset(t.handle) for t in tables])
    session.run([ops.mxrec_saver_restore(t.handle, str(tmp_path / "x" / "m"), m) for t, m in zip(tables, markers, strict=True)])
    assert session.run([t.size() for t in tables]) == [1] * 12


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
  s = Saved()
  (tmp_path / "file").write_text("in the way")
  with tf1.Session() as session:
    session.run(s.train_op, {s.ids: [1]})
    for op, extra in ((s.save_op, {s.step: 1}), (s.side_save_op, {})):
      with pytest.raises(tf.errors.FailedPreconditionError, match=f"expected a folder at {tmp_path}/file, found a file"):
        session.run(op, {s.place: str(tmp_path / "file" / "m"), **extra})


def test_d_a_cancelled_save_publishes_nothing(tmp_path):
  s = Saved()
  with tf1.Session() as session:
    session.run(s.train_op, {s.ids: np.arange(200_000)})
    session.run(s.save_op, {s.place: str(tmp_path), s.step: 1})
    session.run(s.train_op, {s.ids: np.arange(10)})
    with pytest.raises((tf.errors.DeadlineExceededError, tf.errors.CancelledError)):
      session.run(
        [s.save_op, tf1.py_func(_sleep, [], tf.int64)], {s.place: str(tmp_path), s.step: 2}, options=tf1.RunOptions(timeout_in_ms=1)
      )
    report = json.loads(session.run(s.load_op, {s.place: str(tmp_path), s.step: -1}))
    assert report["step"] in (1, 2)  # whole, whichever it is
    session.run(s.load_op, {s.place: str(tmp_path), s.step: 1})
    leftovers = [p for p in tmp_path.rglob("*") if ".tmp" in p.name]
    assert not leftovers


def _sleep() -> np.int64:
  time.sleep(0.2)
  return np.int64(0)


def test_loading_another_optimizers_rows_starts_fresh_slots_and_warns_once(tmp_path, c_api):
  s = Saved()
  other = s.table.train(s.ids, 0.5, ("sgd", [0.1], {}))
  lines = []
  sink = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p)(lambda level, text: lines.append((level, text.decode())))
  with tf1.Session() as session:
    session.run(s.train_op, {s.ids: [1, 2]})
    session.run(s.save_op, {s.place: str(tmp_path), s.step: 1})
    contents = s.contents(session)
  c_api.mxrec_set_log_sink(sink)
  try:
    with tf1.Session() as session:
      session.run(other, {s.ids: [9]})
      report = json.loads(session.run(s.load_op, {s.place: str(tmp_path), s.step: 1}))
      assert s.contents(session) == contents
      session.run(other, {s.ids: [9]})
  finally:
    c_api.mxrec_set_log_sink(None)
  assert report["tables"][0]["slots_fresh"] and report["tables"][0]["file_optimizer"] == "adagrad"
  assert [level for level, text in lines if "adagrad" in text and "sgd" in text] == [2]
