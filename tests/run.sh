#!/bin/sh
# run.sh - all tests of `make test`: the unit tests and the scripts. Ends with a line that counts them; 0 only if none failed.
set -u
BUILD=${BUILD:-build}
export BUILD
passed=0
failed=0

# Every script and every group of units prints "N passed, N failed" at its end.
suite() {
    name=$1
    shift
    log=$(mktemp)
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
    passed=$((passed + p))
    failed=$((failed + f))
    grep '^skip:' "$log"
    if [ "$f" -ne 0 ] || [ "$code" -ne 0 ]; then
        cat "$log"
        echo "FAILED $name (exit code $code)"
    else
        echo "ok     $name: $p passed"
    fi
    rm -f "$log"
}

suite units "$BUILD/pippin-tests"
for script in tests/test_*.sh tests/screens/run.sh; do
    [ -f "$script" ] && suite "$script" sh "$script"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
