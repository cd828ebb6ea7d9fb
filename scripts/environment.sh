# shellcheck shell=bash
# The scripts that make virtual environments source this: torch-env.sh, frameworks-env.sh, jax-env.sh.

fail() {
    printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2
    exit 1
}

# Run a command; when it fails, show its last lines and the advice.
try() {
    local advice=$1
    shift
    "$@" >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        fail "$advice"
    }
}

# begin_environment NAME FOLDER PACKAGE...: make it anew, without the packages; end the script where it is there and
# whole. NAME tells the marks in the folder from others'. Sets `stamp`, a file that is to be written last with `made_of`.
begin_environment() {
    local name=$1 folder=$2 python=/usr/bin/python3
    # The system's, for which Debian has the headers; a person may have others in PATH.
    [[ -x $python ]] || python=$(command -v python3) || fail "there is no python3"
    stamp=$folder/.shoal-$name
    made_of="${*:3} for $("$python" --version 2>&1)"
    # An upgrade of the system's Python leaves one that does not start.
    if [[ -e $stamp && $(<"$stamp") == "$made_of" ]] && "$folder/bin/python3" -c '' 2>/dev/null; then
        exit 0
    fi
    [[ ! -e $folder || -e $stamp || -e $folder/.shoal-$name-begun || -z $(ls -A "$folder") ]] ||
        fail "$folder is there and was not made by this script: remove it, or name another folder"
    printf 'making %s with %s\n' "$folder" "$made_of"
    rm -rf --one-file-system "$folder"
    mkdir -p "$folder"
    touch "$folder/.shoal-$name-begun"
    try "$python makes no virtual environment: python3-venv may be missing (scripts/install-deps.sh --torch)" \
        "$python" -m venv "$folder"
}

# install_packages FOLDER WORD...: have pip install them; WORDs are packages, and options of pip.
install_packages() {
    printf '  fetching and installing with pip: %s\n' "${*:2}"
    try "pip cannot get ${*:2}: is there a network, or a mirror in pip's configuration?" \
        "$1/bin/python3" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
