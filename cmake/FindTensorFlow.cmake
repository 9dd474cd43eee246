# Finds the headers and the framework library of the TensorFlow that MXREC_PYTHON imports.
#
#   MXREC_PYTHON            Python with TensorFlow; default: .venv/bin/python of the source tree, else python3
#   TensorFlow_VERSION      its version
#   TensorFlow::framework   target: include folder (as system headers), ABI flags, libtensorflow_framework
#
# The Python is asked once per build folder and Python; delete TensorFlow_PROBE from the cache to ask again.
if(NOT MXREC_PYTHON)
  if(EXISTS "${PROJECT_SOURCE_DIR}/.venv/bin/python")
    set(_mxrec_python "${PROJECT_SOURCE_DIR}/.venv/bin/python")
  else()
    find_program(_mxrec_python NAMES python3 NO_CACHE)
  endif()
  set(MXREC_PYTHON "${_mxrec_python}" CACHE FILEPATH "Python with TensorFlow" FORCE)
endif()

if(NOT TensorFlow_PROBE OR NOT TensorFlow_PROBED_PYTHON STREQUAL MXREC_PYTHON)
  execute_process(
    COMMAND "${MXREC_PYTHON}" -c "import tensorflow as tf
s = tf.sysconfig
libs = [f[3:] for f in s.get_link_flags() if f.startswith('-l:')]
flags = [f for f in s.get_compile_flags() if f.startswith('-D')]
print('MXREC_PROBE:' + '|'.join([tf.__version__, s.get_include(), s.get_lib() + '/' + libs[0], ','.join(flags)]))"
    OUTPUT_VARIABLE _probe_out ERROR_VARIABLE _probe_err RESULT_VARIABLE _probe_rc)
  string(REGEX MATCH "MXREC_PROBE:[^\n]*" _probe "${_probe_out}")
  if(_probe)
    string(REPLACE "MXREC_PROBE:" "" _probe "${_probe}")
    set(TensorFlow_PROBE "${_probe}" CACHE INTERNAL "version|include|library|defines")
    set(TensorFlow_PROBED_PYTHON "${MXREC_PYTHON}" CACHE INTERNAL "")
  else()
    unset(TensorFlow_PROBE CACHE)
    string(REGEX MATCH "[^\n]*Error[^\n]*" _probe_reason "${_probe_err}")
    set(_probe_reason "${MXREC_PYTHON} cannot import tensorflow: ${_probe_reason} (exit ${_probe_rc})")
  endif()
endif()

if(TensorFlow_PROBE)
  string(REPLACE "|" ";" _probe_list "${TensorFlow_PROBE}")
  list(GET _probe_list 0 TensorFlow_VERSION)
  list(GET _probe_list 1 TensorFlow_INCLUDE_DIR)
  list(GET _probe_list 2 TensorFlow_LIBRARY)
  list(GET _probe_list 3 _probe_defines)
  string(REPLACE "," ";" TensorFlow_DEFINES "${_probe_defines}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  TensorFlow
  REQUIRED_VARS TensorFlow_LIBRARY TensorFlow_INCLUDE_DIR
  VERSION_VAR TensorFlow_VERSION
  REASON_FAILURE_MESSAGE "${_probe_reason}")

if(TensorFlow_FOUND AND NOT TARGET TensorFlow::framework)
  add_library(TensorFlow::framework SHARED IMPORTED)
  set_target_properties(TensorFlow::framework PROPERTIES IMPORTED_LOCATION "${TensorFlow_LIBRARY}")
  target_include_directories(TensorFlow::framework SYSTEM INTERFACE "${TensorFlow_INCLUDE_DIR}")
  target_compile_options(TensorFlow::framework INTERFACE ${TensorFlow_DEFINES})
endif()
