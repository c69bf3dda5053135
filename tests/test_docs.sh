#!/bin/sh
# test_docs.sh - the manual, the README and the pages of doc/ agree with the program: every option, key and command is
# in the manual, files and links that the pages name exist, and the examples run.
set -u
LC_ALL=C.UTF-8
export LC_ALL
root=$(pwd)
program=${PIPPIN:-${BUILD:-build}/pippin}
case $program in /*) ;; *) program=$root/$program ;; esac
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
export XDG_CONFIG_HOME="$tmp/config" XDG_DATA_HOME="$tmp/data" XDG_STATE_HOME="$tmp/state" XDG_CACHE_HOME="$tmp/cache"
passed=0 failed=0

# check NAME PROBLEMS: a test that passes if PROBLEMS is empty
check() {
    if [ -z "$2" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL  %s: %s\n' "$1" "$2"
    fi
}
# missing FILE PATTERN...: prints the patterns that match no line of the file
missing() {
    in=$1
    shift
    for pattern; do grep -Eq -e "$pattern" "$in" || printf '%s ' "$pattern"; done
}

# --- the manual knows everything ---------------------------------------------------------------------------------

options=$(sed -n 's/^ *{\.name = "\([a-z0-9-]*\)".*/\1/p' src/options_table.c)
check "the table of options is read" "$([ "$(echo "$options" | wc -l)" -gt 40 ] || echo "only: $options")"
check "options in pippin(1)" "$(for o in $options; do missing man/pippin.1 "Fl (.* )?-$o( |\$)"; done)"
short=$(sed -n 's/.*\.others = "\([^"]*\)".*/\1/p' src/options_table.c | tr ' ' '\n' |
    sed -n 's/^-\([a-z][a-z]*\)$/\1/p')
check "short options in pippin(1)" "$(for o in $short; do missing man/pippin.1 "Fl $o( |\$)"; done)"
commands=$(sed -n 's/^ *\[PP_CMD_[A-Z]*\] = {"\([a-z]*\)".*/\1/p' src/options_table.c)
check "commands in pippin(1)" "$(for c in $commands; do missing man/pippin.1 "Cm (.*[ |])?$c( |\$)"; done)"
slash=$(sed -n '/^static const struct slash table/,/^};/s/^ *{"\([a-z]*\)".*/\1/p' src/slash.c)
check "the table of slash commands is read" "$([ "$(echo "$slash" | wc -l)" -gt 15 ] || echo "only: $slash")"
check "slash commands in pippin(1)" "$(for c in $slash; do missing man/pippin.1 "^\.It Ic /$c( |\$)"; done)"
others=$(sed -n '/^static const struct slash table/,/^};/s/^ *{"[a-z]*", *"\([^"]*\)".*/\1/p' src/slash.c)
check "other words for them in pippin(1)" \
    "$(for w in $(echo "$others" | tr -d '?'); do missing man/pippin.1 "^\.Ic .*/$w( |\$)"; done)"
taught=$(sed -n 's,^\.\(Ic\|Dl\) /\([a-z]*\).*,\2,p' man/pippin-tutorial.7)
check "slash commands of pippin-tutorial(7) are read" "$([ "$(echo "$taught" | wc -l)" -gt 8 ] || echo "only: $taught")"
check "they are commands" "$(for t in $taught; do echo "$slash" | grep -qx "$t" || printf '%s ' "$t"; done)"
schema=$(grep -c '"PRAGMA user_version = [0-9]' src/store_schema.c)
check "the schema's version in pippin-formats(5)" "$(missing man/pippin-formats.5 "migrations .*: $schema today")"
variables=$(cat src/*.c ui/*.c | grep -o 'getenv("[A-Z_]*")\|\.env = "[A-Z_]*"' | sed 's/.*"\(.*\)".*/\1/' | sort -u)
check "variables of the environment are found" "$([ "$(echo "$variables" | wc -l)" -gt 10 ] || echo "only: $variables")"
check "they are in pippin(1)" "$(for v in $variables; do missing man/pippin.1 "^\.It Ev (.* )?$v( |\$)"; done)"
check "F-keys in pippin(1)" "$(for n in 1 2 3 4 5 6 7 8 9 10; do missing man/pippin.1 "^\.It Sy (.* )?F$n\$"; done)"
keys=$(sed -n 's/^    {"\([^"]*\)", "[^"]*"},$/\1/p' ui/menu_help.c | tr ', ' '\n\n' |
    grep -E '^(Alt|Ctrl|Shift)-' | sed 's/\\\\$/\\\\e/' | sort -u) # a backslash is \e there
check "keys of the help screen in pippin(1)" "$(for k in $keys; do missing man/pippin.1 "(^|[ ])$k([ .,:]|\$)"; done)"
configured=$(sed -n 's/.*\.section = .*/&/p' src/options_table.c | wc -l)
check "names of pippin.conf are read" "$([ "$configured" -gt 20 ] || echo "only $configured")"
names=$(tr '\n' ' ' <src/options_table.c | sed 's/{\.name = /\n&/g' | grep '\.section = ' |
    sed 's/{\.name = "\([^"]*\)".*/\1/')
check "names in pippin.conf(5)" "$(for n in $names; do missing man/pippin.conf.5 "^\.It Ic (.* )?$n( |\$)"; done)"
columns=$(sed -n '/^static const char step_/,/;$/s/^ *"  \([a-z0-9_]*\) [A-Z].*/\1/p' src/store_schema.c)
check "columns of the database in pippin-formats(5)" \
    "$(for c in $columns; do missing man/pippin-formats.5 "^\.It $c Ta"; done)"
kv_types=$(sed -n '/^static const char \*const kv_names/,/;$/p' engine/kv.c | grep -o '"[a-z0-9_]*"' | tr -d '"')
check "types of the KV cache are read" "$([ "$(echo "$kv_types" | wc -l)" -gt 4 ] || echo "only: $kv_types")"
check "what a page of each type holds in pippin-formats(5)" \
    "$(for k in $kv_types; do missing man/pippin-formats.5 "^\.It ([a-z0-9_]*, )*$k(, [a-z0-9_]*)* Ta .*keys|^\.It $k Ta the same"; done)"
styles=$(sed -n 's/^    \[PP_SLOT_[A-Z_]*\] = {"\([a-z_]*\)".*/\1/p' ui/theme.c)
check "styles of themes in pippin.conf(5)" "$(for s in $styles; do missing man/pippin.conf.5 "(^|[ ])$s( |\$)"; done)"
check "themes in --help" "$(for t in themes/*.theme; do
    t=${t##*/} && "$program" chat --help | tr -d '\n' | grep -q "colours:[^-]*[ ,]${t%.theme}," || echo "$t"; done)"
vocabularies=$(sed -n 's/.*write_bytes(folder, "\(.*\)",.*/\1/p' engine/tokenizer_files.c
    sed -n 's/^#define TOK_[A-Z]*_FILE "\(.*\)"/\1/p' engine/tokenizer_internal.h)
check "files of vocabularies are read" "$([ "$(echo "$vocabularies" | wc -l)" = 4 ] || echo "only: $vocabularies")"
check "files of vocabularies in pippin(1)" "$(for f in $vocabularies; do missing man/pippin.1 "^\.Pa $f\$"; done)"
sed -n '/^\.Pa tokenizer.json$/,/^\.Pa tokenizer.model$/p' man/pippin.1 >"$tmp/kinds"
check "vocabularies with a tokenizer.json in pippin(1)" "$(missing "$tmp/kinds" byte-level characters)"

# in a macro's line a word that begins with a quote loses both quotes: \(dq is a quote that stays
check "no quote is lost in the manual" "$(grep -n '^\.[A-Z].* "[^" ]*"[^ "]' man/*.[157])"
# in a macro's line a word that is also a macro's name is one, even in a heading: \& before it keeps it a word
macros='A[cdnopqrt]|B[coqrx]|C[dm]|D[coqvx]|E[cmorv]|F[aclnortx]|I[cn]|L[ik]|M[st]|N[msx]|O[copx]|P[acfopq]|Q[cloq]|S[coqxy]|T[an]|Ux|V[at]|X[cor]'
check "no word of a heading is taken for a macro" "$(grep -nE "^\.S[hs] (.* )?($macros)( |\$)" man/*.[157])"
check "what stands in a column of the manual has room there" "$(awk '
    /^\.Bl .*-column/ {n = split($0, w, "\""); for (i = 2; i < n; i += 2) room[i / 2] = length(w[i]); on = 1}
    /^\.El/ {on = 0}
    on && /^\.It/ {
        n = split(substr($0, 5), cell, / ?Ta ?/)
        for (i = 1; i < n; i++) {
            gsub(/(^| )[A-Z][a-z] /, "", cell[i])
            if (length(cell[i]) > room[i]) print FILENAME ":" FNR ": " cell[i]
        }
    }' man/*.[157])"
# "referenced manual not found" depends on what is installed, and STYLE is a matter of taste
command -v mandoc >/dev/null &&
    check "mandoc finds nothing to warn of" "$(mandoc -T lint -W warning man/*.[157] 2>/dev/null)"
# a last column with a width of its own would break wide text at every word
check "a table's last column has what the others leave" "$(awk '
    /^\.Bl .*-column/ {n_widths = (split($0, w, "\"") - 1) / 2; on = 1}
    on && /^\.It/ {if (split($0, cell, / Ta /) <= n_widths) print FILENAME ":" FNR ": " $0; on = 0}' man/*.[157])"
command -v groff >/dev/null &&
    check "and groff breaks all lines at 80 columns" \
        "$(for page in man/*.[157]; do groff -k -mdoc -Tutf8 -rLL=78n "$page" 2>&1 >/dev/null | grep "can't break"; done)"

# --- the files of the README and of doc/ are there ------------------------------------------------------------------

# links PAGE: where its links point to, relative to the repository's root, without those to other machines
links() {
    grep -o ']([^)]*)' "$1" | sed 's/^](//; s/)$//' | grep -v : | while IFS= read -r to; do
        case $to in
        '#'*) printf '%s%s\n' "$1" "$to" ;;
        *) printf '%s/%s\n' "$(dirname "$1")" "$to" ;;
        esac
    done
}
# headings PAGE: its headings in the form in which links name them
headings() { sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'; }
# leads FILE[#HEADING]: whether the file exists, and has this heading
leads() {
    [ -e "${1%%#*}" ] || return 1
    case $1 in *'#'*) headings "${1%%#*}" | grep -qxF -e "${1#*#}" ;; esac
}
files=$(grep -ho '`[^` ]*`' README.md doc/*.md | tr -d '`' | grep -E '^(\.|engine|src|ui|themes|tests|man|doc)(/|$)')
check "files named in the README and doc/ are read" "$([ "$(echo "$files" | wc -l)" -gt 10 ] || echo "only: $files")"
check "files named in the README and doc/" "$(for f in $files; do [ -e "$f" ] || printf '%s ' "$f"; done)"
links=$(for p in README.md doc/*.md; do links "$p"; done)
check "links of the README and doc/ are read" "$([ "$(echo "$links" | wc -l)" -gt 20 ] || echo "only: $links")"
check "links of the README and doc/" "$(for l in $links; do leads "$l" || printf '%s ' "$l"; done)"
check "every page of doc/ is linked in the README" "$(for p in doc/*.md; do
    grep -q "]($p[)#]" README.md || printf '%s ' "$p"; done)"
check "every page of measurements is linked in doc/performance.md" "$(for p in doc/performance-*.md doc/quality.md; do
    grep -q "](${p#doc/}[)#]" doc/performance.md || printf '%s ' "$p"; done)"
check "pages of measurements are short" "$(wc -l doc/performance*.md doc/quality.md |
    awk '$2 != "total" && $1 > 400 {print $2 ": " $1 " lines"}')"
named=$(grep -rhoE 'doc/[a-z-]+\.md(#[a-z0-9_-]+)?' Makefile engine src ui man | sort -u)
check "pages of doc/ that the source and the manual name" "$(for l in $named; do leads "$l" || printf '%s ' "$l"; done)"
check "no page has two parts of one name, which a link could not tell apart" "$(for p in README.md doc/*.md; do
    headings "$p" | sort | uniq -d | sed "s,^,$p#,"; done)"
# A table lost in a merge leaves its introduction or its rows.
check "what ends in a colon introduces a table, a list or an example" "$(awk '
    FNR == 1 {last = ""; blank = code = 0}
    /^```/ {code = !code}
    code && !/^```/ {next}
    /^$/ {blank = 1; next}
    blank && last ~ /:$/ && last !~ /^(    |\|)/ && !/^(\||- |1\. |    |```)/ {print where}
    {last = $0; where = FILENAME ":" FNR ": " $0; blank = 0}' README.md doc/*.md)"
check "tables have a head, and rows as long as it" "$(awk '
    FNR == 1 {row = n = 0}
    !/^\|/ {row = 0; next}
    (++row == 2) != /^\|( --- \|)+$/ {print FILENAME ":" FNR ": not head, line, rows"}
    {cells = gsub(/\|/, "|")}
    row == 1 {n = cells}
    cells != n {print FILENAME ":" FNR ": " $0}' README.md doc/*.md)"
check "the README is short" "$([ "$(wc -l <README.md)" -lt 350 ] || echo "$(wc -l <README.md) lines")"
check "files named in the picture" "$(for f in ui/input ui/ui src/controller src/worker src/queue src/io src/store; do
    grep -q "$f" README.md && [ -e "$f.c" ] || printf '%s ' "$f"; done)"
card=$(grep -o '`[a-zA-Z0-9_-]*\.gguf`' engine/starter/README.md | tr -d '`')
check "files of the model card" "$(for f in $card; do [ -e "engine/starter/$f" ] || printf '%s ' "$f"; done)"

check "no page has two versions of a part" "$(grep -En '^(<<<<<<<|=======$|>>>>>>>)' README.md doc/*.md man/*)"

# --- the examples run ----------------------------------------------------------------------------------------------

# run_examples NAME: runs the commands in $tmp/examples, one after the other, without a terminal
mkdir -p "$tmp/bin"
ln -s "$program" "$tmp/bin/pippin"
run_examples() {
    while IFS= read -r line; do
        PATH="$tmp/bin:$PATH" sh -c "$line" </dev/null >"$tmp/out" 2>"$tmp/err"
        code=$?
        check "$1: $line" "$([ $code = 0 ] && [ -s "$tmp/out" ] || echo "exit code $code: $(cat "$tmp/err")")"
    done <"$tmp/examples"
}
sed -n '/^\.Sh EXAMPLES/,/^\.Sh SEE/p' man/pippin.1 | grep -E '(^|\| )pippin ' >"$tmp/examples"
check "examples of pippin(1) are read" "$([ "$(wc -l <"$tmp/examples")" -gt 5 ] || cat "$tmp/examples")"
run_examples "pippin(1)"
grep -E '(^|\| )pippin ' man/pippin-tutorial.7 | grep -v '^\.' >"$tmp/examples"
check "examples of pippin-tutorial(7) are read" "$([ "$(wc -l <"$tmp/examples")" -gt 4 ] || cat "$tmp/examples")"
run_examples "pippin-tutorial(7)"
# The README's examples get short answers: their length is not tested.
sed -n '/^```sh/,/^```$/p' README.md |
    sed -n 's/ *#.*//; s/pippin run/pippin run -n 8/; s/pippin bench/pippin bench -n 2 -p 8 -r 1/; /pippin /p' |
    grep -v '^git log' >"$tmp/examples"
check "examples of the README are read" "$([ "$(wc -l <"$tmp/examples")" -gt 3 ] || cat "$tmp/examples")"
run_examples "README"
awk '/^\.Sh EXAMPLES/ {on = 1} on && /^\.Ed/ {exit} on && !/^\./ {print}' man/pippin.conf.5 >"$tmp/pippin.conf"
mkdir -p "$tmp/config/pippin"
sed 's/^model .*//' "$tmp/pippin.conf" >"$tmp/config/pippin/pippin.conf"
"$program" run -n 1 -p x </dev/null >/dev/null 2>"$tmp/err"
check "the example of pippin.conf(5)" "$([ $? = 0 ] && [ -s "$tmp/pippin.conf" ] || cat "$tmp/err")"

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
