"""Results for several numbers of threads, where each session has a pool of its own.

TensorFlow gives a process one pool of intra-op threads, of the size that its first session asks for; what later sessions ask for
counts only under the environment variable TF_OVERRIDE_GLOBAL_THREADPOOL, which it reads once. So tests that compare sessions of
several thread counts run here once more, in a process that has it.
"""

import os
import pathlib
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

VARIABLE = "TF_OVERRIDE_GLOBAL_THREADPOOL"
TESTS = pathlib.Path(__file__).resolve().parent
COMPARED = [
  "test_npu_guide.py::test_g51_deterministic_runs_are_equal_to_the_bit_in_losses_and_checkpoints",
  "test_npu_nn_ops.py::test_a_seed_gives_the_same_masks_in_every_session_and_for_any_number_of_threads",
  "test_npu_nn_ops.py::test_activations_do_not_depend_on_threads_and_work_in_loops_and_functions",
  "test_npu_nn_ops.py::test_prelu_of_many_elements_does_not_depend_on_threads",
  "test_npu_nn_ops.py::test_layer_norm_of_long_rows_and_many_rows_does_not_depend_on_threads",
  "test_npu_nn_ops.py::test_centralization_of_large_unknown_and_wrong_inputs",
  "test_ops.py::test_tables_are_bit_equal_for_1_2_and_4_threads",
  "test_pooling.py::test_the_fused_update_equals_the_unfused_one_to_the_bit_for_any_number_of_threads",
  "test_thread_counts.py::test_a_session_has_as_many_threads_as_it_asks_for",
  "test_training.py::test_d_19_tables_are_bit_equal_for_any_number_of_threads_and_on_every_run",
]


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"run by the other test, with {VARIABLE}")
def test_a_session_has_as_many_threads_as_it_asks_for():
  threads = lambda: len(os.listdir("/proc/self/task"))
  total = tf.reduce_sum(tf.random.normal([1000, 1000]))
  config = tf.ConfigProto(use_per_session_threads=True, inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
  with tf.Session(config=config) as session:
    session.run(total)
    before = threads()
    config.intra_op_parallelism_threads = 24
    with tf.Session(config=config) as other:
      other.run(total)
      assert threads() >= before + 24


@pytest.mark.thorough
def test_results_do_not_depend_on_the_threads_of_a_session():
  done = subprocess.run(
    [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *(str(TESTS / name) for name in COMPARED)],
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
    env={**os.environ, VARIABLE: "1"},
  )
  assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
  assert "skipped" not in done.stdout.splitlines()[-1]
