"""Whole models on 1 to 4 ranks: losses as in one process on the joined batch, variables equal on all ranks to the bit."""

import functools

import numpy as np
import pytest
import ranks
import tensorflow.compat.v1 as tf
from npu_bridge.estimator.npu import npu_optimizer
from npu_bridge.hccl import hccl_ops
from npu_bridge.npu_init import (
  NPUBroadcastGlobalVariablesHook,
  RewriterConfig,
  get_local_rank_id,
  get_rank_id,
  get_rank_size,
  npu_ops,
)

import mxrec

STEPS, JOINED_BATCH = 20, 24  # 24: divided by 1, 2, 3 and 4
SIZES = [2, pytest.param(3, marks=pytest.mark.thorough), pytest.param(4, marks=pytest.mark.thorough)]


def own_part(joined):
  """This rank's share of a joined batch [24, ...]."""
  size = JOINED_BATCH // get_rank_size()
  return joined[get_rank_id() * size : (get_rank_id() + 1) * size]


def trained(train, loss, feeds, *fetches):
  """The losses of all steps, as the mean over the ranks, and then the fetches."""
  mean = hccl_ops.allreduce(loss, "sum") / float(get_rank_size())
  losses = []
  with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for feed in feeds:
      losses.append(session.run([mean, train], {placeholder: own_part(value) for placeholder, value in feed.items()})[0])
    return losses, session.run(list(fetches)), {table.name: table.export(session) for table in mxrec.get_existing_tables()}


def assert_one_model(together, alone):
  """Losses and variables of all ranks, against those of one process."""
  for losses, variables, _ in together:
    np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
    assert variables == together[0][1], "the same bits on every rank"
    for found, expected in zip(variables, alone[1]):
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  assert alone[0][-1] < 0.9 * alone[0][0], "it learns"


def word2vec():
  """Skip-gram with negative samples: all variables but one have sparse gradients, with many equal rows in a batch."""
  words, dim, negative = 30, 6, 5
  rng = np.random.RandomState(3)
  embeddings = tf.get_variable("embeddings", initializer=rng.uniform(-1, 1, [words, dim]).astype(np.float32))
  weights = tf.get_variable("weights", initializer=rng.uniform(-0.5, 0.5, [words, dim]).astype(np.float32))
  biases = tf.get_variable("biases", initializer=tf.zeros([words]))
  scale = tf.get_variable("scale", initializer=1.0)
  center, context = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
  sampled = tf.placeholder(tf.int32, [None, negative])
  hidden = tf.nn.embedding_lookup(embeddings, center) * scale
  candidates = tf.concat([context[:, None], sampled], 1)
  logits = tf.einsum("bd,bnd->bn", hidden, tf.nn.embedding_lookup(weights, candidates)) + tf.gather(biases, candidates)
  labels = tf.concat([tf.ones_like(logits[:, :1]), tf.zeros_like(logits[:, 1:])], 1)
  loss = tf.reduce_mean(tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits), 1))
  optimizer = npu_optimizer.npu_distributed_optimizer_wrapper(tf.train.AdagradOptimizer(0.5))
  variables = tf.trainable_variables()
  pairs = optimizer.compute_gradients(loss)
  assert [isinstance(gradient, tf.IndexedSlices) for gradient, _ in pairs] == [True, True, True, False]
  train = optimizer.apply_gradients(pairs)
  frequent = 1 / np.arange(1, words + 1)  # as words are
  feeds = []
  for _ in range(STEPS):
    first = rng.choice(words, JOINED_BATCH, p=frequent / frequent.sum())
    feeds.append({center: first, context: (first + 1) % words, sampled: rng.randint(0, words, [JOINED_BATCH, negative])})
  return trained(train, loss, feeds, *variables)


def dlrm():
  """26 tables spread over the ranks, 13 numbers, pairwise products of the rows."""
  tables, dim, numbers = 26, 4, 13
  rng = np.random.RandomState(4)
  tf.set_random_seed(9)

  def dense(values, width, name, activation=None):
    depth = int(values.shape[1])
    weight = tf.get_variable(name, initializer=(rng.normal(size=[depth, width]) / depth**0.5).astype(np.float32))
    bias = tf.get_variable(f"{name}_bias", initializer=tf.zeros([width]))
    values = tf.matmul(values, weight) + bias
    return values if activation is None else activation(values)

  ids = tf.placeholder(tf.int64, [None, tables])
  given = tf.placeholder(tf.float32, [None, numbers])
  labels = tf.placeholder(tf.float32, [None])
  rows = []
  for number in range(tables):
    table = mxrec.get_embedding_table(f"t{number}", dim, 100, tf.random_normal_initializer(0.0, 0.3))
    rows.append(mxrec.embedding_lookup(table, ids[:, number]))
  bottom = dense(dense(given, 8, "bottom0", tf.nn.relu), dim, "bottom1", tf.nn.relu)
  vectors = tf.stack([bottom, *rows], 1)
  products = tf.matmul(vectors, vectors, transpose_b=True)
  mask = np.tril(np.ones([tables + 1, tables + 1], bool), -1)
  pairs = tf.boolean_mask(products, mask, axis=1)
  pairs.set_shape([None, int(mask.sum())])
  top = dense(dense(tf.concat([bottom, pairs], 1), 16, "top0", tf.nn.relu), 1, "top1")[:, 0]
  loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=top))
  train = mxrec.minimize(loss, tf.train.AdagradOptimizer(0.1))
  feeds = []
  for _ in range(STEPS // 5):
    of_step = rng.randint(-20, 60, [JOINED_BATCH, tables])
    feeds += [{ids: of_step, given: rng.rand(JOINED_BATCH, numbers), labels: of_step[:, 0] % 2}] * 5
  return trained(train, loss, feeds, *tf.trainable_variables())


@functools.cache
def alone(job):
  (found,) = ranks.run(1, globals()[job]).results()
  return found


@pytest.mark.parametrize("size", SIZES)
def test_g_27_g_36_word2vec_trains_as_one_process_on_the_joined_batch(size):
  assert_one_model(ranks.run(size, word2vec).results(), alone("word2vec"))


@pytest.mark.parametrize("size", SIZES)
def test_g_27_d_6_dlrm_of_26_tables_trains_as_one_process_on_the_joined_batch(size):
  together = ranks.run(size, dlrm).results()
  assert_one_model(together, alone("dlrm"))
  for name, (keys, rows) in alone("dlrm")[2].items():
    expected = dict(zip(keys, rows))
    found = {}
    for rank, (_, _, tables) in enumerate(together):
      assert all(key % size == rank for key in tables[name][0])
      found.update(zip(*tables[name]))
    assert set(found) == set(expected)
    for key, row in expected.items():
      np.testing.assert_allclose(found[key], row, rtol=1e-5, atol=1e-6, err_msg=f"{name}, id {key}")


def end_of(folder, kind):
  """A script of Horovod, or the same moved to the calls of npu_bridge; its checkpoint folder is new. (step, weight) at its end."""
  import mxrec.horovod as hvd

  if kind == "horovod":
    hvd.init()
  size, rank, local = (hvd.size, hvd.rank, hvd.local_rank) if kind == "horovod" else (get_rank_size, get_rank_id, get_local_rank_id)
  config = tf.ConfigProto()
  if kind == "migrated":
    start, stop = npu_ops.initialize_system(), npu_ops.shutdown_system()
    config.graph_options.rewrite_options.custom_optimizers.add().name = "NpuOptimizer"
    config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
    config.graph_options.rewrite_options.memory_optimization = RewriterConfig.OFF
    runtime = tf.Session(config=config)
    runtime.run(start)
  config.gpu_options.visible_device_list = str(local())
  w = tf.get_variable("w", [], initializer=tf.constant_initializer(1.0 + rank()))
  optimizer = tf.train.AdagradOptimizer(0.02 * size())
  if kind == "horovod":
    optimizer, hook = hvd.DistributedOptimizer(optimizer), hvd.BroadcastGlobalVariablesHook(0)
  else:
    optimizer, hook = npu_optimizer.npu_distributed_optimizer_wrapper(optimizer), NPUBroadcastGlobalVariablesHook(0)
  step = tf.train.get_or_create_global_step()
  train = optimizer.minimize(tf.square(w - 2.0 - rank()), global_step=step)
  same = hccl_ops.broadcast(tf.trainable_variables(), 0) if kind == "migrated" else tf.no_op()
  hooks = [hook, tf.train.StopAtStepHook(last_step=15)]
  with tf.train.MonitoredTrainingSession(checkpoint_dir=folder if rank() == 0 else None, config=config, hooks=hooks) as session:
    session.run(same)
    while not session.should_stop():
      _, *seen = session.run([train, step, w])
  if kind == "migrated":
    runtime.run(stop)
    runtime.run(stop)
    runtime.close()
  return seen


@pytest.mark.parametrize("size", [1, 2])
def test_fact_20_g_44_g_45_a_migrated_script_ends_with_the_weights_of_the_horovod_script(size, tmp_path):
  ends = {}
  for kind in ("horovod", "migrated"):
    folder = tmp_path / kind
    ends[kind] = ranks.run(size, end_of, str(folder), kind).results()
    assert ends[kind] == [ends[kind][0]] * size, "the same bits on every rank"
    assert tf.train.latest_checkpoint(str(folder)).endswith("model.ckpt-15"), "rank 0 alone writes"
  assert ends["migrated"][0][0] == ends["horovod"][0][0] == 15
  assert ends["migrated"][0][1] == pytest.approx(ends["horovod"][0][1], abs=1e-6)
