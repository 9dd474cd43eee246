# Installs the engine into an empty folder, builds examples/cpp against what was installed and nothing else, and runs it.
# In: build (our build tree), example, work (a folder of this test's own), compiler, launcher.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "exit code ${code} from: ${command}\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})
run(${CMAKE_COMMAND} --install ${build} --component engine --prefix ${work}/installed)
# A copy of the sources, so that no header of the tree beside them can be picked up.
file(COPY ${example}/ DESTINATION ${work}/source)
run(${CMAKE_COMMAND} -S ${work}/source -B ${work}/build -G Ninja -D CMAKE_BUILD_TYPE=Release -D CMAKE_PREFIX_PATH=${work}/installed
    -D CMAKE_CXX_COMPILER=${compiler} -D CMAKE_CXX_COMPILER_LAUNCHER=${launcher})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/train)
if(NOT output MATCHES ", 3 rows")
  message(FATAL_ERROR "the example should have printed '3 rows', printed:\n${output}")
endif()
message(STATUS "installed engine works from outside:\n${output}")
