"""`mxrec launch`: what is to be started, where, and with which environment. _launch_ranks.py starts it and looks after it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence

from mxrec import _environment, _launch_ranks
from mxrec._version import __version__

EXAMPLES = """\
examples:
  mxrec launch -np 2 train.py --batch 256            two ranks on this machine, as `python train.py --batch 256`
  mxrec launch -np 2 mxrec run train.py              the same for a script of TensorFlow 1
  mxrec launch -np 2 --horovod train.py              `import horovod.tensorflow` is mxrec.horovod in it
  mxrec launch -np 4 --hosts a:2,b:2 train.py        two ranks on each of two machines, through mpirun or ssh
  mxrec launch -np 2 --timeline trace.json train.py  a trace of the collectives, for chrome://tracing

Options of mxrec come before the script. Each line of output carries its rank. The first rank that fails ends all, and its exit
code is that of this command. Calls as horovodrun takes them are understood: -H localhost:2 --mpi --network-interface lo python x.py
"""

# What an earlier start, or a start around this one, left in the environment.
_STALE = re.compile(
  r"RANK_TABLE_FILE|RANK_ID|RANK_SIZE|CM_\w+|OMPI_\w+|PMIX_\w+|PMI_\w+|MPI_LOCAL(RANKID|NRANKS)|MXREC_(STORE_PATH|CHIEF_ADDRESS|JOB)"
  r"|MXREC_(LOCAL|CROSS)_(RANK|SIZE)|HOROVOD_(LOCAL_|CROSS_)?(RANK|SIZE)"
)
_EXPORTED = re.compile(
  r"MXREC_\w+|HCCL_\w+|HOROVOD_\w+|TF_\w+|ASCEND_\w+|PYTHON\w+|OMP_NUM_THREADS|PATH|LD_LIBRARY_PATH|JOB_ID|CUDA_VISIBLE_DEVICES"
)
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_PYTHON_VALUES = ("-X", "-W", "--check-hash-based-pycs")
_ELASTIC = ("min_np", "max_np", "host_discovery_script", "slots_per_host", "reset_limit", "elastic_timeout")


class CannotLaunch(Exception):
  """There is nothing to start; the text says why."""


@dataclasses.dataclass(frozen=True)
class Rank:
  """One process to start."""

  rank: int
  host: str
  local_rank: int
  local_size: int
  cross_rank: int
  cross_size: int


def parser() -> argparse.ArgumentParser:
  """The options of `mxrec launch`; those of horovodrun that say nothing here are taken and ignored."""
  made = argparse.ArgumentParser(
    prog="mxrec launch",
    description="Start a script several times, as the ranks of one training.",
    epilog=EXAMPLES,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
    usage="mxrec launch -np N [options] [python | mxrec run] script.py [args]",
  )
  add = made.add_argument
  add("-np", "-n", "--np", "--num-proc", dest="np", type=int, metavar="N", help="number of ranks (default: the slots of --hosts)")
  add("-H", "--hosts", "-hosts", metavar="A:2,B:2", help="machines and how many ranks each takes (default: this machine)")
  add("-hostfile", "--hostfile", metavar="FILE", help='machines, one a line: "a slots=2"')
  add("--transport", choices=("auto", "shm", "gloo", "mpi"), help="what carries the collectives (default auto)")
  add("--timeline", "--timeline-filename", metavar="FILE", help="rank 0 writes a trace there; every rank, with {rank} in the name")
  add("--secret-file", metavar="FILE", help="a file with the secret that ranks show each other (default: a random one)")
  add("--horovod", action="store_true", help="`import horovod` in the script is mxrec.horovod")
  add(
    "--threads",
    type=int,
    metavar="N",
    help="threads of a rank (default: this machine's cores over its ranks; 0: unchanged)",
  )
  add("--network-interface", "--network-interfaces", "--nics", dest="nics", metavar="IF", help="interface between the ranks")
  add("--start-timeout", type=float, metavar="S", help="seconds that ranks wait for each other at the start (default 120)")
  add("--linger", type=float, default=2.0, metavar="S", help="after a failure, seconds the others have to say why (default 2)")
  add("--grace", type=float, default=10.0, metavar="S", help="seconds between SIGTERM and SIGKILL (default 10)")
  add("--output-filename", metavar="FOLDER", help="also write each rank's output to FOLDER/rank.N/stdout and stderr")
  add("--no-prefix", action="store_true", help="lines of output as they are")
  add("--mpi", action="store_true", help="start the ranks through mpirun")
  add("--gloo", action="store_true", help="start the ranks without mpirun")
  add("--mpi-args", default="", metavar="ARGS", help='further arguments of mpirun, in one word: --mpi-args="..."')
  add("-p", "--ssh-port", type=int, metavar="PORT", help="port of ssh")
  add("-i", "--ssh-identity-file", metavar="FILE", help="key of ssh")
  add("-m", dest="module", metavar="MODULE", help="run a module instead of a script")
  add("--verbose", action="store_true", help="say what is started")
  add("--version", action="version", version=f"mxrec {__version__}")
  for name, variable in _VARIABLES.items():
    add(name, dest=variable, metavar="V", help=argparse.SUPPRESS)
  add("--no-stall-check", action="store_true", help=argparse.SUPPRESS)
  for name in _IGNORED:
    add(name, dest="ignored", action="append", metavar="V", help=argparse.SUPPRESS)
  for name in _IGNORED_SWITCHES:
    add(name, dest="ignored", action="append_const", const=name, help=argparse.SUPPRESS)
  for name in _ELASTIC:
    add("--" + name.replace("_", "-"), dest=name, help=argparse.SUPPRESS)
  add("command", nargs=argparse.REMAINDER, help="the script, or a command, and its arguments")
  return made


# Options of horovodrun: those that become variables, and those that tune what does not exist here.
_VARIABLES = {
  "--fusion-threshold-mb": "HOROVOD_FUSION_THRESHOLD",
  "--stall-check-warning-time-seconds": "MXREC_STALL_WARNING",
  "--stall-check-shutdown-time-seconds": "MXREC_STALL_ABORT",
}
_IGNORED = (
  "--cycle-time-ms",
  "--cache-capacity",
  "--num-nccl-streams",
  "--thread-affinity",
  "--log-level",
  "--binding-args",
  "--autotune-log-file",
  "--autotune-warmup-samples",
)
_IGNORED_SWITCHES = (
  "--disable-cache",
  "--autotune",
  "--hierarchical-allreduce",
  "--hierarchical-allgather",
  "--timeline-mark-cycles",
  "--prefix-output-with-timestamp",
  "--tcp",
  "--log-with-timestamp",
  "--log-without-timestamp",
  "--log-hide-timestamp",
)


def main(argv: Sequence[str]) -> int:
  """Runs `mxrec launch` with these arguments and returns its exit code."""
  if list(argv) == [_launch_ranks.GUARD]:
    return _launch_ranks.guard()
  made = parser()
  module: list[str] = []
  words = list(argv)
  if "-m" in words:  # after it everything belongs to the module
    cut = words.index("-m")
    before, _ = made.parse_known_args(words[:cut])
    if not before.command:
      words, module = words[:cut], words[cut + 1 :]
      if not module:
        made.error("-m needs a module")
  options = made.parse_args(words)
  command = [*(["-m", *module] if module else options.command)]
  if command[:1] == ["--"]:
    del command[0]
  try:
    if not command:
      raise CannotLaunch("there is no script: mxrec launch -np 2 script.py")
    return _launch(options, command)
  except (CannotLaunch, ValueError) as error:
    print(f"mxrec launch: {error}", file=sys.stderr)
    return 2


def _launch(options: argparse.Namespace, command: list[str]) -> int:
  elastic = [name for name in _ELASTIC if getattr(options, name) is not None]
  if elastic:
    raise CannotLaunch(f"--{elastic[0].replace('_', '-')}: the number of ranks is fixed from the start (no elastic training)")
  if options.np is not None and not 1 <= options.np <= _environment.MAX_RANKS:
    raise CannotLaunch(f"-np must be 1 to {_environment.MAX_RANKS}: got {options.np}")
  for name in ("linger", "grace"):
    if not 0 <= getattr(options, name) <= 86400:
      raise CannotLaunch(f"--{name} must be 0 to 86400 seconds: got {getattr(options, name):g}")
  if options.threads is not None and not 0 <= options.threads <= 1 << 16:
    raise CannotLaunch(f"--threads must be 0 to {1 << 16}: got {options.threads}")
  if options.mpi and options.gloo:
    raise CannotLaunch("--mpi and --gloo exclude each other")
  ranks = plan(options.np, _hosts(options))
  remote = sorted({rank.host for rank in ranks if not is_here(rank.host)})
  command = python_command(command, options.horovod)
  if options.verbose:
    print(f"mxrec launch: {len(ranks)} ranks of: {shlex.join(command)}", file=sys.stderr)
  folder = pathlib.Path(tempfile.mkdtemp(prefix="mxrec-launch-"))
  try:
    common = _common_environment(options, folder, ranks, remote)
    watch = _launch_ranks.Settings(
      linger=options.linger,
      grace=options.grace,
      prefix=not options.no_prefix,
      output_folder=options.output_filename,
      private_folder=str(folder),
      verbose=options.verbose,
    )
    if _use_mpirun(options, remote):
      starts = [_mpirun_start(options, ranks, remote, command, common)]
    else:
      starts = [_start(options, rank, command, {**common, **_rank_environment(options, rank, ranks)}) for rank in ranks]
    return _launch_ranks.run(starts, watch)
  finally:
    shutil.rmtree(folder, ignore_errors=True)


# What and where


def _hosts(options: argparse.Namespace) -> list[tuple[str, int]]:
  """(machine, slots); slots 0: as many as are wanted."""
  if options.hosts and options.hostfile:
    raise CannotLaunch("--hosts and --hostfile exclude each other")
  if options.hosts:
    return parse_hosts(options.hosts)
  if not options.hostfile:
    return [("localhost", 0)]
  try:
    lines = pathlib.Path(options.hostfile).read_text(encoding="utf-8").splitlines()
  except OSError as error:
    raise CannotLaunch(f"--hostfile {options.hostfile} cannot be read: {error.strerror}") from error
  found = []
  for number, line in enumerate(lines, 1):
    line = line.partition("#")[0].strip()
    if not line:
      continue
    match = re.fullmatch(r"(\S+?)(?:\s+slots\s*=\s*(\d{1,5})|:(\d{1,5}))?", line)
    if match is None:
      raise CannotLaunch(f"--hostfile {options.hostfile}, line {number}: expected 'host slots=N', found {line!r}")
    found.append((match[1], int(match[2] or match[3] or 1)))
  return _checked_hosts(found, f"--hostfile {options.hostfile}")


def parse_hosts(text: str) -> list[tuple[str, int]]:
  """[("a", 2), ("b", 1)] of "a:2,b"; CannotLaunch when it is of another form."""
  found = []
  for part in text.split(","):
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?", part.strip())
    if match is None:
      raise CannotLaunch(f"--hosts must be machines with their ranks, a:2,b:2: got {text!r}")
    found.append((match[1].strip("[]"), int(match[2] or 1)))
  return _checked_hosts(found, "--hosts")


def _checked_hosts(found: list[tuple[str, int]], source: str) -> list[tuple[str, int]]:
  names = [host for host, _ in found]
  if not found:
    raise CannotLaunch(f"{source} names no machine")
  if len(set(names)) < len(names):
    raise CannotLaunch(f"{source} names {next(name for name in names if names.count(name) > 1)} twice")
  if any(slots < 1 for _, slots in found):
    raise CannotLaunch(f"{source}: a machine needs at least one rank")
  return found


def plan(np: int | None, hosts: list[tuple[str, int]]) -> list[Rank]:
  """The ranks on their machines, filled in order; CannotLaunch when there are too few slots."""
  if np is None:
    np = sum(slots for _, slots in hosts)
    if not np:
      raise CannotLaunch("-np is needed: the number of ranks")
  if hosts == [("localhost", 0)]:
    hosts = [("localhost", np)]
  slots = sum(count for _, count in hosts)
  if np > slots:
    raise CannotLaunch(f"-np {np} asks for more ranks than the {slots} that {', '.join(f'{h}:{n}' for h, n in hosts)} can take")
  counts = []
  left = np
  for host, count in hosts:
    if left:
      counts.append((host, min(count, left)))
      left -= counts[-1][1]
  ranks: list[Rank] = []
  for cross_rank, (host, count) in enumerate(counts):
    ranks += [Rank(len(ranks) + index, host, index, count, cross_rank, len(counts)) for index in range(count)]
  return ranks


def is_here(host: str) -> bool:
  """Whether a name or address of --hosts is this machine."""
  if _environment.is_loopback(host) or host in (socket.gethostname(), socket.gethostname().partition(".")[0]):
    return True
  return host in _environment.interfaces().values()


def python_command(words: list[str], horovod: bool) -> list[str]:
  """The command of a rank: other commands than Python are left as they are.

  A script or module goes to the Python that runs this, as do `python`, `python3` and `python3.7` without a path: another one would
  not have mxrec.

  Raises:
    CannotLaunch: there is no such script or command; `horovod` with a command that is not Python.
  """
  first = words[0]
  mine = [sys.executable, "-m", "mxrec"]
  if first == "mxrec":
    if horovod and words[1:2] == ["run"] and "--horovod" not in words:
      return [*mine, "run", "--horovod", *words[2:]]
    if horovod and words[1:2] != ["run"]:
      raise CannotLaunch("--horovod goes with a script, or with mxrec run")
    return [*mine, *words[1:]]
  interpreter = [sys.executable]
  if _PYTHON.fullmatch(os.path.basename(first)):
    if os.sep in first:
      if shutil.which(first) is None:
        raise CannotLaunch(f"{first}: no such interpreter")
      interpreter = [first]
    words = words[1:]
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
      count = 2 if words[0] in _PYTHON_VALUES else 1
      interpreter += words[:count]
      words = words[count:]
    if not words:
      raise CannotLaunch("there is no script: mxrec launch -np 2 script.py")
  elif first != "-m":
    is_file = os.path.isfile(first)
    if not (first.endswith(".py") or (is_file and not os.access(first, os.X_OK))):
      if horovod:
        raise CannotLaunch(f"--horovod goes with a Python script: {first} is none")
      if not shutil.which(first):
        raise CannotLaunch(f"{first}: no such script or command")
      return words
  if words[0].endswith(".py") and not os.path.isfile(words[0]):
    raise CannotLaunch(f"can't open file '{os.path.abspath(words[0])}': no such file")
  if horovod:
    if words[0] in ("-c", "-"):
      raise CannotLaunch(f"--horovod goes with a script or a module, not with {words[0]}")
    return [*interpreter, "-m", "mxrec", "run", "--plain", "--horovod", *words]
  return [*interpreter, *words]


# Environment


def _common_environment(options: argparse.Namespace, folder: pathlib.Path, ranks: list[Rank], remote: list[str]) -> dict[str, str]:
  """What all ranks get. Where the ranks meet is a store on one machine, the address of rank 0 otherwise."""
  environment = {name: value for name, value in os.environ.items() if not _STALE.fullmatch(name)}
  environment["MXREC_JOB"] = secrets.token_hex(8)
  if options.secret_file:
    environment.pop("MXREC_SECRET", None)
    environment["MXREC_SECRET_FILE"] = os.path.abspath(options.secret_file)
  if not _environment.secret(environment, "MXREC_SECRET", "MXREC_SECRET_FILE"):
    environment["MXREC_SECRET"] = secrets.token_hex(32)
  if options.nics:
    environment["HCCL_SOCKET_IFNAME"] = options.nics
  if options.transport:
    environment["MXREC_TRANSPORT"] = options.transport
  if options.start_timeout is not None:
    environment["MXREC_CONNECT_TIMEOUT"] = f"{options.start_timeout:g}"
  for variable in _VARIABLES.values():
    value = getattr(options, variable)
    if value is not None:
      environment[variable] = value
  if options.HOROVOD_FUSION_THRESHOLD is not None:
    try:
      environment["HOROVOD_FUSION_THRESHOLD"] = str(int(float(options.HOROVOD_FUSION_THRESHOLD) * (1 << 20)))
    except ValueError:
      raise CannotLaunch(f"--fusion-threshold-mb must be a number: got {options.HOROVOD_FUSION_THRESHOLD!r}") from None
  if options.no_stall_check:
    environment["MXREC_STALL_WARNING"] = environment["MXREC_STALL_ABORT"] = "0"
  if options.timeline:
    environment["MXREC_TIMELINE"] = os.path.abspath(options.timeline)
  environment.setdefault("PYTHONUNBUFFERED", "1")
  if not remote:
    environment["MXREC_STORE_PATH"] = str(folder / "store")
  else:
    environment["MXREC_CHIEF_ADDRESS"] = _chief_address(options, ranks[0].host, remote)
  return environment


def _chief_address(options: argparse.Namespace, first: str, remote: list[str]) -> str:
  """host:port of rank 0, as the other machines reach it."""
  host = first
  if is_here(first):
    if options.nics:
      host = _environment.interface_address("--network-interface", options.nics)
    elif _environment.is_loopback(first):
      with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing: asks the routes
        try:
          probe.connect((remote[0], 9))
        except OSError as error:
          raise CannotLaunch(f"no way to {remote[0]}: {error.strerror}") from error
        host = probe.getsockname()[0]
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
      port = free.getsockname()[1]
  else:
    port = 20000 + secrets.randbelow(10000)
  return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def threads_of(local_size: int) -> int:
  """The cores of this machine that this process may use, over the ranks on it; at least one."""
  return max(1, len(os.sched_getaffinity(0)) // local_size)


def _thread_environment(options: argparse.Namespace, local_size: int) -> dict[str, str]:
  """Threads of TensorFlow and OpenMP; what the user has set already stays, unless --threads says a number."""
  if options.threads == 0:
    return {}
  threads = options.threads or threads_of(local_size)
  chosen = {"OMP_NUM_THREADS": threads, "TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": max(2, threads)}
  return {name: str(value) for name, value in chosen.items() if options.threads or name not in os.environ}


def _rank_environment(options: argparse.Namespace, rank: Rank, ranks: list[Rank]) -> dict[str, str]:
  environment = {
    "RANK_ID": rank.rank,
    "RANK_SIZE": len(ranks),
    "MXREC_LOCAL_RANK": rank.local_rank,
    "MXREC_LOCAL_SIZE": rank.local_size,
    "MXREC_CROSS_RANK": rank.cross_rank,
    "MXREC_CROSS_SIZE": rank.cross_size,
    "ASCEND_DEVICE_ID": rank.local_rank,
  }
  if options.horovod:
    same_place = [other.rank for other in ranks if other.local_rank == rank.local_rank]  # Horovod counts these machines only
    environment |= {
      "HOROVOD_RANK": rank.rank,
      "HOROVOD_SIZE": len(ranks),
      "HOROVOD_LOCAL_RANK": rank.local_rank,
      "HOROVOD_LOCAL_SIZE": rank.local_size,
      "HOROVOD_CROSS_RANK": same_place.index(rank.rank),
      "HOROVOD_CROSS_SIZE": len(same_place),
    }
  texts = {name: str(value) for name, value in environment.items()}
  return texts | _thread_environment(options, rank.local_size)


# Ways to start


def _use_mpirun(options: argparse.Namespace, remote: list[str]) -> bool:
  wanted = options.mpi or options.transport == "mpi"
  there = shutil.which("mpirun") is not None
  if wanted and not there:
    what = "--mpi" if options.mpi else "--transport mpi"
    raise CannotLaunch(f"{what} needs mpirun, which is not on the PATH: install Open MPI, or leave the option out")
  if wanted or not remote:
    return wanted
  if there and not options.gloo:
    return True
  if shutil.which("ssh") is None:
    raise CannotLaunch(
      f"ranks on {', '.join(remote)} need mpirun or ssh, and neither is on the PATH: install one, or start the ranks yourself "
      "with RANK_ID, RANK_SIZE, MXREC_CHIEF_ADDRESS and MXREC_SECRET_FILE set"
    )
  return False


def _ssh_options(options: argparse.Namespace) -> list[str]:
  """What ssh is called with, by this program or by mpirun: it asks nothing, and trusts a machine seen for the first time."""
  found = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"]
  if options.ssh_port:
    found += ["-p", str(options.ssh_port)]
  if options.ssh_identity_file:
    found += ["-i", os.path.abspath(options.ssh_identity_file)]
  return found


def _start(options: argparse.Namespace, rank: Rank, command: list[str], environment: Mapping[str, str]) -> _launch_ranks.Start:
  if is_here(rank.host):
    return _launch_ranks.Start(rank.rank, command, dict(environment))
  arguments = ["ssh", *_ssh_options(options)]
  exported = {name: value for name, value in environment.items() if _EXPORTED.fullmatch(name) or name in ("RANK_ID", "RANK_SIZE")}
  if options.secret_file or "MXREC_SECRET" not in exported:
    exported.pop("MXREC_SECRET_FILE", None)
    exported["MXREC_SECRET"] = _environment.secret(environment, "MXREC_SECRET", "MXREC_SECRET_FILE")
  message = json.dumps({"command": command, "environment": exported, "folder": os.getcwd(), "grace": options.grace}) + "\n"
  there = shlex.join([sys.executable, "-m", "mxrec", "launch", _launch_ranks.GUARD])
  folder = shlex.quote(exported.get("PYTHONPATH", ""))
  return _launch_ranks.Start(
    rank.rank, [*arguments, rank.host, f"PYTHONPATH={folder} exec {there}"], dict(os.environ), first_input=message.encode()
  )


def _mpirun_start(
  options: argparse.Namespace, ranks: list[Rank], remote: list[str], command: list[str], common: dict[str, str]
) -> _launch_ranks.Start:
  """One mpirun for all ranks. They meet where _world finds for a start by mpirun, or at the chief's address."""
  environment = {**common, **_thread_environment(options, max(rank.local_size for rank in ranks))}
  if not remote:
    environment.pop("MXREC_STORE_PATH", None)
  elif "MXREC_SECRET_FILE" in environment:
    environment["MXREC_SECRET"] = _environment.secret(environment, "MXREC_SECRET", "MXREC_SECRET_FILE")
    del environment["MXREC_SECRET_FILE"]
  arguments = ["mpirun", "-np", str(len(ranks)), "--tag-output", "--bind-to", "none"]
  if os.geteuid() == 0:
    arguments.append("--allow-run-as-root")
  if remote:
    counts = {rank.host: rank.local_size for rank in ranks}
    arguments += ["-H", ",".join(f"{host}:{count}" for host, count in counts.items())]
    arguments += ["--mca", "plm_rsh_args", shlex.join(_ssh_options(options))]
  else:
    arguments.append("--oversubscribe")
  for name in sorted(environment):
    if _EXPORTED.fullmatch(name):
      arguments += ["-x", name]
  arguments += shlex.split(options.mpi_args)
  return _launch_ranks.Start(None, [*arguments, *command], environment)
