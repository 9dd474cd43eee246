# mxrec_library(<folder name> SRCS ... [HDRS ...] [DEPS ...]) -> target mxrec_<name>, alias mxrec::<name>
# mxrec_test(<name> SRCS <name>.cc [DEPS ...] [LABELS ...])  -> GoogleTest program, known to ctest as <name>
#   LABELS concurrency: `make test` also runs it under ThreadSanitizer.  LABELS slow: only in `make test-full`.
#   (Neither: it runs in `make check`, in `make test`, and there again under AddressSanitizer when it sees no TensorFlow.)
# mxrec_fuzz(<name> SRCS <name>.cc [DEPS ...])               -> fuzz target with a plain main (fuzz/main.cc), short run in ctest
# Folder = target. DEPS follow docs/architecture.md; scripts/check_layers.py enforces them.
include_guard(GLOBAL)

add_library(mxrec_options INTERFACE)
target_compile_features(mxrec_options INTERFACE cxx_std_20)
target_compile_options(mxrec_options INTERFACE -Wall -Wextra -Wno-unused-parameter -fvisibility=hidden
                       -ffp-contract=off -fno-math-errno)
if(MXREC_WERROR)
  target_compile_options(mxrec_options INTERFACE -Werror)
endif()

# Header-only libraries, needed to build ours but not to use them once installed.
set(MXREC_BUILD_ONLY nlohmann_json::nlohmann_json)

function(mxrec_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;HDRS;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(mxrec_${name} STATIC ${ARG_SRCS} ${ARG_HDRS})
  add_library(mxrec::${name} ALIAS mxrec_${name})
  set_target_properties(mxrec_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON EXPORT_NAME ${name})
  target_compile_features(mxrec_${name} PUBLIC cxx_std_20)
  target_include_directories(mxrec_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  foreach(dependency ${MXREC_BUILD_ONLY})
    list(TRANSFORM ARG_PRIVATE_DEPS REPLACE "^${dependency}$" "$<BUILD_INTERFACE:${dependency}>")
  endforeach()
  target_link_libraries(mxrec_${name} PUBLIC ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:mxrec_options> ${ARG_PRIVATE_DEPS})
  set_property(GLOBAL APPEND PROPERTY MXREC_LIBRARIES mxrec_${name})
endfunction()

# The targets that the sanitizer runs of `make test` build: mxrec_tests_quick (all but slow), mxrec_tests_concurrency.
add_custom_target(mxrec_tests_quick)
add_custom_target(mxrec_tests_concurrency)
function(mxrec_collect_test name labels)
  if(NOT "slow" IN_LIST labels)
    add_dependencies(mxrec_tests_quick ${name})
  endif()
  if("concurrency" IN_LIST labels)
    add_dependencies(mxrec_tests_concurrency ${name})
  endif()
endfunction()

function(mxrec_test name)
  if(NOT MXREC_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} mxrec_options GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 LABELS "${ARG_LABELS}")
  mxrec_collect_test(${name} "${ARG_LABELS}")
endfunction()

function(mxrec_fuzz name)
  if(NOT MXREC_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS} ${PROJECT_SOURCE_DIR}/fuzz/main.cc)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} mxrec_options)
  add_test(NAME ${name} COMMAND ${name} --seconds=2)
  set_tests_properties(${name} PROPERTIES TIMEOUT 60 LABELS fuzz)
  mxrec_collect_test(${name} "fuzz")
endfunction()
