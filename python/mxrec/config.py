"""`mxrec.init` and what it sets: log level, rank, size.

`init` is optional for one process and may come at any time, also after a Session was made.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import logging
import os
import stat
import tomllib
from typing import Any

from mxrec import _loader, _validate, _world

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
MAX_FILE_BYTES = 1 << 40

_RANK = "OMPI_COMM_WORLD_RANK"
_SIZE = "OMPI_COMM_WORLD_SIZE"
_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_SIZE"
_CM_FIELDS = {  # TOML key -> (environment variable, smallest, biggest); None: an IPv4 text
  "cm_chief_ip": ("CM_CHIEF_IP", None, None),
  "cm_chief_port": ("CM_CHIEF_PORT", 0, 65520),
  "cm_chief_device": ("CM_CHIEF_DEVICE", 0, 2**31 - 1),
  "cm_worker_ip": ("CM_WORKER_IP", None, None),
  "cm_worker_size": ("CM_WORKER_SIZE", 0, 32768),
}


@dataclasses.dataclass(frozen=True)
class Config:
  """What `init` was told."""

  log_level: str = "INFO"
  use_ranktable: bool = False
  rank_id: int = 0
  rank_size: int = 1
  local_rank_size: int = 1


_config: Config | None = None


def _read_file(toml_path: Any) -> dict[str, Any]:
  path = _validate.path("toml_path", toml_path)
  with open(path, "rb") as file:  # a missing file is FileNotFoundError
    if os.path.islink(path):
      raise ValueError(f"configuration file {path} is a soft link")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
      raise ValueError(f"configuration file {path} is not a regular file")
    if not 1 <= status.st_size <= MAX_FILE_BYTES:
      raise ValueError(f"configuration file {path} must hold 1 to {MAX_FILE_BYTES} bytes: found {status.st_size}")
    if status.st_mode & 0o022:
      raise ValueError(
        f"configuration file {path} may be written by group or others (mode {stat.S_IMODE(status.st_mode):04o}): run chmod go-w"
      )
    if status.st_uid != os.geteuid() and status.st_gid != os.getegid():
      raise ValueError(
        f"configuration file {path} belongs to user {status.st_uid} and group {status.st_gid}, expected user "
        f"{os.geteuid()} or group {os.getegid()}"
      )
    try:
      return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
      raise ValueError(f"configuration file {path} is not TOML: {error}") from error


def _table(parent: dict[str, Any], key: str, label: str) -> dict[str, Any]:
  if key not in parent:
    raise KeyError(label)
  if not isinstance(parent[key], dict):
    raise ValueError(f"{label} must be a table of the configuration file: got {type(parent[key]).__name__}")
  return parent[key]


def _ip(label: str, value: Any) -> str:
  _validate.string(label, value, 7, 15)
  try:
    ipaddress.IPv4Address(value)
  except ipaddress.AddressValueError as error:
    raise ValueError(f"{label} is not an IPv4 address: got {value!r}") from error
  return value


def _export_cm_variables(section: dict[str, Any]) -> None:
  fields = _table(section, "cm-node-info", "mxrec.cm-node-info") if "cm-node-info" in section else {}
  checked = {}
  for key, (variable, low, high) in _CM_FIELDS.items():
    if key in fields:
      label = f"mxrec.cm-node-info.{key}"
      checked[variable] = _ip(label, fields[key]) if low is None else _validate.integer(label, fields[key], low, high)
  for variable, value in checked.items():
    os.environ.setdefault(variable, str(value))


def _parse(section: dict[str, Any]) -> Config:
  for key in ("log_level", "use_ranktable"):
    if key not in section:
      raise KeyError(f"mxrec.{key}")
  log_level = _validate.choice("mxrec.log_level", section["log_level"], LOG_LEVELS)
  use_ranktable = _validate.boolean("mxrec.use_ranktable", section["use_ranktable"])
  if use_ranktable:
    missing = [name for name in (_RANK, _SIZE, _LOCAL_SIZE) if name not in os.environ]
    if missing:
      raise RuntimeError(
        f"mxrec.use_ranktable is true, but the rank variables {', '.join(missing)} are not set: start with "
        "mpirun, or set use_ranktable = false"
      )
  world = _world.find()
  return Config(log_level, use_ranktable, world.rank or 0, world.size, world.local_size)


def init(toml_path: str | os.PathLike[str] | None = None) -> None:
  """Reads the configuration file and sets the log level.

  Args:
    toml_path: path of a TOML file with a table [mxrec], 1..1024 characters; None: log level INFO, no rank table.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: a value is wrong, or the file is a soft link, empty, too big, writable by group or others, or another user's.
    KeyError: the table [mxrec] or a key that is needed is missing.
    RuntimeError: called twice; rank variables missing with use_ranktable = true.
  """
  global _config
  if _config is not None:
    raise RuntimeError("mxrec.init was called twice; once per process is allowed")
  if toml_path is None:
    config = _parse({"log_level": "INFO", "use_ranktable": False})
  else:
    section = _table(_read_file(toml_path), "mxrec", "mxrec")
    config = _parse(section)
    if not config.use_ranktable:
      _export_cm_variables(section)
  logging.getLogger("mxrec").setLevel(config.log_level)
  _loader.c_library().mxrec_set_log_level(config.log_level.encode())  # the engine's own messages
  os.environ.setdefault("ASCEND_DEVICE_ID", "0")
  _config = config


def require_one_rank() -> None:
  """RuntimeError when this process is one of several ranks."""
  _world.require_one_rank("embedding tables")


def get_config() -> Config:
  """What `init` set; RuntimeError before it."""
  if _config is None:
    raise RuntimeError("mxrec.init has not been called")
  return _config


def get_rank_id() -> int:
  """This process's rank; 0 without rank variables. Works before `init`."""
  return _world.find().rank or 0


def get_rank_size() -> int:
  """The number of ranks; 1 without rank variables. Works before `init`."""
  return _world.find().size


def get_local_rank_size() -> int:
  """The number of ranks on this machine; 1 without rank variables. Works before `init`."""
  return _world.find().local_size
