"""Ranks for processes that only know their chief (CM_CHIEF_IP, CM_CHIEF_PORT, CM_CHIEF_DEVICE, CM_WORKER_SIZE).

Every process has an address (CM_WORKER_IP) and a device number (ASCEND_DEVICE_ID or DEVICE_ID). The one that has those of the chief
listens; the others tell it theirs. The chief is rank 0, then come the devices of its machine in ascending order, beginning again at
0 after the biggest, then the other machines by address, devices in ascending order.

A message is one line of JSON, at most 4 KiB, with a keyed hash over the other side's random number: who has another secret is
turned away.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import time
from typing import Any

from mxrec import _environment, _peers
from mxrec._world import World

_MAX_LINE = 4096
_HELLO_SECONDS = 5.0
_DEFAULT_TIMEOUT = 120.0


class _NotOurs(Exception):
  """A connection of somebody else."""


class _Line:
  """A connection that carries lines."""

  def __init__(self, connection: socket.socket, secret: str):
    self._connection, self._secret = connection, secret.encode()
    self._mine = secrets.token_hex(16)
    self._theirs = ""

  def close(self) -> None:
    self._connection.close()

  def greet(self) -> None:
    """Gives this side's random number and takes the other's."""
    self._connection.sendall(self._mine.encode() + b"\n")
    self._theirs = self._read()
    if len(self._theirs) != len(self._mine):
      raise _NotOurs("no greeting")

  def send(self, message: dict[str, Any]) -> None:
    text = json.dumps(message)
    self._connection.sendall(f"{self._hash(self._theirs, text)} {text}\n".encode())

  def receive(self) -> dict[str, Any]:
    found, _, text = self._read().partition(" ")
    if not hmac.compare_digest(found, self._hash(self._mine, text)):
      raise _NotOurs("another secret")
    return json.loads(text)

  def _hash(self, number: str, text: str) -> str:
    return hmac.new(self._secret, f"{number} {text}".encode(), hashlib.sha256).hexdigest()

  def _read(self) -> str:
    line = b""
    while not line.endswith(b"\n"):
      piece = self._connection.recv(1) if len(line) < _MAX_LINE else b""
      if not piece:
        raise _NotOurs("it ended, or said too much")
      line += piece
    return line[:-1].decode("ascii", "replace")


def ask(world: World) -> World:
  """The world with this process's rank.

  Args:
    world: one without rank, with chief_host and chief_port.

  Raises:
    RuntimeError: the chief or other processes did not come in time, or two of them have the same address and device.
    ValueError: a variable is malformed.
  """
  environment = os.environ
  device = _environment.number(environment, "ASCEND_DEVICE_ID", 0, 2**31 - 1)
  if device is None:
    device = _environment.number(environment, "DEVICE_ID", 0, 2**31 - 1) or 0
  chief_device = _environment.number(environment, "CM_CHIEF_DEVICE", 0, 2**31 - 1) or 0
  mine = _environment.text(environment, "CM_WORKER_IP")
  if not mine:
    mine = world.chief_host if world.chief_host in (*_environment.interfaces().values(), "localhost") else world.bind_host
  timeout = _peers.limits(environment).connect_timeout
  deadline = time.monotonic() + (_DEFAULT_TIMEOUT if timeout is None else timeout)
  if (mine, device) == (world.chief_host, chief_device):
    answer = _hand_out(world, mine, device, deadline)
  else:
    answer = _fetch(world, mine, device, deadline)
  return dataclasses.replace(world, **answer)


def order(processes: list[tuple[str, int]], chief: tuple[str, int]) -> list[tuple[str, int]]:
  """(address, device) of all processes in the order of their ranks."""

  def key(process: tuple[str, int]) -> Any:
    host, device = process
    try:
      number = int(ipaddress.ip_address(host))
    except ValueError:
      number = 0
    return (host != chief[0], number, host, host == chief[0] and device < chief[1], device)

  return sorted(processes, key=key)


def _hand_out(world: World, mine: str, device: int, deadline: float) -> dict[str, Any]:
  chief = (mine, device)
  lines: dict[tuple[str, int], _Line] = {}
  where = f"{world.chief_host}:{world.chief_port}"
  try:
    try:
      server = socket.create_server((world.chief_host, world.chief_port), backlog=min(world.size, 1024))
    except OSError as error:
      raise RuntimeError(f"the chief cannot listen at {where} (CM_CHIEF_IP, CM_CHIEF_PORT): {error.strerror}") from error
    with server:
      while len(lines) < world.size - 1:
        left = deadline - time.monotonic()
        server.settimeout(max(left, 0.001))
        try:
          connection, _ = server.accept()
        except TimeoutError:
          there = ", ".join(f"{host} device {number}" for host, number in order([chief, *lines], chief))
          raise RuntimeError(
            f"CM_WORKER_SIZE={world.size}, but only {len(lines) + 1} of {world.size} ranks came to {where} in time: {there}"
          ) from None
        connection.settimeout(_HELLO_SECONDS)
        line = _Line(connection, world.secret)
        try:
          line.greet()
          hello = line.receive()
          process = (str(hello["host"]), int(hello["device"]))
        except (_NotOurs, OSError, ValueError, KeyError, TypeError):
          line.close()
          continue
        if process == chief or process in lines:
          line.send({"error": "taken"})
          line.close()
          raise RuntimeError(
            f"two processes have the address {process[0]} and device {process[1]}: each needs an ASCEND_DEVICE_ID of its own"
          )
        lines[process] = line
    ranks = order([chief, *lines], chief)
    hosts = list(dict.fromkeys(host for host, _ in ranks))
    answers = {}
    for rank, (host, number) in enumerate(ranks):
      here = [process for process in ranks if process[0] == host]
      answers[host, number] = {
        "rank": rank,
        "local_rank": here.index((host, number)),
        "local_size": len(here),
        "cross_rank": hosts.index(host),
        "cross_size": len(hosts),
      }
    for process, line in lines.items():
      try:
        line.send(answers[process])
      except OSError as error:
        raise RuntimeError(f"rank {answers[process]['rank']} at {process[0]} left before the start: {error}") from error
    return answers[chief]
  finally:
    for line in lines.values():
      line.close()


def _fetch(world: World, mine: str, device: int, deadline: float) -> dict[str, Any]:
  where = f"{world.chief_host}:{world.chief_port}"
  reason = "nobody listens there"
  while time.monotonic() < deadline:
    try:
      connection = socket.create_connection((world.chief_host, world.chief_port), timeout=_HELLO_SECONDS)
    except OSError as error:
      reason = str(error.strerror or error)
      time.sleep(0.1)
      continue
    line = _Line(connection, world.secret)
    try:
      line.greet()
      line.send({"host": mine or connection.getsockname()[0], "device": device})
      connection.settimeout(max(deadline - time.monotonic(), 0.001))
      answer = line.receive()
      if "error" in answer:
        raise RuntimeError(f"the chief at {where} has a process with this address, {mine}, and device {device} already")
      fields = ("rank", "local_rank", "local_size", "cross_rank", "cross_size")
      return {field: int(answer[field]) for field in fields}
    except (_NotOurs, OSError, ValueError, KeyError) as error:
      reason = f"the connection ended: {error}. Is the secret the same, and the device number another?"
      time.sleep(0.1)
    finally:
      line.close()
  raise RuntimeError(f"CM_WORKER_SIZE={world.size}, but the chief at {where} (CM_CHIEF_IP, CM_CHIEF_PORT) gave no rank: {reason}")
