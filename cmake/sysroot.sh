# shellcheck shell=bash disable=SC2154  # root, work, deps, no_source and libraries are bootstrap.sh's
# What building for aarch64 needs, for bootstrap.sh: the cross compilers and qemu from the distribution, and its arm64
# libraries unpacked into build/deps/aarch64, a folder that only the preset `aarch64` looks at. dpkg is not told of
# another architecture. Sourced, not run. Uses from bootstrap.sh: as above, say, warn, install_packages; from
# sources.sh: private_apt, debian_keyring, debian_uris, place, is_placed.

# The compilers are looked for by name: clang 17 or g++ 13.2 are the first that know bf16 of Arm, and whoever has one
# of them under another name says so to CMake (FLASHLANE_AARCH64_CXX).
aarch64_programs() {
  command -v aarch64-linux-gnu-g++ >/dev/null || echo g++-aarch64-linux-gnu
  command -v clang++-19 >/dev/null || ! apt-cache show clang-19 >/dev/null 2>&1 || echo clang-19
  command -v qemu-aarch64 >/dev/null || command -v qemu-aarch64-static >/dev/null || echo qemu-user-static
}

codename() { (. /etc/os-release && echo "${VERSION_CODENAME:-}"); }

# The cross compiler brings these itself; two libc in one process do not go together.
readonly compilers_own='^(libc6|libc6-dev|libc-dev-bin|linux-libc-dev|libcrypt|libgcc|libstdc|gcc-|libnsl|libtirpc|rpcsvc)'

# Downloads what the libraries depend on, too: the private dpkg status is empty, so that apt counts nothing as there.
download_arm64() { # STATE SUITE URI KEYRING
  local state=$1
  rm -rf "$state" && mkdir -p "$state"/{lists/partial,archives/partial,got} && : >"$state/status"
  echo "deb [arch=arm64 signed-by=$4] $3 $2 main" >"$state/sources.list"
  local arm64=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::status="$state/status")
  private_apt "$state" "${arm64[@]}" update >"$state/log" 2>&1 || return 1
  private_apt "$state" "${arm64[@]}" install --no-install-recommends -y --print-uris "${libraries[@]}" \
    >"$state/uris" 2>"$state/log" || return 1
  awk '{ print $2 }' "$state/uris" | sed 's/_.*//' | grep -vE "$compilers_own" >"$state/names" || return 1
  # apt checks every package against the signed list.
  local names
  mapfile -t names <"$state/names"
  (cd "$state/got" && private_apt "$state" "${arm64[@]}" download "${names[@]}") >"$state/log" 2>&1
}

provide_sysroot() {
  local suite keyring uri package stamp state=$work/arm64
  suite=$(codename)
  stamp=$suite-$(printf '%s\n' "${libraries[@]}" | sha256sum | cut -c 1-16)
  if is_placed "$deps/aarch64" "$stamp"; then return; fi
  if ! command -v apt-get >/dev/null || ! keyring=$(debian_keyring); then
    warn "no arm64 libraries: not a Debian system. Point CMAKE_FIND_ROOT_PATH to a sysroot that has them"
    exit "$no_source"
  fi
  for uri in $(debian_uris); do
    say "aarch64: libraries of $suite"
    if ! download_arm64 "$state" "$suite" "$uri" "$keyring"; then
      warn "Debian's archive: $(grep -m1 -E '^(E|W):' "$state/log")"
      continue
    fi
    for package in "$state"/got/*.deb; do dpkg-deb -x "$package" "$work/aarch64"; done
    place "$work/aarch64" "$deps/aarch64" "$stamp"
    say "arm64 libraries, of packages that apt verified, are in build/deps/aarch64"
    return
  done
  warn "no arm64 libraries: no archive gave them"
  exit "$no_source"
}

# The libraries first: where there are none, compilers of some hundred MB would serve nothing.
provide_aarch64() {
  local missing
  provide_sysroot
  mapfile -t missing < <(aarch64_programs)
  if ! (install_packages "${missing[@]}"); then
    warn "no compiler for aarch64, or no qemu"
    exit "$no_source"
  fi
}
