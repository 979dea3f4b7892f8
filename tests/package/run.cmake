# Proves that Flashlane can be used by others: installs it, moves the installed tree, builds a consumer there, runs it.
#
#   cmake -DMODE=static|shared|subdirectory -DSOURCE_DIR=... -DWORK_DIR=... [-DBUILD_DIR=...] [-DGENERATOR=...]
#         [-DCXX=...] -P run.cmake
#
# SOURCE_DIR is Flashlane's root; WORK_DIR is this test's own folder. BUILD_DIR, a build tree whose library is of the
# kind that MODE names, saves compiling it again.
cmake_minimum_required(VERSION 3.25)

foreach(variable MODE SOURCE_DIR WORK_DIR)
  if(NOT ${variable})
    message(FATAL_ERROR "run.cmake: -D${variable}=... is missing")
  endif()
endforeach()
if(NOT MODE MATCHES "^(static|shared|subdirectory)$")
  message(FATAL_ERROR "run.cmake: MODE '${MODE}' is not static, shared or subdirectory")
endif()

# -O0, and of the vector targets only the baseline: this test is about files and link lines; the kernels compile ten times
# as fast so.
set(configure -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0
  -DFLASHLANE_DISABLED_TARGETS=AVX2,AVX3,AVX3_ZEN4,AVX3_SPR)
if(GENERATOR)
  list(APPEND configure -G "${GENERATOR}")
endif()
if(CXX)
  list(APPEND configure "-DCMAKE_CXX_COMPILER=${CXX}")
endif()

function(run)
  list(JOIN ARGN " " command_line)
  message(STATUS "${command_line}")
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

set(library_options -DFLASHLANE_BUILD_CLI=OFF -DFLASHLANE_BUILD_TESTS=OFF -DFLASHLANE_BUILD_BENCH=OFF)
set(consumer_options "")
file(REMOVE_RECURSE "${WORK_DIR}/stage" "${WORK_DIR}/moved" "${WORK_DIR}/consumer")

if(MODE STREQUAL "subdirectory")
  list(APPEND consumer_options ${library_options} "-DFLASHLANE_SOURCE_DIR=${SOURCE_DIR}")
else()
  if(NOT BUILD_DIR)
    set(BUILD_DIR "${WORK_DIR}/library")
    set(shared OFF)
    if(MODE STREQUAL "shared")
      set(shared ON)
    endif()
    run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${BUILD_DIR} ${configure} ${library_options}
        -DFLASHLANE_INSTALL=ON -DBUILD_SHARED_LIBS=${shared})
    run(${CMAKE_COMMAND} --build ${BUILD_DIR})
  endif()
  run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/stage)
  # An installed tree that knows where it once stood would be found out here.
  file(RENAME "${WORK_DIR}/stage" "${WORK_DIR}/moved")
  list(APPEND consumer_options "-DCMAKE_PREFIX_PATH=${WORK_DIR}/moved")
  if(MODE STREQUAL "shared")
    # Whoever links a shared flashlane needs no development files of what it stands on.
    foreach(package hwy TBB spdlog fmt)
      list(APPEND consumer_options -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
    endforeach()
  endif()
endif()

run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/tests/package -B ${WORK_DIR}/consumer ${configure} ${consumer_options})
run(${CMAKE_COMMAND} --build ${WORK_DIR}/consumer --target consumer)
run(${WORK_DIR}/consumer/consumer)
