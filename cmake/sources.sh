# shellcheck shell=bash disable=SC2154  # root and work are bootstrap.sh's
# Pinned source trees for bootstrap.sh: get an archive, check its SHA-256, unpack it, put it in place by one rename.
# Sourced, not run. Uses from bootstrap.sh: root, work, say, warn.
#
# Functions named <what>_from_<where> unpack a verified tree into $work/tree and return 0, or return 1 (after saying why
# on stderr) so that the caller can go on to the next place. They are called in conditions, where `set -e` is off:
# every step is chained with && or tested.

# shellcheck source=cmake/pins.env
source "$root/cmake/pins.env"

# The check that everything from a network must pass, whoever served it.
verify() { # FILE SHA256
  local got
  got=$(sha256sum "$1" | cut -d' ' -f1)
  [[ $got == "$2" ]] && return 0
  warn "REFUSED ${1##*/}: its SHA-256 is $got, the pinned one is $2"
  return 1
}

unpack() { # ARCHIVE DIR: DIR gets what is inside the archive's single top folder
  local top
  # CMake's tar: it reads xz too, for which a minimal system has no program.
  mkdir -p "$2.unpack" && (cd "$2.unpack" && cmake -E tar xf "$1") || return 1
  top=("$2.unpack"/*)
  mv -T "${top[0]}" "$2" && rmdir "$2.unpack"
}

place() { # TREE DEST STAMP: the tree appears at DEST whole or not at all
  printf '%s\n' "$3" >"$1/.flashlane-pin"
  rm -rf "$2.old"
  if [[ -e $2 ]]; then mv -T "$2" "$2.old"; fi
  mv -T "$1" "$2"
  rm -rf "$2.old"
}

is_placed() { # DEST SHA256...: does DEST hold a tree made from one of these archives?
  local dest=$1 pin
  shift
  [[ -f $dest/.flashlane-pin ]] || return 1
  read -r pin _ <"$dest/.flashlane-pin"
  [[ " $* " == *" $pin "* ]]
}

# ---- upstream's release archives

from_upstream() { # URL SHA256
  local log
  if ! log=$(cmake -DURL="$1" -DFILE="$work/${1##*/}" -P "$root/cmake/download.cmake" 2>&1); then
    warn "not reachable: $(head -1 <<<"$log")"
    return 1
  fi
  verify "$work/${1##*/}" "$2" && unpack "$work/${1##*/}" "$work/tree"
}

# ---- Debian's archive, in an apt state of our own

# The archive that this machine's apt is set up to use: its mirror and its ways through the network are the ones that
# work here. `main` of a whole release only: not of -updates, -security, -backports.
debian_uris() {
  # shellcheck disable=SC2016  # $(...) is apt's own format language
  apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk '$2 == "main" && $1 !~ /[-\/]/ && $3 !~ /^cdrom:/ && !seen[$3]++ { print $3 }' | head -3
}

# Debian's own key, so that a third party's repository can not stand in for Debian's.
debian_keyring() {
  local file
  for file in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp}; do
    if [[ -r $file ]]; then echo "$file" && return; fi
  done
  return 1
}

# Lists, archives and sources all live under STATE: the system's apt files are read (proxies, credentials), not written.
private_apt() { # STATE ARGUMENTS...
  local state=$1
  shift
  apt-get -qq \
    -o Dir::State::lists="$state/lists" -o Dir::Cache="$state" -o Dir::Cache::archives="$state/archives" \
    -o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=- \
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=- \
    -o APT::Sandbox::User="$(id -un)" -o APT::Update::Error-Mode=any \
    -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 \
    -o Acquire::Languages=none "$@"
}

from_debian() { # SOURCE-PACKAGE SUITE SHA256
  local keyring uri archive state=$work/apt
  if ! command -v apt-get >/dev/null || ! keyring=$(debian_keyring); then
    warn "not a Debian system: its archive's key is not here"
    return 1
  fi
  for uri in $(debian_uris); do
    rm -rf "$state" && mkdir -p "$state"/{lists/partial,archives/partial,got}
    echo "deb-src [signed-by=$keyring] $uri $2 main" >"$state/sources.list"
    if private_apt "$state" update >"$state/log" 2>&1 &&
      (cd "$state/got" && private_apt "$state" source --download-only "$1/$2") >>"$state/log" 2>&1; then
      archive=$(echo "$state"/got/*.orig.tar.*)
      verify "$archive" "$3" && unpack "$archive" "$work/tree" && return 0
    else
      warn "Debian's archive: $(grep -m1 -E '^(E|W):' "$state/log")"
    fi
  done
  return 1
}

# ---- PyPI

# `pip download` of a source distribution asks its build backend for metadata and would start a build: this one answers.
answering_backend() { # DIR
  mkdir -p "$1" && cat >"$1/mesonpy.py" <<'PY'
import os


def get_requires_for_build_sdist(config_settings=None):
    return []


get_requires_for_build_wheel = get_requires_for_build_sdist


def prepare_metadata_for_build_wheel(directory, config_settings=None):
    name = os.environ["FLASHLANE_DISTRIBUTION"]
    os.makedirs(os.path.join(directory, name + ".dist-info"))
    with open(os.path.join(directory, name + ".dist-info", "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % tuple(name.split("-")))
    return name + ".dist-info"
PY
}

highway_from_pypi() {
  local name=numpy-$NUMPY_VERSION dir=$work/pypi
  if ! python3 -m pip --version >/dev/null 2>&1; then
    warn "PyPI: python3 has no pip here"
    return 1
  fi
  answering_backend "$dir/backend" || return 1
  echo "numpy==$NUMPY_VERSION --hash=sha256:$NUMPY_SHA256" >"$dir/requirements.txt"
  if ! PYTHONPATH=$dir/backend FLASHLANE_DISTRIBUTION=$name python3 -m pip download --quiet --disable-pip-version-check \
    --no-input --timeout 15 --retries 1 --no-deps --no-binary :all: --no-build-isolation --ignore-requires-python \
    --require-hashes --dest "$dir" --requirement "$dir/requirements.txt" >"$dir/log" 2>&1; then
    warn "PyPI: $(grep -i error "$dir/log" | tail -1)"
    return 1
  fi
  verify "$dir/$name.tar.gz" "$NUMPY_SHA256" && mkdir -p "$dir/numpy" && (cd "$dir/numpy" &&
    cmake -E tar xf "$dir/$name.tar.gz" "$name/$NUMPY_HIGHWAY_PATH") &&
    [[ -f $dir/numpy/$name/$NUMPY_HIGHWAY_PATH/CMakeLists.txt ]] &&
    mv -T "$dir/numpy/$name/$NUMPY_HIGHWAY_PATH" "$work/tree"
}

# ---- what bootstrap.sh asks for

highway_from_upstream() { from_upstream "${FLASHLANE_HIGHWAY_URL:-$HIGHWAY_URL}" "$HIGHWAY_SHA256"; }
highway_from_debian() { from_debian highway "$HIGHWAY_DEBIAN_SUITE" "$HIGHWAY_SHA256"; }
onetbb_from_upstream() { from_upstream "${FLASHLANE_ONETBB_URL:-$ONETBB_URL}" "$ONETBB_SHA256"; }
onetbb_from_debian() { from_debian onetbb "$ONETBB_DEBIAN_SUITE" "$ONETBB_DEBIAN_SHA256"; }

# Leaves the tree in $work/tree and the name of the place in $origin.
get_tree() { # WHAT PLACES...
  local what=$1
  shift
  for origin in "$@"; do
    rm -rf "$work"/tree*
    say "$what: trying $origin"
    if "${what}_from_$origin"; then return 0; fi
  done
  return 1
}
