#!/usr/bin/env bash
# Brings what `make` needs: uv, a Python 3.11+, a Java 17+ runtime, and the environment in .venv;
# with --tests a C compiler, openssl, Chromium, Prometheus, Alertmanager, zsh, fish, spin, a Redis
# server, PostgreSQL, Maven, the jars of scripts/jars.py and the S3 server of scripts/s3_server.py,
# with --bench the Redis server and PostgreSQL; with --long, besides what --tests brings, buildah
# and mmdebstrap, which build the image.
#
# What the system lacks is installed by apt as root or by password-less sudo, after saying so.
# Without those rights, or without apt, it stops and prints the command to run. A second run finds
# its stamp and returns at once.
#
# It leaves .tools/env, a shell file with the PATH and JAVA_HOME that the Makefile's recipes start
# from.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TOOLS=$ROOT/.tools
STAMP=$TOOLS/stamp
UV_PIN=0.13.8          # installed when there is no uv, or only one that is too old
UV_FLOOR=0.8           # pyproject.toml: required-version
PYTHON_FLOOR=3.11
JAVA_FLOOR=17
TESTS_GB=10            # what installing all that the tests need and running them writes in a fresh checkout

say() { printf 'setup: %s\n' "$*"; }

stop() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# True when version $1 is at least version $2 (numbers between dots).
at_least() {
    local have want i
    IFS=. read -ra have <<<"$1"
    IFS=. read -ra want <<<"$2"
    for i in "${!want[@]}"; do
        ((10#${have[i]:-0} > 10#${want[i]})) && return 0
        ((10#${have[i]:-0} < 10#${want[i]})) && return 1
    done
    return 0
}

# --- what is here -------------------------------------------------------------------------------------------------

# Prints the major version of the Java at $1, nothing when it does not run. Java 8 calls itself 1.8.
java_version() {
    local shown
    shown=$("$1" -version 2>&1) || return 0
    sed -nE 's/^[^"]*version "(1\.)?([0-9]+).*/\2/p' <<<"$shown"
}

# Prints a Java home that is new enough. JAVA_HOME goes first, then PATH, then what is installed
# beside it.
find_java() {
    local binary candidates=() version
    [[ -n ${JAVA_HOME:-} ]] && candidates+=("$JAVA_HOME/bin/java")
    binary=$(command -v java || true)
    [[ -n $binary ]] && candidates+=("$binary")
    candidates+=(/usr/lib/jvm/*/bin/java /opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java)
    [[ -x /usr/libexec/java_home ]] && candidates+=("$(/usr/libexec/java_home -v "$JAVA_FLOOR+" 2>/dev/null)/bin/java")
    for binary in "${candidates[@]}"; do
        [[ -x $binary ]] || continue
        version=$(java_version "$binary")
        if [[ -n $version ]] && ((version >= JAVA_FLOOR)); then
            # A `java` on PATH may be a launcher outside its home: ask the runtime itself.
            "$binary" -XshowSettings:properties -version 2>&1 | sed -nE 's/^ *java\.home = (.*)$/\1/p'
            return
        fi
    done
}

# Prints a Python that is new enough.
find_python() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        # Not the interpreter of an active virtual environment (it may be the one to replace), but
        # what that was made from.
        "$name" -c "import sys; sys.version_info >= (${PYTHON_FLOOR/./, }) or sys.exit(1); print(sys._base_executable)" \
            2>/dev/null && return
    done
    return 0
}

# Prints a uv that is new enough: the user's, or the private one of an earlier run.
find_uv() {
    local candidate version
    for candidate in "$(command -v uv || true)" "$TOOLS/uv/bin/uv"; do
        [[ -x $candidate ]] || continue
        version=$("$candidate" --version 2>/dev/null | sed -nE 's/^uv ([0-9.]+).*/\1/p')
        if [[ -n $version ]] && at_least "$version" "$UV_FLOOR"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
}

# --- what is missing ----------------------------------------------------------------------------------------------

# Prints the oldest packaged Java runtime that is new enough: the one that Spark has been run on for
# longest.
java_package() {
    local package
    for package in openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless; do
        if [[ $(apt-cache policy "$package" 2>/dev/null) =~ Candidate:\ [0-9] ]]; then
            printf '%s\n' "$package"
            return
        fi
    done
    printf 'default-jre-headless\n'
}

# Installs with apt what the arguments name (`java` stands for a Java runtime), or stops with the
# command to run.
install_packages() {
    local sudo=() packages=() name
    if ! command -v apt-get >/dev/null; then
        stop "missing: $*" \
            "install a Java $JAVA_FLOOR+ runtime, Python $PYTHON_FLOOR+ with its venv module, then run make again" \
            "(macOS: brew install openjdk@$JAVA_FLOOR python@3.13)"
    fi
    if ((EUID != 0)); then
        if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
            sudo=(sudo)
        else
            for name in "$@"; do
                [[ $name == java ]] && name=$(java_package)
                packages+=("$name")
            done
            stop "missing: $*; installing it needs root. Run this, then make again:" \
                "    sudo apt-get update && sudo apt-get install -y --no-install-recommends ${packages[*]}"
        fi
    fi
    # A fresh image has no package lists: only after the update is it known which Java there is.
    "${sudo[@]}" apt-get update -qq
    for name in "$@"; do
        [[ $name == java ]] && name=$(java_package)
        packages+=("$name")
    done
    mkdir -p "$TOOLS"
    say "installing with apt: ${packages[*]}"
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" \
        >"$TOOLS/apt.log" 2>&1 || { cat "$TOOLS/apt.log" >&2; stop "apt-get failed: its output stands above"; }
}

install_missing() {
    local missing=()
    if [[ -z $(find_python) ]]; then
        missing+=(python3 python3-venv)
    elif [[ -z $(find_uv) ]] && ! "$(find_python)" -c 'import ensurepip, venv' 2>/dev/null; then
        missing+=(python3-venv)
    fi
    [[ -n $(find_java) ]] || missing+=(java)
    ((${#missing[@]} == 0)) || install_packages "${missing[@]}"
    [[ -n $(find_python) ]] || stop "Python $PYTHON_FLOOR or newer is needed, and this system's python3 is older." \
        "Debian 12 and Ubuntu 24.04 are the first with one; elsewhere install python$PYTHON_FLOOR and run make again."
    [[ -n $(find_java) ]] || stop "a Java $JAVA_FLOOR+ runtime is needed, and this system's packages have none." \
        "Install one, set JAVA_HOME to it, and run make again."
}

# --- the environment ----------------------------------------------------------------------------------------------

# What the environment depends on; another place on disk makes it another environment.
fingerprint() {
    cd "$ROOT"
    printf '%s\n' "$ROOT" "${JAVA_HOME:-}"
    cat uv.lock pyproject.toml ./*/pyproject.toml scripts/setup.sh
}

digest() { fingerprint | { sha256sum 2>/dev/null || shasum -a 256; } | cut -d ' ' -f 1; }

ready() {
    [[ -f $STAMP && -x $ROOT/.venv/bin/python && -f $TOOLS/env && $(<"$STAMP") == "$(digest)" ]] || return 1
    # What the stamp cannot know: that the interpreter, uv and Java are still there.
    "$ROOT/.venv/bin/python" -c '' 2>/dev/null && (
        # shellcheck source=/dev/null
        . "$TOOLS/env" && [[ -x $JAVA_HOME/bin/java ]] && command -v uv >/dev/null
    )
}

# A Redis server, 7.0 or newer: the shared journal is tested on it, and the benchmarks compare with
# it.
install_redis() {
    command -v redis-server >/dev/null || install_packages redis-server
}

# PostgreSQL, 13 or newer: guarded writes are tested on it, by servers of the tests' own.
install_postgresql() {
    compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || install_packages postgresql
}

# A full disk would fail one test after the other, and few of them would say why.
check_room() {
    local place free
    for place in "${TMPDIR:-/tmp}" "$ROOT"; do
        [[ -d $place ]] || continue  # what it does not find, Python leaves aside too
        free=$(df -Pk "$place" | awk 'NR == 2 { for (i = 2; i <= NF; i++) if ($i ~ /^[0-9]+%$/) print int($(i - 1) / 1000000) }')  # a device may have spaces
        # shellcheck disable=SC2016  # the command is for whoever reads it
        ((free >= TESTS_GB)) || stop "the tests need $TESTS_GB GB in $place, and $free are free" \
            'make room: old checkouts, build/, and `uv cache prune` give some back; or name another folder in TMPDIR'
    done
}

# What only the tests need: a C compiler, for the small shim that watches the journal's disk; a
# Redis server, and openssl for its certificate; Chromium, for the status page; Prometheus with
# promtool and Alertmanager, for the metrics and the alerts; zsh and fish, for the completion
# scripts; spin, which searches the models, and gcc, which it needs under that name; Maven, for the
# jars of a Kafka broker and of Spark's connectors.
install_test_tools() {
    command -v cc >/dev/null || install_packages gcc libc6-dev
    command -v openssl >/dev/null || install_packages openssl
    command -v chromium >/dev/null || install_packages chromium
    command -v prometheus >/dev/null || install_packages prometheus
    command -v amtool >/dev/null || install_packages prometheus-alertmanager
    command -v zsh >/dev/null || install_packages zsh
    command -v fish >/dev/null || install_packages fish
    { command -v spin && command -v gcc; } >/dev/null || install_packages spin gcc libc6-dev
    command -v mvn >/dev/null || install_packages maven
    install_redis
    install_postgresql
}

# What only the long tests need: an engine that builds the image, and what makes a base for it.
# Where there is no apt, or no root, that test says so and is left out.
install_long_tools() {
    if command -v apt-get >/dev/null && ((EUID == 0)); then
        command -v buildah >/dev/null || install_packages buildah
        command -v mmdebstrap >/dev/null || install_packages mmdebstrap
    fi
}

# Brings what the tests run beside the packages: jars, into the user's cache, and a server of S3.
fetch_servers() (
    cd "$ROOT"
    # shellcheck source=/dev/null
    . "$TOOLS/env"
    python -m scripts.jars
    python -m scripts.s3_server
)

# Makes .venv and .tools/env.
make_environment() {
    local uv java python
    mkdir -p "$TOOLS/bin"
    rm -f "$STAMP"
    install_missing
    python=$(find_python)
    uv=$(find_uv)
    if [[ -z $uv ]]; then
        say "installing uv $UV_PIN into .tools"
        "$python" -m venv --clear "$TOOLS/uv"
        "$TOOLS/uv/bin/pip" install --quiet --disable-pip-version-check "uv==$UV_PIN"
        uv=$TOOLS/uv/bin/uv
    fi
    # In a shell that has read .tools/env, the uv that was found is this link.
    [[ $uv -ef $TOOLS/bin/uv ]] || ln -sf "$uv" "$TOOLS/bin/uv"
    java=$(find_java)
    if [[ -n ${JAVA_HOME:-} && $(java_version "$JAVA_HOME/bin/java") != $(java_version "$java/bin/java") ]]; then
        say "JAVA_HOME ($JAVA_HOME) is not a Java $JAVA_FLOOR+ runtime; it is left aside"
    fi
    {
        # shellcheck disable=SC2016  # $PATH is for whoever reads the file
        printf 'export PATH=%q/.venv/bin:%q:"$PATH"\n' "$ROOT" "$TOOLS/bin"
        printf 'export JAVA_HOME=%q\n' "$java"
        printf 'export UV_PYTHON_DOWNLOADS=never\n'
    } >"$TOOLS/env"
    say "Python: $python, Java: $java"
    say "installing the locked packages into .venv (the first time this fetches about 700 MB)"
    (
        cd "$ROOT"
        unset VIRTUAL_ENV UV_PROJECT_ENVIRONMENT
        UV_PYTHON_DOWNLOADS=never \
            "$uv" sync --locked --all-packages --all-groups --all-extras --python "$python" --quiet
        # uv compiles no module. Where PYTHONDONTWRITEBYTECODE is set, as in many containers, each
        # process would compile these again: an authority would take 3 s of processor to start in
        # place of 1 s.
        env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c \
            'import pytest, hypothesis, pandas, pyarrow, pyspark.sql.connect.session, lowwater_authority.serve, lowwater_page.process, lowwater_authority.ops.endpoint'
    )
    digest >"$STAMP"
    say "ready"
}

main() {
    case ${1:-} in
        --tests)
            check_room
            install_test_tools
            ;;
        --long)
            check_room
            install_test_tools
            install_long_tools
            ;;
        --bench)
            install_redis
            install_postgresql
            ;;
    esac
    ready || make_environment
    [[ ${1:-} != --tests && ${1:-} != --long ]] || fetch_servers
}

main "$@"
