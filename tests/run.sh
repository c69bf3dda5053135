#!/bin/sh
# run.sh - all tests of `make test`: groups of units and scripts, of which one more runs at a time than there are
# processors, since scripts spend much of their time waiting; those that take longest begin first. Ends with a line that
# counts them; the exit code is 0 only if none failed.
set -u
BUILD=${BUILD:-build}
export BUILD
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
lanes=
trap 'kill $lanes 2>/dev/null; for f in "$tmp"/pid.*; do [ -s "$f" ] && kill "$(cat "$f")"; done; exit 1' INT TERM

# What takes longer than a few seconds, longest first: so that no lane has something long left at the end.
first='tests/test_arm.sh tests/screens/run.sh tests/test_cli.sh kill snapshot tests/test_quants.sh speculate invariance
       convert_memory packed experts expert_states windows encoder tests/test_train.sh rwkv folder_decoders mixtures
       soft_ops worker ops soft_matmul train tests/test_models_pull.sh tokenizer_plamo families latent decoders generate
       worker_several tokenizer_split matmul seeing store_files'

all_jobs() {
    printf '%s\n' $first
    printf '%s\n' tests/test_*.sh tests/screens/run.sh
    "$BUILD/pippin-tests" --list
}
all_jobs | awk '!seen[$0]++' >"$tmp/jobs"

# Every script and every group of units ends with a line "N passed, N failed". What is printed about it comes at once,
# so that lanes are not mixed: one line with the seconds that it took, and its whole output if it failed.
run_job() { # lane name
    log=$(mktemp "$tmp/XXXXXX")
    case $2 in
    */*) set -- "$1" "$2" sh "$2" ;;
    *) set -- "$1" "$2" "$BUILD/pippin-tests" "$2" ;;
    esac
    pid_file=$tmp/pid.$1
    name=$2
    shift 2
    begun=$(date +%s)
    "$@" >"$log" 2>&1 &
    echo $! >"$pid_file"
    wait $!
    code=$?
    : >"$pid_file"
    took=$(($(date +%s) - begun))
    line=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
    p=${line%% passed*}
    f=${line#*, }
    f=${f%% failed*}
    if [ -z "$line" ] || { [ "$code" -ne 0 ] && [ "$f" = 0 ]; }; then
        p=0
        f=1 # it crashed, or did not print its line
    fi
    {
        grep '^skip:' "$log"
        if [ "$f" -ne 0 ] || [ "$code" -ne 0 ]; then
            cat "$log"
            echo "FAILED $name (exit code $code), $took s"
        else
            echo "ok     $name: $p passed, $took s"
        fi
    } >"$log.told"
    cat "$log.told"
    echo "$p $f" >>"$tmp/counts"
}

# Runs one job after the other that no other lane has taken: only one of the lanes can make the job's folder.
lane() { # its number
    while read -r job; do
        mkdir "$tmp/taken.$(echo "$job" | tr / _)" 2>/dev/null && run_job "$1" "$job" </dev/null
    done <"$tmp/jobs"
}

n=$(nproc 2>/dev/null) || n=1
n=$((n + 1))
while [ "$n" -gt 0 ]; do
    lane "$n" &
    lanes="$lanes $!"
    n=$((n - 1))
done
for l in $lanes; do
    wait "$l"
done
awk '{p += $1; f += $2} END {print p " passed, " f " failed"; exit f > 0}' "$tmp/counts"
