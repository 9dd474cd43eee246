"""What an import says when something is missing."""

import sys
import types

import pytest

import mxrec
from mxrec import _loader


def test_version_is_one_text_everywhere():
  import ctypes

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
    _loader._load()


def test_messages_of_the_dynamic_linker_become_advice(tmp_path):
  said = "libhwy.so.1: cannot open shared object file: No such file or directory"
  missing = _loader.explain_load_failure(tmp_path, said, "2.21.0")
  assert "needs the shared library libhwy.so.1" in missing
  other = _loader.explain_load_failure(tmp_path, "lib.so: undefined symbol: _ZN4absl6StatusC1Ev", "2.15.1")
  assert "another TensorFlow" in other and "2.15.1" in other and "pip install" in other


def test_importing_changes_nothing_in_tensorflow():
  import tensorflow.compat.v1 as tf
  from tensorflow.python.training import optimizer

  for thing in (optimizer._TensorProcessor.update_op, tf.train.Saver.save, tf.Session.run, tf.gradients, tf.Graph.finalize):
    assert thing.__module__.split(".")[0] == "tensorflow"
