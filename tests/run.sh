#!/bin/sh
# run.sh - all tests of `make test`: the unit tests, and beside them the scripts one after the other, since both wait
# much of their time. Ends with a line that counts them; 0 only if none failed.
set -u
BUILD=${BUILD:-build}
export BUILD
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap '[ ! -s "$tmp/pid" ] || kill "$(cat "$tmp/pid")"; exit 1' INT TERM

# Every script and every group of units prints "N passed, N failed" at its end. The line about it, and all it printed if
# it failed, at once: the two lanes do not get mixed up.
suite() { # name command...
    name=$1
    shift
    log=$(mktemp "$tmp/XXXXXX")
    "$@" >"$log" 2>&1
    code=$?
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    p=${line%% passed*}
    f=${line#*, }
    f=${f%% failed*}
    if [ -z "$line" ] || { [ "$code" -ne 0 ] && [ "$f" = 0 ]; }; then
        p=0
        f=1 # it died, or forgot to say
    fi
    {
        grep '^skip:' "$log"
        if [ "$f" -ne 0 ] || [ "$code" -ne 0 ]; then
            cat "$log"
            echo "FAILED $name (exit code $code)"
        else
            echo "ok     $name: $p passed"
        fi
    } >"$log.told"
    cat "$log.told"
    echo "$p $f" >>"$tmp/counts"
}

suite units sh -c 'echo $$ >"$1"; exec "$2"' sh "$tmp/pid" "$BUILD/pippin-tests" &
units=$!
for script in tests/test_*.sh tests/screens/run.sh; do
    [ -f "$script" ] && suite "$script" sh "$script"
done
wait "$units"
awk '{p += $1; f += $2} END {print p " passed, " f " failed"; exit f > 0}' "$tmp/counts"
