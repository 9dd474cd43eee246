"""Rank and size from the environment: which variable counts, and what contradicts what."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import pytest

from mxrec import _environment, _peers, _rank_hand_out, _world


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


# Where the ranks meet


def test_rank_size_alone_meets_on_this_machine():
  found = _world.find({"RANK_SIZE": "2", "RANK_ID": "1"})
  assert (found.chief_host, found.chief_port, found.missing) == ("127.0.0.1", 60000, "")
  assert _world.find({"RANK_SIZE": "2", "RANK_ID": "1", "HCCL_IF_BASE_PORT": "61000"}).chief_port == 61000


def test_rank_size_takes_the_chief_of_cm_variables_and_a_secret():
  environment = {"RANK_SIZE": "2", "RANK_ID": "1", "CM_CHIEF_IP": "10.1.2.3", "CM_CHIEF_PORT": "4000"}
  assert "MXREC_SECRET_FILE" in _world.find(environment).missing
  found = _world.find({**environment, "MXREC_SECRET": "s"})
  assert (found.chief_host, found.chief_port, found.missing) == ("10.1.2.3", 4000, "")
  assert (found.local_rank, found.local_size, found.cross_rank, found.cross_size) == (0, 1, 1, 2)


def test_a_chief_address_beats_everything_but_contradicts_a_store():
  environment = {"RANK_SIZE": "2", "RANK_ID": "0", "MXREC_CHIEF_ADDRESS": "[::1]:70"}
  found = _world.find(environment)
  assert (found.chief_host, found.chief_port) == ("::1", 70)
  with pytest.raises(ValueError, match="MXREC_STORE_PATH and MXREC_CHIEF_ADDRESS"):
    _world.find({**environment, "MXREC_STORE_PATH": "/tmp/x"})
  for wrong in ("host", "host:0", "host:x", ":5", "host:70000"):
    with pytest.raises(ValueError, match="MXREC_CHIEF_ADDRESS"):
      _world.find({**environment, "MXREC_CHIEF_ADDRESS": wrong})


def test_what_the_launcher_sets_names_machines():
  environment = {"RANK_SIZE": "5", "RANK_ID": "4", "MXREC_LOCAL_RANK": "0", "MXREC_LOCAL_SIZE": "1", "MXREC_STORE_PATH": "/tmp/x"}
  found = _world.find({**environment, "MXREC_CROSS_RANK": "1", "MXREC_CROSS_SIZE": "2", "MXREC_SECRET": "s", "MXREC_JOB": "j"})
  assert (found.local_rank, found.local_size, found.cross_rank, found.cross_size) == (0, 1, 1, 2)
  assert (found.store_path, found.chief_host, found.chief_port, found.job, found.secret) == ("/tmp/x", "", 0, "j", "s")
  assert "'s'" not in repr(found)


def test_a_rank_table_names_the_chief(tmp_path):
  one_server = table(tmp_path, TEMPLATE_3)
  found = _world.find({"RANK_TABLE_FILE": one_server, "RANK_ID": "1"})
  assert (found.chief_host, found.chief_port, found.missing) == ("127.0.0.1", 60000, "")
  assert "RANK_ID" in _world.find({"RANK_TABLE_FILE": one_server}).missing
  found = _world.find({"RANK_TABLE_FILE": table(tmp_path, TEMPLATE_1), "RANK_ID": "1", "MXREC_SECRET": "s"})
  assert (found.chief_host, found.cross_rank, found.cross_size, found.missing) == ("a", 1, 2, "")


def test_a_rank_table_without_servers_asks_for_the_chief(tmp_path):
  entries = [{"rank_id": rank, "device_id": rank % 2, "local_id": rank % 2} for rank in range(4)]
  environment = {"RANK_TABLE_FILE": table(tmp_path, {"rank_list": entries}), "RANK_ID": "3", "MXREC_SECRET": "s"}
  found = _world.find(environment)
  assert (found.local_rank, found.local_size, found.cross_rank, found.cross_size) == (1, 2, 1, 2)
  assert "MXREC_CHIEF_ADDRESS" in found.missing
  assert _world.find({**environment, "MXREC_CHIEF_ADDRESS": "host:5"}).missing == ""


MPIRUN = {
  "OMPI_COMM_WORLD_SIZE": "4",
  "OMPI_COMM_WORLD_RANK": "1",
  "OMPI_COMM_WORLD_LOCAL_RANK": "1",
  "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
  "OMPI_MCA_orte_hnp_uri": "77.0;tcp://10.1.2.3,192.168.0.1:5000",
  "OMPI_MCA_orte_precondition_transports": "1234-5678",
}


def test_mpirun_on_one_machine_meets_in_a_private_folder(tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  found = _world.find(MPIRUN)
  assert found.store_path.startswith(str(tmp_path)) and len(found.secret) == 64 and found.missing == ""
  assert found.store_path != _world.find({**MPIRUN, "OMPI_MCA_orte_precondition_transports": "1234-5679"}).store_path
  _peers.make_private_folder(found.store_path)
  folder = pathlib.Path(found.store_path).parent
  assert folder.stat().st_mode & 0o777 == 0o700
  folder.chmod(0o755)
  with pytest.raises(ValueError, match="nobody else"):
    _peers.make_private_folder(found.store_path)


def test_mpirun_on_several_machines_meets_where_it_was_called():
  environment = {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
  found = _world.find(environment)
  assert found.chief_host == "10.1.2.3" and 20000 <= found.chief_port < 30000 and found.missing == ""
  assert "rank 0 is not on the machine" in _world.find({**environment, "OMPI_COMM_WORLD_RANK": "0"}).missing
  assert "mxrec launch" in _world.find({**environment, "OMPI_MCA_orte_precondition_transports": ""}).missing


def test_other_process_managers_are_told_to_name_the_chief():
  assert "MXREC_CHIEF_ADDRESS" in _world.find({"PMI_SIZE": "2", "PMI_RANK": "1"}).missing
  found = _world.find({"PMI_SIZE": "2", "PMI_RANK": "1", "MXREC_CHIEF_ADDRESS": "127.0.0.1:5", "MXREC_SECRET": "s"})
  assert (found.chief_host, found.missing) == ("127.0.0.1", "")


SLURM = {
  "SLURM_STEP_NUM_TASKS": "5",
  "SLURM_PROCID": "4",
  "SLURM_LOCALID": "0",
  "SLURM_NODEID": "2",
  "SLURM_STEP_NUM_NODES": "3",
  "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
  "SLURM_STEP_NODELIST": "node[07-08,11]",
  "SLURM_JOB_ID": "12",
  "SLURM_STEP_ID": "0",
}


def test_a_slurm_step_meets_on_its_first_node():
  found = _world.find({**SLURM, "MXREC_SECRET": "s"})
  assert (found.rank, found.size, found.local_rank, found.local_size, found.cross_rank, found.cross_size) == (4, 5, 0, 1, 2, 3)
  assert (found.chief_host, found.job, found.missing) == ("node07", "slurm-12.0", "")
  assert _world.find({**SLURM, "SLURM_PROCID": "0", "SLURM_NODEID": "0"}).local_size == 2
  assert "MXREC_SECRET_FILE" in _world.find(SLURM).missing
  # The batch script itself is one process.
  assert _world.find({"SLURM_NTASKS": "5", "SLURM_PROCID": "0", "SLURM_JOB_ID": "12"}).size == 1


def test_a_slurm_step_says_where_ranks_are_though_srun_sets_pmi_variables_too():
  found = _world.find({**SLURM, "MXREC_SECRET": "s", "PMI_SIZE": "5", "PMI_RANK": "4"})
  assert (found.rank, found.size, found.cross_size, found.chief_host, found.missing) == (4, 5, 3, "node07", "")
  # mpiexec of another MPI starts its own processes through a step of Slurm.
  assert _world.find({**SLURM, "PMI_SIZE": "8", "PMI_RANK": "4"}).source == "PMI_SIZE=8"


@pytest.mark.parametrize("nodes, first", [("a", "a"), ("a,b", "a"), ("a[3-5],b", "a3"), ("a[003]-x,b", "a003-x"), ("", "")])
def test_the_first_host_of_a_node_list(nodes, first):
  assert _peers.first_of_node_list(nodes) == first


def test_interfaces_are_chosen_by_name():
  there = {"lo": "127.0.0.1", "eth0": "10.0.0.1", "eth1": "10.0.0.2", "ib0": "10.1.0.1"}

  def chosen(text):
    return _environment.interface_address("HCCL_SOCKET_IFNAME", text, there)

  assert [chosen(text) for text in ("eth", "eth1", "=ib0", "^eth", "x,ib", "lo")] == [
    "10.0.0.1",
    "10.0.0.2",
    "10.1.0.1",
    "10.1.0.1",
    "10.1.0.1",
    "127.0.0.1",
  ]
  for text in ("wlan", "=eth", "^eth,ib"):
    with pytest.raises(ValueError, match=r"HCCL_SOCKET_IFNAME.*eth1 \(10.0.0.2\)"):
      chosen(text)


def test_the_address_of_an_interface_is_where_this_rank_listens():
  environment = {"RANK_SIZE": "2", "RANK_ID": "1"}
  assert _world.find({**environment, "HOROVOD_GLOO_IFACE": "lo"}).bind_host == "127.0.0.1"
  assert _world.find({**environment, "HCCL_IF_IP": "127.0.0.2", "HCCL_SOCKET_IFNAME": "lo"}).bind_host == "127.0.0.2"
  with pytest.raises(ValueError, match="reaches no other machine"):
    _world.find({**environment, "HCCL_SOCKET_IFNAME": "lo", "MXREC_CHIEF_ADDRESS": "10.1.2.3:5", "MXREC_SECRET": "s"})


def test_a_secret_file_belongs_to_one_user(tmp_path):
  environment = {"RANK_SIZE": "2", "RANK_ID": "1", "MXREC_SECRET_FILE": str(tmp_path / "secret")}
  with pytest.raises(ValueError, match=r"MXREC_SECRET_FILE.*cannot be read"):
    _world.find(environment)
  (tmp_path / "secret").write_text("word\n")
  (tmp_path / "secret").chmod(0o644)
  with pytest.raises(ValueError, match="chmod 600"):
    _world.find(environment)
  (tmp_path / "secret").chmod(0o600)
  assert _world.find(environment).secret == "word"
  with pytest.raises(ValueError, match="both set"):
    _world.find({**environment, "MXREC_SECRET": "x"})
  (tmp_path / "secret").write_text("\n")
  with pytest.raises(ValueError, match="found 0"):
    _world.find(environment)


def test_transport_is_one_of_four():
  assert _world.find({"RANK_SIZE": "2", "RANK_ID": "1", "MXREC_TRANSPORT": "gloo"}).transport == "gloo"
  with pytest.raises(ValueError, match="MXREC_TRANSPORT must be one of auto, shm, gloo, mpi"):
    _world.find({"RANK_SIZE": "2", "RANK_ID": "1", "MXREC_TRANSPORT": "rdma"})


def test_limits_come_from_own_variables_then_from_the_others():
  assert _peers.limits({}) == _peers.Limits()
  found = _peers.limits(
    {
      "HCCL_CONNECT_TIMEOUT": "200",
      "HCCL_EXEC_TIMEOUT": "1836",
      "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
      "HCCL_DETERMINISTIC": "true",
    }
  )
  assert (found.connect_timeout, found.stall_abort, found.stall_warning, found.deterministic) == (200, 1836, 5, True)
  found = _peers.limits({"MXREC_STALL_ABORT": "1.5", "HCCL_EXEC_TIMEOUT": "1836", "HOROVOD_STALL_CHECK_DISABLE": "1"})
  assert (found.stall_abort, found.stall_warning) == (1.5, _peers.NEVER)
  assert _peers.limits({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}).stall_abort == _peers.NEVER
  timeline = {"HOROVOD_TIMELINE": "/x/t.json"}
  assert [_peers.limits(timeline, rank).timeline_path for rank in (0, 1)] == ["/x/t.json", ""]
  assert _peers.limits({**timeline, "RANK_SIZE": "2", "RANK_ID": "1"}).timeline_path == ""
  assert _peers.limits({"MXREC_TIMELINE": "/x/{rank}.json", **timeline}, 1).timeline_path == "/x/1.json"
  for variable, wrong in (("HCCL_CONNECT_TIMEOUT", "60"), ("MXREC_STALL_ABORT", "soon"), ("HCCL_DETERMINISTIC", "maybe")):
    with pytest.raises(ValueError, match=variable):
      _peers.limits({variable: wrong})


def test_ranks_without_a_way_to_each_other_are_told_what_to_set(monkeypatch):
  monkeypatch.setenv("RANK_SIZE", "4")
  with pytest.raises(RuntimeError, match=r"RANK_SIZE=4 says 4 ranks, but they cannot find each other: set RANK_ID"):
    _world.resolve()
  monkeypatch.setenv("RANK_ID", "2")
  assert _world.resolve().rank == 2


# Ranks from the chief

ASK = "from mxrec import _world; w = _world.resolve(); assert _world.find() == w; print(w.rank, w.local_rank, w.local_size, w.size)"


def ask(devices, **more):
  """Starts a process for each device number; their outputs."""
  with socket.create_server(("127.0.0.1", 0)) as probe:
    port = probe.getsockname()[1]
  environment = {
    **os.environ,
    "CM_CHIEF_IP": "127.0.0.1",
    "CM_CHIEF_PORT": str(port),
    "CM_WORKER_SIZE": "3",
    "CM_CHIEF_DEVICE": "1",
  }
  processes = []
  for device in devices:
    own = {"ASCEND_DEVICE_ID": str(device), "CM_WORKER_IP": "127.0.0.1", **more}
    command = [sys.executable, "-c", f"import sys; sys.argv = ['mxrec']\n{ASK}"]
    processes.append(
      subprocess.Popen(command, env={**environment, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    )
  return [process.communicate(timeout=60) for process in processes]


def test_the_chief_hands_out_ranks_in_the_order_of_devices():
  outputs = ask([0, 2, 1])
  assert [out.split() for out, _ in outputs] == [["2", "2", "3", "3"], ["1", "1", "3", "3"], ["0", "0", "3", "3"]], outputs


def test_two_processes_with_one_device_are_refused():
  outputs = ask([0, 1, 0], MXREC_CONNECT_TIMEOUT="3")
  assert any("two processes have the address 127.0.0.1 and device 0" in error for _, error in outputs), outputs


def test_a_missing_process_and_a_missing_chief_are_named():
  assert "only 2 of 3 ranks came" in ask([0, 1], MXREC_CONNECT_TIMEOUT="2")[1][1]
  assert "gave no rank: Connection refused" in ask([0], MXREC_CONNECT_TIMEOUT="1")[0][1]


def test_other_machines_come_after_the_chiefs():
  processes = [("10.0.0.2", 0), ("10.0.0.10", 1), ("10.0.0.10", 0), ("10.0.0.9", 0)]
  assert _rank_hand_out.order(processes, ("10.0.0.10", 1)) == [("10.0.0.10", 1), ("10.0.0.10", 0), ("10.0.0.2", 0), ("10.0.0.9", 0)]
