"""Each test runs in a fresh graph, with the real clock, and leaves no session behind."""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
TESTS = pathlib.Path(__file__).resolve().parent
for folder in (TESTS.parent, TESTS):
  if str(folder) not in sys.path:
    sys.path.insert(0, str(folder))
os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)

import pytest
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

import mxrec


@pytest.fixture(autouse=True)
def fresh_graph():
  tf.reset_default_graph()
  yield
  mxrec.testing.set_clock(None)
  mxrec.save_with_tf_saver(True)
  tf.reset_default_graph()


@pytest.fixture
def sess():
  with tf.Session() as session:
    yield session
