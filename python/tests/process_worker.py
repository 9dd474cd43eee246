"""Run as a script by test_processes.py: imports TensorFlow once, then forks one fresh process per job.

    python process_worker.py FOLDER       writes FOLDER/report.json

A job runs in a child that has used no session before; its result comes back as JSON through a pipe.
"""

import ctypes
import json
import os
import pathlib
import pty
import random
import signal
import sys
import tempfile
import threading
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

_start = time.process_time()
import tensorflow.compat.v1 as tf

TENSORFLOW_SECONDS = time.process_time() - _start

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

_start = time.process_time()
import mxrec

IMPORT_SECONDS = time.process_time() - _start

import helpers

JOB_SECONDS = 60
ROWS = 20000


def in_child(job, *arguments):
  """The result of job(*arguments) in a process of its own, or {"error": ...}."""
  reader, writer = os.pipe()
  child = os.fork()
  if child == 0:
    try:
      os.close(reader)
      signal.alarm(JOB_SECONDS)
      try:
        result = job(*arguments)
      except Exception:
        result = {"error": traceback.format_exc()}
      with os.fdopen(writer, "w") as file:
        json.dump(result, file)
    finally:
      os._exit(0)
  os.close(writer)
  with os.fdopen(reader) as file:
    text = file.read()
  _, status = os.waitpid(child, 0)
  return json.loads(text) if text else {"error": f"the child ended with status {status}"}


# --- save in one process, go on in another ---


def train_and_save(kind, folder, resume):
  """Trains 4 batches and saves; then (or after loading, with `resume`) trains 4 more and stores what came out."""
  mxrec.testing.set_clock(50.0)
  emb_table = helpers.table(dimension=5, min_used_times=2, max_cold_secs=100)
  model = helpers.SumModel(emb_table, helpers.optimizers()[kind])
  rng = np.random.RandomState(1)
  batches = [rng.randint(-200, 200, 150) for _ in range(8)]
  with tf.Session() as session:
    saver = mxrec.EmbeddingTableSaver([emb_table])
    if resume:
      saver.load(session, folder, 4)
    else:
      for batch in batches[:4]:
        model.step(session, batch, scale=0.25)
      mxrec.testing.set_clock(100.0)
      model.step(session, [1000, 1000], scale=0.25)
      saver.save(session, folder, 4)
    outputs = []
    for batch in batches[4:]:
      mxrec.testing.set_clock(120.0)
      outputs.append(model.step(session, batch, scale=0.25))
    mxrec.testing.set_clock(151.0)  # rows of clock 50 are 101 s old
    evicted = emb_table.evict(session)
    keys, values = emb_table.export(session)
    stats = emb_table.stats(session)
  np.savez(
    os.path.join(folder, f"{kind}-{'resumed' if resume else 'straight'}.npz"),
    np.concatenate(outputs),
    keys,
    values,
    [evicted, stats["candidates"], stats["optimizer_step"]],
  )
  return {"rows": len(keys), "evicted": evicted}


# --- kill -9 while saving ---


def check_and_save_for_ever(folder, check, pipe):
  """Loads what the killed predecessor left and reports it, then saves until killed; every row holds the number of the save."""
  emb_table = helpers.table(dimension=16)
  step = tf.train.get_or_create_global_step()
  own, stock = mxrec.EmbeddingTableSaver([emb_table], keep=2), tf.train.Saver(max_to_keep=2)
  own_folder, stock_folder = os.path.join(folder, "own"), os.path.join(folder, "stock")
  keys, number = np.arange(ROWS), 0
  with tf.Session() as session, os.fdopen(pipe, "w", buffering=1) as file:
    session.run(tf.global_variables_initializer())
    if check:
      result = {"own_latest": own.latest_step(own_folder)}
      own.load(session, own_folder)
      rows = emb_table.lookup_numpy(keys, session)
      result.update(own=float(rows[0, 0]), own_equal=bool((rows == rows[0, 0]).all()), own_size=emb_table.size(session))
      stock.restore(session, tf.train.latest_checkpoint(stock_folder))
      rows = emb_table.lookup_numpy(keys, session)
      result.update(
        stock=float(rows[0, 0]),
        stock_equal=bool((rows == rows[0, 0]).all()),
        stock_size=emb_table.size(session),
        stock_step=int(session.run(step)),
      )
      print(json.dumps(result), file=file)
      number = result["own_latest"]
    while True:
      number += 1
      emb_table.insert(keys, np.full([ROWS, 16], number, np.float32), session=session)
      session.run(step.assign(number))
      own.save(session, own_folder, number)
      stock.save(session, os.path.join(stock_folder, "model"), global_step=number)
      print(number, file=file)


def kill_while_saving(folder, times):
  """Starts and kills the job above; returns what each successor found, and the last save known to be complete before."""
  random.seed(11)
  results, complete = [], 0
  for turn in range(times + 1):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
      os.close(reader)
      signal.alarm(JOB_SECONDS)
      try:
        check_and_save_for_ever(folder, turn > 0, writer)
      except Exception:
        traceback.print_exc()
      finally:
        os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as file:
      if turn > 0:
        line = file.readline()
        results.append(dict(json.loads(line) if line else {"error": "the successor could not load"}, complete=complete))
      if turn < times:
        complete = int(file.readline() or complete)
        time.sleep(random.random() * 0.3)
      os.kill(child, signal.SIGKILL)
      os.waitpid(child, 0)
      for line in file:
        complete = int(line) if line.strip().isdigit() and line.endswith("\n") else complete
  return results


# --- other ways a process may end or go on ---


INTERRUPTED_ROWS = 300_000  # of 64 columns: some tenths of a second to save


def files_below(folder):
  """The files of a folder and of those below, by their paths in it."""
  return sorted(os.path.relpath(os.path.join(top, file), folder) for top, _, files in os.walk(folder) for file in files)


def press_ctrl_c_in_a_save(folder, save):
  """Runs save() and sends this process SIGINT once the save has begun a file; returns what it raised, by name."""
  before, over = files_below(folder), threading.Event()

  def press():
    while not over.is_set() and files_below(folder) == before:
      time.sleep(0.001)
    if not over.is_set():
      os.kill(os.getpid(), signal.SIGINT)

  raised, thread = None, threading.Thread(target=press)
  try:
    thread.start()
    save()
    over.set()
    thread.join()
    time.sleep(0.1)  # a KeyboardInterrupt that is late comes here
  except BaseException as error:
    raised = type(error).__name__
  over.set()
  thread.join()
  return raised


def interrupted_save(folder):
  """Ctrl-C in a save by either saver: KeyboardInterrupt, the previous checkpoint stays, and the process can go on."""
  signal.signal(signal.SIGINT, signal.default_int_handler)  # a job of a shell may have been started with SIGINT ignored
  emb_table = helpers.table(dimension=64)
  tf.get_variable("w", [2])
  own, stock = mxrec.EmbeddingTableSaver([emb_table]), tf.train.Saver()
  own_folder, stock_folder = os.path.join(folder, "own"), os.path.join(folder, "stock")
  keys = np.arange(INTERRUPTED_ROWS)
  results = {}
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    savers = {
      "own": (own_folder, lambda step: own.save(session, own_folder, step)),
      "stock": (stock_folder, lambda step: stock.save(session, os.path.join(stock_folder, "model"), global_step=step)),
    }
    for name, (place, save) in savers.items():
      emb_table.insert(keys, np.full([INTERRUPTED_ROWS, 64], 1, np.float32), session=session)
      save(1)
      emb_table.insert(keys, np.full([INTERRUPTED_ROWS, 64], 2, np.float32), session=session)
      before = files_below(place)
      raised = press_ctrl_c_in_a_save(place, lambda save=save: save(2))
      results[name] = {"raised": raised, "files": [before, files_below(place)]}

    results["latest"] = [own.latest_step(own_folder), tf.train.latest_checkpoint(stock_folder)]
    own.load(session, own_folder)
    results["own"]["first"] = float(emb_table.lookup_numpy([7], session)[0, 0])
    stock.restore(session, tf.train.latest_checkpoint(stock_folder))
    results["stock"]["first"] = float(emb_table.lookup_numpy([7], session)[0, 0])

    # A script with a handler of its own: the save goes on.
    pressed = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    emb_table.insert(keys, np.full([INTERRUPTED_ROWS, 64], 3, np.float32), session=session)
    results["handler"] = [press_ctrl_c_in_a_save(own_folder, lambda: own.save(session, own_folder, 3)), len(pressed)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results["latest_at_the_end"] = own.latest_step(own_folder)
  return results


def progress_on_a_terminal():
  """What a save writes to a terminal, and to a pipe, when it takes longer than the delay (here: none)."""
  set_delay = mxrec._loader.c_library().mxrec_set_progress_delay_ms
  set_delay.argtypes = [ctypes.c_int64]
  emb_table = helpers.table(dimension=64)
  saver = mxrec.EmbeddingTableSaver([emb_table])
  texts = {}
  with tf.Session() as session, tempfile.TemporaryDirectory() as folder:
    emb_table.insert(np.arange(20000), session=session)
    for name, ends, delay in (("terminal", pty.openpty(), 0), ("patient", pty.openpty(), 60_000), ("pipe", os.pipe(), 0)):
      reader, writer = ends
      set_delay(delay)
      usual = os.dup(2)
      os.dup2(writer, 2)
      try:
        emb_table.insert([len(texts)], np.full([1, 64], len(texts), np.float32), session=session)
        saver.save(session, folder, len(texts))
        emb_table.erase([1], session=session)  # else there is nothing to load
        saver.load(session, folder)
      finally:
        os.dup2(usual, 2)
      os.write(writer, b"END")
      texts[name] = ""
      while not texts[name].endswith("END"):
        texts[name] += os.read(reader, 4096).decode()
  return texts


def exit_without_closing():
  """A session that is never closed, with a table in it."""
  reader, writer = os.pipe()
  child = os.fork()
  if child == 0:
    os.close(reader)
    signal.alarm(30)
    session = tf.Session()
    model = helpers.SumModel(helpers.table())
    model.step(session, [1, 2])
    os.write(writer, b"1")
    sys.exit(0)  # runs atexit and finalizers, as a script's end does
  os.close(writer)
  ready = os.read(reader, 1) == b"1"
  os.close(reader)
  deadline = time.time() + 20
  while time.time() < deadline:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
      return {"ready": ready, "status": status}
    time.sleep(0.05)
  os.kill(child, signal.SIGKILL)
  os.waitpid(child, 0)
  return {"ready": ready, "status": "hung"}


def main():
  folder = pathlib.Path(sys.argv[1])
  report = {"import_share": IMPORT_SECONDS / TENSORFLOW_SECONDS, "resume": {}}
  for kind in ("sgd", "adagrad", "adam", "adamw"):
    place = folder / f"resume-{kind}"
    place.mkdir()
    report["resume"][kind] = [in_child(train_and_save, kind, str(place), resume) for resume in (False, True)]
  report["exit"] = exit_without_closing()
  report["interrupt"] = in_child(interrupted_save, str(folder / "interrupt"))
  report["progress"] = in_child(progress_on_a_terminal)
  report["kill"] = kill_while_saving(str(folder / "kill"), 20)
  (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
  main()
