# Who may include whom (design: three rooms, two arrows), and what may stand in one file only.
#   cmake -DROOT=<tree> -P include_rules.cmake             fails and lists every breach
#   cmake -DROOT=<tree> -DSELF_TEST=ON -P include_rules.cmake   proves that each rule can fail
cmake_minimum_required(VERSION 3.25)

set(std "<[a-z_0-9]+>")
set(system "<(sys|unistd|fcntl|cpuid)[a-z/.]*h>")
set(breaches "")

# Every match of `pattern` in a line of `file` that does not also match `allowed` is a breach.
function(check file pattern allowed rule)
  file(STRINGS "${ROOT}/${file}" lines REGEX "${pattern}")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "${allowed}")
      set(breaches "${breaches}  ${file}: ${line}\n    ${rule}\n" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

function(check_file file)
  set(include "^ *# *include")
  if(file MATCHES "^kernels/attention_naive.cc$")
    check(${file} "${include}" "\"kernels/kernels.h\"|\"hwy/base.h\"|${std}"
          "the oracle shares args.h (through kernels.h) with the other kernels, and nothing else")
  elseif(file MATCHES "^kernels/")
    check(${file} "${include}" "\"(kernels|hwy)/|HWY_TARGET_INCLUDE|${std}"
          "kernels/ stands on Highway and the standard library only")
  elseif(file STREQUAL "threading/parallel_for.cc")
    check(${file} "${include}" "\"threading/|<(oneapi/)?tbb/|${std}"
          "threading/ stands on oneTBB and the standard library only")
  elseif(file MATCHES "^threading/")
    check(${file} "${include}" "\"threading/|${std}" "oneTBB is included in parallel_for.cc only")
  elseif(file MATCHES "^dispatch/include/")
    check(${file} "${include}" "\"flashlane/|${std}" "public headers stand on the standard library only")
  elseif(file MATCHES "^dispatch/cli/")
    check(${file} "${include}" "\"(dispatch|flashlane|threading)/|<(CLI|nlohmann)/|\"hwy/base.h\"|${std}|${system}"
          "the program stands on dispatch/, CLI11 and nlohmann-json")
  elseif(file MATCHES "^dispatch/")
    check(${file} "${include}"
          "\"(dispatch|flashlane|threading)/|\"kernels/[a-z_]+\\.h\"|\"hwy/(base|targets)\\.h\"|<spdlog/|${std}|${system}"
          "dispatch/ stands on kernels/ (no -inl.h), threading/ and the standard library")
    if(NOT file STREQUAL "dispatch/log.cc")
      check(${file} "${include} <spdlog" "^$" "spdlog is included in log.cc only")
    endif()
  endif()
  if(NOT file MATCHES "^dispatch/cli/|^dispatch/environment.cc$")
    check(${file} "getenv" "^$" "the environment is read in dispatch/environment.cc only")
  endif()
  if(file MATCHES "^kernels/" AND NOT file MATCHES "^kernels/tile_matmul")
    check(${file} "# *(if|ifdef|ifndef|elif).*HWY_(TARGET|ARCH)" "HWY_TARGET_TOGGLE"
          "an instruction set differs in tile_matmul-inl.h only")
    check(${file} "malloc|new |std::vector|std::thread|std::mutex|printf|std::cerr|std::cout" "^ *//"
          "kernels/ has no heap, no threads, no output")
  endif()
  set(breaches "${breaches}" PARENT_SCOPE)
endfunction()

function(check_tree)
  file(GLOB_RECURSE files RELATIVE "${ROOT}" "${ROOT}/kernels/*.h" "${ROOT}/kernels/*.cc"
       "${ROOT}/threading/*.h" "${ROOT}/threading/*.cc" "${ROOT}/dispatch/*.h" "${ROOT}/dispatch/*.cc")
  if(NOT files)
    message(FATAL_ERROR "no sources under ${ROOT}")
  endif()
  foreach(file IN LISTS files)
    check_file(${file})
  endforeach()
  set(breaches "${breaches}" PARENT_SCOPE)
endfunction()

# Plants one breach at a time in an empty tree and expects it to be found.
function(expect_breach file line)
  set(ROOT "${CMAKE_CURRENT_BINARY_DIR}/include_rules_self_test")
  file(REMOVE_RECURSE "${ROOT}")
  file(WRITE "${ROOT}/${file}" "#include <vector>\n${line}\n")
  set(breaches "")
  check_tree()
  if(breaches STREQUAL "")
    message(FATAL_ERROR "not found: '${line}' in ${file}")
  endif()
  file(REMOVE_RECURSE "${ROOT}")
endfunction()

if(SELF_TEST)
  expect_breach(kernels/mask.h "#include \"threading/partition.h\"")
  expect_breach(kernels/mask.h "#include <tbb/parallel_for.h>")
  expect_breach(kernels/mask.h "  std::vector<float> heap;")
  expect_breach(kernels/flash-inl.h "#if HWY_TARGET == HWY_AVX2")
  expect_breach(kernels/attention_naive.cc "#include \"kernels/mask.h\"")
  expect_breach(kernels/mask.h "#include <unistd.h>")
  expect_breach(threading/partition.cc "#include <tbb/task_arena.h>")
  expect_breach(threading/partition.cc "#include \"kernels/args.h\"")
  expect_breach(dispatch/contract.cc "#include \"kernels/flash-inl.h\"")
  expect_breach(dispatch/contract.cc "#include <spdlog/spdlog.h>")
  expect_breach(dispatch/contract.cc "#include <nlohmann/json.hpp>")
  expect_breach(dispatch/contract.cc "  std::getenv(\"X\");")
  expect_breach(dispatch/include/flashlane/tensor.h "#include \"hwy/base.h\"")
  expect_breach(dispatch/cli/main.cc "#include \"kernels/args.h\"")
else()
  check_tree()
  if(NOT breaches STREQUAL "")
    message(FATAL_ERROR "Breaches of the layout:\n${breaches}")
  endif()
endif()
