"""Ten small recommendation models in TensorFlow 1 style, each buildable in two dialects.

The dialects are stock TensorFlow, and the same script migrated by hand as the guide says (dropout, gelu, optimizer wrapper, session
configuration).

Every initializer has a seed of its own, since a seed drawn from the graph depends on how many ops were made before.
"""

import dataclasses
import typing

import numpy as np
import tensorflow.compat.v1 as tf

BATCH = 64
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Dialect:
  """What differs between a stock script and its migrated twin."""

  name: str
  dropout: typing.Callable  # (x, keep_prob) -> x
  gelu: typing.Callable  # x -> x
  optimizer: typing.Callable  # tf.train.Optimizer -> tf.train.Optimizer
  config: typing.Callable  # () -> tf.ConfigProto


@dataclasses.dataclass(frozen=True)
class Model:
  """`batch(rng)` gives the feeds by placeholder name; `build(dialect, keep_prob)` gives placeholders, loss and train op."""

  name: str
  batch: typing.Callable[[np.random.Generator], Arrays]
  build: typing.Callable[[Dialect, float], tuple[dict[str, tf.Tensor], tf.Tensor, tf.Operation]]


class Layers:
  """Layers with numbered seeds."""

  def __init__(self, dialect: Dialect, keep_prob: float):
    self.dialect, self.keep_prob, self._seed = dialect, keep_prob, 0

  def init(self):
    self._seed += 1
    return tf.glorot_uniform_initializer(seed=self._seed)

  def dense(self, x, units, activation=None, name=None):
    return tf.layers.dense(x, units, activation, kernel_initializer=self.init(), name=name)

  def embedding(self, name, ids, rows, dim):
    return tf.nn.embedding_lookup(tf.get_variable(name, [rows, dim], initializer=self.init()), ids)

  def dropout(self, x):
    return x if self.keep_prob == 1.0 else self.dialect.dropout(x, self.keep_prob)


def floats(name, *shape):
  return name, tf.placeholder(tf.float32, [BATCH, *shape], name=name)


def integers(name, *shape):
  return name, tf.placeholder(tf.int64, [BATCH, *shape], name=name)


def mean_cross_entropy(labels, logits):
  return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=tf.squeeze(logits, -1)))


def clicks(rng, score):
  """0/1 labels from scores."""
  return (rng.random(len(score)) < 1 / (1 + np.exp(-score))).astype(np.float32)


# --- 1 ----------------------------------------------------------------------------------------------------------------


def classifier_batch(rng):
  x = rng.standard_normal([BATCH, 20]).astype(np.float32)
  return {"x": x, "y": np.argmax(x[:, :3] + 0.5 * x[:, 3:6], axis=1)}


def classifier(dialect, keep_prob):
  """Dense classifier of three classes."""
  layers = Layers(dialect, keep_prob)
  feeds = dict([floats("x", 20), integers("y")])
  hidden = layers.dropout(layers.dense(feeds["x"], 32, tf.nn.relu))
  logits = layers.dense(layers.dense(hidden, 16, tf.nn.relu), 3)
  loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=feeds["y"], logits=logits))
  return feeds, loss, dialect.optimizer(tf.train.MomentumOptimizer(0.05, 0.9)).minimize(loss)


# --- 2, 3, 4: fields of one id each -----------------------------------------------------------------------------------

FIELDS, FIELD_ROWS, DIM = 8, 50, 8


def fields_batch(rng):
  ids = rng.integers(0, FIELD_ROWS, [BATCH, FIELDS])
  dense = rng.standard_normal([BATCH, 4]).astype(np.float32)
  score = np.sin(ids * 0.7 + np.arange(FIELDS)).sum(axis=1) + dense[:, 0]
  return {"ids": ids, "dense": dense, "y": clicks(rng, score)}


def fields_feeds():
  feeds = dict([integers("ids", FIELDS), floats("dense", 4), floats("y")])
  return feeds, feeds["ids"] + tf.range(FIELDS, dtype=tf.int64) * FIELD_ROWS


def wide_and_deep(dialect, keep_prob):
  """Wide part of one weight an id, deep part over embeddings; a variable of the step in tf.train, as scripts keep one."""
  layers = Layers(dialect, keep_prob)
  feeds, ids = fields_feeds()
  wide = tf.reduce_sum(layers.embedding("wide", ids, FIELDS * FIELD_ROWS, 1), axis=1)
  deep = tf.reshape(layers.embedding("deep", ids, FIELDS * FIELD_ROWS, DIM), [BATCH, FIELDS * DIM])
  deep = layers.dropout(layers.dense(tf.concat([deep, feeds["dense"]], axis=1), 32, tf.nn.relu))
  loss = mean_cross_entropy(feeds["y"], wide + layers.dense(deep, 1))
  step = tf.train.get_or_create_global_step()
  return feeds, loss, dialect.optimizer(tf.train.AdagradOptimizer(0.1)).minimize(loss, global_step=step)


def deep_fm(dialect, keep_prob):
  """First-order weights, pairwise products of embeddings by the sum-square trick, and a deep part on the same embeddings."""
  layers = Layers(dialect, keep_prob)
  feeds, ids = fields_feeds()
  first = tf.reduce_sum(layers.embedding("first", ids, FIELDS * FIELD_ROWS, 1), axis=1)
  rows = layers.embedding("rows", ids, FIELDS * FIELD_ROWS, DIM)
  pairs = 0.5 * tf.reduce_sum(tf.square(tf.reduce_sum(rows, 1)) - tf.reduce_sum(tf.square(rows), 1), axis=1, keepdims=True)
  deep = layers.dropout(layers.dense(tf.reshape(rows, [BATCH, FIELDS * DIM]), 32, tf.nn.relu))
  loss = mean_cross_entropy(feeds["y"], first + pairs + layers.dense(deep, 1))
  return feeds, loss, dialect.optimizer(tf.train.AdamOptimizer(0.01)).minimize(loss)


def deep_and_cross(dialect, keep_prob):
  """Three cross layers beside a deep part; gradients clipped by their global norm, by hand."""
  layers = Layers(dialect, keep_prob)
  feeds, ids = fields_feeds()
  rows = tf.reshape(layers.embedding("rows", ids, FIELDS * FIELD_ROWS, DIM), [BATCH, FIELDS * DIM])
  x0 = crossed = tf.concat([rows, feeds["dense"]], axis=1)
  width = int(x0.shape[1])
  for i in range(3):
    weight = tf.get_variable(f"cross{i}", [width, 1], initializer=layers.init())
    bias = tf.get_variable(f"bias{i}", [width], initializer=tf.zeros_initializer())
    crossed = x0 * tf.matmul(crossed, weight) + bias + crossed
  deep = layers.dropout(layers.dense(x0, 32, tf.nn.relu))
  loss = mean_cross_entropy(feeds["y"], layers.dense(tf.concat([crossed, deep], axis=1), 1))
  optimizer = dialect.optimizer(tf.train.GradientDescentOptimizer(0.1))
  gradients, variables = zip(*optimizer.compute_gradients(loss))
  clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
  return feeds, loss, optimizer.apply_gradients(zip(clipped, variables))


# --- 5, 6: histories --------------------------------------------------------------------------------------------------

ITEMS, HISTORY = 60, 12


def history_batch(rng):
  lengths = rng.integers(1, HISTORY + 1, BATCH)
  history = rng.integers(1, ITEMS, [BATCH, HISTORY]) * (np.arange(HISTORY) < lengths[:, None])
  target = rng.integers(1, ITEMS, BATCH)
  return {
    "history": history,
    "length": lengths,
    "target": target,
    "y": clicks(rng, 3.0 * ((history % 5) == (target % 5)[:, None]).mean(1)),
  }


def history_feeds(layers):
  feeds = dict([integers("history", HISTORY), integers("length"), integers("target"), floats("y")])
  both = tf.concat([feeds["history"], feeds["target"][:, None]], axis=1)
  rows = layers.embedding("items", both, ITEMS, DIM)
  return feeds, rows[:, :HISTORY], rows[:, HISTORY]


def interest_attention(dialect, keep_prob):
  """History weighted by its match with the target (as in DIN), padding masked."""
  layers = Layers(dialect, keep_prob)
  feeds, history, target = history_feeds(layers)
  target_tiled = tf.tile(target[:, None], [1, HISTORY, 1])
  match = tf.concat([history, target_tiled, history - target_tiled, history * target_tiled], axis=2)
  scores = tf.squeeze(layers.dense(layers.dense(match, 16, tf.nn.sigmoid), 1), 2)
  scores = tf.where(tf.sequence_mask(feeds["length"], HISTORY), scores, tf.fill([BATCH, HISTORY], -1e9))
  interest = tf.reduce_sum(history * tf.nn.softmax(scores)[:, :, None], axis=1)
  hidden = layers.dropout(layers.dense(tf.concat([interest, target], axis=1), 16, tf.nn.relu))
  loss = mean_cross_entropy(feeds["y"], layers.dense(hidden, 1))
  return feeds, loss, dialect.optimizer(tf.train.AdamOptimizer(0.01)).minimize(loss)


def recurrent(dialect, keep_prob):
  """A GRU over the history by dynamic_rnn, which is a while loop with a gradient loop."""
  layers = Layers(dialect, keep_prob)
  feeds, history, target = history_feeds(layers)
  cell = tf.nn.rnn_cell.GRUCell(12, kernel_initializer=layers.init())
  _, state = tf.nn.dynamic_rnn(cell, layers.dropout(history), sequence_length=feeds["length"], dtype=tf.float32)
  loss = mean_cross_entropy(feeds["y"], layers.dense(tf.concat([state, target], axis=1), 1))
  return feeds, loss, dialect.optimizer(tf.train.RMSPropOptimizer(0.02)).minimize(loss)


# --- 7 ----------------------------------------------------------------------------------------------------------------


def autoencoder_batch(rng):
  taste = rng.integers(0, 4, BATCH)
  return {"x": (rng.random([BATCH, 40]) < np.where((np.arange(40) % 4) == taste[:, None], 0.6, 0.05)).astype(np.float32)}


def autoencoder(dialect, keep_prob):
  """Denoising autoencoder of clicked items with L2 loss on the weights."""
  layers = Layers(dialect, keep_prob)
  feeds = dict([floats("x", 40)])
  code = layers.dense(layers.dropout(feeds["x"]), 8, tf.nn.tanh)
  logits = layers.dense(code, 40)
  loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=feeds["x"], logits=logits))
  loss += 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
  return feeds, loss, dialect.optimizer(tf.train.AdamOptimizer(0.01)).minimize(loss)


# --- 8 ----------------------------------------------------------------------------------------------------------------


def two_tasks_batch(rng):
  x = rng.standard_normal([BATCH, 16]).astype(np.float32)
  return {"x": x, "click": clicks(rng, 2 * x[:, 0]), "buy": clicks(rng, x[:, 0] + 2 * x[:, 1] - 1)}


def mixture_of_experts(dialect, keep_prob):
  """Three experts, a gate for each of two tasks (MMoE)."""
  layers = Layers(dialect, keep_prob)
  feeds = dict([floats("x", 16), floats("click"), floats("buy")])
  experts = tf.stack([layers.dropout(layers.dense(feeds["x"], 12, tf.nn.relu)) for _ in range(3)], axis=1)
  losses = []
  for task in ("click", "buy"):
    gate = layers.dense(feeds["x"], 3, tf.nn.softmax)
    losses.append(mean_cross_entropy(feeds[task], layers.dense(tf.reduce_sum(experts * gate[:, :, None], axis=1), 1)))
  loss = losses[0] + 0.5 * losses[1]
  return feeds, loss, dialect.optimizer(tf.train.AdamOptimizer(0.01)).minimize(loss)


# --- 9 ----------------------------------------------------------------------------------------------------------------


def ratings_batch(rng):
  user, item = rng.integers(0, 80, BATCH), rng.integers(0, 60, BATCH)
  return {"user": user, "item": item, "rating": (3 + np.sin(user * 0.9) * np.cos(item * 1.3)).astype(np.float32)}


def factorisation(dialect, keep_prob):
  """Matrix factorisation with biases; the learning rate decays with the global step."""
  layers = Layers(dialect, keep_prob)
  feeds = dict([integers("user"), integers("item"), floats("rating")])
  users, items = layers.embedding("users", feeds["user"], 80, 6), layers.embedding("items", feeds["item"], 60, 6)
  biases = layers.embedding("user_bias", feeds["user"], 80, 1) + layers.embedding("item_bias", feeds["item"], 60, 1)
  guess = 3.0 + tf.reduce_sum(layers.dropout(users) * items, axis=1) + tf.squeeze(biases, 1)
  loss = tf.reduce_mean(tf.square(guess - feeds["rating"]))
  step = tf.train.get_or_create_global_step()
  rate = tf.train.exponential_decay(0.5, step, 10, 0.9)
  return feeds, loss, dialect.optimizer(tf.train.GradientDescentOptimizer(rate)).minimize(loss, global_step=step)


# --- 10 ---------------------------------------------------------------------------------------------------------------

WORDS, LENGTH, WIDTH, HEADS = 40, 8, 16, 2


def sentence_batch(rng):
  words = rng.integers(0, WORDS, [BATCH, LENGTH])
  return {"words": words, "y": (words % 2).sum(axis=1) // 3}


def bert_block(dialect, keep_prob):
  """One encoder block: attention of two heads, layer norm, gelu in the feed-forward part, dropout at the usual three places."""
  layers = Layers(dialect, keep_prob)
  feeds = dict([integers("words", LENGTH), integers("y")])
  place = tf.get_variable("place", [LENGTH, WIDTH], initializer=layers.init())
  x = layers.dropout(layers.embedding("words_table", feeds["words"], WORDS, WIDTH) + place)

  def heads(y):
    return tf.transpose(tf.reshape(layers.dense(y, WIDTH), [BATCH, LENGTH, HEADS, WIDTH // HEADS]), [0, 2, 1, 3])

  def norm(y, name):
    mean, variance = tf.nn.moments(y, [-1], keepdims=True)
    scale = tf.get_variable(f"{name}_scale", [WIDTH], initializer=tf.ones_initializer())
    return (y - mean) * tf.rsqrt(variance + 1e-6) * scale

  query, key, value = heads(x), heads(x), heads(x)
  weights = layers.dropout(tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / np.sqrt(WIDTH / HEADS).astype(np.float32)))
  attended = tf.reshape(tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3]), [BATCH, LENGTH, WIDTH])
  x = norm(x + layers.dense(attended, WIDTH), "first")
  x = norm(x + layers.dropout(layers.dense(dialect.gelu(layers.dense(x, 4 * WIDTH)), WIDTH)), "second")
  logits = layers.dense(tf.reduce_mean(x, axis=1), LENGTH // 3 + 1)
  loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=feeds["y"], logits=logits))
  return feeds, loss, dialect.optimizer(tf.train.AdamOptimizer(0.005)).minimize(loss)


MODELS = [
  Model("dense_classifier", classifier_batch, classifier),
  Model("wide_and_deep", fields_batch, wide_and_deep),
  Model("deep_fm", fields_batch, deep_fm),
  Model("deep_and_cross", fields_batch, deep_and_cross),
  Model("interest_attention", history_batch, interest_attention),
  Model("recurrent", history_batch, recurrent),
  Model("autoencoder", autoencoder_batch, autoencoder),
  Model("mixture_of_experts", two_tasks_batch, mixture_of_experts),
  Model("factorisation", ratings_batch, factorisation),
  Model("bert_block", sentence_batch, bert_block),
]
