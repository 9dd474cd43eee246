"""The checks of horovod_worker.py of optimizers, tapes, layers and Keras."""
# ruff: noqa: B023 (functions that a loop makes are called in the same turn)

from horovod_common import MODE, equal, everybody, refused, run

# isort: split
import contextlib

import mxrec.horovod as hvd
import numpy as np
import tensorflow as tf


def batch_of(rank, step):
  rng = np.random.default_rng(100 * step + rank)
  return rng.normal(size=[8, 4]).astype(np.float32), rng.integers(0, 20, [8]), rng.normal(size=[8]).astype(np.float32)


def optimizers():
  v1 = tf.compat.v1.train
  return {
    "sgd": lambda: v1.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: v1.AdagradOptimizer(0.1),
    "adam": lambda: v1.AdamOptimizer(0.1),
  }


def train(make, batches, steps):
  """Weights after some steps; batches(step) gives what is fed in each."""
  v1 = tf.compat.v1
  with tf.Graph().as_default(), v1.Session() as session:
    x, ids, y = v1.placeholder(tf.float32, [None, 4]), v1.placeholder(tf.int64, [None]), v1.placeholder(tf.float32, [None])
    w = v1.get_variable("w", initializer=np.linspace(-1, 1, 4).astype(np.float32).reshape(4, 1))
    b = v1.get_variable("b", initializer=0.5)
    e = v1.get_variable("e", initializer=np.linspace(-1, 1, 40).astype(np.float32).reshape(20, 2), use_resource=True)
    unused = v1.get_variable("unused", initializer=1.0)
    predicted = tf.squeeze(tf.matmul(x, w), 1) + b + tf.reduce_sum(tf.nn.embedding_lookup(e, ids), 1)
    loss = tf.reduce_mean(tf.square(predicted - y))
    count = v1.train.get_or_create_global_step()
    optimizer = make()
    pairs = optimizer.compute_gradients(loss, [w, b, e, unused])
    assert pairs[3][0] is None
    step = optimizer.apply_gradients(pairs, global_step=count)
    assert step in v1.get_collection(v1.GraphKeys.TRAIN_OP)
    session.run(v1.global_variables_initializer())  # and no local ones: the sums of backward_passes_per_step are zero before
    for number in range(steps):
      session.run(step, dict(zip((x, ids, y), batches(number))))
    return session.run([w, b, e, count])


def joined(step):
  parts = [batch_of(rank, step) for rank in everybody()]
  return [np.concatenate(part) for part in zip(*parts)]


def check_training():
  for name, make in optimizers().items():
    expected = train(make, joined, 3)
    for options in (
      {},
      {"num_groups": 2},
      {"gradient_predivide_factor": 2.0},
      {"sparse_as_dense": True},
      {"compression": hvd.Compression.fp16},
    ):
      if name != "adam" and options:
        continue
      tolerance = 5e-3 if "compression" in options else 2e-5
      found = train(lambda: hvd.DistributedOptimizer(make(), **options), lambda step: batch_of(hvd.rank(), step), 3)
      if name == "adam" and not options.get("sparse_as_dense") and "compression" in options:
        tolerance = 5e-2  # Adam's first steps are the signs of gradients
      for one, other in zip(found, expected):
        equal(one, other, tolerance)
      equal(hvd.allgather_object([value.tobytes() for value in found]).count([value.tobytes() for value in found]), hvd.size())


def check_training_over_several_passes():
  for make in (optimizers()["sgd"], optimizers()["adagrad"]):

    def pair(step):
      parts = [joined(2 * step), joined(2 * step + 1)]
      return [np.concatenate(part) for part in zip(*parts)]

    expected = train(make, pair, 3)
    for options in ({}, {"sparse_as_dense": True}):
      distributed = lambda: hvd.DistributedOptimizer(
        make(), backward_passes_per_step=2, average_aggregated_gradients=True, **options
      )
      found = train(distributed, lambda step: batch_of(hvd.rank(), step), 6)
      for one, other in zip(found, expected):
        equal(one, other, 2e-5)
      found = train(distributed, lambda step: batch_of(hvd.rank(), step), 7)  # the seventh waits for an eighth
      equal(found[3], 3)
      for one, other in zip(found, expected):
        equal(one, other, 2e-5)
  refused(
    ValueError, "backward_passes_per_step", lambda: hvd.DistributedOptimizer(optimizers()["sgd"](), backward_passes_per_step=0)
  )
  refused(
    ValueError,
    "goes with op=hvd.Average",
    lambda: hvd.DistributedOptimizer(optimizers()["sgd"](), gradient_predivide_factor=2.0, op=hvd.Sum),
  )
  refused(ValueError, "takes an optimizer of", lambda: hvd.DistributedOptimizer("sgd"))


def check_local_variables_and_groups():
  v1 = tf.compat.v1
  with tf.Graph().as_default(), v1.Session() as session:
    a, b, c = (v1.get_variable(name, initializer=1.0) for name in "abc")
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), groups=[[b, c]])
    optimizer.register_local_var(a)
    loss = (a + b * 2 + c * 3) * tf.cast(hvd.rank() + 1, tf.float32)
    found = optimizer.compute_gradients(loss, [a, b, c])
    session.run(v1.global_variables_initializer())
    mean = np.mean([rank + 1 for rank in everybody()])
    equal(session.run([gradient for gradient, _ in found]), [(hvd.rank() + 1) / hvd.size(), 2 * mean, 3 * mean], 1e-6)
    names = {gradient.op.name for gradient, _ in found[1:]}
    assert hvd.size() == 1 or len(names) == 1, names  # one operation


def check_looked_up_rows_pass():
  import mxrec

  v1 = tf.compat.v1
  with tf.Graph().as_default(), v1.Session() as session:
    table = mxrec.get_embedding_table("t", 4, 100)
    rows = mxrec.embedding_lookup(table, tf.constant([1, 2, 1], tf.int64))
    w = v1.get_variable("w", initializer=1.0)
    loss = tf.reduce_sum(rows) * w
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.5))
    train_op = mxrec.minimize(loss, optimizer)
    session.run(v1.global_variables_initializer())
    first = session.run(rows)
    session.run(train_op)
    equal(session.run(rows), first - 0.5 * np.array([[2.0], [1.0], [2.0]]), 1e-5)
    late = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.5), backward_passes_per_step=2)
    refused(ValueError, "does not go with looked-up rows", lambda: mxrec.minimize(loss, late))


def check_adasum_training():
  """The ranks' steps are combined, not their gradients: with Adam the two differ."""
  size, me = hvd.size(), hvd.rank()

  def steps(make, use_resource, rank):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
      a = v1.get_variable("a", initializer=np.array([1.0, 2.0, -1.0], np.float32), use_resource=use_resource)
      b = v1.get_variable("b", initializer=np.ones([4, 2], np.float32), use_resource=use_resource)
      count = v1.train.get_or_create_global_step()
      loss = tf.reduce_sum(a * a) * (rank + 1) + a[rank % 3] * 5 + tf.reduce_sum(tf.gather(b, [rank, rank, 3]) ** 2)
      step = make().minimize(loss, global_step=count)
      assert step in v1.get_collection(v1.GraphKeys.TRAIN_OP) and len(v1.get_collection(v1.GraphKeys.TRAIN_OP)) == 1
      session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
      first = session.run([a, b])
      session.run(step)
      return first, session.run([a, b, count])

  def combined(x, y):
    dot, xx, yy = (x * y).sum(), (x * x).sum(), (y * y).sum()
    return (1 - dot / (2 * xx)) * x + (1 - dot / (2 * yy)) * y

  for name in ("sgd", "adam"):
    make = optimizers()[name]
    for use_resource in (True, False):
      first, found = steps(lambda: hvd.DistributedOptimizer(make(), op=hvd.Adasum), use_resource, me)
      assert found[2] == 1
      if size == 2:
        alone = [steps(make, use_resource, rank)[1] for rank in everybody()]
        for k in range(2):
          equal(found[k] - first[k], combined(*(one[k].astype(np.float64) - first[k] for one in alone)), 1e-5)
      for value in found:
        assert len({repr(other) for other in hvd.allgather_object(value.tobytes())}) == 1


def check_sets_and_joins_in_training():
  """Optimizers of some of the ranks; ranks that have fewer steps."""
  size, me = hvd.size(), hvd.rank()
  v1 = tf.compat.v1
  sets = [hvd.add_process_set([rank]) for rank in everybody()] if size > 1 else [hvd.global_process_set]
  with tf.Graph().as_default(), v1.Session() as session:
    w = v1.get_variable("w", initializer=1.0)
    loss = w * float(me + 1)
    train_op = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=sets[me]).minimize(loss)
    session.run(v1.global_variables_initializer())
    session.run(train_op)
    equal(session.run(w), -float(me))
    if size > 1:
      other = sets[(me + 1) % size]
      for options in ({}, {"op": hvd.Adasum}, {"backward_passes_per_step": 2}):
        made = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=other, **options)
        refused(ValueError, f"rank {me} is not in the process set with the ranks {other.ranks}", lambda: made.minimize(loss))
      made = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), process_set=hvd.ProcessSet([0]))
      refused(ValueError, "not registered", lambda: made.minimize(loss))
  for process_set in sets[::-1]:
    assert hvd.remove_process_set(process_set) == (size > 1)
  with tf.Graph().as_default(), v1.Session() as session:
    w = v1.get_variable("w", initializer=np.zeros([2], np.float32))
    step = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0)).minimize(tf.reduce_sum(w) * size)
    last = hvd.join()
    session.run(v1.global_variables_initializer())
    for _ in range(me + 1):
      session.run(step)
    session.run(last)
    # Ranks that have joined count with zeros.
    equal(session.run(w), np.full([2], -float(sum(size - number for number in range(me + 1)))), 1e-6)


def check_sync_batch_norm():
  from mxrec.horovod.tensorflow import keras

  assert hvd.SyncBatchNormalization is keras.SyncBatchNormalization
  layer_of = hvd.SyncBatchNormalization
  for fused in (True, None):
    refused(ValueError, "has no fused form", lambda: layer_of(fused=fused))
  assert isinstance(layer_of(), tf.keras.layers.BatchNormalization)
  # Unequal batches, one of them empty where there are three; far from zero, where sums of squares lose everything.
  counts = [3, 6, 0, 2][: hvd.size()]
  me, offset = hvd.rank(), 1000.0
  for shape, axis in (([2], -1), ([4, 3, 2], -1), ([2, 4, 3], 1)):
    rng = np.random.default_rng(7)
    x = (rng.normal(size=[sum(counts), *shape]) + offset).astype(np.float32)
    upstream = rng.normal(size=x.shape).astype(np.float32)
    begin = sum(counts[:me])
    mine = slice(begin, begin + counts[me])

    def results(layer, x, upstream):
      if MODE == "eager":
        x = tf.constant(x)
        with tf.GradientTape() as tape:
          tape.watch(x)
          y = layer(x, training=True)
        found = [y, *tape.gradient(y, [x, layer.gamma, layer.beta], output_gradients=tf.constant(upstream))]
        return [value.numpy() for value in (*found, layer.moving_mean, layer.moving_variance, layer(x, training=False))]
      x = tf.constant(x)
      y = layer(x, training=True)
      gradients = tf.gradients(y, [x, layer.gamma, layer.beta], tf.constant(upstream))
      with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        found = session.run([[y, *gradients], layer.updates])[0]
        return found + session.run([layer.moving_mean, layer.moving_variance, layer(x, training=False)])

    def of(kind, **options):
      return kind(axis=axis, momentum=0.5, epsilon=1e-3, **options)

    with tf.Graph().as_default() if MODE == "graph" else contextlib.nullcontext():
      alone = results(of(tf.keras.layers.BatchNormalization, fused=False), x, upstream)
    with tf.Graph().as_default() if MODE == "graph" else contextlib.nullcontext():
      found = results(of(layer_of), x[mine], upstream[mine])
    for k in (0, 1, 6):
      equal(found[k], alone[k][mine], 2e-3)
    for k in (4, 5):
      equal(found[k], alone[k], 1e-3)
    for k in (2, 3):  # of this rank's part of the loss; the optimizer averages them
      equal(run(lambda: hvd.allreduce(tf.constant(found[k]), op=hvd.Sum)), alone[k], 2e-3)
  if MODE == "eager":  # of Keras 3; in a function, and in a model that is saved
    import tempfile

    import keras as keras_3
    from mxrec.horovod import _sync_batch_norm

    alone, layer = keras_3.layers.BatchNormalization(), _sync_batch_norm.made_from(keras_3.layers.BatchNormalization)()
    assert type(layer).__name__ == "SyncBatchNormalization"
    equal(layer(x[mine], training=True), alone(x, training=True)[mine], 2e-3)
    equal(layer.moving_variance, alone.moving_variance, 1e-3)

    model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=[3]), layer_of(), tf.keras.layers.Dense(1)])
    model.compile(keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)), loss="mse")
    data, target = keras_data()
    start = keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(data[me :: hvd.size()], target[me :: hvd.size()], batch_size=8, epochs=2, verbose=0, callbacks=[start])
    weights = [value.tobytes() for value in model.get_weights()]
    assert all(other == weights for other in hvd.allgather_object(weights))
    with tempfile.TemporaryDirectory() as folder:
      model.save(f"{folder}/model.h5")
      loaded = keras.load_model(f"{folder}/model.h5")
    assert isinstance(loaded.layers[1], layer_of)
    equal(loaded.predict(data, verbose=0), model.predict(data, verbose=0), 1e-5)


# Eager mode


def check_tape():
  me, mean = hvd.rank(), np.mean([rank + 1 for rank in everybody()])
  x, y, e = tf.Variable(2.0), tf.Variable([1.0, 1.0]), tf.Variable(tf.ones([6, 2]))

  def loss():
    return float(me + 1) * (x * x + tf.reduce_sum(y) + tf.reduce_sum(tf.gather(e, [me, me, 5])))

  for make in (
    lambda: hvd.DistributedGradientTape(tf.GradientTape()),
    lambda: hvd.DistributedGradientTape(tf.GradientTape(persistent=True), compression=hvd.Compression.fp16),
    lambda: hvd.DistributedGradientTape(tf.GradientTape(), num_groups=1),
  ):
    with make() as tape:
      value = loss()
    found = tape.gradient(value, [x, y, {"e": e}])
    equal(found[0], 4 * mean, 1e-6)
    equal(found[1], [mean, mean], 1e-6)
    dense = np.zeros([6, 2])
    for rank in everybody():
      np.add.at(dense, [rank, rank, 5], (rank + 1) / hvd.size())
    equal(tf.convert_to_tensor(found[2]["e"]), dense, 1e-6)
  with tf.GradientTape() as tape:
    value = loss()
  tape = hvd.DistributedGradientTape(tape)
  tape.register_local_source(x)
  equal(tape.gradient(value, x), 4.0 * (me + 1) / hvd.size(), 1e-6)

  @tf.function
  def step(factor):
    with tf.GradientTape() as inside:
      value = factor * x * x
    return hvd.DistributedGradientTape(inside).gradient(value, x), hvd.allreduce(factor, op=hvd.Sum)

  for scale in (1.0, 3.0):
    gradient_, total = step(tf.constant(scale * (me + 1)))
    equal(gradient_, 4 * scale * mean, 1e-6)
    equal(total, scale * mean * hvd.size(), 1e-6)


def keras_data():
  rng = np.random.default_rng(5)
  x = rng.normal(size=[16 * hvd.size(), 3]).astype(np.float32)
  return x, (x @ np.array([[1.0], [2.0], [-1.0]], np.float32)) + 0.5


def keras_model(optimizer, run_eagerly=False):
  model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones", input_shape=[3])])
  model.compile(optimizer, loss="mse", metrics=["mae"], run_eagerly=run_eagerly)
  return model


def check_keras():
  import mxrec.horovod.tensorflow.keras as keras

  size, me = hvd.size(), hvd.rank()
  x, y = keras_data()
  kinds = [lambda: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9), lambda: tf.keras.optimizers.legacy.Adam(0.05)]
  if MODE == "eager":
    kinds += [lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9), lambda: tf.keras.optimizers.Adam(0.05)]
  for kind in kinds:
    alone = keras_model(kind())
    alone.fit(x, y, batch_size=len(x), epochs=3, shuffle=False, verbose=0)
    for wrap in (keras.DistributedOptimizer, hvd.DistributedOptimizer):
      model = keras_model(wrap(kind()))
      assert type(model.optimizer).__name__ == type(kind()).__name__
      model.layers[0].set_weights([np.full([3, 1], 1.0 + me, np.float32), np.zeros([1], np.float32)])
      callbacks = [keras.callbacks.BroadcastGlobalVariablesCallback(0), keras.callbacks.MetricAverageCallback()]
      mine = {"batch_size": 16, "epochs": 3, "shuffle": False, "verbose": 0, "callbacks": callbacks}
      history = model.fit(x[me::size], y[me::size], **mine)
      for found, expected in zip(model.get_weights(), alone.get_weights()):
        equal(found, expected, 1e-4)
      assert len({repr(losses) for losses in hvd.allgather_object(history.history["loss"])}) == 1
  refused(ValueError, "already", lambda: keras.DistributedOptimizer(keras.DistributedOptimizer(kinds[0]())))
  equal(keras.allreduce([1.0 + me, 2.0]), [np.mean([1.0 + rank for rank in everybody()]), 2.0], 1e-6)
  equal(keras.allgather([me]), list(everybody()))
  equal(keras.broadcast(7 + me, 0), 7)


def check_keras_over_several_passes():
  import mxrec.horovod.tensorflow.keras as keras

  x, y = keras_data()
  size, me = hvd.size(), hvd.rank()
  for kind in (lambda: tf.keras.optimizers.legacy.SGD(0.1), lambda: tf.keras.optimizers.SGD(0.1)):
    for run_eagerly in (False, True):
      alone = keras_model(kind())
      alone.fit(x, y, batch_size=len(x), epochs=2, shuffle=False, verbose=0)
      model = keras_model(
        keras.DistributedOptimizer(kind(), backward_passes_per_step=2, average_aggregated_gradients=True), run_eagerly=run_eagerly
      )
      model.fit(x[me::size], y[me::size], batch_size=8, epochs=2, shuffle=False, verbose=0)
      for found, expected in zip(model.get_weights(), alone.get_weights()):
        equal(found, expected, 1e-4)
      equal(model.optimizer.iterations.numpy(), 4)


def check_keras_learning_rates():
  import mxrec.horovod.keras as keras

  x, y = keras_data()
  x, y = x[:16], y[:16]
  seen = []

  class Look(tf.keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
      seen.append(round(float(tf.keras.backend.get_value(self.model.optimizer.learning_rate)), 5))

  model = keras_model(keras.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.01, momentum=0.9)))
  warm_up = keras.callbacks.LearningRateWarmupCallback(0.01 * hvd.size(), warmup_epochs=2, verbose=1)
  drop = keras.callbacks.LearningRateScheduleCallback(0.01 * hvd.size(), 0.1, start_epoch=2)
  model.fit(x, y, batch_size=8, epochs=3, verbose=0, shuffle=False, callbacks=[warm_up, drop, Look()])
  size = hvd.size()
  rising = [0.01 * (1 + (k + 1) / 4 * (size - 1)) for k in range(4)]
  np.testing.assert_allclose(seen, [*rising, 0.001 * size, 0.001 * size], atol=1e-5)
  assert abs(float(tf.keras.backend.get_value(model.optimizer.momentum)) - 0.9) < 1e-6
  refused(ValueError, "initial_lr", lambda: keras.callbacks.LearningRateScheduleCallback(None, 1.0))


def check_keras_models_load():
  import tempfile

  import mxrec.horovod.tensorflow.keras as keras

  x, y = keras_data()
  for kind in (lambda: tf.keras.optimizers.legacy.Adam(0.05), lambda: tf.keras.optimizers.Adam(0.05)):
    model = keras_model(keras.DistributedOptimizer(kind()))
    model.fit(x[:16], y[:16], batch_size=16, epochs=2, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
      model.save(f"{folder}/model.h5")
      loaded = keras.load_model(f"{folder}/model.h5")
      plain = tf.keras.models.load_model(f"{folder}/model.h5")
    assert hasattr(loaded.optimizer, "_hvd_reducer") and not hasattr(plain.optimizer, "_hvd_reducer")
    for one in (model, loaded):
      one.fit(x[:16], y[:16], batch_size=16, epochs=1, verbose=0)
    for found, expected in zip(loaded.get_weights(), model.get_weights()):
      equal(found, expected, 1e-6)


def check_keras_3():
  import keras

  x, y = keras_data()
  size, me = hvd.size(), hvd.rank()

  def model_of(optimizer):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(optimizer, loss="mse")
    return model

  for passes in (1, 2):
    alone = model_of(keras.optimizers.SGD(0.1))
    alone.fit(x, y, batch_size=len(x), epochs=3, shuffle=False, verbose=0)
    options = {"backward_passes_per_step": passes, "average_aggregated_gradients": True}
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), **options))
    model.fit(x[me::size], y[me::size], batch_size=16 // passes, epochs=3, shuffle=False, verbose=0)
    for found, expected in zip(model.get_weights(), alone.get_weights()):
      equal(found, expected, 1e-4)
