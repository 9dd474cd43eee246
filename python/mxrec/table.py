"""Sparse tables: making them, finding them again, reading and changing their rows by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf

from mxrec import _graph, _groups, _hot_keys, _loader, _session, _sharded, _validate, initializers, saveable
from mxrec._table_ops import TableOps

_ARGUMENTS = {  # field of the table's config -> the argument it came from
  "dim": "dimension",
  "vocabulary": "device_vocabulary_size",
  "initializer": "initializer",
  "min_used_times": "min_used_times",
  "max_cold_secs": "max_cold_secs",
  "capacity_policy": "capacity_policy",
  "evict_by": "evict_by",
  "evict_half_life": "evict_half_life",
  "max_bytes": "max_bytes",
  "non_finite": "non_finite",
  "check_lookups": "check_lookups",
  "distribution": "distribution_strategy",
  "owner": "owner",
  "hot_keys": "hot_keys",
}


class EmbeddingTable:
  """A sparse table in a graph. Its rows live in each session, like the value of a variable.

  Where several ranks train a table of distribution "MP", the methods are about the rows that this rank owns, and wait for no other
  rank; `insert` and `erase` pass over the ids of others, so that all ranks may be given the same list, and `lookup_numpy` refuses
  them. Under "DP" they are about this rank's copy: change it on all ranks alike.

  Made by `get_embedding_table`. The methods run at once, in `session` (a Session or a MonitoredSession; default: the default
  session); they make no ops, so they work with finalized graphs. tf.errors.OpError subclasses report what the engine refuses.
  """

  def __init__(self, config: dict[str, Any], ops: TableOps) -> None:
    self._config = config
    self._ops = ops
    self._summary: tf.Tensor | None = None

  def __repr__(self) -> str:
    return f"<mxrec table '{self.name}', dimension {self.dimension}>"

  @property
  def name(self) -> str:
    return self._config["name"]

  @property
  def dimension(self) -> int:
    return self._config["dim"]

  @property
  def device_vocabulary_size(self) -> int:
    return self._config["vocabulary"]

  @property
  def distribution(self) -> str:
    """Where the rows live: "none" (one process), "MP" (each at the rank that owns its id) or "DP" (all at every rank)."""
    return self._config.get("distribution", "none")

  @property
  def owner(self) -> str:
    """Which rank owns an id under "MP": "mod" or "hash"."""
    return self._config.get("owner", "mod")

  @property
  def config(self) -> dict[str, Any]:
    """A copy of the settings that the graph carries."""
    return json.loads(json.dumps(self._config))

  @property
  def handle(self) -> tf.Tensor:
    """Scalar resource tensor for the ops."""
    return self._ops.handle

  @property
  def graph(self) -> tf.Graph:
    return self._ops.handle.graph

  @property
  def reset_op(self) -> tf.Operation:
    """Empties the table."""
    return self._ops.reset

  def size(self, session: Any = None) -> int:
    """The number of ids that own a row; of a table that is spread over ranks, at this rank: the table's is the sum over them."""
    return int(self._run(session, self._ops.size))

  def stats(self, session: Any = None) -> dict[str, Any]:
    """Rows, candidates, bytes by kind, load, probe lengths, inserts, hits, misses, evictions, optimizer and its step."""
    return json.loads(self._run(session, self._ops.stats))

  def lookup_numpy(self, keys: Any, session: Any = None, *, return_found: bool = False) -> Any:
    """Reads rows; an id without a row gives its first row. Changes nothing.

    Args:
      keys: integers of any shape S.
      session: see the class.
      return_found: also return which ids own a row.

    Returns:
      float32 array S + [dimension], or with `return_found` the pair (that, bool array S).
    """
    keys = _validate.keys(keys)
    _validate.boolean("return_found", return_found)
    values, found = self._run(session, [self._ops.values, self._ops.found], {self._ops.keys: keys.reshape(-1)})
    values = values.reshape(keys.shape + (self.dimension,))
    return (values, found.reshape(keys.shape)) if return_found else values

  def export(self, session: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """All rows: (int64 keys [n], float32 values [n, dimension]), in an order that depends only on the contents.

    Of a table that is spread over ranks, the rows at this rank. The whole table is in a checkpoint.
    """
    keys, values = self._run(session, [self._ops.exported_keys, self._ops.exported_values])
    return keys, values

  def insert(self, keys: Any, values: Any = None, session: Any = None) -> int:
    """Inserts ids; of duplicates the last one wins.

    Args:
      keys: integers of any shape S.
      values: float32 S + [dimension], stored for new and present ids; None: new ids get their first rows, present ones keep theirs.
      session: see the class.

    Returns:
      How many ids were new.
    """
    keys = _validate.keys(keys)
    if values is None:
      rows = np.zeros((0, self.dimension), np.float32)
    else:
      rows = _validate.rows(self.name, values, keys.shape + (self.dimension,)).reshape(-1, self.dimension)
    return int(self._run(session, self._ops.inserted, {self._ops.keys: keys.reshape(-1), self._ops.new_values: rows}))

  def erase(self, keys: Any, session: Any = None) -> int:
    """Erases the rows of ids (integers of any shape); absent ones are ignored. Returns how many rows went."""
    return int(self._run(session, self._ops.erased, {self._ops.keys: _validate.keys(keys).reshape(-1)}))

  def evict(self, session: Any = None) -> int:
    """Erases the rows that were not trained for more than `max_cold_secs`. Returns how many rows went."""
    return int(self._run(session, self._ops.evicted))

  def _run(self, session: Any, fetches: Any, feed_dict: Any = None) -> Any:
    return _session.run(session, self.graph, f"table '{self.name}'", fetches, feed_dict)


def _adopt(registry: _graph.Registry) -> None:
  """Finds the tables and lookups of an imported graph again."""
  graph = registry.graph
  if registry.tables or graph.version == registry.adopted_version:
    return
  registry.adopted_version = graph.version
  for op in graph.get_operations():
    if op.type == _graph.TABLE_OP:
      config = json.loads(op.get_attr("config"))
      if config["name"] not in registry.tables:
        registry.tables[config["name"]] = EmbeddingTable(config, TableOps.find(op.outputs[0]))
        saveable.restore_in_collection(graph, op)
    elif op.type == _graph.LOOKUP_OP:
      source = _graph.handle_op(op.inputs[0])
      if source is not None:
        table = registry.tables[json.loads(source.get_attr("config"))["name"]]
        kind = _sharded.ReplicatedRecord if table.distribution == "DP" else _graph.LookupRecord
        registry.add_lookup(kind(table, op, op.get_attr("training")))
    elif op.type == _sharded.ROWS_OP and (record := _hot_keys.adopt(op, registry.tables)) is not None:
      registry.add_lookup(record)
    elif op.type == _graph.APPLY_OP and (source := _graph.handle_op(op.inputs[0])) is not None:
      _loader.note_table_update(source.name)


def registry(graph: tf.Graph | None = None) -> _graph.Registry:
  """The registry of a graph (default: the default graph), imported tables included."""
  return _graph.registry(graph, _adopt)


def _check_equal(old: EmbeddingTable, config: dict[str, Any], seed: int | None) -> None:
  for field, argument in _ARGUMENTS.items():
    before, now = old._config.get(field), config.get(field)
    if before != now:
      raise ValueError(f"table '{old.name}' exists with {argument} = {before!r}, now asked for with {now!r}")
  old_seed = old._config["seed"]["initializer_seed"]
  if old_seed != seed:
    raise ValueError(f"table '{old.name}' exists with initializer seed {old_seed!r}, now asked for with {seed!r}")


_REPLICATED_BYTES = 1 << 20  # "auto": most bytes of expected rows that every rank holds
_GATHERED_BYTES = 1 << 20  # "auto": most bytes of keys, counts and gradients that every rank gets of a batch of all ranks


def _auto(config: dict[str, Any], ranks: int, expected_batch_ids: int | None) -> str:
  """ "DP" where a table is small, and no more of it is used in a step than may go to every rank; else "MP"."""
  row = 4 * config["dim"]
  small = row * config["vocabulary"] <= _REPLICATED_BYTES and (config["min_used_times"] or 0) <= 1
  used = min(expected_batch_ids or 0, config["vocabulary"])
  return "DP" if small and ranks * used * (row + 12) <= _GATHERED_BYTES else "MP"


def _over_ranks(
  config: dict[str, Any], strategy: str, owner: str, hot_keys: list[int], expected_batch_ids: int | None
) -> dict[str, Any]:
  """What the config says of where rows live; nothing in one process."""
  if strategy == "DP" and (config["min_used_times"] or 0) > 1:
    raise ValueError(
      f"table '{config['name']}': distribution_strategy \"DP\" and min_used_times = {config['min_used_times']} exclude each other, "
      'since no rank counts the ids of the others before they are looked up: use "MP"'
    )
  if _groups.world().size == 1:
    return {}
  if strategy == "auto":
    strategy = _auto(config, _groups.world().size, expected_batch_ids)
  if strategy == "DP":
    return {"distribution": strategy}
  return {
    "distribution": strategy,
    **({"owner": owner} if owner != "mod" else {}),
    **({"hot_keys": hot_keys} if hot_keys else {}),
  }


def get_embedding_table(
  name: str,
  dimension: int,
  device_vocabulary_size: int,
  initializer: Any = tf.compat.v1.random_normal_initializer(),
  key_dtype: Any = tf.int64,
  value_dtype: Any = tf.float32,
  distribution_strategy: str = "MP",
  min_used_times: int | None = None,
  max_cold_secs: int | None = None,
  *,
  capacity_policy: str = "grow",
  evict_by: str | None = None,
  evict_half_life: int | None = None,
  max_bytes: int | None = None,
  non_finite: str = "apply",
  check_lookups: bool = False,
  allow_large_dimension: bool = False,
  save_with_tf_saver: bool | None = None,
  owner: str = "mod",
  hot_keys: Any = None,
  expected_batch_ids: int | None = None,
) -> EmbeddingTable:
  """Makes a sparse table in the default graph, or returns the one of this name if all arguments are equal.

  Args:
    name: 1..128 characters out of [0-9A-Za-z_.].
    dimension: values in a row, 1..512 (up to 65,536 with `allow_large_dimension`).
    device_vocabulary_size: rows that are expected, 1..10^9; a limit only under capacity_policy "error" and "evict".
    initializer: TensorFlow initializer object with a formula per element. The first row of an id depends only on this, the table's
      name, the initializer's seed and the graph's seed (tf.set_random_seed).
    key_dtype: tf.int64; every 64-bit value is an ordinary id.
    value_dtype: tf.float32.
    distribution_strategy: where the rows live when several ranks train. "MP": each at the rank that owns its id. "DP": all at every
      rank, for small tables; not with min_used_times above 1. "auto": DP up to 1 MiB of expected rows, unless a step uses too many
      of them (`expected_batch_ids`), else MP. One process: no difference.
    min_used_times: an id gets a row when it was trained this often, 0..2^31-1; until then lookups answer the default row. None or
      0: at once (0 also keeps counts).
    max_cold_secs: rows not trained for more than this many whole seconds are erased at the next save or `evict()`, 0..2^64-1; None
      or 0: never.
    capacity_policy: "grow"; "error": more than `device_vocabulary_size` rows fail with tf.errors.ResourceExhaustedError; "evict":
      rows of a step that do not fit take the place of others, and only a step that alone needs more rows than fit fails.
    evict_by: "lru" (None): the rows that were not trained for the longest time go; "lfu": those that were trained least often,
      where older uses count less. Only with capacity_policy="evict".
    evict_half_life: updates of the table after which a use counts half, 1..2^32-1; None: 10,000. Only with evict_by="lfu".
    max_bytes: most memory for index, rows and candidates, 0..2^63-1; more is evicted under capacity_policy="evict", else it fails
      with tf.errors.ResourceExhaustedError. None or 0: no cap.
    non_finite: NaN or Inf in an update: "apply" it with one warning per table, "skip" the row, or "error" with the table untouched.
    check_lookups: report NaN or Inf among looked-up rows (one warning per table; an error under non_finite="error").
    allow_large_dimension: see `dimension`.
    save_with_tf_saver: whether tf.train.Saver and MonitoredTrainingSession save and restore the table; None: as
      `mxrec.save_with_tf_saver` set, at first True. A Saver at one rank has the rows of all ranks.
    owner: which rank owns an id under "MP": "mod": the id modulo the number of ranks; "hash": by a hash, for ids that are multiples
      of it.
    hot_keys: ids that nearly every batch of every rank has, 1 to 65,536 of them, each once: under "MP" every rank has a replica of
      their rows in each step, and the owner gets one gradient of each. Results do not change. None: none.
    expected_batch_ids: for "auto": how many distinct ids of the table a batch of one rank has, 1..10^9. Where all ranks' together
      come to more than 1 MiB of gradients, the table is MP. None: not known, few.

  Returns:
    The table; the identical object for equal arguments in the same graph.

  Raises:
    ValueError: an argument is wrong, or conflicts with the table that exists.
    RuntimeError: eager mode.
  """
  _validate.name("name", name)
  description, seed = initializers.describe(initializer)
  config = {
    "name": name,
    "dim": _validate.dimension(dimension, _validate.boolean("allow_large_dimension", allow_large_dimension)),
    "vocabulary": _validate.vocabulary(device_vocabulary_size),
    "initializer": description,
    "min_used_times": _validate.optional_integer("min_used_times", min_used_times, _validate.MAX_USED_TIMES),
    "max_cold_secs": _validate.optional_integer("max_cold_secs", max_cold_secs, _validate.MAX_COLD_SECS),
    **_validate.capacity(capacity_policy, evict_by, evict_half_life),
    "max_bytes": _validate.optional_integer("max_bytes", max_bytes, _validate.MAX_BYTES) or 0,
    "non_finite": _validate.choice("non_finite", non_finite, ("apply", "skip", "error")),
    "check_lookups": _validate.boolean("check_lookups", check_lookups),
  }
  _validate.dtype("key_dtype", key_dtype, tf.int64)
  _validate.dtype("value_dtype", value_dtype, tf.float32)
  _validate.distribution_strategy(distribution_strategy)
  _validate.choice("owner", owner, ("mod", "hash"))
  hot = _validate.hot_keys(name, hot_keys)
  if expected_batch_ids is not None:
    _validate.integer("expected_batch_ids", expected_batch_ids, 1, _validate.MAX_VOCABULARY)
  if save_with_tf_saver is not None:
    _validate.boolean("save_with_tf_saver", save_with_tf_saver)
  config.update(_over_ranks(config, distribution_strategy, owner, hot, expected_batch_ids))
  with _graph.outermost() as graph:
    tables = registry(graph).tables
    if name in tables:
      _check_equal(tables[name], config, seed)
      if save_with_tf_saver not in (None, saveable.takes_part(tables[name])):
        raise ValueError(
          f"table '{name}' exists with save_with_tf_saver = {not save_with_tf_saver}, now asked for with {save_with_tf_saver}"
        )
      return tables[name]
    config["seed"] = {"initializer_seed": seed, "graph_seed": graph.seed}
    table = EmbeddingTable(config, TableOps.build(name, config))
    _loader.note_table(table.handle.op.name)
    tables[name] = table
    saveable.add_to_collection(table, save_with_tf_saver)
  return table


def get_existing_tables() -> list[EmbeddingTable]:
  """The tables of the default graph, in creation order."""
  return list(registry().tables.values())


def stats(session: Any = None) -> dict[str, dict[str, Any]]:
  """`EmbeddingTable.stats` of all tables of the session's graph, by table name, in creation order.

  One run of the session for all: with hundreds of tables much faster than asking each.

  Args:
    session: Session or MonitoredSession; None: the default session.
  """
  session = _session.resolve(session)
  tables = registry(session.graph).tables
  if not tables:
    return {}
  found = _session.run(session, session.graph, "the tables", [table._ops.stats for table in tables.values()])
  return {name: json.loads(text) for name, text in zip(tables, found)}


def get_init_hashtable_op() -> list[tf.Operation]:
  """One op per table of the default graph, in creation order; each empties its table. A table starts empty without them too."""
  return [table.reset_op for table in get_existing_tables()]
