"""AdamW for tables."""

from __future__ import annotations

from typing import Any

from mxrec import _validate, row_optimizer
from mxrec.row_optimizer import BETAS, EPSILON, RATE, WEIGHT_DECAY

INITIAL_STATES = ("zeros", "original")


class AdamWOptimizer(row_optimizer.NamedRowOptimizer):
  """AdamW with decoupled weight decay on the rows of a step; formula in docs/numerics.md.

  Its "variables" are looked-up rows: `apply_gradients(zip(tf.gradients(loss, rows), rows))` with `rows` from
  `get_sparse_embedding()`; `minimize(loss)` takes the rows that the loss depends on. Moments and step counter live in the
  tables, so any number of tables and of optimizer objects gives the same result. `_lr` (or `_learning_rate`) may be assigned anew
  until gradients are applied.
  """

  KIND = "adamw"
  HYPER = (RATE, WEIGHT_DECAY, *BETAS, EPSILON)

  def __init__(
    self,
    learning_rate: Any = 0.01,
    weight_decay: Any = 0.004,
    beta_1: Any = 0.9,
    beta_2: Any = 0.999,
    epsilon: Any = 1e-6,
    name: str = "AdamWOptimizer",
    *,
    initial_state: str = "zeros",
  ) -> None:
    """Makes the optimizer; each hyperparameter is a float or a scalar float tensor or variable (not range-checked).

    Args:
      learning_rate: [0, 10].
      weight_decay: [0, 10].
      beta_1: [0, 1).
      beta_2: [0, 1).
      epsilon: [0, 1).
      name: 1..128 characters out of [0-9A-Za-z_.].
      initial_state: "zeros": moments start at 0, beta powers at 1; "original": moments at 1, beta powers at 0.9, as the original.

    Raises:
      ValueError: an argument is wrong; an int is.
    """
    state = float(INITIAL_STATES.index(_validate.choice("initial_state", initial_state, INITIAL_STATES)))
    super().__init__(name, (learning_rate, weight_decay, beta_1, beta_2, epsilon), (("initial_state", state),))
