"""What an import says when something is missing."""

import sys
import time
import types

import pytest

import mxrec
from mxrec import _loader


def test_version_is_one_text_everywhere():
  import ctypes  # pylint: disable=import-outside-toplevel
  text = _loader.c_library().mxrec_version
  text.restype = ctypes.c_char_p
  assert mxrec.version() == mxrec.__version__ == text().decode()


def test_all_public_names_exist_and_are_documented():
  for name in mxrec.__all__:
    assert hasattr(mxrec, name)
    assert name == "__version__" or getattr(mxrec, name).__doc__


def test_absent_tensorflow_is_one_clear_message(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow", None)
  with pytest.raises(ImportError, match="pip install tensorflow-cpu==2.21.0"):
    _loader.import_tensorflow()


@pytest.mark.parametrize("version", ["1.15.0", "2.14.1", "2.22.0", "3.0.0", "nonsense"])
def test_wrong_tensorflow_names_found_version_and_pip_line(monkeypatch, version):
  monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(__version__=version))
  with pytest.raises(ImportError, match=f"found {version}.*pip install"):
    _loader.import_tensorflow()


@pytest.mark.parametrize("version", ["2.15.1", "2.21.0", "2.18.0-rc1"])
def test_supported_tensorflow_is_taken(monkeypatch, version):
  module = types.SimpleNamespace(__version__=version)
  monkeypatch.setitem(sys.modules, "tensorflow", module)
  assert _loader.import_tensorflow() is module


def test_missing_library_names_the_file_and_what_to_do(monkeypatch, tmp_path):
  monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(tmp_path))
  with pytest.raises(ImportError, match=f"{tmp_path}.*MXREC_LIBRARY_PATH.*make demo"):
    _loader.library_path()


def test_damaged_library_is_an_import_error(monkeypatch, tmp_path):
  (tmp_path / _loader.LIBRARY_NAME).write_bytes(b"not a library")
  monkeypatch.setenv(_loader.LIBRARY_VARIABLE, str(tmp_path))
  with pytest.raises(ImportError, match="cannot be loaded"):
    _loader._load()  # pylint: disable=protected-access


def test_messages_of_the_dynamic_linker_become_advice(tmp_path):
  missing = _loader.explain_load_failure(tmp_path, "libhwy.so.1: cannot open shared object file: No such file or directory", "2.21.0")
  assert "needs the shared library libhwy.so.1" in missing
  other = _loader.explain_load_failure(tmp_path, "lib.so: undefined symbol: _ZN4absl6StatusC1Ev", "2.15.1")
  assert "another TensorFlow" in other and "2.15.1" in other and "pip install" in other


def test_importing_costs_little_beyond_tensorflow():
  kept = {name: module for name, module in sys.modules.items() if name == "mxrec" or name.startswith("mxrec.")}
  # Gradients can be registered once per process, so the modules that do nothing but define things are timed.
  names = [name for name in kept if name not in ("mxrec", "mxrec.lookup")]
  try:
    for name in names:
      del sys.modules[name]
    start = time.process_time()
    for name in names:
      __import__(name)
    assert time.process_time() - start <= 0.3
  finally:
    sys.modules.update(kept)


def test_importing_changes_nothing_in_tensorflow():
  from tensorflow.python.training import optimizer  # pylint: disable=import-outside-toplevel
  import tensorflow.compat.v1 as tf  # pylint: disable=import-outside-toplevel
  for thing in (optimizer._TensorProcessor.update_op, tf.train.Saver.save, tf.Session.run, tf.gradients, tf.Graph.finalize):
    assert thing.__module__.split(".")[0] == "tensorflow"
