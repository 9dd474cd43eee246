"""One script on two machines: two network namespaces, joined by a virtual cable, in place of them.

Needs the right to make namespaces (root, `ip` and `unshare`); without it the tests are skipped.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from test_launch import environment

from mxrec import _loader

pytestmark = pytest.mark.thorough
ADDRESSES = ("10.213.7.1", "10.213.7.2")
DEADLINE = 120

SCRIPT = """\
import tensorflow.compat.v1 as tf
from npu_bridge.npu_init import *
import mxrec
tf.disable_v2_behavior()

me, size = get_rank_id(), get_rank_size()
table = mxrec.get_embedding_table("t", 2, 100, tf.zeros_initializer())
rows = mxrec.embedding_lookup(table, tf.constant([1, 2, 3 + me], tf.int64))
w = tf.get_variable("w", [2], initializer=tf.ones_initializer())
loss = tf.reduce_sum(rows * w) + tf.reduce_sum(w * float(me + 1))
train = mxrec.minimize(loss, tf.train.GradientDescentOptimizer(0.5))
large = hccl_ops.allreduce(tf.fill([1 << 20], float(me + 1)), "sum")
with tf.Session() as sess:
  sess.run(tf.global_variables_initializer())
  for _ in range(3):
    sess.run(train)
  print("weights", sess.run(w).tolist(), "sum", float(sess.run(large)[-1]), "local", get_local_rank_size(), flush=True)
"""


@pytest.fixture(scope="module")
def machines():
  """Two names for `ip netns exec`, at ADDRESSES on an interface named mxcable."""
  names = [f"mxrec-test-{os.getpid()}-{number}" for number in range(2)]

  def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

  if shutil.which("ip") is None:
    pytest.skip("no `ip` on this machine (package iproute2)")
  try:
    for name in names:
      ip("netns", "add", name)
    ip("-n", names[0], "link", "add", "mxcable", "type", "veth", "peer", "name", "mxcable", "netns", names[1])
    for name, address in zip(names, ADDRESSES):
      ip("-n", name, "addr", "add", f"{address}/24", "dev", "mxcable")
      for device in ("lo", "mxcable"):
        ip("-n", name, "link", "set", device, "up")
    yield names
  except subprocess.CalledProcessError as error:
    pytest.skip(f"this machine allows no network namespaces: {error.stderr.strip()}")
  finally:
    for name in names:
      subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def run(machines, script, tmp_path, of_rank=None, **variables):
  """(exit code, output) of the ranks, one on each machine; of_rank: more variables of each."""
  secret = tmp_path / "secret"
  secret.write_text("only for this test")
  secret.chmod(0o600)
  children = []
  for rank, name in enumerate(machines):
    more = {"RANK_SIZE": "2", "RANK_ID": str(rank), "MXREC_CHIEF_ADDRESS": f"{ADDRESSES[0]}:4123", "MXREC_SECRET_FILE": str(secret)}
    more |= (
      {"MXREC_CONNECT_TIMEOUT": "40", "MXREC_STALL_ABORT": "20", "TF_CPP_MIN_LOG_LEVEL": "2"}
      | variables
      | (of_rank or [{}, {}])[rank]
    )
    command = ["ip", "netns", "exec", name, sys.executable, str(script)]
    env = environment(**{key: value for key, value in more.items() if value is not None})
    children.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env))
  try:
    return [(child.wait(DEADLINE), child.stdout.read()) for child in children]
  finally:
    for child in children:
      child.kill()
      child.stdout.close()
      child.wait()


@pytest.fixture
def script(tmp_path):
  path = tmp_path / "train.py"
  path.write_text(SCRIPT)
  return path


def assert_trained(outcome):
  lines = [re.search("weights .*", text) for _, text in outcome]
  assert [status for status, _ in outcome] == [0, 0] and all(lines), outcome
  # The sum of both means travelled; each rank is alone on its machine.
  assert lines[0].group() == lines[1].group() and lines[0].group().endswith("sum 3.0 local 1"), outcome


def needs_gloo():
  if not _loader.library_path().with_name("libmxrec_gloo.so").is_file():
    pytest.skip("this build has no gloo transport")


def test_g_29_the_same_script_runs_on_two_machines(machines, script, tmp_path):
  needs_gloo()
  assert_trained(run(machines, script, tmp_path))


def test_g_29_a_rank_table_says_where_the_machines_are(machines, script, tmp_path):
  needs_gloo()
  servers = [
    f'{{"server_id": "{address}", "device": [{{"device_id": "0", "device_ip": "{address}", "rank_id": "{rank}"}}]}}'
    for rank, address in enumerate(ADDRESSES)
  ]
  table = tmp_path / "table.json"
  table.write_text(f'{{"status": "completed", "version": "1.0", "server_count": "2", "server_list": [{", ".join(servers)}]}}')
  table.chmod(0o600)
  assert_trained(
    run(
      machines, script, tmp_path, RANK_TABLE_FILE=str(table), RANK_SIZE=None, MXREC_CHIEF_ADDRESS=None, HCCL_SOCKET_IFNAME="mxcable"
    )
  )


def test_a_wrong_interface_or_no_secret_is_refused_between_machines(machines, script, tmp_path):
  soon = {"MXREC_CONNECT_TIMEOUT": "5"}
  outcome = run(machines, script, tmp_path, HCCL_SOCKET_IFNAME="=lo", **soon)
  assert outcome[1][0] != 0 and "reaches no other machine" in outcome[1][1], outcome
  outcome = run(machines, script, tmp_path, MXREC_SECRET_FILE=None, **soon)
  assert all(status != 0 for status, _ in outcome) and "a secret is needed" in outcome[0][1], outcome


def test_a_cable_that_is_cut_ends_both_ranks_and_names_the_other(machines, tmp_path):
  needs_gloo()
  path = tmp_path / "train.py"
  path.write_text(
    SCRIPT
    + textwrap.dedent("""
      if me == 0:
        import subprocess
        subprocess.run(["ip", "link", "set", "mxcable", "down"], check=True)
      sess.run(large)
    """).replace("\n", "\n  ")
  )
  try:
    outcome = run(machines, path, tmp_path, MXREC_HEARTBEAT_TIMEOUT="4", MXREC_STALL_ABORT="8")
    for rank, (status, text) in enumerate(outcome):
      assert status not in (0, None) and re.search(rf"rank {1 - rank}\b", text), outcome
  finally:
    subprocess.run(["ip", "-n", machines[0], "link", "set", "mxcable", "up"], check=False)
