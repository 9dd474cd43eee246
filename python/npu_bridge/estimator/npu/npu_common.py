"""What the original's Estimator knows of its job, read from the environment; nothing is needed."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from mxrec import _world


class DeviceInfo:
  """A device of the job.

  Args:
    index: its place among the devices of its server, as text.
    server_id: the server.
    dev_index: its place among all devices.
  """

  def __init__(self, index: str = "0", server_id: str | None = None, dev_index: str | None = None) -> None:
    self._index = index
    self._server_id = server_id
    self._dev_index = dev_index

  @property
  def index(self) -> str:
    return self._index

  @property
  def server_id(self) -> str | None:
    return self._server_id

  @property
  def dev_index(self) -> str | None:
    return self._dev_index


class JobInfo:
  """The job of this process.

  Args:
    job_id: its name; never empty.
    heart_beat_time: seconds, or None.
    checkpoint_dir: folder of the environment variable LOCAL_CHECKPOINT_DIR.
    device_info: a DeviceInfo.
    rank_id: this process.
    rank_size: of how many.
    local_checkpoint_dir: the same as checkpoint_dir.
    restore_from: what the environment variable RESTORE_FROM says.
  """

  def __init__(
    self,
    job_id: str = "10001",
    heart_beat_time: int | None = None,
    checkpoint_dir: str | None = None,
    device_info: DeviceInfo | None = None,
    rank_id: int = 0,
    rank_size: int = 1,
    local_checkpoint_dir: str | None = None,
    restore_from: str | None = None,
  ) -> None:
    self.job_id = job_id
    self.heart_beat_time = heart_beat_time
    self.device_info = device_info or DeviceInfo()
    self.rank_id = rank_id
    self.rank_size = rank_size
    self.local_checkpoint_dir = local_checkpoint_dir if local_checkpoint_dir is not None else checkpoint_dir
    self.restore_from = restore_from

  def is_chief(self) -> bool:
    """Whether this process is rank 0."""
    return self.rank_id == 0


class JobConfig:
  """Reads the job from a JSON file or the environment. JOB_ID is optional: its default is "10001"."""

  def __init__(self, job_start_file: str = "") -> None:
    self._file = job_start_file

  def load(self) -> JobInfo:
    """Returns the JobInfo. ValueError if the file cannot be read as JSON, or the rank variables are malformed."""
    values: dict[str, Any] = {}
    if self._file:
      try:
        with open(self._file, encoding="utf-8") as file:
          values = json.load(file)
      except (OSError, ValueError) as error:
        raise ValueError(f"job_start_file {self._file} cannot be read as JSON: {error}") from error
      if not isinstance(values, dict):
        raise ValueError(f"job_start_file {self._file} must hold a JSON object: found {type(values).__name__}")
    environment = os.environ
    world = _world.find()
    heart_beat = environment.get("HEARTBEAT", "")
    return JobInfo(
      job_id=str(values.get("job_id") or environment.get("JOB_ID") or "10001"),
      heart_beat_time=int(heart_beat) if heart_beat.isdigit() else None,
      device_info=DeviceInfo(environment.get("ASCEND_DEVICE_ID") or environment.get("DEVICE_ID") or "0"),
      rank_id=world.rank or 0,
      rank_size=world.size,
      local_checkpoint_dir=values.get("local_checkpoint_dir") or environment.get("LOCAL_CHECKPOINT_DIR"),
      restore_from=values.get("restore_from") or environment.get("RESTORE_FROM"),
    )


class NPUBasics:
  """The job of this process, read once: every NPUBasics is the same object.

  Args:
    file_name: a JSON file, as JobConfig reads it; only the first one counts.
  """

  _instance: NPUBasics | None = None
  _lock = threading.Lock()
  jobinfo: JobInfo

  def __new__(cls, file_name: str = "") -> NPUBasics:
    with cls._lock:
      if cls._instance is None:
        instance = super().__new__(cls)
        instance.jobinfo = JobConfig(file_name).load()
        cls._instance = instance
    return cls._instance
