"""mxrec.init: files, keys, rank variables."""

import os

import helpers
import pytest
import tensorflow.compat.v1 as tf

from mxrec import _loader, config

SMALLEST = '[mxrec]\nlog_level = "INFO"\nuse_ranktable = false\n'


@pytest.fixture(autouse=True)
def not_initialised(monkeypatch):
  monkeypatch.setattr(config, "_config", None)
  for name in list(os.environ):
    if name.startswith(("OMPI_", "CM_")) or name == "ASCEND_DEVICE_ID":
      monkeypatch.delenv(name)
  monkeypatch.setenv("ASCEND_DEVICE_ID", "0")


def write(tmp_path, text, mode=0o644, name="mxrec.toml"):
  path = tmp_path / name
  path.write_text(text)
  path.chmod(mode)
  return str(path)


def test_fact_25_init_works_without_rank_variables_and_without_a_path():
  config.init()
  assert config.get_config() == config.Config()
  assert (config.get_rank_id(), config.get_rank_size(), config.get_local_rank_size()) == (0, 1, 1)


def test_fact_25_smallest_file_is_enough_and_use_ranktable_false_works(tmp_path):
  config.init(write(tmp_path, SMALLEST))
  assert config.get_config().use_ranktable is False


def test_fact_25_init_twice_is_a_runtime_error(tmp_path):
  config.init(write(tmp_path, SMALLEST))
  with pytest.raises(RuntimeError, match="twice"):
    config.init(write(tmp_path, SMALLEST))


def test_a_failed_init_does_not_count(tmp_path):
  with pytest.raises(KeyError):
    config.init(write(tmp_path, "a = 1\n"))
  config.init(write(tmp_path, SMALLEST))


def test_config_before_init_is_a_runtime_error():
  with pytest.raises(RuntimeError):
    config.get_config()


@pytest.mark.parametrize(
  "text, error, match",
  [
    ("[other]\n", KeyError, "mxrec"),
    ("[mxrec]\nuse_ranktable = false\n", KeyError, "log_level"),
    ('[mxrec]\nlog_level = "INFO"\n', KeyError, "use_ranktable"),
    ("mxrec = 3\n", ValueError, "table"),
    ('[mxrec]\nlog_level = "TRACE"\nuse_ranktable = false\n', ValueError, "TRACE"),
    ('[mxrec]\nlog_level = "info"\nuse_ranktable = false\n', ValueError, "log_level"),
    ("[mxrec]\nlog_level = 1\nuse_ranktable = false\n", ValueError, "log_level"),
    ('[mxrec]\nlog_level = "INFO"\nuse_ranktable = "false"\n', ValueError, "is not bool"),
    ("[mxrec\n", ValueError, "not TOML"),
    ("", ValueError, "bytes"),
    (SMALLEST + '[mxrec.cm-node-info]\ncm_chief_ip = "300.1.1.1"\n', ValueError, "IPv4"),
    (SMALLEST + '[mxrec.cm-node-info]\ncm_chief_ip = "1.1.1"\n', ValueError, "length"),
    (SMALLEST + "[mxrec.cm-node-info]\ncm_chief_port = 65521\n", ValueError, "bigger than 65520"),
    (SMALLEST + "[mxrec.cm-node-info]\ncm_chief_device = -1\n", ValueError, "less than 0"),
    (SMALLEST + "[mxrec.cm-node-info]\ncm_worker_size = 32769\n", ValueError, "bigger than 32768"),
    (SMALLEST + "[mxrec.cm-node-info]\ncm_worker_size = true\n", ValueError, "is not int"),
    ('mxrec = {log_level = "INFO", use_ranktable = false, cm-node-info = 1}\n', ValueError, "table"),
  ],
)
def test_fact_25_wrong_content_names_the_key(tmp_path, text, error, match):
  with pytest.raises(error, match=match):
    config.init(write(tmp_path, text))


@pytest.mark.parametrize("level", config.LOG_LEVELS)
def test_every_log_level_is_accepted(tmp_path, level):
  config.init(write(tmp_path, f'[mxrec]\nlog_level = "{level}"\nuse_ranktable = false\n'))
  assert config.get_config().log_level == level


def test_cm_variables_are_exported_unless_set(tmp_path, monkeypatch):
  monkeypatch.setenv("CM_CHIEF_IP", "9.9.9.9")
  config.init(write(tmp_path, SMALLEST + '[mxrec.cm-node-info]\ncm_chief_ip = "127.0.0.1"\ncm_chief_port = 60001\n'))
  assert (os.environ["CM_CHIEF_IP"], os.environ["CM_CHIEF_PORT"]) == ("9.9.9.9", "60001")
  monkeypatch.delenv("CM_CHIEF_PORT")


def test_fact_25_missing_file_is_file_not_found(tmp_path):
  with pytest.raises(FileNotFoundError):
    config.init(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o622, 0o646])
def test_fact_25_file_writable_by_others_is_a_value_error(tmp_path, mode):
  with pytest.raises(ValueError, match="written by group or others"):
    config.init(write(tmp_path, SMALLEST, mode))


def test_soft_link_is_a_value_error(tmp_path):
  path = write(tmp_path, SMALLEST)
  os.symlink(path, tmp_path / "link.toml")
  with pytest.raises(ValueError, match="soft link"):
    config.init(str(tmp_path / "link.toml"))


def test_file_of_another_user_is_a_value_error(tmp_path):
  path = write(tmp_path, SMALLEST)
  if os.geteuid() != 0:
    pytest.skip("only root can give a file away")
  os.chown(path, 12345, 12345)
  with pytest.raises(ValueError, match="belongs to user 12345"):
    config.init(path)


@pytest.mark.parametrize("path", [3, "", "a" * 1025, None.__class__])
def test_wrong_path_argument_is_a_value_error(path):
  with pytest.raises(ValueError):
    config.init(path)


def test_a_path_of_1024_characters_is_looked_for():
  with pytest.raises(OSError):
    config.init("/" + "a/" * 511 + "b")


def test_fact_25_rank_table_without_rank_variables_is_a_runtime_error(tmp_path):
  with pytest.raises(RuntimeError, match="OMPI_COMM_WORLD_RANK"):
    config.init(write(tmp_path, SMALLEST.replace("false", "true")))


def test_rank_variable_that_is_no_number_is_a_value_error(monkeypatch):
  monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "two")
  with pytest.raises(ValueError, match="OMPI_COMM_WORLD_SIZE"):
    config.init()


def test_tables_of_several_ranks_are_refused_rather_than_trained_apart(monkeypatch):
  monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
  monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
  config.init()
  assert (config.get_config().rank_id, config.get_config().rank_size) == (1, 2)
  with pytest.raises(RuntimeError, match="one process"):
    config.require_one_rank()


def test_the_log_level_holds_for_the_engine_too(tmp_path, capfd):
  text = SMALLEST.replace("INFO", "CRITICAL")
  try:
    config.init(write(tmp_path, text))
    assert nan_warning(capfd) == ""
    config._config = None
    config.init(write(tmp_path, SMALLEST, name="info.toml"))
    assert "NaN" in nan_warning(capfd)
  finally:
    _loader.c_library().mxrec_set_log_level(b"INFO")


def nan_warning(capfd):
  """What the engine says about a NaN row, on a table of its own."""
  with tf.Graph().as_default(), tf.Session() as sess:
    emb_table = helpers.table()
    model = helpers.SumModel(emb_table, tf.train.GradientDescentOptimizer(0.1))
    capfd.readouterr()
    model.step(sess, [1], scale=float("nan"))
    return "".join(line for line in capfd.readouterr().err.splitlines() if "NaN" in line)
