"""What `import tensorflow` gives to the script's own modules, and that nobody else sees it.

Code here is executed in this process with the imports of own code, as `mxrec run` does.
"""

import importlib
import random
import sys
import textwrap
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from mxrec.tf1 import _facade, _imports, _mends, _notices


@pytest.fixture
def notices():
  return _notices.Notices()


@pytest.fixture
def own(tmp_path, notices, monkeypatch):
  """own(source) executes own code in a namespace and returns it; modules beside it are files of tmp_path."""
  before = set(sys.modules)
  facade = _facade.Facade("1.15.0", notices.supply)
  monkeypatch.syspath_prepend(str(tmp_path))
  imports = _imports.Imports(lambda: facade, _imports.OwnCode([tmp_path]), _mends.PYTHON_2_BUILTINS)
  imports.install()

  def execute(source, **names):
    namespace = {"__name__": "program", **names}
    imports.prepare(namespace)
    exec(compile(textwrap.dedent(source), "program.py", "exec"), namespace)
    return namespace

  yield execute
  sys.meta_path.remove(imports)
  for name in set(sys.modules) - before:
    if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
      del sys.modules[name]


def fails(own, source, kind=ImportError):
  with pytest.raises(kind) as caught:
    own(source)
  return str(caught.value)


def test_tf_estimator_has_the_classes_of_the_npu(own):
  names = own("""
    import tensorflow as tf
    from npu_bridge.npu_init import NPUEstimator, NPURunConfig
    from tensorflow.estimator import NPUEstimatorSpec
    same = tf.estimator.NPUEstimator is NPUEstimator and tf.estimator.NPURunConfig is NPURunConfig
    config = tf.estimator.NPURunConfig(model_dir="x")
  """)
  assert names["same"] and names["NPUEstimatorSpec"].__name__ == "NPUEstimatorSpec" and names["config"].model_dir == "x"


# Imports


def test_top_level_names_are_those_of_tensorflow_1(own):
  names = own("""
    import tensorflow as tf
    x = tf.placeholder(tf.float32, [None, 3])
    names = [tf.Session, tf.ConfigProto, tf.AUTO_REUSE, tf.to_float, tf.log, tf.gfile, tf.flags, tf.app.run, tf.python_io]
    width = x.shape[1].value
    with tf.variable_scope("a"):
      v = tf.get_variable("v", [2])
  """)
  assert names["width"] == 3
  assert names["tf"].Session is tf.Session
  assert "Ref" in type(names["v"]).__name__ or not hasattr(names["v"], "handle")


def test_the_version_is_the_reported_one_everywhere_and_settable(own, notices):
  names = own(
    "import tensorflow as tf\nfound = [tf.__version__, tf.VERSION, tf.version.VERSION]\nfrom tensorflow import __version__"
  )
  assert names["found"] == ["1.15.0"] * 3 and names["__version__"] == "1.15.0"
  assert _facade.Facade("1.12.3").module.__version__ == "1.12.3"
  assert notices.supplied == []


def test_every_form_of_import_works(own):
  names = own("""
    import tensorflow
    import tensorflow.contrib as c
    import tensorflow.contrib.layers as layers1
    import tensorflow.python.ops.array_ops as array_ops
    from tensorflow import layers
    from tensorflow.layers import Dense, dense
    from tensorflow.train import AdamOptimizer
    from tensorflow.nn import rnn_cell
    from tensorflow.contrib import layers as layers2, rnn
    from tensorflow.contrib.layers import l2_regularizer
    from tensorflow.contrib.layers.python.layers import batch_norm as bn
    from tensorflow.contrib.layers.python.layers import initializers
    from tensorflow.contrib.framework.python.ops import arg_scope
    from tensorflow.contrib.training.python.training.hparam import HParams
    from tensorflow.python.framework import graph_util, ops
    from tensorflow.python.ops import rnn_cell_impl, variables
    from tensorflow.python.ops.rnn_cell_impl import _Linear, RNNCell
    from tensorflow.python.client import device_lib, timeline
    from tensorflow.python.platform import gfile
    from tensorflow.core.framework import graph_pb2
    from tensorflow.keras.layers import Dense as KerasDense
    from tensorflow.keras import backend as K
    import tensorflow.keras.backend as K2
    from tensorflow.python import pywrap_tensorflow
    from tensorflow.compat.v1 import Session
    import tensorflow.compat.v1 as v1
  """)
  assert names["layers1"] is names["layers2"]
  assert names["bn"] is names["c"].layers.batch_norm
  assert names["initializers"].xavier_initializer is names["layers1"].xavier_initializer
  assert names["AdamOptimizer"] is tf.train.AdamOptimizer
  assert names["v1"] is tf
  assert names["K"] is names["K2"] and hasattr(names["K"], "set_session")
  assert names["array_ops"].stack is tf.stack
  assert names["variables"].RefVariable.__name__ == "RefVariable"
  assert names["pywrap_tensorflow"].NewCheckpointReader is tf.train.NewCheckpointReader
  assert names["tensorflow"].pywrap_tensorflow is names["pywrap_tensorflow"]
  assert names["tensorflow"].python.framework.ops is names["ops"]


def test_star_imports_bring_the_names(own):
  names = own("from tensorflow import *\nfrom tensorflow.contrib.layers import *")
  assert names["placeholder"] is tf.placeholder and names["contrib"] and callable(names["xavier_initializer"])


def test_importlib_gives_the_same(own):
  names = own("""
    import importlib
    from importlib import import_module
    import importlib.util
    a = importlib.import_module("tensorflow")
    b = import_module("tensorflow.contrib.layers")
    c = import_module(".layers", "tensorflow.contrib")
    d = importlib.import_module("json")
    import tensorflow as tf
  """)
  assert names["a"] is names["tf"] and names["b"] is names["c"] is names["tf"].contrib.layers
  assert names["d"] is importlib.import_module("json")
  assert names["importlib"].util.find_spec is importlib.util.find_spec


def test_a_file_that_the_script_loads_by_its_path_is_own_code(own, tmp_path):
  (tmp_path / "config").mkdir()
  (tmp_path / "config" / "plain.py").write_text("import tensorflow as tf\n", encoding="utf-8")
  names = own(
    """
    import importlib.machinery
    import importlib.util as util
    from importlib.machinery import SourceFileLoader
    import tensorflow as tf
    spec = util.spec_from_file_location("plain_one", path)
    one = util.module_from_spec(spec)
    spec.loader.exec_module(one)
    two = SourceFileLoader("plain_two", path).load_module()
    three = {}
    exec(open(path).read(), three)
    other = importlib.util.spec_from_file_location("json", importlib.util.find_spec("json").origin)
  """,
    path=str(tmp_path / "config" / "plain.py"),
  )
  del sys.modules["plain_two"]
  assert names["one"].tf is names["two"].tf is names["three"]["tf"] is names["tf"]
  assert type(names["other"].loader) is importlib.machinery.SourceFileLoader


def test_modules_beside_the_script_see_the_facade_and_libraries_do_not(own, tmp_path):
  (tmp_path / "pack").mkdir()
  (tmp_path / "pack" / "__init__.py").write_text("import tensorflow as tf\nfrom . import inner\n", encoding="utf-8")
  (tmp_path / "pack" / "inner.py").write_text(
    "def late():\n  import tensorflow as tf\n  return tf\nmade = eval('__import__(\"tensorflow\")')\n", encoding="utf-8"
  )
  library = tmp_path / "site-packages"
  library.mkdir()
  (library / "some_library.py").write_text("import tensorflow as tf\n", encoding="utf-8")
  names = own("import tensorflow as tf, pack, sys\nsys.path.append(folder)\nimport some_library", folder=str(library))
  sys.path.remove(str(library))
  facade = names["tf"]
  assert names["pack"].tf is facade and names["pack"].inner.late() is facade and names["pack"].inner.made is facade
  assert names["some_library"].tf is sys.modules["tensorflow"]
  assert sys.modules["tensorflow"].__version__ != "1.15.0"
  assert not hasattr(sys.modules["tensorflow"], "contrib") and "tensorflow.contrib" not in sys.modules


def test_a_folder_that_the_script_adds_to_its_path_is_own_code(own, tmp_path_factory):
  other = tmp_path_factory.mktemp("other")
  (other / "helper_of_the_script.py").write_text("import tensorflow as tf\n", encoding="utf-8")
  names = own("import sys\nsys.path.append(folder)\nimport helper_of_the_script as h\nimport tensorflow as tf", folder=str(other))
  sys.path.remove(str(other))
  del sys.modules["helper_of_the_script"]
  assert names["h"].tf is names["tf"]


def test_own_code_is_the_folders_below_it_but_no_library(tmp_path):
  own_code = _imports.OwnCode([tmp_path])
  assert str(tmp_path / "a" / "b.py") in own_code
  assert str(tmp_path) + "x/b.py" not in own_code
  assert str(tmp_path / ".venv" / "lib" / "site-packages" / "x.py") not in own_code
  assert random.__file__ not in _imports.OwnCode(["/"])
  assert _facade.__file__ not in _imports.OwnCode(["/"])


def test_keras_means_the_keras_of_tensorflow_1(own):
  names = own("""
    import keras
    import keras.layers as L
    from keras import backend as K, layers
    from keras.models import Sequential
    from keras.engine import base_layer
    import tensorflow as tf
  """)
  assert names["keras"].__name__.startswith("tf_keras")
  assert names["L"] is names["layers"] and names["K"].set_session
  assert names["Sequential"] is names["tf"].keras.models.Sequential
  assert "keras.nothing" in fails(own, "import keras.nothing")
  assert "cannot import name 'nothing' from 'keras'" in fails(own, "from keras import nothing")


def test_the_star_import_of_npu_init_leaves_the_scripts_tf_alone(own):
  pytest.importorskip("npu_bridge.npu_init")
  from npu_bridge import unpatch_sessions

  names = own(
    "import tensorflow as tf\nbefore = tf\nfrom npu_bridge.npu_init import *\nfrom npu_bridge.npu_init import tf as again"
  )
  unpatch_sessions()
  assert names["tf"] is names["before"] is names["again"]
  assert names["npu_config_proto"] and names["RewriterConfig"]


# What is missing says so


def test_a_missing_name_says_so_and_names_its_neighbours(own):
  assert "'global_variable_initializer'" in (
    text := fails(own, "import tensorflow as t\nt.global_variable_initializer", AttributeError)
  )
  assert "near it: global_variables_initializer" in text
  text = fails(own, "from tensorflow import no_such_thing")
  assert text.startswith("cannot import name 'no_such_thing' from 'tensorflow'")


def test_a_missing_part_of_contrib_lists_what_there_is(own):
  text = fails(own, "import tensorflow.contrib.boosted_trees")
  assert "tensorflow.contrib.boosted_trees went away with TensorFlow 2" in text and "layers, learn, lookup" in text
  assert "layers" in fails(own, "import tensorflow as tf\ntf.contrib.layer", AttributeError)
  text = fails(own, "from tensorflow.contrib.layers import batch_nrm")
  assert "tensorflow.contrib.layers.batch_nrm" in text and "near it: batch_norm" in text
  assert "tensorflow-probability" in fails(own, "from tensorflow.contrib.distributions import Normal")
  assert "tutorials" in fails(own, "from tensorflow.examples.tutorials.mnist import input_data")


def test_a_module_that_is_nowhere_is_the_usual_error(own):
  error = fails(own, "import no_such_module_anywhere", ModuleNotFoundError)
  assert error == "No module named 'no_such_module_anywhere'"


def test_what_is_supplied_is_noted_once(own, notices):
  own("""
    import tensorflow as tf
    for _ in range(3):
      tf.contrib.layers.l2_regularizer(0.1)
      tf.random.set_seed(1)
    tf.placeholder(tf.float32)
  """)
  assert sorted(notices.supplied) == ["tensorflow.contrib.layers.l2_regularizer", "tensorflow.random.set_seed"]


# Old names and habits


def test_names_of_tensorflow_0_work(own, sess):
  names = own("""
    import tensorflow as tf
    a, b = tf.constant([1.0, 2.0]), tf.constant([3.0, 5.0])
    out = [tf.mul(a, b), tf.sub(a, b), tf.neg(a), tf.pack([a, b]), tf.concat(0, [a, b]), tf.concat([a, b], 0), tf.split(0, 2, a)[1],
           tf.split(a, 2)[1], tf.select(a > 1.5, a, b)]
    tf.scalar_summary("x", a[0])
    merged = tf.merge_all_summaries()
    writer = tf.train.SummaryWriter
    init = tf.initialize_all_variables()
  """)
  values = [value.tolist() for value in sess.run(names["out"])]
  assert values == [[3, 10], [-2, -3], [-1, -2], [[1, 2], [3, 5]], [1, 2, 3, 5], [1, 2, 3, 5], [2], [2], [3, 2]]
  assert names["writer"] is tf.summary.FileWriter and sess.run(names["merged"])


@pytest.mark.parametrize(
  "call", ["tf.nn.dropout(x, 0.9)", "tf.nn.dropout(x, keep_prob=0.9)", "tf.layers.dropout(x, 0.1, training=True)"]
)
def test_d_16_the_positional_number_of_dropout_is_the_part_that_stays(call, own, sess):
  own_code = own(f"""
    import tensorflow as tf
    x = tf.ones([100, 100])
    y = {call}
  """)
  zeros = 1.0 - np.count_nonzero(sess.run(own_code["y"])) / 10_000
  assert 0.08 < zeros < 0.12


def test_set_seed_is_the_graphs_seed(own, sess):
  own("import tensorflow as tf\ntf.random.set_seed(77)")
  assert tf.get_default_graph().seed == 77


def test_layers_have_the_variable_names_of_tensorflow_1(own):
  own("""
    import tensorflow as tf
    x = tf.placeholder(tf.float32, [None, 4])
    y = tf.layers.dense(tf.layers.dense(x, 3, activation="relu"), 2)
    y = tf.layers.batch_normalization(y, training=True)
    cell = tf.nn.rnn_cell.LSTMCell(3)
    tf.nn.dynamic_rnn(cell, tf.placeholder(tf.float32, [None, 5, 4]), dtype=tf.float32)
  """)
  names = [variable.op.name for variable in tf.global_variables()]
  assert names == [
    *("dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"),
    *(f"batch_normalization/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")),
    *("rnn/lstm_cell/kernel", "rnn/lstm_cell/bias"),
  ]
  assert len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)) == 2


def test_python_2_builtins_and_moved_modules(own):
  names = own("""
    import cPickle, Queue
    import cPickle as pickle
    from StringIO import StringIO
    import __builtin__
    total = sum(xrange(4))
    print_function = __builtin__.print
  """)
  assert names["cPickle"] is names["pickle"] is importlib.import_module("pickle")
  assert names["Queue"] is importlib.import_module("queue") and names["total"] == 6


def test_old_places_of_scikit_learn(own):
  names = own("""
    from sklearn.cross_validation import train_test_split
    from sklearn.externals import joblib
    import sklearn.metrics
  """)
  assert names["train_test_split"] is importlib.import_module("sklearn.model_selection").train_test_split
  assert names["joblib"].dump


def test_toml_is_read_where_the_package_is_missing(own, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "toml", None)
  (tmp_path / "a.toml").write_text('[x]\ny = "z"\n', encoding="utf-8")
  names = own("import toml\nfound = toml.load(path), toml.loads('a = 1')", path=str(tmp_path / "a.toml"))
  assert names["found"] == ({"x": {"y": "z"}}, {"a": 1})
  assert "pip install toml" in fails(own, "import toml\ntoml.dump({}, None)", AttributeError)


def test_what_gettext_adds_to_the_builtins_is_found(own, monkeypatch):
  import builtins

  monkeypatch.setattr(builtins, "added_by_a_library", 5, raising=False)
  assert own("import json\nfound = added_by_a_library")["found"] == 5


def test_numpy_and_random_take_what_they_took():
  kept = {name: getattr(np, name) for name in vars(np)}
  sample = random.sample
  try:
    _mends.mend_numpy()
    _mends.mend_random()
    assert np.zeros(2, np.float).dtype == np.float64 and np.Inf == np.inf and np.unicode_ is np.str_
    assert np.reshape(np.arange(4), newshape=(2, 2)).shape == np.reshape(np.arange(4), (2, 2)).shape == (2, 2)
    assert random.sample({1, 2, 3}, 3) and random.sample({"a": 1}.keys(), 1) == ["a"]
    assert set(random.sample(range(10), 4)) <= set(range(10))
  finally:
    random.sample = sample
    for name in set(vars(np)) - set(kept):
      delattr(np, name)
    np.reshape = kept["reshape"]


def test_a_view_follows_its_base_and_keeps_what_is_assigned():
  from mxrec.tf1._views import View

  base = types.SimpleNamespace(a=1, b=2)
  view = View("v", base, {"b": 3})
  base.a = 7
  view.c = 5
  assert (view.a, view.b, view.c) == (7, 3, 5) and not hasattr(base, "c")
  assert {"a", "b", "c"} <= set(dir(view))


# Notices


def test_deprecation_notices_are_counted_and_others_pass(notices):
  record = notices_record("From %s: %s is deprecated and will be removed in a future version.")
  assert not notices.filter(record) and notices.filter(notices_record("something else"))
  assert notices.line() == "mxrec run: 1 deprecation notice hidden (--show-deprecations shows them)"
  notices.filter(record)
  notices.supply("tensorflow.contrib.layers.batch_norm")
  assert notices.line() == (
    "mxrec run: 2 deprecation notices hidden (--show-deprecations shows them); supplied beyond TensorFlow: "
    "tf.contrib.layers.batch_norm"
  )
  assert _notices.Notices().line() == ""


def notices_record(text):
  import logging

  return logging.LogRecord("tensorflow", logging.WARNING, "file", 1, text, (), None)
