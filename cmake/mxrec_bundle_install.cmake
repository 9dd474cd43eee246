# Runs at install time for mxrec_bundle. In: built (the library or program in the build tree), library (where it was installed),
# kind (LIBRARIES or EXECUTABLES), patchelf.
set(base_set
    # what every Linux of the C++ runtime's generation has
    "^ld-linux" "^libc\\.so" "^libm\\.so" "^libdl\\.so" "^libpthread\\.so" "^librt\\.so" "^libgcc_s\\.so" "^libstdc\\+\\+\\.so"
    # what TensorFlow brings
    "^libtensorflow" "_pywrap_tensorflow")
file(
  GET_RUNTIME_DEPENDENCIES
  RESOLVED_DEPENDENCIES_VAR resolved
  UNRESOLVED_DEPENDENCIES_VAR unresolved
  ${kind} "${built}"
  PRE_EXCLUDE_REGEXES ${base_set})
if(unresolved)
  message(FATAL_ERROR "${built} needs shared libraries that were not found: ${unresolved}")
endif()
if(resolved AND NOT patchelf)
  message(FATAL_ERROR "patchelf is needed to bundle ${resolved}; install the package patchelf")
endif()

# Puts the copyright file of the Debian package that owns `file` into `target`.
function(copy_license file target)
  execute_process(COMMAND dpkg-query -S "${file}" OUTPUT_VARIABLE owner ERROR_VARIABLE error RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    # Where /lib is a link to /usr/lib, a package may still own the file under the former name.
    string(REGEX REPLACE "^/usr/" "/" former "${file}")
    execute_process(COMMAND dpkg-query -S "${former}" OUTPUT_VARIABLE owner ERROR_VARIABLE error RESULT_VARIABLE code)
  endif()
  string(REGEX REPLACE ":.*" "" package "${owner}")
  set(copyright "/usr/share/doc/${package}/copyright")
  if(code EQUAL 0 AND EXISTS "${copyright}")
    configure_file("${copyright}" "${target}" COPYONLY)
  else()
    message(WARNING "no copyright file found for ${file}: do not hand this build on without its licence")
  endif()
endfunction()

get_filename_component(folder "${library}" DIRECTORY)
foreach(dependency ${resolved})
  # The name that the loader asks for; a wheel cannot hold the symbolic link behind it, so the file takes that name.
  get_filename_component(soname "${dependency}" NAME)
  get_filename_component(file "${dependency}" REALPATH)
  message(STATUS "Bundling: ${folder}/${soname}")
  configure_file("${file}" "${folder}/${soname}" COPYONLY)
  execute_process(COMMAND "${patchelf}" --set-rpath "\$ORIGIN" "${folder}/${soname}" COMMAND_ERROR_IS_FATAL ANY)
  copy_license("${file}" "${folder}/licenses/${soname}.txt")
endforeach()
