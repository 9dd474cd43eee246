"""Lets Ctrl-C stop a save: says when it may, and sees to the KeyboardInterrupt (the handler itself: tf/interrupt.h)."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import types

from mxrec import _loader

_session_run: types.CodeType | None = None  # the Python function that waits for the run of a session


def _shall_stop() -> int:
  """Called by the op library after a SIGINT during a save, on a thread of its own; nonzero: the save stops.

  Yes when KeyboardInterrupt is to come but cannot, because the main thread waits in a session's run. A script with a handler of its
  own wants something else of Ctrl-C, and a main thread that runs Python gets its KeyboardInterrupt without our help.
  """
  if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
    return 0
  frame = sys._current_frames().get(threading.main_thread().ident or 0)
  if frame is None or frame.f_code is not _session_run:
    return 0
  return int(_call_in_main_thread(_DELIVER) == 0)


def _deliver(_: int | None) -> int:
  """Runs in the main thread as soon as that executes Python again: lets SIGINT be noted once the session's run has been left.

  Not before: an exception that comes while TensorFlow makes the CancelledError of the stopped save turns into a RuntimeError.
  """
  frame = sys._getframe().f_back
  while frame is not None:
    if frame.f_code is _session_run:
      _call_in_main_thread(_DELIVER)
      return 0
    frame = frame.f_back
  # Not from here: the KeyboardInterrupt would come in this function, which cannot hand it on.
  _call_in_main_thread(_loader.c_library().mxrec_raise_interrupt)
  return 0


def _call_in_main_thread(function: ctypes._FuncPointer) -> int:
  """Has C code called by the main thread at the next chance between two steps of the interpreter; 0 unless the queue is full."""
  queue = ctypes.pythonapi.Py_AddPendingCall
  queue.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
  return queue(ctypes.cast(function, ctypes.c_void_p), None)


# Kept alive as long as somebody may call them.
_RULE = ctypes.CFUNCTYPE(ctypes.c_int)(_shall_stop)
_DELIVER = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_deliver)


def install() -> None:
  """Tells the op library the rule; with a TensorFlow that runs sessions by other means, saves are not stopped."""
  from tensorflow.python.client import session as session_lib  # here, so that _loader is the first to miss TensorFlow

  global _session_run
  method = getattr(session_lib.BaseSession, "_call_tf_sessionrun", None)
  if not isinstance(method, types.FunctionType):
    return
  _session_run = method.__code__
  _loader.c_library().mxrec_set_interrupt_rule(_RULE)
