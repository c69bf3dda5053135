# commands.sh - shared by the scripts that run $BUILD/pippin (or $PIPPIN); sourced with `. tests/commands.sh` in the
# repository's root. It sets $pippin to the program, $data to the test data, and $tmp to a folder that is removed when
# the script ends, in which all of the program's own folders are. Each case prints a line; `counted` at the end prints
# how many there were, and fails if one did.
set -u
LC_ALL=C.UTF-8
export LC_ALL
pippin=${PIPPIN:-${BUILD:-build}/pippin}
data=${PIPPIN_TESTDATA:-../shared/testdata}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
export XDG_CONFIG_HOME="$tmp/config" XDG_DATA_HOME="$tmp/data" XDG_STATE_HOME="$tmp/state" XDG_CACHE_HOME="$tmp/cache"
passed=0 failed=0

pass() { passed=$((passed + 1)); echo "ok    $1"; }
# fail NAME WHY: also prints what the last run wrote to $tmp/err
fail() { failed=$((failed + 1)); echo "FAIL  $1: $2"; [ ! -s "$tmp/err" ] || sed 's/^/      | /' "$tmp/err"; }
skip() { echo "skip: $1"; }
# holds NAME COMMAND...: the command succeeds
holds() {
    name=$1
    shift
    if "$@"; then pass "$name"; else fail "$name" "not so: $*"; fi
}
# comes COMMAND...: waits until it succeeds, but no longer than two minutes, which suffice on a busy machine, too
comes() {
    looks=0
    until "$@"; do
        [ $looks -lt 2400 ] || return 1
        looks=$((looks + 1))
        sleep 0.05
    done
}
# catches PROCESS: whether it handles SIGTERM, and so has begun
catches() {
    case $(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null) in *[4-7c-f]???) true ;; *) false ;; esac
}
counted() { echo "$passed passed, $failed failed"; [ "$failed" -eq 0 ]; }
