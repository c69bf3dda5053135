#!/bin/sh
# test_quants.sh - the starter's weights, quantised: files have the reference's size, and a perplexity at most 1 %
# above the reference's (quants/starter_reference.json, 64 windows of 512 tokens). With PIPPIN_LONG all types.
. tests/commands.sh

# check TYPE PERPLEXITY MEGABYTES [OPTIONS]: these are the reference's; Q3_K_M.imatrix: with an importance matrix, and a
# bound of its own
check() {
    "$pippin" quantize "$data/starter/target" "$tmp/$1.gguf" "${1%.imatrix}" ${4:-} 2>"$tmp/err" ||
        { fail "$1" "not quantised"; return; }
    size=$(wc -c <"$tmp/$1.gguf")
    if awk -v s="$size" -v r="$3" 'BEGIN { exit !(s < (r + 0.1) * 1e6 && s > (r - 0.1) * 1e6) }'; then
        pass "$1: its size"
    else
        fail "$1: its size" "$size bytes, not $3 MB"
    fi
    "$pippin" perplexity -m "$tmp/$1.gguf" -f "$data/starter/val.txt" --windows --chunks 64 --json \
        >"$tmp/out" 2>"$tmp/err" || { fail "$1" "no perplexity"; return; }
    ppl=$(sed -n 's/.*"perplexity": \([0-9.]*\).*/\1/p' "$tmp/out")
    # A result far below the reference would mean that something else was measured.
    if awk -v p="$ppl" -v r="$2" 'BEGIN { exit !(p > r * 0.85 && p <= r * 1.01) }'; then
        pass "$1: its perplexity"
    else
        fail "$1: its perplexity" "$ppl, where the reference has $2"
    fi
    rm -f "$tmp/$1.gguf"
}

if [ -d "$data/starter/target" ]; then
    check Q3_K_M 13.860 14.4
    if [ -n "${PIPPIN_LONG:-}" ]; then
        # The matrix is made from other text than is measured; without it the perplexity is 13.755, with it 13.592.
        tail -c 60000 "$data/starter/val.txt" >"$tmp/read.txt"
        "$pippin" imatrix -m "$data/starter/target" -f "$tmp/read.txt" -o "$tmp/im.gguf" 2>"$tmp/err" ||
            fail "imatrix" "not made"
        check Q3_K_M.imatrix 13.520 14.4 "--imatrix $tmp/im.gguf"
        check F32 12.899 105.2
        check BF16 12.900 52.7
        check Q8_0 12.913 28.2
        check Q6_K 12.954 21.8
        check Q5_K_M 13.031 19.3
        check Q4_K_M 13.168 16.9
        check Q4_0 13.546 16.1
        check IQ4_XS 13.369 15.5
        check Q2_K 20.399 11.8
        "$pippin" perplexity -f "$data/starter/val.txt" -c 512 --chunks 96 --json >"$tmp/out" 2>"$tmp/err"
        ppl=$(sed -n 's/.*"perplexity": \([0-9.]*\).*/\1/p' "$tmp/out")
        holds "the bundled model's perplexity over chunks, $ppl" \
            awk -v p="$ppl" 'BEGIN { exit !(p > 12.827 * 0.98 && p <= 12.827 * 1.01) }'
    fi
else
    echo "skip: no starter in $data"
fi
counted
