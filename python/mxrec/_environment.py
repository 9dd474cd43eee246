"""Reading of environment variables: numbers, switches and network interfaces, with errors that name the variable."""

from __future__ import annotations

import fcntl
import ipaddress
import pathlib
import socket
import stat
import struct
from collections.abc import Mapping

MAX_RANKS = 32768
_GET_INTERFACE_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_MAX_SECRET_BYTES = 4096


def text(environment: Mapping[str, str], *variables: str) -> str:
  """The first of the variables that is set to something, "" when none is."""
  for variable in variables:
    value = environment.get(variable, "").strip()
    if value:
      return value
  return ""


def number(environment: Mapping[str, str], variable: str, low: int, high: int = MAX_RANKS) -> int | None:
  """A variable's value, None when it is not set or empty; ValueError when it is no number or out of its range."""
  value = text(environment, variable)
  if not value:
    return None
  if not (value.isascii() and value.isdigit()) or len(value) > 18 or not low <= int(value) <= high:
    raise ValueError(f"environment variable {variable} must be {low} to {high}: got {value!r}")
  return int(value)


def seconds(environment: Mapping[str, str], variable: str, low: float, high: float) -> float | None:
  """A time in seconds, with or without a decimal point; None and ValueError as number()."""
  value = text(environment, variable)
  if not value:
    return None
  try:
    found = float(value)
  except ValueError:
    found = -1.0
  if not low <= found <= high:
    raise ValueError(f"environment variable {variable} must be {low:g} to {high:g} seconds: got {value!r}")
  return found


def switch(environment: Mapping[str, str], variable: str) -> bool | None:
  """Whether a variable says yes; None when it is not set or empty; ValueError when it says neither yes nor no."""
  value = text(environment, variable).lower()
  if not value:
    return None
  if value in ("1", "true", "yes", "on"):
    return True
  if value in ("0", "false", "no", "off"):
    return False
  raise ValueError(f"environment variable {variable} must be true or false: got {value!r}")


def address(environment: Mapping[str, str], variable: str) -> tuple[str, int] | None:
  """host:port of a variable, [host]:port for IPv6; None when it is not set or empty; ValueError when it is none."""
  value = text(environment, variable)
  if not value:
    return None
  host, _, port = value.rpartition(":")
  host = host.removeprefix("[").removesuffix("]")
  if not host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
    raise ValueError(f"environment variable {variable} must be host:port, with a port of 1 to 65535: got {value!r}")
  return host, int(port)


def secret(environment: Mapping[str, str], variable: str, file_variable: str) -> str:
  """The secret that a variable or a file holds, "" when neither is set.

  Raises:
    ValueError: both are set; the file cannot be read, is empty, too long, or may be read by others.
  """
  value, path = text(environment, variable), text(environment, file_variable)
  if not path:
    return value
  if value:
    raise ValueError(f"environment variables {variable} and {file_variable} are both set: unset one")
  try:
    with open(path, "rb") as file:
      mode = stat.S_IMODE(pathlib.Path(path).stat().st_mode)
      content = file.read(_MAX_SECRET_BYTES + 1).strip()
  except OSError as error:
    raise ValueError(f"environment variable {file_variable}: {path} cannot be read: {error.strerror}") from error
  if mode & 0o077:
    raise ValueError(
      f"environment variable {file_variable}: {path} may be used by group or others (mode {mode:04o}): run chmod 600"
    )
  if not 1 <= len(content) <= _MAX_SECRET_BYTES:
    raise ValueError(f"environment variable {file_variable}: {path} must hold 1 to {_MAX_SECRET_BYTES} bytes: found {len(content)}")
  return content.decode("latin-1")


def is_loopback(host: str) -> bool:
  """Whether a host name or address means this machine alone. Names other than localhost are not looked up."""
  if host in ("", "localhost"):
    return True
  try:
    return ipaddress.ip_address(host).is_loopback
  except ValueError:
    return False


def interfaces() -> dict[str, str]:
  """The IPv4 address of each network interface that has one."""
  found = {}
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    for _, name in socket.if_nameindex():
      request = struct.pack("256s", name.encode()[:15])
      try:
        answer = fcntl.ioctl(probe.fileno(), _GET_INTERFACE_ADDRESS, request)
      except OSError:
        continue
      found[name] = socket.inet_ntoa(answer[20:24])
  return found


def interface_address(variable: str, wanted: str, found: Mapping[str, str] | None = None) -> str:
  """The address of the interface that a variable names.

  Args:
    variable: a variable or an option, for messages.
    wanted: beginnings of names with commas between, as HCCL_SOCKET_IFNAME takes them; "=" before them: whole names; "^": none of
      these. The first interface that fits is taken, loopback only when it is named.
    found: interfaces(), by default those of this machine.

  Raises:
    ValueError: no interface fits.
  """
  found = interfaces() if found is None else found
  exact, excluded = wanted.startswith(("=", "^=")), wanted.startswith("^")
  names = [name for name in wanted.lstrip("^=").split(",") if name]

  def fits(name: str) -> bool:
    return any(name == other if exact else name.startswith(other) for other in names)

  if excluded:
    candidates = [name for name in found if not fits(name) and not is_loopback(found[name])]
  else:
    candidates = sorted((name for name in found if fits(name)), key=lambda name: name not in names)
  if not candidates:
    there = ", ".join(f"{name} ({ip})" for name, ip in found.items()) or "none"
    kind = "" if variable.startswith("-") else "environment variable "
    raise ValueError(f"{kind}{variable} is {wanted!r}, but no network interface fits it; there are: {there}")
  return found[candidates[0]]
