#!/usr/bin/env bash
# Brings a Debian (12 or newer) or Ubuntu (24.04 or newer) machine to where CMake can configure Flashlane, and does
# nothing where nothing is missing: packages come from the distribution, Highway from the distribution or else as a
# pinned, SHA-256-checked source tree in build/deps/. What is installed is not upgraded; apt's configuration is not
# touched.
#
#   cmake/bootstrap.sh            what building, testing and benchmarking needs
#   cmake/bootstrap.sh --tools    also clang-format, clang-tidy and shellcheck, for cmake/check.sh --tidy
#   cmake/bootstrap.sh --gates    also valgrind and python3, for the gates of CONTRIBUTING.md; exit code 3: not to be had
#   cmake/bootstrap.sh --tsan     also a oneTBB built for the thread sanitizer, for the tsan preset;
#                                 exit code 3: everything else is ready, but oneTBB's source is not to be had
#   cmake/bootstrap.sh --aarch64  also cross compilers, qemu and arm64 libraries, for the aarch64 presets; the same code 3
#
# FLASHLANE_HIGHWAY_URL, FLASHLANE_ONETBB_URL: take that archive (file:///... too) instead; the pinned SHA-256 holds.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=$root/build/deps
readonly minimum_cmake=3.25 minimum_highway=1.2 no_source=3
readonly libraries=(libtbb-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libgtest-dev libgmock-dev libyaml-cpp-dev
  libbenchmark-dev)

say() { printf 'bootstrap: %s\n' "$*"; }
warn() { printf 'bootstrap: %s\n' "$*" >&2; }
die() {
  warn "$@"
  exit 1
}

# shellcheck source=cmake/sources.sh
source "$root/cmake/sources.sh"
# shellcheck source=cmake/sysroot.sh
source "$root/cmake/sysroot.sh"

# ---- packages

newer_or_same() { # VERSION MINIMUM
  [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -1) == "$2" ]]
}

cmake_version() { cmake --version 2>/dev/null | awk 'NR == 1 { print $3 }'; }

# Programs are looked for by name, not by package: the user may have brought their own.
missing_programs() {
  local compiler=${CXX:-g++}
  command -v "${compiler%% *}" >/dev/null || echo g++
  newer_or_same "$(cmake_version)" $minimum_cmake || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  if [[ $with_tools ]]; then
    command -v clang-format >/dev/null || echo clang-format
    command -v clang-tidy >/dev/null || echo clang-tidy
    command -v shellcheck >/dev/null || echo shellcheck
  fi
}

missing_libraries() {
  local installed
  command -v dpkg-query >/dev/null || return 0
  # shellcheck disable=SC2016  # ${...} is dpkg-query's own format language
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${libraries[@]}" 2>/dev/null || true)
  for library in "${libraries[@]}"; do
    grep -qx "$library installed" <<<"$installed" || echo "$library"
  done
}

can_be_root() { [[ $EUID -eq 0 ]] || command -v sudo >/dev/null; }

as_root() {
  if [[ $EUID -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

# --no-upgrade: a development machine must come out of this with the versions that it had.
# The lock: another apt may be at work (on a fresh cloud machine it usually is).
apt_install() { # PACKAGES...
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    install -y --no-upgrade --no-install-recommends "$@" >"$work/apt.log" 2>&1 </dev/null
}

install_packages() { # PACKAGES...
  (($#)) || return 0
  local by_hand="apt-get install --no-install-recommends $*"
  command -v apt-get >/dev/null ||
    die "missing: $*. There is no apt-get here: install what your system calls these, then run this again"
  can_be_root || die "missing: $*. Neither root nor sudo here: have somebody run: $by_hand"
  say "installing $*"
  # A failing update is no failure yet: a third party's repository may be out of order, or the lists be good enough.
  as_root apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 update \
    >"$work/update.log" 2>&1 </dev/null || true
  if ! apt_install "$@"; then
    grep -hE '^(E|W|Err|sudo)' "$work/update.log" "$work/apt.log" | sort -u | head -2 >&2 || true
    die "apt-get could not install: $*. Is the network up, and apt set up? By hand: $by_hand"
  fi
}

check_cmake() {
  newer_or_same "$(cmake_version)" $minimum_cmake ||
    die "cmake $(cmake_version) ($(command -v cmake)) is too old: $minimum_cmake is needed (pip has a new one)"
}

# ---- Highway

# Asks CMake itself, so that the answer is the one that cmake/dependencies.cmake will get (CMAKE_PREFIX_PATH and all).
highway_is_installed() {
  mkdir -p "$work/probe" && cat >"$work/probe/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION $minimum_cmake)
project(probe LANGUAGES NONE)
find_package(hwy $minimum_highway CONFIG REQUIRED)
CMAKE
  cmake -S "$work/probe" -B "$work/probe/build" -G Ninja \
    -DCMAKE_LIBRARY_ARCHITECTURE="$("${CXX:-g++}" -print-multiarch 2>/dev/null)" >/dev/null 2>&1
}

install_distributions_highway() {
  local candidate
  can_be_root && command -v apt-cache >/dev/null || return 1
  candidate=$(apt-cache policy libhwy-dev 2>/dev/null | awk '$1 == "Candidate:" { print $2 }')
  [[ $candidate && $candidate != "(none)" ]] && newer_or_same "$candidate" $minimum_highway || return 1
  say "installing libhwy-dev"
  apt_install libhwy-dev && highway_is_installed
}

provide_highway() {
  local origin places=(upstream debian pypi)
  if is_placed "$deps/highway" "$HIGHWAY_SHA256" "$NUMPY_SHA256"; then return; fi
  if highway_is_installed; then return; fi
  if install_distributions_highway; then return; fi
  # Whoever names an archive wants that one, or to be told.
  if [[ ${FLASHLANE_HIGHWAY_URL:-} ]]; then places=(upstream); fi
  if ! get_tree highway "${places[@]}"; then
    [[ ${FLASHLANE_HIGHWAY_URL:-} ]] && die "no Highway: FLASHLANE_HIGHWAY_URL=$FLASHLANE_HIGHWAY_URL did not give it"
    die "no Highway: none installed is $minimum_highway or newer, and no place gave the pinned source" \
      "(tried ${places[*]}). Is the network up?" \
      "A copy of $HIGHWAY_URL can be named by FLASHLANE_HIGHWAY_URL=file:///..."
  fi
  local sha=$HIGHWAY_SHA256
  if [[ $origin == pypi ]]; then sha=$NUMPY_SHA256; fi
  place "$work/tree" "$deps/highway" "$sha $origin"
  say "Highway: source from $origin, SHA-256 verified, is in build/deps/highway"
}

# ---- oneTBB for the thread sanitizer

# The distribution's libtbb is not instrumented: the sanitizer can not see its synchronisation and reports races that
# are none, and a suppression for them would hide real ones.
provide_tsan_tbb() {
  local origin places=(upstream debian)
  if is_placed "$deps/tbb-tsan" "$ONETBB_SHA256" "$ONETBB_DEBIAN_SHA256"; then return; fi
  if [[ ${FLASHLANE_ONETBB_URL:-} ]]; then places=(upstream); fi
  if ! get_tree onetbb "${places[@]}"; then
    warn "no oneTBB for the thread sanitizer: none of these gave the pinned source: ${places[*]}"
    exit $no_source
  fi
  local sha=$ONETBB_SHA256
  if [[ $origin == debian ]]; then sha=$ONETBB_DEBIAN_SHA256; fi
  say "oneTBB $ONETBB_VERSION from $origin: building with the thread sanitizer"
  # hwloc is left out: it is not instrumented either, and is not needed. CMake 4 must be told to accept the old minimum.
  if ! {
    cmake -S "$work/tree" -B "$work/tbb" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_INSTALL_LIBDIR=lib \
      -DTBB_SANITIZE=thread -DTBB_TEST=OFF -DTBB_STRICT=OFF -DTBB_DISABLE_HWLOC_AUTOMATIC_SEARCH=ON \
      -DCMAKE_POLICY_VERSION_MINIMUM=3.5 &&
      cmake --build "$work/tbb" && cmake --install "$work/tbb" --prefix "$work/tbb-tsan"
  } >"$work/tbb.log" 2>&1; then
    tail -20 "$work/tbb.log" >&2
    die "oneTBB did not build with the thread sanitizer"
  fi
  place "$work/tbb-tsan" "$deps/tbb-tsan" "$sha $origin"
  say "oneTBB for the thread sanitizer is in build/deps/tbb-tsan"
}

# ---- gates

provide_gates() {
  local missing=()
  command -v valgrind >/dev/null || missing+=(valgrind)
  command -v python3 >/dev/null || missing+=(python3)
  if ! (install_packages "${missing[@]}"); then
    warn "no valgrind or no python3: the gates that need them will be skipped"
    exit $no_source
  fi
}

# ----

parse_arguments() {
  with_tools='' with_tsan='' with_aarch64='' with_gates=''
  while (($#)); do
    case $1 in
      --tools) with_tools=1 ;;
      --gates) with_gates=1 ;;
      --tsan) with_tsan=1 ;;
      --aarch64) with_aarch64=1 ;;
      -h | --help)
        sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
      *) die "unknown argument '$1' (there are --tools, --gates, --tsan and --aarch64)" ;;
    esac
    shift
  done
}

# One bootstrap at a time in a checkout; a second one waits, and then finds everything done.
take_lock() {
  mkdir -p "$deps"
  exec 9>"$deps/.lock"
  if ! flock -n 9; then
    say "waiting for another bootstrap of this checkout"
    flock 9
  fi
  rm -rf "$deps"/tmp.* # left by one that was killed
}

clean_up() {
  rm -rf "$work"
  # Run as root in another user's checkout, leave nothing there that the user can not write.
  if [[ $EUID -eq 0 ]]; then
    chown --reference="$root" "$root/build" 2>/dev/null || true
    chown -R --reference="$root" "$deps" 2>/dev/null || true
  fi
}

main() {
  parse_arguments "$@"
  take_lock
  work=$(mktemp -d "$deps/tmp.XXXXXX")
  trap clean_up EXIT
  local missing
  mapfile -t missing < <(missing_programs && missing_libraries)
  install_packages "${missing[@]}"
  check_cmake
  provide_highway
  if [[ $with_gates ]]; then provide_gates; fi
  if [[ $with_tsan ]]; then provide_tsan_tbb; fi
  if [[ $with_aarch64 ]]; then provide_aarch64; fi
  say "ready"
}

main "$@"
