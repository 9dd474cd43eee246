"""The command `mxrec` without the running of scripts: version, help, options, doctor."""

import json
import os
import re
import subprocess
import sys

import pytest

from mxrec import __version__, _doctor, _option_table, cli


def call(*words, **environment):
  return subprocess.run(
    [sys.executable, "-m", "mxrec", *words],
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
    env={**os.environ, **environment},
  )


def test_version_and_help_come_at_once_and_without_tensorflow(tmp_path):
  (tmp_path / "tensorflow.py").write_text("raise ImportError('not there')\n", encoding="utf-8")
  path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
  done = call("--version", PYTHONPATH=path)
  assert (done.returncode, done.stdout) == (0, f"mxrec {__version__}\n"), done.stderr
  for command in ("run", "launch", "options", "doctor"):
    done = call(command, "--help", PYTHONPATH=path)
    assert done.returncode == 0 and "examples:" in done.stdout and f"mxrec {command}" in done.stdout
  done = call("doctor", PYTHONPATH=path)
  assert done.returncode == 1 and "PROBLEM" in done.stdout and "pip install tensorflow-cpu==" in done.stdout, done.stderr
  done = call("options", PYTHONPATH=path)
  assert done.returncode == 1 and "pip install tensorflow-cpu==" in done.stderr


@pytest.mark.parametrize("words", [[], ["nonsense"], ["doctor", "script-config"], ["run", "--nonsense", "x.py"]])
def test_wrong_arguments_end_with_two(words, capsys):
  with pytest.raises(SystemExit) as caught:
    cli.main(words)
  assert caught.value.code == 2
  assert "mxrec" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("words", "mine", "program"),
  [
    (["a.py", "-m", "x"], ["a.py"], ["-m", "x"]),
    (["--tf-version", "1.2", "--own", "d", "a.py", "--own", "e"], ["--tf-version", "1.2", "--own", "d", "a.py"], ["--own", "e"]),
    (["--tf-version=1.2", "a.py", "--"], ["--tf-version=1.2", "a.py"], ["--"]),
    (["--quiet", "-m", "p.q", "--quiet"], ["--quiet", "-m", "p.q"], ["--quiet"]),
    (["-mp.q", "a.py"], ["-m", "p.q"], ["a.py"]),
    (["--", "-odd.py", "x"], ["-odd.py"], ["x"]),
    (["--chdir"], ["--chdir"], []),
  ],
)
def test_arguments_after_the_script_are_the_scripts(words, mine, program):
  assert cli._split_run(words) == (mine, program)


# options


TABLE = [
  {
    "key": "precision_mode",
    "field": "s",
    "policy": "act",
    "allowed": "a | b",
    "default": "a",
    "meaning": "mixed precision",
    "group": "g",
  },
  {
    "key": "use_off_line",
    "field": "b",
    "policy": "accept",
    "allowed": "any",
    "default": "True",
    "meaning": "nothing",
    "group": "g",
  },
]


def test_options_are_printed_as_table_and_json(monkeypatch, capsys):
  options = pytest.importorskip("npu_bridge._options")
  assert cli.main(["options", "--json"]) == 0
  assert json.loads(capsys.readouterr().out) == options.table()
  monkeypatch.setattr(options, "table", lambda: TABLE)
  assert cli.main(["options"]) == 0
  out = capsys.readouterr().out
  words = "\nprecision_mode\n    field: s\n    policy: acts\n    allowed: a | b\n    default: a\n    meaning: mixed precision\n"
  assert words in out and "policy: no effect" in out
  assert cli.main(["options", "MIXED"]) == 0
  assert "use_off_line" not in capsys.readouterr().out
  assert cli.main(["options", "no such thing"]) == 1
  assert "no key has to do with 'no such thing'" in capsys.readouterr().err
  assert set(_option_table.POLICIES) == {"act", "valid", "accept"}


# doctor


def test_doctor_finds_this_installation_well(capsys):
  code = cli.main(["doctor", "--json"])
  found = json.loads(capsys.readouterr().out)
  texts = " ".join(finding["text"] for finding in found)
  assert code == 0, [finding for finding in found if finding["state"] == "problem"]
  for word in (f"mxrec {__version__}", "Python 3", "tensorflow-cpu", "op library", "tf_keras", "CPUs"):
    assert word in texts
  assert cli.main(["doctor"]) == 0
  assert "ok      mxrec" in capsys.readouterr().out


def test_doctor_names_what_is_missing_with_its_pip_line(monkeypatch):
  find = _doctor.importlib.util.find_spec
  monkeypatch.setattr(_doctor.importlib.util, "find_spec", lambda name: None if name in ("tf_keras", "rich") else find(name))
  found = {finding.text: finding for finding in _doctor._look_at_packages()}
  keras = found["tf_keras is missing: tf.layers, tf.nn.rnn_cell and tf.keras"]
  assert keras.state == "problem" and re.fullmatch(r"run: pip install --no-deps tf_keras==2\.\d+\.0", keras.more)
  assert next(finding for text, finding in found.items() if text.startswith("rich is missing")).state == "note"


GUIDE = """
from npu_bridge.npu_init import *
import tensorflow as tf
config = tf.ConfigProto(allow_soft_placement=True)
custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = "NpuOptimizer"
config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
config.graph_options.rewrite_options.memory_optimization = RewriterConfig.OFF
sess = tf.Session(config=config)
"""


def findings(tmp_path, source):
  import ast

  return _doctor._ScriptOptions(ast.parse(source)).findings()


def problems(tmp_path, source):
  return [(finding.text, finding.line) for finding in findings(tmp_path, source) if finding.state == "problem"]


def test_a_script_as_the_guide_asks_is_well(tmp_path):
  (found,) = findings(tmp_path, GUIDE)
  assert (found.state, found.text) == ("ok", "session options are as the guide asks")
  (found,) = findings(tmp_path, "import tensorflow as tf\ntf.Session()\n")
  assert found.state == "note" and "nothing of the guide to check" in found.text


def test_what_stays_on_by_omission_is_a_problem(tmp_path):
  own_import = GUIDE.replace("from npu_bridge.npu_init import *", "from npu_bridge.estimator import npu_ops")
  without = "\n".join(line for line in own_import.splitlines() if "RewriterConfig" not in line)
  assert problems(tmp_path, without) == [
    ("NpuOptimizer is used, and remapping is left on", 6),
    ("NpuOptimizer is used, and memory_optimization is left on", 6),
  ]
  # The session constructors of npu_init switch remapping off.
  with_star = "\n".join(line for line in GUIDE.splitlines() if "RewriterConfig" not in line)
  assert problems(tmp_path, with_star) == [("NpuOptimizer is used, and memory_optimization is left on", 6)]


def test_contradictions_are_named_with_their_lines(tmp_path):
  source = GUIDE + (
    "config.graph_options.rewrite_options.constant_folding = RewriterConfig.OFF\n"
    "config.graph_options.rewrite_options.loop_optimization = rewriter_config_pb2.RewriterConfig.ON\n"
    "config.graph_options.rewrite_options.disable_model_pruning = True\n"
    "config.graph_options.rewrite_options.disable_meta_optimizer = True\n"
    "options = RewriterConfig(memory_optimization=RewriterConfig.ON, layout_optimizer=2)\n"
  )
  assert problems(tmp_path, source) == [
    ("memory_optimization is ON", 14),
    ("constant_folding is OFF", 10),
    ("layout_optimizer is OFF", 14),
    ("disable_model_pruning is True", 12),
    ("disable_meta_optimizer is True", 13),
  ]


def test_a_device_without_soft_placement_is_a_problem(tmp_path):
  source = GUIDE.replace("from npu_bridge.npu_init import *", "import npu_bridge") + 'with tf.device("/gpu:0"):\n  pass\n'
  assert problems(tmp_path, source) == []
  assert problems(tmp_path, source.replace("allow_soft_placement=True", "")) == [
    ("tf.device is used without allow_soft_placement=True", 10)
  ]
  (text, line), *_ = problems(tmp_path, source.replace("=True", "=False"))
  assert "allow_soft_placement is False" in text and line == 4


def test_keys_of_the_parameter_map_are_checked(tmp_path):
  pytest.importorskip("npu_bridge._options")
  source = GUIDE + (
    'custom_op.parameter_map["precision_mod"].s = b"allow_mix_precision"\n'
    'custom_op.parameter_map["precision_mode"].s = tf.compat.as_bytes("fastest")\n'
    'custom_op.parameter_map["deterministic"].b = True\n'
    'custom_op.parameter_map["use_off_line"].b = True\n'
    'custom_op.parameter_map["iterations_per_loop"].i = steps\n'
  )
  found = {finding.line: finding for finding in findings(tmp_path, source)}
  assert "no known key" in found[10].text and '"precision_mode"' in found[10].more
  assert "fastest" in found[11].text and found[11].state == "problem"
  assert "has the field .i, the script sets .b" in found[12].text
  assert found[13].state == "ok" and "no effect" in found[13].text
  assert 14 not in found


def test_script_config_reads_files_and_gives_exit_codes(tmp_path, capfd):
  good, bad, broken = tmp_path / "good.py", tmp_path / "bad.py", tmp_path / "broken.py"
  good.write_text(GUIDE, encoding="utf-8")
  bad.write_text(
    GUIDE.replace("memory_optimization = RewriterConfig.OFF", "memory_optimization = RewriterConfig.ON"), encoding="utf-8"
  )
  broken.write_text("x = (\n", encoding="utf-8")
  from npu_bridge import _options

  _options.forget_notes()
  assert cli.main(["doctor", "script-config", str(good)]) == 0
  assert "rewrite_options" not in capfd.readouterr().err, "the check of the keys logs nothing of the switches"
  assert cli.main(["doctor", "script-config", str(good), str(bad)]) == 1
  out = capfd.readouterr().out
  assert f"PROBLEM {bad}:8: memory_optimization is ON" in out and "RewriterConfig.OFF" in out
  assert cli.main(["doctor", "script-config", str(broken)]) == 2
  assert cli.main(["doctor", "script-config", str(tmp_path / "nowhere.py")]) == 2
