"""mxrec.horovod: horovod_worker.py on one rank and on several, the guide's script, and how `import horovod` comes about."""

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest
import ranks as fork

from mxrec import _groups, _horovod_import, _launch

TESTS = pathlib.Path(__file__).resolve().parent
WORKER = TESTS / "horovod_worker.py"
SEVERAL = hasattr(_groups, "start")
several = pytest.mark.skipif(not SEVERAL, reason="this version has no collectives of several ranks")

OPERATIONS = (
  "basics allreduce average scaling nan_passes_through grouped_allreduce many_at_once compression slices allgather broadcast"
  " alltoall reducescatter adasum barrier gradients objects variables process_sets shutdown_and_init_again"
).split()
GRAPH = (
  "training training_over_several_passes local_variables_and_groups adasum_training sets_and_joins_in_training sync_batch_norm"
).split()
EAGER = "tape sync_batch_norm keras keras_over_several_passes keras_learning_rates keras_models_load keras_3".split()
# Of training with several ranks what is quick.
MORE = {"graph": ["adasum_training", "sets_and_joins_in_training", "sync_batch_norm"], "eager": ["sync_batch_norm"]}
LONG = 280


def environment(**more):
  kept = {name: value for name, value in os.environ.items() if not _launch._STALE.fullmatch(name)}
  return {**kept, "TF_CPP_MIN_LOG_LEVEL": "2", **more}


def run(command, **options):
  options.setdefault("env", environment())
  return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=LONG, check=False, **options)


def ranks(number, *words, options=(), **more):
  """`mxrec launch` with so many ranks; one alone is started as any script."""
  if number == 1:
    return run([sys.executable, *words], **more)
  return run([sys.executable, "-m", "mxrec", "launch", "-np", number, *options, sys.executable, *words], **more)


def check(number, mode, names):
  done = ranks(number, WORKER, mode, *names)
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
  for name in names:
    assert done.stdout.count(f"done {name}\n") == number


@pytest.mark.parametrize("mode, names", [("graph", [*OPERATIONS, "join"]), ("eager", [*OPERATIONS, "join"])])
def test_operations_on_one_rank(mode, names):
  check(1, mode, names)


@pytest.mark.parametrize("mode, names", [("graph", [*GRAPH, "looked_up_rows_pass", "keras"]), ("eager", EAGER)])
def test_training_on_one_rank(mode, names):
  check(1, mode, names)


@several
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_operations_on_two_ranks(mode):
  check(2, mode, [*OPERATIONS, "join", *MORE[mode]])


@several
@pytest.mark.thorough
@pytest.mark.parametrize("mode, names", [("graph", [*GRAPH, "keras"]), ("eager", EAGER)])
def test_training_on_two_ranks_equals_one_on_the_joined_batch(mode, names):
  check(2, mode, names)


@several
@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_operations_on_three_ranks(mode):
  check(3, mode, [*OPERATIONS, "join"])


@several
def test_operations_on_two_ranks_over_gloo():
  done = ranks(2, WORKER, "eager", *OPERATIONS, "join", options=("--transport", "gloo"))
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@several
@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_operations_on_two_ranks_over_mpi():
  done = ranks(2, WORKER, "graph", *OPERATIONS[1:], "join", options=("--transport", "mpi"))  # basics reads RANK_ID
  assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


def places(local_ranks, local_sizes):
  """A rank of a start that tells each rank about its own machine only, as mpirun does."""
  import mxrec.horovod as hvd

  me = int(os.environ["RANK_ID"])
  os.environ.update(MXREC_LOCAL_RANK=str(local_ranks[me]), MXREC_LOCAL_SIZE=str(local_sizes[me]), MXREC_SECRET="word")
  hvd.init()
  return [hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()]


@several
@pytest.mark.parametrize(
  "local_ranks, local_sizes, expected",
  [
    ([0, 0, 1], [1, 2, 2], [[0, 1, 0, 2, False], [0, 2, 1, 2, False], [1, 2, 0, 1, False]]),
    ([0, 0, 1, 1], [2] * 4, [[0, 2, 0, 2, True], [0, 2, 1, 2, True], [1, 2, 0, 2, True], [1, 2, 1, 2, True]]),
  ],
)
def test_machines_are_counted_by_what_all_ranks_say(local_ranks, local_sizes, expected):
  assert fork.run(len(expected), places, local_ranks, local_sizes).results() == expected


@several
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_ranks_that_disagree_all_get_an_error_and_go_on(mode):
  check(2, mode, ["disagreement", "refusals", "duplicate_names"])


# The guide's script, unchanged

GUIDE = """\
import tensorflow.compat.v1 as tf
import horovod.tensorflow as hvd
tf.disable_v2_behavior()

hvd.init()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())

w = tf.get_variable("w", [], initializer=tf.ones_initializer())
loss = tf.square(w - 3.0)
opt = tf.train.AdagradOptimizer(0.01 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=20)]
train_op = opt.minimize(loss, global_step=tf.train.get_or_create_global_step())

checkpoint_dir = '/tmp/train_logs' if hvd.rank() == 0 else None
with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as mon_sess:
    while not mon_sess.should_stop():
        mon_sess.run(train_op)
"""


def adagrad(size, steps):
  w, total = 1.0, 0.1
  for _ in range(steps):
    gradient = 2 * (w - 3)
    total += gradient * gradient
    w -= 0.01 * size * gradient / total**0.5
  return w


@pytest.mark.parametrize("number", [1, pytest.param(2, marks=several), pytest.param(4, marks=[several, pytest.mark.thorough])])
def test_g43_the_guides_horovod_script_runs_unchanged(number, tmp_path):
  import tensorflow.compat.v1 as tf

  logs = pathlib.Path("/tmp/train_logs")
  shutil.rmtree(logs, ignore_errors=True)
  script = tmp_path / "train.py"
  script.write_text(GUIDE)
  try:
    done = run([sys.executable, "-m", "mxrec", "launch", "-np", number, "--horovod", script])
    assert done.returncode == 0, done.stderr[-6000:]
    newest = tf.train.latest_checkpoint(str(logs))
    assert newest and newest.endswith("-20")
    assert abs(float(tf.train.load_variable(newest, "w")) - adagrad(number, 20)) < 1e-5
    # Started again it goes on from the last step, on every rank, and stops after one more.
    done = run([sys.executable, "-m", "mxrec", "launch", "-np", number, "--horovod", script])
    assert done.returncode == 0, done.stderr[-6000:]
    assert tf.train.latest_checkpoint(str(logs)).endswith("-21")
  finally:
    shutil.rmtree(logs, ignore_errors=True)


@several
def test_d36_all_ranks_go_on_from_what_rank_0_restored(tmp_path):
  script = tmp_path / "train.py"
  text = GUIDE.replace("/tmp/train_logs", str(tmp_path / "logs")).replace("=20", "=int(__import__('sys').argv[1])")
  show = "    print('starts at', mon_sess.run([tf.train.get_global_step(), w]), flush=True)\n"
  script.write_text(text.replace("    while not", show + "    while not"))
  assert run([sys.executable, "-m", "mxrec", "run", "--plain", "--horovod", script, 5]).returncode == 0
  done = run([sys.executable, "-m", "mxrec", "launch", "-np", 2, "--horovod", script, 8])
  assert done.returncode == 0, done.stderr[-6000:]
  starts = {line.partition("starts at ")[2] for line in done.stdout.splitlines() if "starts at" in line}
  assert len(starts) == 1 and "5" in starts.pop(), done.stdout


# How `import horovod` comes about

SCRIPT_1 = """
import tensorflow as tf
import horovod.tensorflow as hvd
from horovod.tensorflow.mpi_ops import rank
from horovod.common.exceptions import HorovodInternalError
import mxrec.horovod
assert hvd is mxrec.horovod.tensorflow
hvd.init()
x = tf.placeholder(tf.float32, [2])
with tf.Session() as sess:
  print(sess.run(hvd.allreduce(x), {x: [1, 2]}), rank(), tf.__version__, __file__ != "", __name__)
"""
SCRIPT_2 = """
import tensorflow as tf
import horovod.tensorflow as hvd
import horovod.tensorflow.keras, horovod.keras
hvd.init()
print(hvd.allreduce(tf.constant([1.0, 2.0])).numpy(), tf.executing_eagerly(), tf.keras.__name__.split(".")[0])
"""


@pytest.mark.parametrize(
  "text, words, expected",
  [
    (SCRIPT_1, ["run", "--quiet", "--horovod"], "[1. 2.] 0 1.15.0 True __main__"),
    (SCRIPT_2, ["run", "--plain", "--horovod"], "[1. 2.] True tf_keras"),
    (SCRIPT_2, ["launch", "-np", "1", "--no-prefix", "--horovod"], "[1. 2.] True tf_keras"),
    (SCRIPT_1, ["launch", "-np", "1", "--no-prefix", "--horovod", "mxrec", "run", "--quiet"], "[1. 2.] 0 1.15.0 True __main__"),
  ],
)
def test_scripts_that_ask_for_it_import_horovod(text, words, expected, tmp_path):
  script = tmp_path / "script.py"
  script.write_text(text)
  done = run([sys.executable, "-m", "mxrec", *words, script])
  assert done.returncode == 0, done.stderr[-4000:]
  assert done.stdout.splitlines()[-1].startswith(expected), done.stdout


def test_install_is_asked_for_and_never_a_surprise(tmp_path):
  text = """
    import importlib.util, sys
    import mxrec.horovod
    assert importlib.util.find_spec("horovod") is None and not mxrec.horovod.installed()
    mxrec.horovod.install()
    mxrec.horovod.install()
    import horovod, horovod.tensorflow, horovod.tensorflow.compression
    assert horovod is mxrec.horovod and horovod.tensorflow is mxrec.horovod.tensorflow
    assert horovod.tensorflow.__spec__.name == "mxrec.horovod.tensorflow"
    try:
      import horovod.torch
    except ModuleNotFoundError as error:
      assert "mxrec.horovod has horovod.tensorflow and horovod.keras" in str(error)
    else:
      raise AssertionError
    """
  done = run([sys.executable, "-c", textwrap.dedent(text)])
  assert done.returncode == 0, done.stderr[-4000:]
  script = tmp_path / "script.py"
  script.write_text("import horovod.tensorflow")
  done = run([sys.executable, "-m", "mxrec", "run", "--quiet", script])
  assert done.returncode == 1 and "`mxrec run --horovod` brings mxrec.horovod" in done.stderr


def test_another_horovod_that_is_imported_is_not_replaced(tmp_path):
  (tmp_path / "horovod.py").write_text("other = True")
  text = "import sys; sys.path.insert(0, '.'); import horovod; from mxrec import _horovod_import as h; h.install()"
  done = run([sys.executable, "-c", text], cwd=tmp_path)
  assert done.returncode == 1 and "another horovod is imported already" in done.stderr
  assert not _horovod_import.installed()
