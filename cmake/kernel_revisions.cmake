# kernel_revision_hash of every kernel that has a contract, as a C++ source file:
#
#   cmake -DROOT=<tree> -DOUTPUT=<file> -P kernel_revisions.cmake
#
# A kernel's hash covers the names and the bytes of its sources in kernels/ and of all that they include from there,
# directly or not, and of the files of dispatch/ that say in which order sums are made: it changes when one of them
# changes, and only then. Without OUTPUT it prints the hashes; with
# -DLIST=ON the files behind them.
cmake_minimum_required(VERSION 3.25)

set(forward_sources attention_flash.cc attention_flash_amx.cc attention_stream.cc attention_stream_half.cc)
set(sources_of_attention_flash ${forward_sources})
set(sources_of_attention_paged ${forward_sources})
# Runs the forward for the results that it needs.
set(sources_of_attention_flash_backward attention_flash_backward.cc attention_flash_backward_amx.cc
    attention_flash_backward_half.cc ${forward_sources})
set(sources_of_attention_naive attention_naive.cc)
set(sources_of_attention_paged_naive attention_naive.cc)
set(sources_of_attention_backward_naive attention_naive_backward.cc)
set(cut_of_attention_flash tile_grid.cc tile_grid.h)
set(cut_of_attention_paged ${cut_of_attention_flash})
set(cut_of_attention_flash_backward ${cut_of_attention_flash} backward_grid.cc backward_grid.h bias_tiles.h)
set(kernels attention_flash attention_naive attention_paged attention_paged_naive attention_flash_backward
            attention_backward_naive)

# The files of kernels/ that `roots` consist of, sorted.
function(closure result)
  set(pending ${ARGN})
  set(found "")
  while(pending)
    list(POP_FRONT pending file)
    if(file IN_LIST found)
      continue()
    endif()
    list(APPEND found ${file})
    file(STRINGS "${ROOT}/kernels/${file}" lines REGEX "^ *# *include +\"kernels/")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^.*\"kernels/([^\"]+)\".*$" "\\1" included "${line}")
      list(APPEND pending ${included})
    endforeach()
  endwhile()
  list(SORT found)
  set(${result} ${found} PARENT_SCOPE)
endfunction()

set(rows "")
foreach(kernel IN LISTS kernels)
  closure(files ${sources_of_${kernel}})
  set(text "")
  foreach(file IN LISTS files)
    file(SHA256 "${ROOT}/kernels/${file}" hash)
    string(APPEND text "${file} ${hash}\n")
  endforeach()
  foreach(file IN LISTS cut_of_${kernel})
    file(SHA256 "${ROOT}/dispatch/${file}" hash)
    string(APPEND text "dispatch/${file} ${hash}\n")
  endforeach()
  string(SHA256 hash "${text}")
  string(SUBSTRING "${hash}" 0 16 hash)
  string(APPEND rows "    {\"${kernel}\", \"${hash}\"},\n")
  if(NOT OUTPUT)
    message("${kernel} ${hash}")
  endif()
  if(LIST)
    message("${text}")
  endif()
endforeach()

if(OUTPUT)
  # Not file(CONFIGURE): it leaves an unchanged file's time alone, and the build would run this every time.
  file(WRITE "${OUTPUT}" "// Written by cmake/kernel_revisions.cmake.
#include \"dispatch/fkc/revision.h\"

namespace flashlane::fkc {
namespace {

constexpr KernelRevision kRevisions[] = {
${rows}};

}  // namespace

std::span<const KernelRevision> KernelRevisions() { return kRevisions; }

}  // namespace flashlane::fkc
")
endif()
