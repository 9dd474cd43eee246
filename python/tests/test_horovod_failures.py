"""What mxrec.horovod and `mxrec launch` do when a rank goes wrong: who is named, how soon, which exit code, what is left."""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import time

import pytest
from test_horovod import SEVERAL, environment
from test_launch import gone

pytestmark = [
  pytest.mark.thorough,
  pytest.mark.skipif(not SEVERAL, reason="this version has no collectives of several ranks"),
]

BEGIN = """\
import os, signal, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np
import tensorflow as tf
import horovod.tensorflow as hvd

open(os.path.join(os.path.dirname(__file__), f"pid.{os.getpid()}"), "w").write(str(os.getpid()))
hvd.init()
me = hvd.rank()


def step(number, value=1.0):
  return float(hvd.allreduce(tf.constant(value), op=hvd.Sum, name="loss"))


def say(text):
  print(text, flush=True)

"""
# Short, so that what hangs is named by the library and not by the deadline of the test.
LIMITS = {"MXREC_CONNECT_TIMEOUT": "60", "MXREC_STALL_WARNING": "2", "MXREC_STALL_ABORT": "10", "MXREC_HEARTBEAT_TIMEOUT": "8"}
DEADLINE = 150
OVER_MPI = pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")


def run(tmp_path, text, number=2, options=("--linger", "20"), **more):
  """What `mxrec launch --horovod` did; that no process is left is checked here."""
  script = tmp_path / "script.py"
  script.write_text(BEGIN + textwrap.dedent(text))
  begin = time.monotonic()
  command = [sys.executable, "-m", "mxrec", "launch", "-np", number, *options, "--horovod", script]
  done = subprocess.run(
    list(map(str, command)), capture_output=True, text=True, timeout=DEADLINE, check=False, env=environment(**LIMITS, **more)
  )
  done.seconds = time.monotonic() - begin
  assert gone([int(file.read_text()) for file in pathlib.Path(tmp_path).glob("pid.*")], 5)
  return done


def of_rank(rank, done):
  """The lines of one rank."""
  return "\n".join(line for line in (done.stdout + done.stderr).splitlines() if line.startswith(f"[{rank}] "))


def shared_memory():
  return {name for name in os.listdir("/dev/shm") if "mxrec" in name}


KILLED = """
for number in range(1000000):
  if number == {step} and me == 1:
    {moment}
  try:
    step(number)
    hvd.allreduce(tf.ones([1 << 20]), name="big")
  except hvd.HorovodInternalError as error:
    assert isinstance(error, tf.errors.InternalError)
    say(f"broken: {{error}}")
    sys.exit(3)
"""
MOMENTS = {
  "before": KILLED.format(step=0, moment="os.kill(os.getpid(), 9)"),
  "between": KILLED.format(step=5, moment="os.kill(os.getpid(), 9)"),
  # It is far from done when the signal comes.
  "in": KILLED.format(step=5, moment="import threading; threading.Timer(0.05, os.kill, (os.getpid(), 9)).start()"),
}


@pytest.mark.parametrize("moment", ["between", "in"])
def test_d45_the_others_name_a_rank_that_was_killed(moment, tmp_path):
  before = shared_memory()
  done = run(tmp_path, MOMENTS[moment])
  assert done.returncode == 128 + 9 and "rank 1 was ended by SIGKILL" in done.stderr
  assert re.search(r"broken: .*rank 1", of_rank(0, done)), done.stdout + done.stderr
  assert shared_memory() <= before


@OVER_MPI
@pytest.mark.parametrize("moment", MOMENTS)
def test_d45_over_mpi_the_others_name_a_rank_that_was_killed(moment, tmp_path):
  # mpirun ends the others at once, unless it is told to let them be: then they find out by themselves.
  done = run(tmp_path, MOMENTS[moment], options=("--transport", "mpi", "--mpi-args=--enable-recovery"))
  assert re.search(r"broken: .*allreduce .*rank 1 \(.*is gone", of_rank(0, done)), done.stdout + done.stderr
  assert done.seconds < 60, "they wait for nobody"


@OVER_MPI
@pytest.mark.parametrize("moment", MOMENTS)
def test_d45_a_job_of_mpirun_ends_with_a_rank_that_was_killed_and_names_it(moment, tmp_path):
  before = shared_memory()
  done = run(tmp_path, MOMENTS[moment], options=("--transport", "mpi"))
  assert done.returncode == 128 + 9 and done.seconds < 60
  assert re.search(r"process rank 1 .* exited on signal 9", done.stdout + done.stderr), done.stdout + done.stderr
  assert shared_memory() <= before


@pytest.mark.parametrize("options", [("--linger", "1", "--grace", "2"), pytest.param(("--transport", "mpi"), marks=OVER_MPI)])
def test_a_stopped_rank_is_given_up_and_named(options, tmp_path):
  done = run(
    tmp_path,
    """
    step(0)
    if me == 1:
      os.kill(os.getpid(), signal.SIGSTOP)
    try:
      step(1)
    except hvd.HorovodInternalError as error:
      say(f"broken: {error}")
      sys.exit(3)
    """,
    options=options,
  )
  assert done.returncode == 3
  assert re.search(r"broken: .*rank 1", of_rank(0, done)), done.stdout + done.stderr


@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_d39_a_rank_with_fewer_steps_is_named(number, tmp_path):
  done = run(
    tmp_path,
    """
    for number in range(11 if me == 0 else 10):
      try:
        step(number)
      except tf.errors.OpError as error:
        say(f"broken: {type(error).__name__} {error}")
        sys.exit(3)
    """,
    number,
  )
  assert done.returncode == 3
  text = of_rank(0, done)
  assert re.search(r"broken: .*loss", text) and "rank" in text, done.stdout + done.stderr


def test_a_rank_that_never_asks_is_reported_and_then_everybody_fails(tmp_path):
  done = run(
    tmp_path,
    """
    step(0)
    try:
      if me == 1:
        time.sleep(60)
      step(1)
    except hvd.HorovodInternalError as error:
      say(f"broken: {error}")
      sys.exit(3)
    """,
    options=("--linger", "1", "--grace", "2"),
  )
  assert done.returncode == 3 and done.seconds < 100
  assert re.search(r"broken: .*loss", of_rank(0, done)), done.stdout + done.stderr
  assert re.search(r"rank(s)? 1\b|\[1\]", of_rank(0, done)), done.stdout + done.stderr


def test_a_rank_that_raises_ends_the_others(tmp_path):
  done = run(
    tmp_path,
    """
    step(0)
    if me == 1:
      raise RuntimeError("data is missing")
    step(1)
    """,
  )
  assert done.returncode == 1 and "data is missing" in of_rank(1, done)
  assert done.seconds < 100


def test_a_rank_that_never_comes_is_named_at_the_start(tmp_path):
  script = tmp_path / "script.py"
  script.write_text("import mxrec.horovod as hvd\nhvd.init()\n")
  done = subprocess.run(
    [sys.executable, script],
    capture_output=True,
    text=True,
    timeout=DEADLINE,
    check=False,
    env=environment(RANK_SIZE="2", RANK_ID="0", MXREC_STORE_PATH=str(tmp_path / "store"), MXREC_CONNECT_TIMEOUT="2"),
  )
  assert done.returncode == 1
  assert re.search(r"rank(s)? 1\b|\[1\]", done.stderr.splitlines()[-1]), done.stderr


def test_ranks_that_cannot_find_each_other_are_told_what_to_set():
  text = "import mxrec.horovod as hvd; hvd.init()"
  run_ = {"capture_output": True, "text": True, "timeout": DEADLINE, "check": False}
  done = subprocess.run([sys.executable, "-c", text], env=environment(RANK_SIZE="2"), **run_)
  assert done.returncode == 1 and "they cannot find each other: set RANK_ID" in done.stderr
  done = subprocess.run(
    [sys.executable, "-c", text], env=environment(RANK_SIZE="2", RANK_ID="0", HCCL_SOCKET_IFNAME="wrong9"), **run_
  )
  assert done.returncode == 1 and "no network interface fits it" in done.stderr


def test_a_port_in_use_is_named(tmp_path):
  with socket.create_server(("127.0.0.1", 0)) as other:
    port = other.getsockname()[1]
    done = subprocess.run(
      [sys.executable, "-c", "import mxrec.horovod as hvd; hvd.init()"],
      capture_output=True,
      text=True,
      timeout=DEADLINE,
      check=False,
      env=environment(RANK_SIZE="2", RANK_ID="0", MXREC_CHIEF_ADDRESS=f"127.0.0.1:{port}", MXREC_CONNECT_TIMEOUT="5"),
    )
  assert done.returncode == 1
  assert str(port) in done.stderr.splitlines()[-1], done.stderr


def test_the_last_checkpoint_loads_after_a_rank_was_killed(tmp_path):
  text = """
  tf.compat.v1.disable_eager_execution()
  v1 = tf.compat.v1
  with tf.Graph().as_default():
    w = v1.get_variable("w", initializer=0.0, use_resource=True)
    count = v1.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    train = optimizer.minimize(-w, global_step=count)
    folder = os.path.join(os.path.dirname(__file__), "logs") if me == 0 else None
    hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=int(os.environ["LAST"]))]
    with v1.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, save_checkpoint_steps=4) as session:
      while not session.should_stop():
        _, now, value = session.run([train, count, w])
        if now == 10 and me == 1 and os.environ["LAST"] == "1000":
          os.kill(os.getpid(), 9)
    say(f"end {now}")
  """
  done = run(tmp_path, text, LAST="1000")
  assert done.returncode == 137, done.stderr[-3000:]
  import tensorflow.compat.v1 as tf

  newest = tf.train.latest_checkpoint(str(tmp_path / "logs"))
  step = int(newest.rpartition("-")[2])
  assert step >= 4 and float(tf.train.load_variable(newest, "w")) == float(step)
  done = run(tmp_path, text, LAST="20")
  assert done.returncode == 0, done.stderr[-3000:]
  newest = tf.train.latest_checkpoint(str(tmp_path / "logs"))
  assert newest.endswith("-20") and float(tf.train.load_variable(newest, "w")) == 20.0
