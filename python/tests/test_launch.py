"""`mxrec launch`: environment, output, exit codes, and that nothing is left behind. The scripts do without TensorFlow."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from mxrec import _launch, _world

LAUNCH = [sys.executable, "-m", "mxrec", "launch"]
DEADLINE = 60


@pytest.fixture
def script(tmp_path):
  """Writes a script; its name."""

  def write(text, name="script.py"):
    path = tmp_path / name
    path.write_text("import os, signal, subprocess, sys, time\nrank = int(os.environ.get('RANK_ID', -1))\n" + textwrap.dedent(text))
    return str(path)

  return write


def environment(**more):
  """That of the tests, without ranks."""
  return {**{name: value for name, value in os.environ.items() if not _launch._STALE.fullmatch(name)}, **more}


def launch(*words, **options):
  options.setdefault("env", environment())
  return subprocess.run([*LAUNCH, *map(str, words)], capture_output=True, text=True, timeout=DEADLINE, check=False, **options)


def start(*words, **options):
  return subprocess.Popen(
    [*LAUNCH, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), **options
  )


def wait_for(path, count=1):
  """The numbers that processes wrote into files below a folder, once there are that many."""
  end = time.monotonic() + DEADLINE
  while time.monotonic() < end:
    found = [file.read_text() for file in pathlib.Path(path).glob("pid.*")]
    if len(found) >= count and all(found):
      return [int(number) for number in found]
    time.sleep(0.02)
  raise AssertionError(f"{path}: processes did not start in time")


def gone(pids, seconds):
  """Whether all processes end in time; one that nobody has waited for yet counts as ended."""
  end = time.monotonic() + seconds
  while any(alive(pid) for pid in pids):
    if time.monotonic() > end:
      return False
    time.sleep(0.02)
  return True


def alive(pid):
  try:
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
  except OSError:
    return False


NOTE = "open(os.path.join(os.path.dirname(__file__), f'pid.{os.getpid()}'), 'w').write(str(os.getpid()))\n"
WITH_CHILD = NOTE + "child = subprocess.Popen(['sleep', '1000'])\n" + NOTE.replace("os.getpid()", "child.pid")


# What a rank finds


def test_ranks_find_each_other_through_their_environment(script, monkeypatch):
  result = launch("-np", "3", script("import json\nprint(json.dumps(dict(os.environ)))"), "--batch", "4")
  assert result.returncode == 0, result.stderr
  lines = sorted(result.stdout.splitlines())
  assert [line[:4] for line in lines] == ["[0] ", "[1] ", "[2] "]
  found = [json.loads(line[4:]) for line in lines]
  worlds = [_world.find(env) for env in found]
  assert [(world.rank, world.size, world.local_rank, world.local_size) for world in worlds] == [(i, 3, i, 3) for i in range(3)]
  assert len({(world.store_path, world.secret, world.job) for world in worlds}) == 1
  assert len(worlds[0].secret) == 64 and not pathlib.Path(worlds[0].store_path).parent.exists()
  assert worlds[0].missing == "" and found[2]["ASCEND_DEVICE_ID"] == "2"


def test_what_an_earlier_start_left_is_not_passed_on(script):
  left = {"RANK_TABLE_FILE": "/nowhere", "OMPI_COMM_WORLD_SIZE": "7", "CM_WORKER_SIZE": "9", "MXREC_CHIEF_ADDRESS": "a:1"}
  text = f"print([name for name in {list(left)} if name in os.environ])"
  result = launch("-np", "1", script(text), env=environment(**left))
  assert result.stdout == "[0] []\n", result.stderr


def test_cores_are_divided_among_the_ranks_of_a_machine(script):
  program = script("print(*(os.environ.get(n) for n in ('OMP_NUM_THREADS', 'TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS')))")
  each = max(1, len(os.sched_getaffinity(0)) // 2)
  assert launch("-np", "2", program).stdout.count(f"{each} {each} {max(2, each)}\n") == 2
  assert launch("-np", "1", "--threads", "5", program).stdout == "[0] 5 5 5\n"
  assert launch("-np", "1", "--threads", "0", program).stdout == "[0] None None None\n"
  mine = environment(OMP_NUM_THREADS="9")
  assert launch("-np", "2", program, env=mine).stdout.count(f"9 {each} {max(2, each)}\n") == 2


def test_options_become_variables(script, tmp_path):
  names = ("MXREC_TRANSPORT", "MXREC_TIMELINE", "HCCL_SOCKET_IFNAME", "MXREC_CONNECT_TIMEOUT", "MXREC_SECRET", "MXREC_SECRET_FILE")
  program = script(f"print(*(os.environ.get(name) for name in {names}))")
  secret = tmp_path / "secret"
  secret.write_text("word")
  secret.chmod(0o600)
  result = launch(
    *("-np", "1", "--transport", "shm", "--timeline", "t.json", "--network-interface", "lo", "--start-timeout", "7.5"),
    *("--secret-file", "secret", program),
    cwd=tmp_path,
  )
  assert result.stdout == f"[0] shm {tmp_path}/t.json lo 7.5 None {secret}\n", result.stderr
  secret.chmod(0o644)
  result = launch("-np", "1", "--secret-file", secret, program)
  assert result.returncode == 2 and "chmod 600" in result.stderr


# What is run


def test_scripts_modules_and_commands_are_run(script, tmp_path):
  program = script("print(sys.argv[1:], sys.flags.optimize)")
  (tmp_path / "some_module.py").write_text("import sys\nprint('module', sys.argv[1:])\n")
  assert launch("-np", "1", program, "-np", "3", "-m").stdout == "[0] ['-np', '3', '-m'] 0\n"
  assert launch("-np", "1", "--", program, "a").stdout == "[0] ['a'] 0\n"
  assert launch("-np", "1", sys.executable, "-O", program, "-m").stdout == "[0] ['-m'] 1\n"
  assert launch("-np", "1", "python3.7", program).stdout == "[0] [] 0\n"
  assert launch("-np", "1", "-m", "some_module", "-x", cwd=tmp_path).stdout == "[0] module ['-x']\n"
  assert sorted(launch("-np", "2", "echo", "hello").stdout.splitlines()) == ["[0] hello", "[1] hello"]


def test_a_script_of_mxrec_run_is_run(script):
  result = launch("-np", "2", "mxrec", "run", "--quiet", script("print('rank', rank, sys.argv[1:])"), "x")
  assert sorted(result.stdout.splitlines()) == ["[0] rank 0 ['x']", "[1] rank 1 ['x']"], result.stderr


def test_a_call_as_horovodrun_takes_it(script):
  program = script("print(rank)")
  words = "-np 2 -H localhost:2 --network-interface lo --cycle-time-ms 1 --fusion-threshold-mb 32 --no-stall-check --gloo"
  result = launch(*words.split(), "--mpi-args", "-bind-to none", "python3.7", program)
  assert sorted(result.stdout.splitlines()) == ["[0] 0", "[1] 1"], result.stderr
  assert launch("--version").stdout.startswith("mxrec ")


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_mpirun_starts_the_ranks_on_request(script, tmp_path):
  program = script(
    """
    from mxrec import _world
    found = _world.find()
    print("  world", found.rank, found.size, found.local_rank, found.local_size, found.missing)
    for letter in "part\\n":
      sys.stdout.write(letter)
      sys.stdout.flush()
    if found.rank == 1 and len(sys.argv) > 1:
      sys.exit(9)
    """
  )
  starter = [sys.executable, "-c", f"import sys; sys.argv[0] = 'mxrec'; exec(open({program!r}).read())"]
  result = launch("-np", "2", "--mpi", "--mpi-args", "-bind-to none", "--output-filename", tmp_path / "out", *starter)
  expected = ["[0]   world 0 2 0 2 ", "[0] part", "[1]   world 1 2 1 2 ", "[1] part"]
  assert sorted(result.stdout.splitlines()) == expected, result.stderr
  assert (tmp_path / "out/rank.1/stdout").read_text() == "  world 1 2 1 2 \npart\n"
  assert launch("-np", "2", "--mpi", *starter, "x").returncode == 9


# Output


def test_lines_of_ranks_are_never_mixed(script):
  program = script(
    """
    for number in range(200):
      stream = sys.stderr if number % 3 == 0 else sys.stdout
      for piece in range(10):
        stream.write(f"{rank}" * 100)
        stream.flush()
      stream.write("\\n")
      stream.flush()
    """
  )
  result = launch("-np", "3", program)
  lines = result.stdout.splitlines() + result.stderr.splitlines()
  assert sorted(lines) == sorted(f"[{rank}] " + str(rank) * 1000 for rank in range(3) for _ in range(200))


def test_ends_of_lines_and_of_output(script, tmp_path):
  program = script(r"sys.stdout.write('a\r\n\rstep 1\rstep 2\n\nlast' + 'x' * 300000 + '\n' + 'no end')")
  result = launch("-np", "1", "--no-prefix", "--output-filename", tmp_path / "out", program)
  lines = result.stdout.split("\n")
  assert lines[:5] == ["a", "", "step 1", "step 2", ""] and lines[-2:] == ["no end", ""]
  assert len(lines) > 9 and "".join(lines[5:-2]) == "last" + "x" * 300000  # cut, so that no line takes all memory
  assert (tmp_path / "out/rank.0/stdout").read_text() == result.stdout


def test_rank_0_has_the_standard_input(script):
  result = launch("-np", "2", script("print(repr(sys.stdin.read()))"), input="text")
  assert sorted(result.stdout.splitlines()) == ["[0] 'text'", "[1] ''"]


# Ends


def test_the_exit_code_is_that_of_the_first_rank_that_failed(script):
  program = script("if rank == 2: sys.exit(7)\ntry: time.sleep(1000)\nexcept BaseException: sys.exit(3)")
  begin = time.monotonic()
  result = launch("-np", "3", "--linger", "0.2", program)
  assert result.returncode == 7 and time.monotonic() - begin < 20
  assert "rank 2 ended with exit code 7; ending rank 0, rank 1" in result.stderr


def test_a_rank_that_ends_well_ends_nobody(script):
  result = launch("-np", "2", script("time.sleep(rank * 0.5)\nprint('done')"))
  assert result.returncode == 0 and result.stdout.count("done") == 2


def test_a_killed_rank_ends_all_and_the_others_may_say_why(script, tmp_path):
  program = script(NOTE + "if rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(0.5)\nprint('rank 1 is gone')\nsys.exit(5)")
  result = launch("-np", "2", program)
  assert result.returncode == 128 + 9
  assert "rank 1 was ended by SIGKILL" in result.stderr and "[0] rank 1 is gone" in result.stdout


def test_what_ignores_sigterm_is_killed_after_the_grace(script, tmp_path):
  program = script(
    "signal.signal(15, signal.SIG_IGN)\n" + WITH_CHILD + "import glob\n"
    "while rank == 0 and len(glob.glob(os.path.dirname(__file__) + '/pid.*')) < 4: time.sleep(0.02)\n"
    "if rank == 0: sys.exit(4)\nwhile True: time.sleep(1)"
  )
  begin = time.monotonic()
  result = launch("-np", "2", "--linger", "0", "--grace", "0.5", program)
  assert result.returncode == 4 and "SIGKILL for rank 1" in result.stderr and time.monotonic() - begin < 20
  assert gone(wait_for(tmp_path, 4), 5)


def test_children_of_ranks_end_with_them(script, tmp_path):
  result = launch("-np", "2", script(WITH_CHILD))
  assert result.returncode == 0
  assert gone(wait_for(tmp_path, 4), 5)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_launcher_reaches_all_ranks(script, tmp_path, number, code):
  program = script(
    "import atexit\n" + WITH_CHILD + "try:\n  time.sleep(1000)\nexcept KeyboardInterrupt:\n  print('interrupted')\n  raise"
  )
  process = start("-np", "2", "--grace", "5", program)
  pids = wait_for(tmp_path, 4)
  time.sleep(0.2)
  process.send_signal(number)
  out, error = process.communicate(timeout=DEADLINE)
  assert process.returncode == code, error
  assert gone(pids, 1)
  assert out.count("interrupted") == (2 if number == signal.SIGINT else 0)


def test_a_second_interrupt_kills(script, tmp_path):
  program = script("signal.signal(2, signal.SIG_IGN)\n" + NOTE + "time.sleep(1000)")
  process = start("-np", "2", "--grace", "1000", program)
  pids = wait_for(tmp_path, 2)
  process.send_signal(signal.SIGINT)
  time.sleep(0.5)
  assert process.poll() is None
  process.send_signal(signal.SIGINT)
  process.communicate(timeout=10)
  assert process.returncode == 130 and gone(pids, 1)


def test_nothing_outlives_a_killed_launcher(script, tmp_path):
  program = script("signal.signal(15, signal.SIG_IGN)\n" + WITH_CHILD + "print(os.environ['MXREC_STORE_PATH'])\ntime.sleep(1000)")
  process = start("-np", "2", "--grace", "0.5", program)
  store = process.stdout.readline().split()[1]
  pids = wait_for(tmp_path, 4)
  process.kill()
  process.communicate(timeout=DEADLINE)
  assert gone(pids, 10)
  end = time.monotonic() + 10
  while pathlib.Path(store).parent.exists() and time.monotonic() < end:
    time.sleep(0.05)
  assert not pathlib.Path(store).parent.exists()


def test_ranks_go_on_when_nobody_reads_their_output(script, tmp_path):
  program = script("for _ in range(20000): print('x' * 50)\nopen(sys.argv[1], 'w').write('done')")
  reader, writer = os.pipe()
  process = subprocess.Popen([*LAUNCH, "-np", "1", program, str(tmp_path / "end")], stdout=writer, env=environment())
  os.close(writer)
  os.read(reader, 100)
  os.close(reader)
  assert process.wait(timeout=DEADLINE) == 0
  assert (tmp_path / "end").read_text() == "done"


# Wrong calls


@pytest.mark.parametrize(
  "words, text",
  [
    (["-np", "2"], "there is no script"),
    (["x.py"], "-np is needed"),
    (["-np", "0", "x.py"], "-np must be 1 to 32768: got 0"),
    (["-np", "3", "-H", "localhost:2", "x.py"], "-np 3 asks for more ranks than the 2 that localhost:2 can take"),
    (["-np", "2", "-H", "a:2,a:1", "x.py"], "names a twice"),
    (["-np", "2", "-H", "a;b", "x.py"], "--hosts must be machines with their ranks"),
    (["-np", "2", "-H", "a:0", "x.py"], "at least one rank"),
    (["-np", "2", "--hostfile", "/nowhere", "x.py"], "--hostfile /nowhere cannot be read"),
    (["-np", "2", "/nowhere/x.py"], "can't open file '/nowhere/x.py'"),
    (["-np", "2", "no_such_command"], "no_such_command: no such script or command"),
    (["-np", "2", "--horovod", "echo", "x"], "--horovod goes with a Python script"),
    (["-np", "2", "--mpi", "--gloo", "x.py"], "exclude each other"),
    (["-np", "2", "--min-np", "1", "x.py"], "no elastic training"),
    (["-np", "2", "--grace", "-1", "x.py"], "--grace must be 0 to 86400 seconds"),
    (["-np", "2", "--threads", "-1", "x.py"], "--threads must be 0"),
    (["-np", "2", "--fusion-threshold-mb", "x", "echo"], "--fusion-threshold-mb must be a number"),
    (["-np", "two", "x.py"], "invalid int value"),
  ],
)
def test_wrong_calls_are_refused_with_exit_code_2(words, text, capsys):
  try:
    code = _launch.main(words)
  except SystemExit as error:
    code = error.code
  assert code == 2
  assert text in capsys.readouterr().err


def test_slots_are_filled_in_order():
  ranks = _launch.plan(4, [("a", 2), ("b", 1), ("c", 3)])
  assert [(r.rank, r.host, r.local_rank, r.local_size, r.cross_rank, r.cross_size) for r in ranks] == [
    (0, "a", 0, 2, 0, 3),
    (1, "a", 1, 2, 0, 3),
    (2, "b", 0, 1, 1, 3),
    (3, "c", 0, 1, 2, 3),
  ]
  assert len(_launch.plan(None, [("a", 2), ("b", 1)])) == 3
  assert _launch.parse_hosts("a:2,[::1]:3,b.c-d") == [("a", 2), ("::1", 3), ("b.c-d", 1)]


def test_a_host_file_has_a_machine_a_line(tmp_path, capsys):
  path = tmp_path / "hosts"
  path.write_text("# machines\na slots=2\n\nb:3  # more\nc\n")
  options = _launch.parser().parse_args(["--hostfile", str(path), "x.py"])
  assert _launch._hosts(options) == [("a", 2), ("b", 3), ("c", 1)]
  path.write_text("a slots=many\n")
  assert _launch.main(["-np", "1", "--hostfile", str(path), "x.py"]) == 2
  assert "line 1: expected 'host slots=N', found 'a slots=many'" in capsys.readouterr().err


def test_other_machines_need_mpirun_or_ssh(script, tmp_path):
  result = launch("-np", "2", "-H", "localhost:1,192.0.2.77:1", script(""), env=environment(PATH=str(tmp_path)))
  assert result.returncode == 2
  assert "ranks on 192.0.2.77 need mpirun or ssh, and neither is on the PATH" in result.stderr
  result = launch("-np", "2", "--mpi", script(""), env=environment(PATH=str(tmp_path)))
  assert result.returncode == 2 and "--mpi needs mpirun, which is not on the PATH" in result.stderr


# Other machines, which an `ssh` that stays here stands for


@pytest.fixture
def ssh(tmp_path):
  folder = tmp_path / "bin"
  folder.mkdir()
  skip = 'while [ "$1" != other ]; do shift; done\nshift\n'
  (folder / "ssh").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{skip}setsid -w sh -c "$*"\n')
  (folder / "ssh").chmod(0o755)
  return environment(PATH=f"{folder}:{os.environ['PATH']}")


def test_ssh_starts_ranks_elsewhere_and_tells_nobody_the_secret(script, ssh, tmp_path):
  program = script(
    """
    sys.argv[0] = "mxrec"
    from mxrec import _world
    found = _world.find()
    print(found.rank, found.size, found.local_rank, found.local_size, found.cross_rank, found.cross_size, found.missing)
    print(found.secret, found.chief_host, found.chief_port, os.getcwd(), file=sys.stderr)
    """
  )
  words = ["--gloo", "-np", "3", "-H", "localhost:1,other:2", "--network-interface", "lo", "-p", "22", program]
  result = launch(*words, env={**ssh, "MXREC_SECRET": "word"}, cwd=tmp_path)
  assert sorted(result.stdout.splitlines()) == ["[0] 0 3 0 1 0 2 ", "[1] 1 3 0 2 1 2 ", "[2] 2 3 1 2 1 2 "], result.stderr
  seen = {line.partition(" ")[2] for line in result.stderr.splitlines()}
  assert len(seen) == 1 and seen.pop().startswith("word 127.0.0.1 ")
  calls = (tmp_path / "calls").read_text()
  assert calls.count("other") == 2 and "word" not in calls and "-p 22" in calls


def test_mpirun_gets_what_ssh_needs(script, ssh, tmp_path):
  mpirun = tmp_path / "bin" / "mpirun"
  mpirun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
  mpirun.chmod(0o755)
  words = ["-np", "2", "-H", "localhost:1,other:1", "--network-interface", "lo", "-p", "22", "-i", "key", script("")]
  result = launch(*words, env={**ssh, "MXREC_SECRET": "word"}, cwd=tmp_path)
  lines = result.stdout.splitlines()
  found = lines[lines.index("plm_rsh_args") + 1].split()
  assert found[found.index("-p") + 1] == "22" and found[found.index("-i") + 1] == str(tmp_path / "key"), result.stderr
  assert "BatchMode=yes" in found and "word" not in result.stdout


def test_horovods_variables_count_the_machines_that_have_such_a_rank(script, ssh, tmp_path):
  names = ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "MXREC_CROSS_RANK")
  program = script(f"print(*(os.environ[name] for name in {names}))")
  words = ["--gloo", "--horovod", "-H", "localhost:1,other:2", "--network-interface", "lo", program]
  result = launch(*words, env={**ssh, "MXREC_SECRET": "word"})
  assert sorted(result.stdout.splitlines()) == ["[0] 0 1 0 2 0", "[1] 0 2 1 2 1", "[2] 1 2 0 1 1"], result.stderr


def test_an_interface_that_is_not_there_is_named_with_the_option(script, ssh):
  result = launch("-H", "localhost:1,other:1", "--network-interface", "wrong9", script(""), env=ssh)
  assert result.returncode == 2 and "mxrec launch: --network-interface is 'wrong9', but no network" in result.stderr


def test_ranks_elsewhere_end_with_the_launcher_and_pass_on_their_exit_code(script, ssh, tmp_path):
  program = script(
    WITH_CHILD + "if rank == 1 and sys.argv[1:]:\n  if sys.argv[1] == 'x': sys.exit(6)\n  os.kill(os.getpid(), 9)\ntime.sleep(1000)"
  )
  words = ["--gloo", "-np", "2", "-H", "localhost:1,other:1", "--network-interface", "lo", "--linger", "0", "--grace", "3", program]
  assert launch(*words, "x", env=ssh).returncode == 6
  assert gone(wait_for(tmp_path, 4), 15)
  result = launch(*words, "kill", env=ssh)
  assert result.returncode == 137 and "rank 1 was ended by SIGKILL; ending rank 0" in result.stderr, result.stderr
  for file in tmp_path.glob("pid.*"):
    file.unlink()
  process = subprocess.Popen([*LAUNCH, *words], env=ssh, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  pids = wait_for(tmp_path, 4)
  process.kill()
  process.wait(timeout=DEADLINE)
  assert gone(pids, 15)
