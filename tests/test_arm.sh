#!/bin/sh
# test_arm.sh - the kernels for ARM, cross-compiled and run in an emulator: all of them, and then on processors that
# lack some instructions. The latter tests how a set of kernels is chosen, and that the baseline set works without those
# instructions; small matrices suffice, as the first run has tested the results.
set -u
program=${BUILD:-build}/arm/kernel-tests
passed=0
failed=0

if [ "$(uname -m)" = aarch64 ]; then
    echo "this machine runs these kernels itself, in the unit tests"
    echo "1 passed, 0 failed"
    exit 0
fi
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
if [ -z "$qemu" ] || [ ! -x "$program" ]; then
    missing=${qemu:+aarch64-linux-gnu-gcc}
    missing=${missing:-qemu-aarch64}
    if [ "$(uname -m)" = x86_64 ] && command -v dpkg-query >/dev/null 2>&1; then
        echo "FAILED there is no $missing, which tests/deps.sh is to install"
        echo "0 passed, 1 failed"
        exit 1
    fi
    echo "skip: there is no $missing: the kernels for ARM are not tested"
    echo "0 passed, 0 failed"
    exit 0
fi

check() { # processor, sets that it runs, groups of tests
    cpu=$1
    sets=$2
    shift 2
    if PIPPIN_TEST_ISAS=$sets "$qemu" -cpu "$cpu" "$program" "$@"; then
        passed=$((passed + 1))
    else
        echo "FAILED on $cpu, exit code $?"
        failed=$((failed + 1))
    fi
}
check max ' scalar neon dotprod i8mm' isa matmul ops train_kernels
PIPPIN_TEST_SMALL=1
export PIPPIN_TEST_SMALL
check cortex-a76 ' scalar neon dotprod' isa matmul
check cortex-a72 ' scalar neon' isa matmul
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
