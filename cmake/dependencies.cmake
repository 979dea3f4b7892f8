# What Flashlane stands on, as imported targets: hwy::hwy, TBB::tbb, spdlog::spdlog, and by option CLI11::CLI11,
# nlohmann_json::nlohmann_json, GTest::gtest, GTest::gmock, yaml-cpp::yaml-cpp,
# benchmark::benchmark.
#
# An installed package of the right version always comes first. Highway and oneTBB, which some distributions have too
# old or not at all, may be built from a pinned source instead. cmake/bootstrap.sh brings what is missing.
#
# Sets for install.cmake: FLASHLANE_HIGHWAY_FROM_SOURCE, FLASHLANE_TBB_FROM_SOURCE.

set(FLASHLANE_DEPS_DIR "${CMAKE_CURRENT_LIST_DIR}/../build/deps")
cmake_path(NORMAL_PATH FLASHLANE_DEPS_DIR)

# HIGHWAY_URL, HIGHWAY_SHA256 and the like, as FLASHLANE_PIN_...
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/pins.env" pins REGEX "^[A-Z0-9_]+=")
foreach(pin IN LISTS pins)
  string(REGEX MATCH "^([A-Z0-9_]+)=(.*)$" pin "${pin}")
  set(FLASHLANE_PIN_${CMAKE_MATCH_1} "${CMAKE_MATCH_2}")
endforeach()

# Where the pinned archives come from, for networks that have a mirror of their own. The hash holds whatever this says.
set(FLASHLANE_HIGHWAY_URL "${FLASHLANE_PIN_HIGHWAY_URL}" CACHE STRING "Archive of Highway's source")
set(FLASHLANE_ONETBB_URL "${FLASHLANE_PIN_ONETBB_URL}" CACHE STRING "Archive of oneTBB's source")
mark_as_advanced(FLASHLANE_HIGHWAY_URL FLASHLANE_ONETBB_URL)

# Result: <name>_SOURCE_DIR. The caller adds it with settings of its own (before CMake 3.28 FetchContent knows no
# EXCLUDE_FROM_ALL), so MakeAvailable is pointed to a folder in which it finds no CMakeLists.txt.
# The download is a step of its own because a failure inside FetchContent ends in a page of ninja's log.
macro(flashlane_fetch name url sha256)
  include(FetchContent)
  string(TOUPPER ${name} flashlane_fetch_upper)
  string(REGEX REPLACE ".*/" "${CMAKE_CURRENT_BINARY_DIR}/_deps/${name}-" flashlane_fetch_file "${url}")
  if(NOT FETCHCONTENT_SOURCE_DIR_${flashlane_fetch_upper} AND NOT EXISTS "${flashlane_fetch_file}")
    message(STATUS "${name}: none is installed that is new enough; downloading ${url}")
    file(DOWNLOAD "${url}" "${flashlane_fetch_file}.part" STATUS flashlane_fetch_status INACTIVITY_TIMEOUT 15)
    if(NOT flashlane_fetch_status MATCHES "^0;")
      message(FATAL_ERROR "${name}: ${url} can not be downloaded (${flashlane_fetch_status}). Run cmake/bootstrap.sh, "
                          "which knows other ways, or install it and point CMAKE_PREFIX_PATH to it")
    endif()
    file(SHA256 "${flashlane_fetch_file}.part" flashlane_fetch_sha256)
    if(NOT flashlane_fetch_sha256 STREQUAL "${sha256}")
      message(FATAL_ERROR "${name}: REFUSED ${url}: its SHA-256 is ${flashlane_fetch_sha256}, "
                          "the pinned one is ${sha256}")
    endif()
    file(RENAME "${flashlane_fetch_file}.part" "${flashlane_fetch_file}")
  endif()
  FetchContent_Declare(${name} URL "${flashlane_fetch_file}" URL_HASH SHA256=${sha256} DOWNLOAD_EXTRACT_TIMESTAMP ON
                       SOURCE_SUBDIR flashlane-has-none)
  FetchContent_MakeAvailable(${name})
endmacro()

function(flashlane_require package target debian_package)
  if(NOT TARGET ${target})
    find_package(${package} CONFIG QUIET)
  endif()
  if(NOT TARGET ${target})
    message(FATAL_ERROR "${package} is not installed (no CMake target ${target}): run cmake/bootstrap.sh, "
                        "or install it (Debian, Ubuntu: ${debian_package}), or point CMAKE_PREFIX_PATH to it")
  endif()
endfunction()

# ---- Highway

# The settings are plain variables of this function: they go down into Highway's folder and nowhere else. The two
# policies make Highway's own set(... CACHE) and option() respect them.
function(flashlane_add_highway source_dir)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(CMAKE_WARN_DEPRECATED OFF)
  set(CMAKE_POLICY_DEFAULT_CMP0126 NEW)
  set(HWY_ENABLE_CONTRIB OFF) # it would compile vqsort, for minutes; contrib/math is headers and usable all the same
  set(HWY_ENABLE_EXAMPLES OFF)
  set(HWY_ENABLE_INSTALL OFF)
  set(HWY_ENABLE_TESTS OFF)
  set(HWY_FORCE_STATIC_LIBS ON) # becomes part of a shared flashlane, or is installed beside a static one
  set(CMAKE_POSITION_INDEPENDENT_CODE ON)
  set(BUILD_TESTING OFF)
  add_subdirectory("${source_dir}" "${CMAKE_CURRENT_BINARY_DIR}/_deps/highway-build" EXCLUDE_FROM_ALL SYSTEM)
  # Whatever warnings our own build asks for, and as errors perhaps, this code is not ours to change.
  target_compile_options(hwy PRIVATE -w)
endfunction()

set(FLASHLANE_HIGHWAY_FROM_SOURCE OFF)
if(NOT TARGET hwy::hwy AND NOT TARGET hwy)
  find_package(hwy 1.2 CONFIG QUIET)
  if(hwy_FOUND)
    message(STATUS "Highway: installed ${hwy_VERSION} (${hwy_DIR})")
  else()
    set(FLASHLANE_HIGHWAY_FROM_SOURCE ON)
    if(EXISTS "${FLASHLANE_DEPS_DIR}/highway/.flashlane-pin")
      set(highway_SOURCE_DIR "${FLASHLANE_DEPS_DIR}/highway")
    else()
      flashlane_fetch(highway "${FLASHLANE_HIGHWAY_URL}" ${FLASHLANE_PIN_HIGHWAY_SHA256})
    endif()
    message(STATUS "Highway: source in ${highway_SOURCE_DIR}")
    flashlane_add_highway("${highway_SOURCE_DIR}")
  endif()
endif()
if(NOT TARGET hwy::hwy)
  add_library(hwy::hwy ALIAS hwy)
endif()

# ---- oneTBB

function(flashlane_add_tbb source_dir)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(CMAKE_WARN_DEPRECATED OFF)
  set(BUILD_SHARED_LIBS ON) # two copies of its scheduler in one process would fight over the cores
  set(CMAKE_POLICY_VERSION_MINIMUM 3.5) # it asks for less than CMake 4 accepts
  set(TBB_TEST OFF)
  set(TBB_STRICT OFF)
  set(TBB_DISABLE_HWLOC_AUTOMATIC_SEARCH ON)
  # Not EXCLUDE_FROM_ALL: its install rules must hold, for whoever uses an installed flashlane needs it too.
  add_subdirectory("${source_dir}" "${CMAKE_CURRENT_BINARY_DIR}/_deps/tbb-build" SYSTEM)
endfunction()

set(FLASHLANE_TBB_FROM_SOURCE OFF)
if(NOT TARGET TBB::tbb)
  if("thread" IN_LIST FLASHLANE_SANITIZE)
    # Only an instrumented one will do, and the system's is not: never fall back to it.
    find_package(TBB CONFIG QUIET PATHS "${FLASHLANE_DEPS_DIR}/tbb-tsan" NO_DEFAULT_PATH)
    if(NOT TARGET TBB::tbb)
      message(FATAL_ERROR "The thread sanitizer needs a oneTBB that is built for it: run cmake/bootstrap.sh --tsan, "
                          "or set TBB_DIR to the folder of such a one's TBBConfig.cmake")
    endif()
  else()
    find_package(TBB 2021 CONFIG QUIET)
  endif()
endif()
if(TARGET TBB::tbb)
  message(STATUS "oneTBB: installed ${TBB_VERSION} (${TBB_DIR})")
else()
  set(FLASHLANE_TBB_FROM_SOURCE ON)
  flashlane_fetch(onetbb "${FLASHLANE_ONETBB_URL}" ${FLASHLANE_PIN_ONETBB_SHA256})
  flashlane_add_tbb("${onetbb_SOURCE_DIR}")
endif()

# ---- the rest

flashlane_require(spdlog spdlog::spdlog libspdlog-dev)
if(FLASHLANE_BUILD_CLI)
  flashlane_require(CLI11 CLI11::CLI11 libcli11-dev)
endif()
if(FLASHLANE_BUILD_CLI OR FLASHLANE_BUILD_TESTS OR FLASHLANE_BUILD_BENCH)
  flashlane_require(nlohmann_json nlohmann_json::nlohmann_json nlohmann-json3-dev)
endif()
if(FLASHLANE_BUILD_TESTS)
  flashlane_require(GTest GTest::gtest libgtest-dev)
  flashlane_require(GTest GTest::gmock libgmock-dev)
  find_package(yaml-cpp CONFIG QUIET)
  if(TARGET yaml-cpp AND NOT TARGET yaml-cpp::yaml-cpp) # before 0.8
    add_library(yaml-cpp::yaml-cpp INTERFACE IMPORTED)
    target_link_libraries(yaml-cpp::yaml-cpp INTERFACE yaml-cpp)
  endif()
  flashlane_require(yaml-cpp yaml-cpp::yaml-cpp libyaml-cpp-dev)
endif()
if(FLASHLANE_BUILD_BENCH)
  flashlane_require(benchmark benchmark::benchmark libbenchmark-dev)
endif()
