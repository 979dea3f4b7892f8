#!/usr/bin/env bash
# Everything that a change must pass, as it runs in CI.
#
#   cmake/check.sh           release build and tests, then the tests under the address, undefined and thread sanitizers,
#                            and those of tests/emulated.cmake for aarch64 under qemu
#   cmake/check.sh --quick   release only
#   cmake/check.sh --full    also all other tests for aarch64, for hours
#   cmake/check.sh --tidy    also clang-format, clang-tidy and shellcheck
#   cmake/check.sh --again   also where nothing has changed since the same check passed here
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$(nproc)
readonly no_source=3 # cmake/bootstrap.sh: what that part needs is not to be had
summary=()

# Runs one stage and says how long it took. A failing stage ends the script and is named last.
stage() { # NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  current=$name
  printf '\n=== %s: begins at %d s\n' "$name" "$SECONDS"
  "$@"
  printf '=== %s: passed, %d s\n' "$name" "$((SECONDS - start))"
  summary+=("passed   $((SECONDS - start)) s  $name")
}

# One number for all that the result depends on: sources, tools, CPU and what was asked for. Empty where git can not
# list the sources; then nothing is ever taken as unchanged.
fingerprint() { # ARGUMENT...
  git rev-parse --is-inside-work-tree >/dev/null 2>&1 || return 0
  {
    git ls-files --cached --others --exclude-standard -z | xargs -0 sha256sum
    "${CXX:-g++}" --version
    cmake --version
    grep -m 1 '^flags' /proc/cpuinfo
    printf '%s\n' "$@"
  } 2>/dev/null | sha256sum | cut -d ' ' -f 1
}

report() {
  local status=$?
  if ((status)); then summary+=("FAILED   ${current:-start}"); fi
  printf '\n=== check: %d s in all\n' "$SECONDS"
  if ((${#summary[@]})); then printf '    %s\n' "${summary[@]}"; fi
  exit $status
}

build() { # CONFIGURE_PRESET [BUILD_PRESET]
  cmake --preset "$1" --log-level=WARNING
  cmake --build --preset "${2:-$1}"
}

# Which tests did not run, and why as they say it themselves, each reason once.
skips() { # BUILD_DIRECTORY
  awk '
    { sub(/\r$/, "") }
    /SKIPPED[,:]|^SKIPPED / { reason[$0]++ }
    was { reason[$0]++ }
    { was = /: Skipped$/ }
    END { for (text in reason) printf "    skipped, %d times: %s\n", reason[text], text }
  ' "$1/Testing/Temporary/LastTest.log" | sort
}

# The sanitizers' presets leave out tests labelled not-sanitized (they compile anew, or measure time); a test that needs
# the machine for itself has the property RUN_SERIAL.
run_tests() { # PRESET [PREFIX...]
  local preset=$1 folder=build/${1%-full}
  shift
  "$@" ctest --preset "$preset" --parallel "$jobs"
  skips "$folder"
}

# The thread sanitizer of g++ before 14 can not map its shadow memory where the kernel randomises more than 28 bits.
tsan_tests() {
  local prefix=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then prefix=(setarch "$(uname -m)" -R); fi
  run_tests tsan "${prefix[@]}"
}

# A part that needs what only some machines and networks give: 0 if that is here now, else the part is left out and the
# summary says so.
provided() { # PART OPTION WHAT
  local status=0
  current="$1: $3"
  printf '\n=== %s\n' "$current"
  cmake/bootstrap.sh "$2" || status=$?
  if ((status == no_source)); then
    printf '=== %s: SKIPPED, not to be had from here: %s\n' "$1" "$3"
    summary+=("SKIPPED  $1 (not to be had from here: $3)")
    return 1
  elif ((status)); then
    exit $status
  fi
}

thread_sanitizer() {
  provided "thread sanitizer" --tsan "source of oneTBB" || return 0
  stage "tsan build" build tsan
  stage "tsan tests" tsan_tests
}

aarch64() { # PRESET
  provided "aarch64" --aarch64 "cross compiler, qemu and arm64 libraries" || return 0
  stage "$1 build" build aarch64 "$1"
  stage "$1 tests" run_tests "$1"
}

format() { git ls-files '*.h' '*.cc' | xargs -r clang-format --dry-run -Werror; }

scripts() { git ls-files '*.sh' .ci/run | xargs -r shellcheck -x; }

# Reads the compile commands of the release build; its flags are g++'s, of which clang need not know all.
tidy() {
  git ls-files 'kernels/*.cc' 'threading/*.cc' 'dispatch/*.cc' |
    xargs -r -P "$jobs" -n 1 clang-tidy -p build/release --quiet --extra-arg=-Wno-unknown-warning-option
}

main() {
  local quick='' with_tidy='' again='' emulated=aarch64 argument
  for argument in "$@"; do
    case $argument in
      --quick) quick=1 ;;
      --tidy) with_tidy=1 ;;
      --full) emulated=aarch64-full ;;
      --again) again=1 ;;
      -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" && exit ;;
      *) printf 'check.sh: unknown argument %s (there are --quick, --full, --tidy and --again)\n' "$argument" >&2 && exit 2 ;;
    esac
  done
  local passed=build/check.passed now=''
  now=$(fingerprint "quick=$quick" "tidy=$with_tidy" "$emulated")
  if [[ ! $again && $now && -f $passed && $(<"$passed") == "$now" ]]; then
    printf 'check: nothing has changed since this check passed here; --again runs it all the same\n'
    return
  fi
  trap report EXIT
  stage "bootstrap" cmake/bootstrap.sh ${with_tidy:+--tools}
  if [[ $with_tidy ]]; then
    stage "scripts" scripts
    stage "format" format
  fi
  provided "instruction counts" --gates "valgrind and python3" || true
  stage "release build" build release
  stage "release tests" run_tests release
  if [[ $with_tidy ]]; then stage "tidy" tidy; fi
  if [[ ! $quick ]]; then
    stage "asan build" build asan
    stage "asan tests" run_tests asan
    thread_sanitizer
    aarch64 "$emulated"
  fi
  # Not where a stage was left out, and not if a source changed meanwhile.
  if [[ "${summary[*]}" != *SKIPPED* && $now == "$(fingerprint "quick=$quick" "tidy=$with_tidy" "$emulated")" ]]; then
    printf '%s\n' "$now" >"$passed"
  fi
}

main "$@"
