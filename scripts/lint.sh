#!/usr/bin/env bash
# What can be said against the sources without running them: floors and calls, format, cppcheck,
# clang-tidy, shellcheck, papers, comments and pictures. Runs all of them, prints a line for each, and fails if
# one of them did. The calls are in the objects under build/, which `make lint` makes.
#
#   scripts/lint.sh [FLAG...]    FLAG: the compiler flags that clang-tidy needs to find headers
#
# What clang-tidy has found clean is remembered in LINT_STATE (build/lint) by the hash of the preprocessed
# file, the flags and the version, so that a second run looks only at what changed.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=$(nproc)
state=${LINT_STATE:-build/lint}
mkdir -p "$state/tidy" "$state/cppcheck"
# Whoever writes there says what is clean.
[[ -O $state ]] || {
    printf 'lint: %s is not this user'"'"'s\n' "$state" >&2
    exit 1
}
defines=(-std=c11 -D_GNU_SOURCE -I. -Iworker -DSHOAL_VERSION='"lint"' -DTEST_BUILD_DIR='"build"'
    -DTEST_SOURCE_DIR='"."')

# Tracked files, and new ones that are not ignored; without git, what is there.
sources() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files --cached --others --exclude-standard -- "$@"
    else
        find . -path ./build -prune -o -type f \( -name "${1#\*}" -o -name "${2:-${1#\*}}" \) -print |
            sed 's|^\./||'
    fi | while read -r file; do [[ ! -e $file ]] || printf '%s\n' "$file"; done |
        { grep -v '^build/' || true; } | LC_ALL=C sort -u
}

failed=()
step() {
    local title=$1 began=$SECONDS
    shift
    if "$@"; then
        printf 'lint: %-14s ok, %d s\n' "$title" $((SECONDS - began))
    else
        printf 'lint: %-14s FAILED, %d s\n' "$title" $((SECONDS - began))
        failed+=("$title")
    fi
}

format() {
    { sources '*.c' '*.h' && sources '*.cpp' '*.hpp'; } | xargs -r clang-format --dry-run -Werror
}

# Suppressions, with reasons: scripts/cppcheck.txt.
cppcheck_run() {
    local -a files
    mapfile -t files < <(sources '*.c')
    ((${#files[@]} > 0)) || return 0
    cppcheck --quiet --error-exitcode=1 --std=c11 --language=c --library=posix -j "$jobs" \
        --enable=warning,performance,portability --inline-suppr --max-configs=2 \
        --cppcheck-build-dir="$state/cppcheck" --suppressions-list=scripts/cppcheck.txt \
        --template='{file}:{line}: {severity}: {message} [{id}]' \
        -I. -D_GNU_SOURCE -DSHOAL_VERSION='"lint"' -DTEST_BUILD_DIR='"build"' \
        -DTEST_SOURCE_DIR='"."' "${files[@]}"
}

# Flags of the objects that are built for one instruction set.
isa_flags() {
    case $1 in
    *_avx2.c) printf -- '-mavx2 -mf16c' ;;
    *_avx512.c) printf -- '-mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c' ;;
    esac
}

# Not the analyzer's paths for the kernels: dozens of functions of one text, with loops and vectors
# only, take it minutes.
file_checks() {
    case $1 in
    common/reduce/reduce_*.c) printf -- '--checks=-clang-analyzer-*' ;;
    esac
}

tidy_one() {
    local file=$1 compiler isa checks stamp hash
    read -ra compiler <<<"${CC:-gcc}"
    read -ra isa <<<"$(isa_flags "$file")"
    read -ra checks <<<"$(file_checks "$file")"
    shift
    stamp=$state/tidy/${file//\//-}.clean
    # The text with its comments, since NOLINT is one.
    hash=$({ printf '%s\n' "$version" "${checks[@]}" "${isa[@]}" "$@" && cat .clang-tidy "$file" &&
        "${compiler[@]}" -E -P -CC -dD "${isa[@]}" "$@" "$file"; } | sha256sum)
    [[ ! -e $stamp || $(<"$stamp") != "$hash" ]] || return 0
    if ! clang-tidy --quiet "${checks[@]}" "$file" -- "${isa[@]}" "$@" 2>"$stamp.err"; then
        # Its count of suppressed warnings is no news.
        grep -vE '^[0-9]+ warnings? ' "$stamp.err" || true
        rm -f "$stamp" "$stamp.err"
        return 1
    fi
    rm -f "$stamp.err"
    printf '%s\n' "$hash" >"$stamp"
}

tidy() {
    local flags=("${defines[@]}" "$@")
    version=$(clang-tidy --version)
    export state version
    export -f tidy_one isa_flags file_checks
    # shellcheck disable=SC2016  # the inner shell expands
    sources '*.c' | grep -v '^tests/' |
        xargs -r -P "$jobs" -I{} bash -c 'tidy_one "$@"' tidy {} "${flags[@]}"
}

shellcheck_run() {
    local -a files
    mapfile -t files < <(sources '*.sh')
    [[ ! -e .ci/run ]] || files+=(.ci/run)
    shellcheck "${files[@]}"
}

# Pages of other packages need not be here: tests/doc/ knows which ones ours may point to.
manual() {
    local found
    found=$(cd doc/man && { mandoc -Tlint ./*.[1-8] 2>&1 || true; } |
        grep -vE 'referenced manual not found|outdated mandoc\.db') || return 0
    printf '%s\n' "$found"
    return 1
}

python=${PYTHON:-python3}
step floors scripts/check-floors.sh
step papers "$python" -B scripts/check-papers.py
step comments "$python" -B scripts/check-comments.py
step pictures "$python" -B scripts/file-graph.py --drawn
step format format
step cppcheck cppcheck_run
step clang-tidy tidy "$@"
if command -v shellcheck >/dev/null; then
    step shellcheck shellcheck_run
else
    printf 'lint: shellcheck is not here, scripts not checked\n'
fi
if command -v mandoc >/dev/null; then
    step "manual pages" manual
else
    printf 'lint: mandoc is not here, manual pages not checked\n'
fi

if ((${#failed[@]} > 0)); then
    printf 'lint: failed: %s\n' "${failed[*]}"
    exit 1
fi
