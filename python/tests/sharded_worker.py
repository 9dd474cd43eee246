"""Run as a script by test_sharded.py: imports TensorFlow once, then forks the ranks of each job.

    python sharded_worker.py FOLDER JOB:SIZE ...       writes FOLDER/report.json

A rank is a child that has used no session before; its result comes back as JSON through a pipe.
"""

import json
import os
import pathlib
import signal
import sys
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow.compat.v1 as tf
from helpers import all_contents

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

import mxrec
from mxrec import _collective
from mxrec import optimizer as optimizer_lib

JOB_SECONDS = 120
STEPS, BATCH, TABLES, DIM = 6, 24, 3, 4


def run_ranks(job, size, folder):
  """The results of the ranks of one job, or what became of those that have none."""
  children = []
  for rank in range(size):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
      os.close(read)
      # As `mxrec launch` sets them.
      os.environ.update({"RANK_ID": str(rank), "RANK_SIZE": str(size), "MXREC_STORE_PATH": str(folder / f"{job}-{size}.address")})
      try:
        result = {"result": globals()[job](rank, size, folder)}
      except BaseException:
        result = {"error": traceback.format_exc()[-3000:]}
      with os.fdopen(write, "w") as file:
        json.dump(result, file)
      os._exit(0)
    os.close(write)
    children.append((child, read))
  deadline = time.monotonic() + JOB_SECONDS
  results = []
  for child, read in children:
    text = _read_until(read, deadline)
    if not text:
      os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    results.append(json.loads(text) if text else {"error": "no result in time"})
  return results


def _read_until(read, deadline):
  import select

  text = b""
  while True:
    ready, _, _ = select.select([read], [], [], max(0.0, deadline - time.monotonic()))
    if not ready:
      return b""
    chunk = os.read(read, 1 << 16)
    if not chunk:
      os.close(read)
      return text
    text += chunk


def batches(tables=TABLES, steps=STEPS, batch=BATCH, seed=5):
  """ids [steps, tables, batch] with repetitions, negative ones too, and labels [steps, batch]."""
  random = np.random.RandomState(seed)
  ids = random.randint(-20, 30, size=(steps, tables, batch)).astype(np.int64)
  return ids, random.rand(steps, batch).astype(np.float32)


def share(of_all, rank, size):
  """This rank's part of a joined batch (last dimension)."""
  part = of_all.shape[-1] // size
  return of_all[..., rank * part : (rank + 1) * part]


def model(strategy="MP", tables=TABLES, optimizer=None, **arguments):
  """Placeholders of ids and labels, loss, train op, tables, dense weights."""
  tf.reset_default_graph()
  tf.set_random_seed(11)
  ids = [tf.placeholder(tf.int64, [None], name=f"ids{t}") for t in range(tables)]
  labels = tf.placeholder(tf.float32, [None], name="labels")
  made = [
    mxrec.get_embedding_table(
      f"t{t}", DIM, 1000, tf.random_normal_initializer(0.0, 0.5), distribution_strategy=strategy, **arguments
    )
    for t in range(tables)
  ]
  rows = tf.concat([mxrec.embedding_lookup(table, each) for table, each in zip(made, ids)], 1)
  weights = tf.get_variable("w", [tables * DIM, 1], initializer=tf.constant_initializer(0.3))
  loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(rows), weights)[:, 0] - labels))
  step = mxrec.minimize(loss, optimizer or tf.train.AdagradOptimizer(0.2))
  return ids, labels, loss, step, made, weights


def train(session, built, rank, size, first=0, last=STEPS, mean_of_losses=True):
  """Losses of the steps, averaged over the ranks."""
  ids, labels, loss, step, _, _ = built
  of_all = _collective.allreduce(loss, average=True, name="loss") if mean_of_losses else loss
  all_ids, all_labels = batches(len(ids))
  losses = []
  for at in range(first, last):
    feed = {placeholder: share(all_ids[at, t], rank, size) for t, placeholder in enumerate(ids)}
    feed[labels] = share(all_labels[at], rank, size)
    losses.append(float(session.run([of_all, step], feed)[0]))
  return losses


def joined(rank, size, folder, **arguments):
  built = model(**arguments)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    losses = train(session, built, rank, size)
    return {"losses": losses, "rows": all_contents(built[4], session), "weights": session.run(built[5]).ravel().tolist()}


def joined_adam(rank, size, folder):
  return joined(rank, size, folder, optimizer=tf.train.AdamOptimizer(0.05))


def joined_hash(rank, size, folder):
  return joined(rank, size, folder, owner="hash")


def joined_replicated(rank, size, folder):
  return joined(rank, size, folder, strategy="DP")


def joined_sparse_variable(rank, size, folder):
  """A tf.Variable of which a step uses a few rows, beside a table."""
  ids, labels = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.float32, [None])
  table = mxrec.get_embedding_table("t0", DIM, 1000, tf.random_normal_initializer(0.0, 0.5, seed=1))
  variable = tf.get_variable("v", [7, DIM], initializer=tf.constant_initializer(0.2))
  rows = mxrec.embedding_lookup(table, ids) * tf.gather(variable, tf.math.floormod(ids, 7))
  loss = tf.reduce_mean(tf.square(tf.reduce_sum(rows, 1) - labels))
  step = mxrec.minimize(loss, tf.train.AdagradOptimizer(0.2))
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    losses = train(session, ([ids], labels, loss, step, [table], variable), rank, size)
    return {"losses": losses, "rows": all_contents([table], session), "weights": session.run(variable).ravel().tolist()}


def joined_clipped(rank, size, folder):
  original = mxrec.minimize
  mxrec.minimize = lambda loss, optimizer: original(loss, optimizer, clip_norm=0.01)
  return joined(rank, size, folder)


def joined_clipped_by_horovod(rank, size, folder):
  import mxrec.horovod as hvd

  hvd.init()
  original = mxrec.minimize
  mxrec.minimize = lambda loss, optimizer: original(loss, hvd.DistributedOptimizer(optimizer), clip_norm=0.01)
  return joined(rank, size, folder)


def joined_admission(rank, size, folder):
  return joined(rank, size, folder, min_used_times=3)


def fact_11_ids_go_to_their_owners(rank, size, folder):
  ids = [[1, 2, 1, 3], [2, 6, 1, 5]][rank] if size == 2 else [1, 2, 1, 3, 2, 6, 1, 5]
  table = mxrec.get_embedding_table("t", 2, 100)
  looked_up = mxrec.embedding_lookup(table, tf.constant(ids, tf.int64))
  fetch = [looked_up]
  if size > 1:
    fetch += [op.outputs[0] for op in tf.get_default_graph().get_operations() if op.type == "MxrecExchangeKeys"]
  with tf.Session() as session:
    values = session.run(fetch)
  return {"rows": values[0].tolist(), "received": [keys.tolist() for keys in values[1:]]}


def fact_13_sums_add_over_ranks(rank, size, folder):
  table = mxrec.get_embedding_table("t", 2, 100)
  loss = tf.reduce_sum(mxrec.embedding_lookup(table, tf.constant([7, 7, 9], tf.int64)))
  rows = mxrec.get_sparse_embedding()
  pairs = list(zip(tf.gradients(loss, rows), rows))
  parts = [optimizer_lib.row_gradients(pairs, mean)[0] for mean in (False, True)]
  with tf.Session() as session:
    found = session.run([(part.outputs[3], part.summed()) for part in parts])
  return [{str(key): row.tolist() for key, row in zip(*part)} for part in found]


def unequal_and_empty_batches(rank, size, folder):
  table = mxrec.get_embedding_table("t", 2, 100, tf.constant_initializer(1.0))
  ids = tf.placeholder(tf.int64, [None])
  rows = mxrec.embedding_lookup(table, ids)
  step = mxrec.minimize(tf.reduce_sum(rows), tf.train.GradientDescentOptimizer(0.1))
  given = {1: [[4, 5, 6, 4, 8]], 2: [[], [4, 5, 6, 4, 8]], 3: [[4, 5, 6], [], [4, 8]]}[size][rank]
  with tf.Session() as session:
    shape = session.run([rows, step], {ids: given})[0].shape
    session.run(step, {ids: []})  # on all ranks
    session.run(step, {ids: given})
    return {"shape": list(shape), "rows": all_contents([table], session)["t"]}


def save(rank, size, folder):
  built = model(optimizer=tf.train.AdamOptimizer(0.05), min_used_times=2)
  saver = mxrec.EmbeddingTableSaver(built[4])
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    train(session, built, rank, size, last=3)
    saver.save(session, str(folder / f"saved-by-{size}"), 3)
    losses = train(session, built, rank, size, first=3, mean_of_losses=False)
    return {"losses": losses, "rows": all_contents(built[4], session), "weights": session.run(built[5]).ravel().tolist()}


def _load(rank, size, folder, saved_by):
  built = model(optimizer=tf.train.AdamOptimizer(0.05), min_used_times=2)
  saver = mxrec.EmbeddingTableSaver(built[4])
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    saver.load(session, str(folder / f"saved-by-{saved_by}"))
    return {"rows": all_contents(built[4], session), "stats": {table.name: table.stats(session) for table in built[4]}}


def load_from_1(rank, size, folder):
  return _load(rank, size, folder, 1)


def load_from_2(rank, size, folder):
  return _load(rank, size, folder, 2)


def load_from_3(rank, size, folder):
  return _load(rank, size, folder, 3)


def save_fails_at_one_rank(rank, size, folder):
  table = mxrec.get_embedding_table("t", 2, 100)
  saver = mxrec.EmbeddingTableSaver([table])
  good, bad = folder / "good", folder / f"bad-{rank}"
  if rank == 1:
    bad.write_text("a file, where a folder should be")
  with tf.Session() as session:
    table.insert([1, 2, 3, 4], session=session)
    try:
      saver.save(session, str(bad), 1)
      failed = ""
    except tf.errors.OpError as error:
      failed = error.message
    saver.save(session, str(good), 2)
    published = (bad / "mxrec-1" / "MANIFEST.json").exists()
    return {"failed": failed, "latest": mxrec.EmbeddingTableSaver.latest_step(str(good)), "published": published}


def refusals(rank, size, folder):
  table = mxrec.get_embedding_table("t", 2, 100)
  messages = {}

  def message(what, call):
    try:
      messages[what] = repr(call())
    except Exception as error:
      messages[what] = f"{type(error).__name__}: {getattr(error, 'message', error)}"

  ids = tf.constant([1], tf.int64)
  message("cond", lambda: tf.cond(tf.constant(True), lambda: mxrec.embedding_lookup(table, ids), lambda: tf.zeros([1, 2])))
  message("map", lambda: tf.data.Dataset.from_tensors(ids).map(lambda x: mxrec.embedding_lookup(table, x)))
  message("admission", lambda: mxrec.get_embedding_table("d", 2, 100, distribution_strategy="DP", min_used_times=2))
  with tf.Session() as session:
    messages["inserted"] = table.insert(list(range(10)), session=session)
    messages["size"] = table.size(session)
    message("read", lambda: table.lookup_numpy([rank + 1], session))
    message("own", lambda: table.lookup_numpy([rank], session, return_found=True)[1].tolist())
  return messages


def exchanges_of_26_tables(rank, size, folder):
  os.environ["MXREC_FUSE"] = ""
  built = model(tables=26)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    options, metadata = tf.RunOptions(output_partition_graphs=True), tf.RunMetadata()
    all_ids, all_labels = batches(26)
    feed = {placeholder: share(all_ids[0, t], rank, size) for t, placeholder in enumerate(built[0])}
    feed[built[1]] = share(all_labels[0], rank, size)
    session.run(built[3], feed, options=options, run_metadata=metadata)
    ops = [node.op for graph in metadata.partition_graphs for node in graph.node]
    joined_rows = all_contents(built[4], session)
  os.environ["MXREC_FUSE"] = "0"
  built = model(tables=26)
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    feed = {placeholder: share(all_ids[0, t], rank, size) for t, placeholder in enumerate(built[0])}
    session.run(built[3], {**feed, built[1]: share(all_labels[0], rank, size)})
    return {
      "ops": {op: ops.count(op) for op in set(ops) if op.startswith("MxrecExchange")},
      "equal": joined_rows == all_contents(built[4], session),
    }


def main():
  folder = pathlib.Path(sys.argv[1])
  report = {}
  for job in sys.argv[2:]:
    name, size = job.split(":")
    report[job] = run_ranks(name, int(size), folder)
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
  main()
