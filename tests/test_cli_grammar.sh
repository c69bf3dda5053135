#!/bin/sh
# test_cli_grammar.sh - answers that match a grammar or a JSON schema, from the command line. Runs $BUILD/pippin (or
# $PIPPIN) in the repository's root.
. tests/commands.sh

run() { "$pippin" run "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; code=$?; }
# expect NAME CODE [OUT-PATTERN [ERR-PATTERN]]: the last run must have ended with this code; its output consists of lines
# like the first pattern, and its errors have a line like the second
expect() {
    if [ "$code" != "$2" ]; then fail "$1" "exit code $code, not $2"; return; fi
    if [ -n "${3:-}" ] && { [ ! -s "$tmp/out" ] || grep -Evq -e "$3" "$tmp/out"; }; then
        fail "$1" "not only $3: $(head -c 400 "$tmp/out")"; return
    fi
    if [ -n "${4:-}" ] && ! grep -Eq -e "$4" "$tmp/err"; then fail "$1" "no $4 on standard error"; return; fi
    pass "$1"
}

cat >"$tmp/word.gbnf" <<'END'
# three words
root ::= word (" " word){2} "."
word ::= [A-Z] [a-z]{2,6}
END
printf 'root ::= "a" b\n' >"$tmp/wrong.gbnf"
schema='{"properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 1, "maximum": 99},
    "likes": {"type": "array", "items": {"enum": ["tea", "rain"]}, "minItems": 1, "maxItems": 3}},
    "required": ["name", "age", "likes"]}'
person='^\{ ?"name": ?"[^"]*", ?"age": ?[1-9][0-9]?, ?"likes": ?\[ ?"(tea|rain)"(, ?"(tea|rain)"){0,2} ?\] ?\}$'
printf '%s' "$schema" >"$tmp/person.json"

# --- grammars ---------------------------------------------------------------------------------------------------------

words='^[A-Z][a-z]{2,6} [A-Z][a-z]{2,6} [A-Z][a-z]{2,6}\.$'
for seed in 1 2 3; do
    run --grammar-file "$tmp/word.gbnf" --seed $seed -p "Who are you?"
    expect "an answer matches its grammar, seed $seed" 0 "$words"
    cp "$tmp/out" "$tmp/drafted"
    run --grammar-file "$tmp/word.gbnf" --seed $seed --no-draft -p "Who are you?"
    holds "and is the same without drafts" cmp "$tmp/out" "$tmp/drafted"
    run --grammar-file "$tmp/word.gbnf" --seed $seed --draft-always -p "Who are you?"
    holds "and with as many as there can be" cmp "$tmp/out" "$tmp/drafted"
done
run --grammar-file "$tmp/word.gbnf" -n 2 -p "Who are you?"
expect "one that is cut off is a failure" 1 '' 'cut off before the end of its grammar: give a larger -n'
run --grammar-file "$tmp/wrong.gbnf" -p x; expect "a wrong grammar names the place" 1 '' 'wrong.gbnf:1:14: there is no rule "b"'
run --grammar-file "$tmp/none.gbnf" -p x; expect "one that is not there is named" 1 '' 'none.gbnf'
run --grammar-file "$tmp/word.gbnf" --json-schema '{}' -p x; expect "not with a schema" 2
printf 'root ::= <nosuchtoken>\n' >"$tmp/token.gbnf"
run --grammar-file "$tmp/token.gbnf" -p x; expect "a token that the model lacks" 2 '' 'names the token <nosuchtoken>'
run --grammar-file "$tmp/word.gbnf" --raw --temp 0 -p "Once"; expect "a raw prompt" 0 "$words"

# --- schemas ----------------------------------------------------------------------------------------------------------

for seed in 1 2 3; do
    run --json-schema "$schema" --seed $seed -p "Who are you?"
    tr '\n' ' ' <"$tmp/out" | sed 's/  */ /g; s/ $//' | awk 1 >"$tmp/line" && cp "$tmp/line" "$tmp/out"
    expect "JSON fits its schema, seed $seed" 0 "$person"
done
run --json-schema "$tmp/person.json" --seed 3 --no-draft -p "Who are you?"
tr '\n' ' ' <"$tmp/out" | sed 's/  */ /g; s/ $//' | awk 1 >"$tmp/out2"
holds "the schema may be a file, and there may be no drafts" cmp "$tmp/line" "$tmp/out2"
run --json-schema '{"uniqueItems": true}' -p x
expect "what cannot be ensured is named" 1 '' '--json-schema: #/uniqueItems: a grammar cannot express this keyword'
run --json-schema '{"type": "strnig"}' -p x; expect "what is wrong, too" 1 '' '#/type: there is no such type'
run --json-schema '{' -p x; expect "half of a schema" 1 '' 'is not JSON'
run --json-schema false -p x; expect "one that nothing fits" 1 '' 'no value fits this schema'
run --json-schema "$tmp/none.json" -p x; expect "a file that is not there" 1 '' 'none.json'
run --json-schema '{"enum": ["yes", "no"]}' -p "Are you a model?"; expect "a choice" 0 '^"(yes|no)"$'

# --- thinking ---------------------------------------------------------------------------------------------------------

cat >"$tmp/think.jinja" <<'END'
{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content.split('</think>')[-1] }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>

<think>
END
thinks() { run --chat-template-file "$tmp/think.jinja" --json-schema '{"enum": ["yes", "no"]}' --temp 0 "$@"; }
thinks -n 1 -p "Who are you?"
expect "an answer that never comes is a failure" 1 '' 'cut off before the end of its grammar: give a larger -n'
thinks -n 300 -p "Who are you?"
expect "and so is one that the model does not begin" 1 '' 'the grammar applies to the answer, and there is none'
holds "and the grammar does not touch the reasoning" [ ! -s "$tmp/out" ]

counted
