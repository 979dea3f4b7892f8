# Builds for aarch64 Linux on another machine, and runs what it built under qemu-user. `cmake/bootstrap.sh --aarch64`
# brings what this looks for: a compiler, qemu, and the arm64 libraries in build/deps/aarch64.
#
#   FLASHLANE_AARCH64_CXX   the compiler: clang++ or a cross g++. Default: the newest clang++ from 17 on, else the cross
#                           g++; older ones do not know the bf16 instructions, and leave out NEON_BF16
#   FLASHLANE_AARCH64_CPU   what qemu emulates; `max` has everything, `cortex-a72` is NEON with AES alone

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FLASHLANE_AARCH64_CXX FLASHLANE_AARCH64_CPU)

if(NOT FLASHLANE_AARCH64_CXX)
  find_program(flashlane_aarch64_cxx NO_CACHE
    NAMES clang++-22 clang++-21 clang++-20 clang++-19 clang++-18 clang++-17 aarch64-linux-gnu-g++)
  if(NOT flashlane_aarch64_cxx)
    message(FATAL_ERROR "No compiler for aarch64: run cmake/bootstrap.sh --aarch64, or set FLASHLANE_AARCH64_CXX")
  endif()
  set(FLASHLANE_AARCH64_CXX "${flashlane_aarch64_cxx}")
endif()
set(CMAKE_CXX_COMPILER "${FLASHLANE_AARCH64_CXX}")
# Highway asks for a C compiler, by which it finds out how the machine's abilities are asked for.
string(REGEX REPLACE "clang\\+\\+" "clang" CMAKE_C_COMPILER "${FLASHLANE_AARCH64_CXX}")
string(REGEX REPLACE "g\\+\\+" "gcc" CMAKE_C_COMPILER "${CMAKE_C_COMPILER}")
if(FLASHLANE_AARCH64_CXX MATCHES "clang")
  set(CMAKE_C_COMPILER_TARGET aarch64-linux-gnu)
  set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
endif()

# Where the cross compiler's own libraries lie, and where the others do.
set(flashlane_cross_root /usr/aarch64-linux-gnu)
cmake_path(SET flashlane_sysroot NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../build/deps/aarch64")
set(flashlane_sysroot_libraries "${flashlane_sysroot}/usr/lib/aarch64-linux-gnu")
if(NOT CMAKE_FIND_ROOT_PATH)
  set(CMAKE_FIND_ROOT_PATH "${flashlane_sysroot}")
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# What the libraries themselves stand on (oneTBB on hwloc, hwloc on udev) is no business of our link lines.
string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT " -Wl,-rpath-link,${flashlane_sysroot_libraries}")
string(APPEND CMAKE_SHARED_LINKER_FLAGS_INIT " -Wl,-rpath-link,${flashlane_sysroot_libraries}")

if(NOT CMAKE_CROSSCOMPILING_EMULATOR)
  if(NOT FLASHLANE_AARCH64_CPU)
    set(FLASHLANE_AARCH64_CPU max)
  endif()
  find_program(flashlane_qemu NO_CACHE NAMES qemu-aarch64-static qemu-aarch64)
  if(flashlane_qemu)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${flashlane_qemu} -cpu ${FLASHLANE_AARCH64_CPU} -L ${flashlane_cross_root}
      -E LD_LIBRARY_PATH=${flashlane_sysroot_libraries})
  endif()
endif()
