# mxrec_bundle(<target> <folder> <component>) installs a shared library or a program into <folder> together with the shared libraries
# that it needs and that a plain Linux system does not have, all found through $ORIGIN. TensorFlow's own libraries are
# left out: Python has loaded them before. Needs patchelf at install time.
include_guard(GLOBAL)

function(mxrec_bundle target folder component)
  find_program(MXREC_PATCHELF patchelf)
  # Not a variable of this file: it would be known only in the folder that included it first.
  set(script ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/mxrec_bundle_install.cmake)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS ${target} LIBRARY DESTINATION ${folder} COMPONENT ${component} RUNTIME DESTINATION ${folder} COMPONENT ${component})
  install(
    CODE "
      set(library \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${folder}/$<TARGET_FILE_NAME:${target}>\")
      set(built \"$<TARGET_FILE:${target}>\")
      set(patchelf \"${MXREC_PATCHELF}\")
      set(kind $<IF:$<STREQUAL:$<TARGET_PROPERTY:${target},TYPE>,EXECUTABLE>,EXECUTABLES,LIBRARIES>)
      include(\"${script}\")
    "
    COMPONENT ${component})
endfunction()
