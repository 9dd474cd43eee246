"""Rank and size from the environment: which variable counts, and what contradicts what."""

import json

import pytest

from mxrec import _world


def world(**environment):
  found = _world.find(environment)
  return found.rank, found.size, found.local_rank, found.local_size


def table(tmp_path, content):
  path = tmp_path / "ranks.json"
  path.write_text(json.dumps(content), encoding="utf-8")
  return str(path)


TEMPLATE_1 = {
  "status": "completed",
  "version": "1.0",
  "server_count": "2",
  "server_list": [
    {"server_id": "a", "device": [{"device_id": "0", "rank_id": "0"}]},
    {"server_id": "b", "device": [{"device_id": "0", "rank_id": "1"}, {"device_id": "1", "rank_id": "2"}]},
  ],
}
TEMPLATE_2 = {
  "group_list": [
    {
      "instance_list": [
        {"server_id": "a", "devices": [{"device_id": "0"}]},
        {"server_id": "b", "devices": [{"device_id": "0"}]},
        {"server_id": "b", "devices": [{"device_id": "1"}]},
      ]
    }
  ]
}
TEMPLATE_3 = {"rank_list": [{"rank_id": 0, "device_id": 0, "local_id": 0}, {"rank_id": 1, "device_id": 1, "local_id": 1}]}


def test_nothing_is_one_process():
  assert world() == (0, 1, 0, 1)
  assert world(RANK_SIZE="", RANK_TABLE_FILE="") == (0, 1, 0, 1)


@pytest.mark.parametrize("content", [TEMPLATE_1, TEMPLATE_2])
def test_rank_tables_name_the_servers(tmp_path, content):
  path = table(tmp_path, content)
  assert world(RANK_TABLE_FILE=path, RANK_ID="0") == (0, 3, 0, 1)
  assert world(RANK_TABLE_FILE=path, RANK_ID="2", RANK_SIZE="3") == (2, 3, 1, 2)


def test_the_newest_rank_table_is_one_server(tmp_path):
  assert world(RANK_TABLE_FILE=table(tmp_path, TEMPLATE_3), RANK_ID="1") == (1, 2, 1, 2)


def test_rank_size_and_rank_id():
  assert world(RANK_SIZE="4", RANK_ID="3") == (3, 4, 3, 4)
  assert world(RANK_SIZE="1") == (0, 1, 0, 1)
  assert world(RANK_SIZE="4")[:2] == (None, 4)


def test_cm_worker_size_leaves_the_rank_to_the_chief():
  assert world(CM_WORKER_SIZE="3", CM_CHIEF_IP="127.0.0.1")[:2] == (None, 3)
  assert world(CM_WORKER_SIZE="1") == (0, 1, 0, 1)
  assert world(CM_WORKER_SIZE="0") == (0, 1, 0, 1)


def test_mpi_variables_count_last():
  mpi = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
  }
  assert world(**mpi) == (3, 4, 1, 2)
  assert world(PMI_SIZE="2", PMI_RANK="1")[:2] == (1, 2)
  assert world(RANK_SIZE="4", RANK_ID="0", **mpi) == (0, 4, 0, 4)


@pytest.mark.parametrize(
  "environment, text",
  [
    ({"RANK_SIZE": "two"}, "RANK_SIZE"),
    ({"RANK_SIZE": "0"}, "RANK_SIZE"),
    ({"RANK_SIZE": "32769"}, "RANK_SIZE"),
    ({"RANK_SIZE": "2", "RANK_ID": "2"}, "RANK_ID"),
    ({"RANK_SIZE": "2", "RANK_ID": "-1"}, "RANK_ID"),
    ({"RANK_SIZE": "2", "CM_WORKER_SIZE": "2"}, "exclude"),
    ({"RANK_TABLE_FILE": "x", "CM_WORKER_SIZE": "2"}, "exclude"),
    ({"RANK_TABLE_FILE": "/nowhere/x"}, "cannot be read"),
    ({"RANK_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "contradict"),
    ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK"),
  ],
)
def test_wrong_variables_are_named(environment, text):
  with pytest.raises(ValueError, match=text):
    _world.find(environment)


@pytest.mark.parametrize(
  "content", [{}, [], {"server_list": [{"device": [{"rank_id": "1"}]}]}, {"rank_list": [{}]}, {"rank_list": []}]
)
def test_what_is_no_rank_table_is_named(tmp_path, content):
  with pytest.raises(ValueError, match="RANK_TABLE_FILE"):
    _world.find({"RANK_TABLE_FILE": table(tmp_path, content), "RANK_ID": "0"})


def test_a_rank_table_of_another_size_is_refused(tmp_path):
  with pytest.raises(ValueError, match="RANK_SIZE is 2"):
    _world.find({"RANK_TABLE_FILE": table(tmp_path, TEMPLATE_1), "RANK_ID": "0", "RANK_SIZE": "2"})


def test_several_ranks_are_refused_with_what_cannot_be_had(monkeypatch):
  monkeypatch.setenv("RANK_SIZE", "4")
  with pytest.raises(RuntimeError, match=r"tables: RANK_SIZE=4 says 4 ranks.*one process"):
    _world.require_one_rank("tables")
  monkeypatch.setenv("RANK_SIZE", "1")
  assert _world.require_one_rank("tables").size == 1
