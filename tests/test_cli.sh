#!/bin/sh
# test_cli.sh - the commands without a screen, as a script uses them: standard output, standard error, exit codes. Runs
# $BUILD/pippin (or $PIPPIN) in the repository's root; prints a line for each case, exit code 1 if one failed.
. tests/commands.sh

# run ARGUMENTS: stdout, stderr and exit code go to $tmp/out, $tmp/err and $code; stdin is that of the caller
run() {
    "$pippin" "$@" >"$tmp/out" 2>"$tmp/err"
    code=$?
}
# expect NAME CODE: the last run must have ended with this code
expect() {
    if [ "$code" = "$2" ]; then pass "$1"; else fail "$1" "exit code $code, not $2"; fi
}
# expect_out NAME TEXT: the last run must have succeeded, with exactly this on stdout
expect_out() {
    printf '%s' "$2" >"$tmp/want"
    if [ "$code" != 0 ]; then fail "$1" "exit code $code"
    elif cmp -s "$tmp/want" "$tmp/out"; then pass "$1"
    else fail "$1" "got \"$(cat "$tmp/out")\", not \"$2\""; fi
}
# expect_match NAME FILE PATTERN...: the file must have a line for every pattern
expect_match() {
    name=$1 file=$2
    shift 2
    for pattern; do
        grep -Eq -e "$pattern" "$file" && continue
        fail "$name" "no $pattern in $(basename "$file"): $(head -c 400 "$file")"
        return
    done
    pass "$name"
}
# number KEY FILE: the value of a JSON member
number() { sed -n "s/.*\"$1\": \(-\{0,1\}[0-9.]*\).*/\1/p" "$2" | tail -n 1; }
text() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" "$2" | tail -n 1; }

nl='
'
who="Hello, who are you?"
answer="Hello! I am Pippin, a tiny language model. What would you like to talk about?"

run run --help
cp "$tmp/out" "$tmp/help"
run help run
holds "help as a word is --help" cmp -s "$tmp/out" "$tmp/help"
run perplexity --help
tr -s '\n ' ' ' <"$tmp/out" >"$tmp/help"
expect_match "help of perplexity has its own defaults" "$tmp/help" 'chunk in tokens, at least 32 \(512\)' 'f32 \(default\)'
for command in chat run sessions models lora tokenize detokenize template logits perplexity bench embed convert imatrix \
    quantize doctor; do
    run "$command" --help
    expect "help of $command" 0
    holds "help of $command is about no other command" [ -z "$(grep -v '^pippin' "$tmp/out" |
        grep -E "(logits|perplexity|imatrix|lora train|bench|sessions [a-z]*):")" ]
    # the words of the usage line, with their arguments, are those of the list
    tr -s '\n ' ' ' <"$tmp/out" | sed -n 's/.*Usage: pippin [a-z]* \[\(.*\)\]\(\.\.\.\)\{0,1\} \[OPTIONS\].*/\1/p' |
        sed 's/ | /\n/g' | awk 1 >"$tmp/usage"
    sed -n '/^\(Commands\|Measures\):/,/^$/s/^  \([^ ].*[^ ]\)   *[^ ].*/\1/p' "$tmp/out" |
        sed 's/ *$//' >"$tmp/listed"
    holds "help of $command says what each of its words does" cmp "$tmp/usage" "$tmp/listed"
done
run help
expect_match "help alone is that of the program" "$tmp/out" '^Usage: pippin \[chat\]' '^More: man pippin-tutorial'

# --- one answer -------------------------------------------------------------------------------------------------

echo "$who" | "$pippin" run --temp 0 -n 32 >"$tmp/out" 2>"$tmp/err"
code=$?
expect_out "the starter's greedy answer and nothing else" "$answer$nl"
holds "nothing on stderr" [ ! -s "$tmp/err" ]

run run -p "$who" --temp 0 -n 32 </dev/null
expect_out "prompt by -p" "$answer$nl"
run run -p "$who" --temp 0 -n 32 --no-draft </dev/null
expect_out "the same without guesses" "$answer$nl"
run run -p "$who" --temp 0 -n 200 --ignore-eos --draft-always --stats </dev/null # drafts even if it does not pay here
holds "guesses are made" grep -q '"draft_accepted": [1-9]' "$tmp/err"
holds "and counted by place" grep -q '"draft_stood_at": \[[1-9]' "$tmp/err"
cp "$tmp/out" "$tmp/first"
run run -p "$who" --temp 0 -n 200 --ignore-eos --no-draft --stats </dev/null
holds "or not" grep -q '"draft_tokens": 0[,}]' "$tmp/err"
holds "which changes nothing" cmp -s "$tmp/out" "$tmp/first"
run run -p "$who" --temp 0 -n 200 --ignore-eos </dev/null
holds "nor does to guess where it pays" cmp -s "$tmp/out" "$tmp/first"
for drafter in model lookup; do
    run run -p "$who" --temp 0 -n 200 --ignore-eos --drafter $drafter --draft-always </dev/null
    holds "nor does --drafter $drafter" cmp -s "$tmp/out" "$tmp/first"
done
run run -p "$who" --drafter nobody </dev/null; expect "--drafter of no such word" 2
run run -p "$who" --temp 0 -n 32 -t 1 --kernels scalar </dev/null
expect_out "the same with one thread and scalar kernels" "$answer$nl"
run run --temp 0 -n 4 -p "$who" </dev/null
expect "-n" 0
holds "ends the answer" [ "$(wc -c <"$tmp/out")" -lt 40 ]
run run --temp 0 --stop "tiny" -p "$who" </dev/null
expect_out "--stop ends before its text" "Hello! I am Pippin, a $nl"
run run --temp 0 -n 32 --logit-bias 8192+5 -p "$who" </dev/null; expect "a bias of no token" 2
expect_match "is told the tokens" "$tmp/err" 'token 8192, but this model has tokens 0 to 8191'
run run --draft-max 16 -p "$who" </dev/null; expect "more guesses than are ever made" 2
echo '{% if messages %}{% endif %}' >"$tmp/nothing.jinja"
run run -p "$who" -n 4 --chat-template-file "$tmp/nothing.jinja" </dev/null; expect "a template that leaves the question out" 1
expect_match "is said to be empty" "$tmp/err" 'produced an empty prompt'
run tokenize -f "$(printf '%5000s' | tr ' ' x)"; expect "a name that is too long" 1
expect_match "is cut, and what is wrong with it is not" "$tmp/err" '^pippin: cannot open x+\.\.\.x+: File name too long$'
if [ -z "${PIPPIN_SANITIZED:-}" ]; then # a sanitized program needs more address space than that
    # Some limits suffice for the model, but not for its draft model, too: so the lowest limit at which there is an
    # answer.
    mib=64
    while [ $mib -lt 1024 ]; do
        (ulimit -v $((mib * 1024)) && exec "$pippin" run -t 1 --temp 0 -n 32 -p "$who") </dev/null >"$tmp/out" 2>"$tmp/err"
        code=$?
        [ $code = 0 ] && break
        mib=$((mib + 4))
    done
    expect_out "a little memory does without a draft" "$answer$nl"
    expect_match "and it is said" "$tmp/err" 'not enough memory for the draft model; continuing without it'
fi
run run --seed 7 -n 24 -p "Tell me a story." </dev/null
cp "$tmp/out" "$tmp/first"
run run --seed 7 -n 24 -p "Tell me a story." --no-draft </dev/null
holds "a seed gives the same text with and without draft" cmp -s "$tmp/out" "$tmp/first"

printf 'Hello,\n' >"$tmp/part"
printf 'One.\n' | "$pippin" run --temp 0 -n 1 -f "$tmp/part" -p "two" --stats >/dev/null 2>"$tmp/err"
together=$(number prompt_tokens "$tmp/err")
run run --temp 0 -n 1 --stats -p "One.$nl${nl}Hello,$nl${nl}two" </dev/null
holds "stdin, -f and -p are one prompt" [ "$together" = "$(number prompt_tokens "$tmp/err")" ]
printf 'One.\n' >"$tmp/one"
run run --temp 0 -n 1 -f "$tmp/one" -p Hello, -p "" -p two --stats </dev/null
holds "and several texts" [ "$together" = "$(number prompt_tokens "$tmp/err")" ]
run run --temp 0 -n 1 -f "$tmp/one" -f "$tmp/part" -p two --stats </dev/null
holds "as are several files" [ "$together" = "$(number prompt_tokens "$tmp/err")" ]
run tokenize -f "$tmp/one" -f "$tmp/part" </dev/null; expect "which other commands do not read" 2
expect_match "and say so" "$tmp/err" '^pippin: -f: pippin tokenize reads one file; give one of them$'

# a prompt must be text; but it may begin or end within a character
printf 'Hello\0' >"$tmp/nul"
printf 'caf\351' >"$tmp/latin1"
printf '\377\376H\0i\0' >"$tmp/utf16"
for file in nul latin1 utf16; do
    printf x >>"$tmp/$file"
    run run -n 1 -f "$tmp/$file" </dev/null; expect "a prompt that is $file" 1
    cp "$tmp/err" "$tmp/err.$file"
    run run -n 1 <"$tmp/$file"; expect "and by a pipe" 1
done
expect_match "a NUL is told" "$tmp/err.nul" '/nul is not a text file: byte 6 is NUL; extract the text first'
expect_match "another encoding, too" "$tmp/err.latin1" 'not valid UTF-8 from byte 4 on; .* iconv -f LATIN1 -t UTF-8$'
expect_match "and UTF-16" "$tmp/err" '^pippin: standard input is UTF-16; convert it to UTF-8 first: iconv -f UTF-16 -t UTF-8$'
run run -n 1 -p "$(printf 'caf\351x')" </dev/null; expect "-p that is latin1" 1
printf '\251%s\303' "$who" | "$pippin" run --temp 0 -n 32 >"$tmp/out" 2>"$tmp/err"
code=$?
expect_out "halves of characters at its ends are no part of it" "$answer$nl"
mark=$(printf '\357\273\277') # the byte-order mark with which some editors begin UTF-8 text
printf '%s%s' "$mark" "$who" >"$tmp/marked"
run run --temp 0 -n 32 -f "$tmp/marked" </dev/null
expect_out "nor is a mark of UTF-8 before it" "$answer$nl"

run run --temp 0 -n 8 --stats -p "$who" </dev/null
tail -n 1 "$tmp/err" >"$tmp/stats"
expect_match "--stats ends with a JSON line" "$tmp/stats" '^\{.*\}$' '"prompt_tokens": [1-9]' '"cached_tokens": 0' \
    '"prefill_tps": [1-9]' '"decode_tps": [1-9]' '"draft_accepted": [0-9]' '"first_token_ms": [0-9]' '"kv_copied_bytes": 0' \
    '"kv_bytes": [1-9]' '"kv_limit_bytes": [1-9]' \
    '"seed": [0-9]' '"finish": "length"'
holds "leaves no trace" [ ! -e "$tmp/data/pippin" ]
holds "nor in the cache, but for the model's own layout" [ "$(ls "$tmp/cache/pippin")" = layouts ]
run run --temp 0 -n 32 --json -p "$who" </dev/null
holds "--json: nothing on stderr" [ ! -s "$tmp/err" ]
expect_match "one line on stdout" "$tmp/out" '^\{"answer": "Hello! I am Pippin.*about\?", "prompt_tokens": [1-9].*[^,]\}$' \
    '"decode_tps": [1-9]' '"finish": "end"'
holds "only that" [ "$(wc -l <"$tmp/out")" = 1 ]

"$pippin" run -p "$who" --temp 0 -n 32 >"$tmp/out" 2>"$tmp/err" <&-
code=$?
expect_out "a closed stdin is an empty one" "$answer$nl"

# --- errors -----------------------------------------------------------------------------------------------------

"$pippin" run -p "$who" --temp 0 -n 8 </dev/null >&- 2>"$tmp/err"; code=$?; expect "a closed stdout" 1

run run </dev/null; expect "no prompt: usage" 2
holds "errors keep off stdout" [ ! -s "$tmp/out" ]
run run -p x --no-such-option </dev/null; expect "unknown option: usage" 2
run run -p x -m "$tmp/no-such.gguf" </dev/null; expect "no such model" 3
printf 'GGUF rubbish' >"$tmp/bad.gguf"
run run -p x -m "$tmp/bad.gguf" </dev/null; expect "a bad model file" 1
run run -f "$tmp/absent" </dev/null; expect "no such prompt file" 1
run run --ctx-size 32 -p "$(head -c 2000 "$0")" </dev/null; expect "a prompt beyond the context" 5
long="Tell me a long story about a ship and its captain, who sails around the world and meets many people."
small() { XDG_DATA_HOME="$tmp/small" run run --ctx-size 160 --temp 0 -n 4 "$@" </dev/null; }
small --save -p "$long"; expect "a conversation in a small context" 0
small --continue -p "$long"; expect "that goes on" 0
small --continue --overflow shift -p "$long$long$long$long$long"; expect "and on, without the oldest turns" 0
holds "which is said" grep -q "no longer sees the oldest" "$tmp/err"
small --continue -p "Hi"; expect "and remembered" 0
holds "so that nothing else has to go" [ "$(grep -c oldest "$tmp/err")" = 0 ]
small --continue -p "$long$long"; expect "else it stops" 5
small --continue --overflow summarise -p "$long"; expect "a summary of what has to go" 0
holds "which is said" grep -q "summarising the oldest" "$tmp/err"
small --continue --overflow summarise -p "Hi"; expect "and kept" 0
holds "for what follows" [ "$(grep -c oldest "$tmp/err")" = 0 ]
run run --overflow perhaps -p x </dev/null; expect "--overflow: usage" 2
run run --raw --save -p x </dev/null; expect "--raw with --save: usage" 2
run run --resume 0000 -p x </dev/null; expect "no such conversation" 3
run sessions frobnicate; expect "no such subcommand" 2
run run --ignore-eos --ctx-size 64 --temp 0 -p "$who" </dev/null; expect "an answer that fills the context" 5
holds "which is shown all the same" grep -q "Pippin" "$tmp/out"
expect_match "and a larger one is advised" "$tmp/err" 'of 64 tokens is full; give a larger --ctx-size, up to 2,048$'
run run --ignore-eos --ctx-size 64 --temp 0 --json -p "$who" </dev/null; expect "or printed as JSON" 5
expect_match "with the reason for its end" "$tmp/out" '^\{"answer": "Hello! I am Pippin.*"finish": "context"'
yes "$long" | head -n 100 >"$tmp/long" # about 2,500 tokens
run run -f "$tmp/long" </dev/null; expect "a prompt beyond what the model was trained for" 5
expect_match "is not advised what does not help" "$tmp/err" 'holds 2,048, the most that .* trained for: shorten it$'
run run --raw --json -f "$tmp/long" </dev/null; expect "nor is a raw one" 5
holds "without an answer there is no JSON" [ ! -s "$tmp/out" ]
expect_match "is it" "$tmp/err" 'or start a new conversation$'
tr '\n' ' ' <"$tmp/long" | "$pippin" embed >"$tmp/out" 2>"$tmp/err"; code=$?; expect "nor a line of embed" 5
expect_match "is it, either" "$tmp/err" 'holds 2048; split the line$'
{ sleep 0.2; "$pippin" run --help 2>"$tmp/err"; } | true
holds "nothing is said of help that nobody reads to its end" [ ! -s "$tmp/err" ]
if [ -w /dev/full ]; then
    "$pippin" run --temp 0 -n 8 -p "$who" </dev/null >/dev/full 2>"$tmp/err"; code=$?; expect "a full disk" 1
    "$pippin" tokenize -p "$who" >/dev/full 2>"$tmp/err"; code=$?; expect "a full disk, at the end" 1
    echo Hello | "$pippin" embed >/dev/full 2>"$tmp/err"; code=$?; expect "a full disk, before the end" 1
    expect_match "of which the reason is told" "$tmp/err" 'cannot write the output: No space left'
fi
{
    "$pippin" run --temp 0 --ignore-eos --ctx-size 2048 -n 1500 -p "$who" </dev/null 2>"$tmp/err"
    echo $? >"$tmp/code"
} | head -c 5 >/dev/null
code=$(cat "$tmp/code"); expect "a reader that goes away" 1
holds "is not talked about" [ ! -s "$tmp/err" ]
mkdir -p "$tmp/near/other" "$tmp/near/modal" && touch "$tmp/near/modal/config.json"
run run -p x -m "$tmp/near/othr" </dev/null
holds "a folder without a model is not meant" sh -c '! grep -q "did you mean" "$1"' sh "$tmp/err"
run run -p x -m "$tmp/near/model" </dev/null; expect_match "one with a model is" "$tmp/err" 'did you mean ".*/modal"'
if command -v script >/dev/null; then
    script -qec "$pippin run" "$tmp/typescript" </dev/null >/dev/null 2>&1
    code=$?
    expect "a terminal and no prompt: usage, no question" 2
    mkdir "$tmp/names" && touch "$tmp/names/odd-$(printf 'mod\033cel').gguf" # similar names are shown
    for how in chat --plain 'run -p x'; do
        script -qec "$pippin $how -m $tmp/names/odd-model.gguf" /dev/null </dev/null >"$tmp/out" 2>&1
        expect_match "$how: a model that is not there" "$tmp/out" 'did you mean'
        holds "and no terminal obeys a file's name" [ "$(tr -cd '\033' <"$tmp/out" | wc -c)" -eq 0 ]
    done
fi

# --- conversations ----------------------------------------------------------------------------------------------

run run --save --temp 0 -n 32 -p "$who" </dev/null
expect_out "--save answers the same" "$answer$nl"
run sessions list --json
id=$(text id "$tmp/out")
expect_match "the conversation is listed" "$tmp/out" '"messages": 2' '"title": "Hello, who are you\?"'
run sessions show "$id"
expect_match "and shown" "$tmp/out" "^Hello, who are you\?\$" "^Hello! I am Pippin" "^assistant:"
cp "$tmp/out" "$tmp/shown"
run sessions show; holds "without an ID, as the latest one" cmp -s "$tmp/shown" "$tmp/out"
run sessions show "$id" --json
expect_match "also as JSON" "$tmp/out" '"role": "user", "state": "complete"' '"content": "Hello! I am Pippin, a tiny' '"stats": {.*"draft_tokens":'
run sessions search Pippin
expect_match "and found by a word of the answer, which is shown" "$tmp/out" "^$id  .* Hello, who are you\\?: .*Pippin"
run sessions search "nothing-like-this"
expect_out "a search without hits is empty" ""
expect_match "which is said" "$tmp/err" '^pippin: no conversation contains all of these words$'
run sessions search two words; expect "a search for two words" 2
expect_match "wants quotes around them" "$tmp/err" 'unexpected argument "words": too many for .*; put a text of several words in quotes$'

# a template whose prompt ends in <think>: no part of the output is the answer
cat >"$tmp/think.jinja" <<'EOT'
{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>

{% if enable_thinking is not defined or enable_thinking %}<think>
{% endif %}
EOT
printf 'a\n{%% if messages %%}{{ raise_exception("only two roles") }}{%% endif %%}' >"$tmp/raises.jinja"
run run -n 1 --chat-template-file "$tmp/raises.jinja" -p "$who" </dev/null; expect "a template that gives up" 1
expect_match "where and what to do" "$tmp/err" 'raises.jinja, line 2: only two roles; give another template with --chat-template-file'
echo "{{ prompt }}" >"$tmp/other.jinja"
run run -n 1 --chat-template-file "$tmp/other.jinja" -p "$who" </dev/null; expect "a template that leaves out what is asked" 1
expect_match "is none" "$tmp/err" 'other.jinja is not a chat template: it does not use `messages`'
run chat --plain -n 1 --chat-template-file "$tmp/other.jinja" </dev/null; expect "in the chat" 1
expect_match "it is none either" "$tmp/err" 'other.jinja is not a chat template: it does not use `messages`'
for how in fold show hide; do
    run run --temp 0 -n 12 --chat-template-file "$tmp/think.jinja" --reasoning $how -p "$who" </dev/null
    expect_out "reasoning ($how) is no answer" ""
    lines=$(grep -v "there is no answer" "$tmp/err" | grep -c .)
    holds "what is on stderr with $how" [ "$([ "$lines" -gt 0 ] && echo show)" = "$([ $how = show ] && echo show)" ]
    expect_match "and why there is none ($how)" "$tmp/err" "there is no answer: the reasoning used up all 12 tokens of -n"
done
# biases make it say "Hi</think>So", each of them once; the prompt does not end in <think>
cat >"$tmp/closes.jinja" <<'EOT'
{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content.split('</think>') | last }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>

EOT
said="--temp 0 -n 7 --presence-penalty 100"
for bias in 1808+190 32+175 19+160 367+145 644+130 34+115 1299+112; do said="$said --logit-bias $bias"; done
run run $said -p "$who" </dev/null
expect_out "a template without reasoning has none" "Hi</think>So$nl"
run run $said --chat-template-file "$tmp/closes.jinja" -p "$who" </dev/null
expect_out "what was taken back is no longer in a file" "So$nl"
echo before >"$tmp/both"
"$pippin" run $said --chat-template-file "$tmp/closes.jinja" -p "$who" </dev/null >>"$tmp/both" 2>"$tmp/err"
holds "which keeps what it had" [ "$(cat "$tmp/both")" = "before${nl}So" ]
"$pippin" run $said --chat-template-file "$tmp/closes.jinja" -p "$who" </dev/null 2>"$tmp/err" | cat >"$tmp/out"
expect_out "in a pipe the answer stands apart" "Hi$nl${nl}So$nl"
expect_match "and it is said" "$tmp/err" "was the model's reasoning"
run run --temp 0 -n 32 --chat-template-file "$tmp/think.jinja" --thinking off -p "$who" </dev/null
expect_out "--thinking off is the template's to obey" "$answer$nl"
run run --temp 0 -n 2 --thinking low -p "$who" </dev/null
expect_match "a switch that a template lacks is said" "$tmp/err" "has no effect with this chat template"
cp -r "$tmp/data" "$tmp/data.plain"
run run --save --temp 0 -n 12 --chat-template-file "$tmp/think.jinja" -p "$who" </dev/null
run sessions show "$(sed -n 's/.*--resume \([0-9a-f]*\).*/\1/p' "$tmp/err")" --json
expect_match "reasoning is kept beside its answer" "$tmp/out" '"content": "", "reasoning": "[^"]' \
    '"reasoning_tokens": 12'
rm -rf "$tmp/data"
mv "$tmp/data.plain" "$tmp/data"

cp -r "$tmp/data" "$tmp/data.before"
run run --continue --temp 0 -n 24 --stats -p "What is the capital of France?" </dev/null
cp "$tmp/out" "$tmp/warm"
cached=$(number cached_tokens "$tmp/err")
expect "--continue" 0
holds "takes the KV from the snapshot" [ "${cached:-0}" -gt 20 ]
rm -rf "$tmp/data" "$tmp/cache"
mv "$tmp/data.before" "$tmp/data"
run run --resume "$id" --temp 0 -n 24 --stats -p "What is the capital of France?" </dev/null
holds "without a snapshot all is computed" [ "$(number cached_tokens "$tmp/err")" = 0 ]
holds "restored continuation equals the cold one" cmp -s "$tmp/out" "$tmp/warm"
snapshot=$(find "$tmp/cache" -name "$id*" | head -n 1)
if [ -n "$snapshot" ]; then
    printf 'rubbish' | dd of="$snapshot" bs=1 seek=100 conv=notrunc 2>/dev/null
    run run --resume "$id" --temp 0 -n 4 --stats -p "And now?" </dev/null
    expect "a damaged snapshot" 0
    holds "is refused" [ "$(number cached_tokens "$tmp/err")" = 0 ]
    holds "with a reason" grep -q "^pippin: the saved KV cache is damaged (.*); computing it again" "$tmp/err"
    run run --resume "$id" --lora bard -n 2 --stats -p "And now?" </dev/null
    holds "one of other adapters is, too" grep -q "^pippin: the saved KV cache is not used: the adapters are different; comp" "$tmp/err"
fi
lock="$tmp/data/pippin/locks/$id.lock"
if command -v flock >/dev/null && [ -e "$lock" ]; then
    run_locked() { flock "$lock" "$pippin" run --resume "$id" -p x </dev/null >"$tmp/out" 2>"$tmp/err"; }
    run_locked; code=$?; expect "a conversation open elsewhere" 1
    holds "says nothing of going on with it" [ "$(wc -l <"$tmp/err")" = 1 ]
fi
run run --save --temp 0 -n 8 --system "Answer like a pirate." --lora-scaled engine/starter/bard.gguf:0.5 -p x </dev/null
if [ "$code" = 0 ]; then
    run sessions list --json
    second=$(sed 's/}, {/}\n{/g' "$tmp/out" | head -n 1 | sed -n 's/.*"id": "\([^"]*\)".*/\1/p')
    run sessions show "$second" --json
    expect_match "a system prompt is kept" "$tmp/out" '"system": "Answer like a pirate."'
    run sessions rm "$second"
fi
run run --save --temp 0 --seed 77 -n 8 -p "$who" </dev/null
third=$(sed -n 's/.*--resume //p' "$tmp/err")
for seed in 1 2; do
    cp -r "$tmp/data" "$tmp/data.before"
    run run --resume "$third" --seed $seed -n 16 -p "Tell me a story." </dev/null
    cp "$tmp/out" "$tmp/story.$seed"
    rm -rf "$tmp/data"
    mv "$tmp/data.before" "$tmp/data"
done
holds "a conversation remembers its temperature" cmp -s "$tmp/story.1" "$tmp/story.2"
run run --resume "$third" --temp 2 -n 4 --stats -p x </dev/null
holds "and its seed" [ "$(number seed "$tmp/err")" = 77 ]
run sessions rm "$third"
run run --save -p "$who" --temp 0 -n 8 --no-draft --stats </dev/null
chosen=$(text session "$tmp/err")
run run --resume "$chosen" -p "$who" --temp 0 -n 200 --ignore-eos --draft-always --stats </dev/null
holds "a conversation remembers that nothing is guessed" grep -q '"draft_tokens": 0[,}]' "$tmp/err"
run run --resume "$chosen" -p "$who" --temp 0 -n 200 --ignore-eos --use-draft --draft-always --stats </dev/null
holds "unless the command line says otherwise" grep -q '"draft_tokens": [1-9]' "$tmp/err"
run sessions show "$chosen" --json
holds "which words were guessed is kept" grep -q '"guessed": *\[[0-9]*, *[0-9]' "$tmp/out"
run sessions rm "$chosen"
awk 'BEGIN { for (i = 0; i < 400; i++) printf " sea" }' >"$tmp/sea"
run run --save --temp 0 --seed 7 -n 4 -c 256 -f "$tmp/sea" </dev/null; expect "a question that is too long" 5
run sessions list
long=$(head -n 1 "$tmp/out" | cut -d ' ' -f 1)
run run --resume "$long" --temp 0 -n 4 -c 256 -p "$who" </dev/null; expect "is not sent again with the next one" 0
run sessions rm "$long"
run run --save --temp 0 -n 1 -p "$who" </dev/null
more=$(sed -n 's/.*--resume //p' "$tmp/err")
run sessions rm "$more" ffffffffffffffff "$id"; expect "rm of one that is not there" 3
run sessions list
holds "and the others stay" [ "$(grep -c "^\($more\|$id\) " "$tmp/out")" = 2 ]
if command -v flock >/dev/null && [ -e "$lock" ]; then
    flock "$lock" "$pippin" sessions rm "$more" "$id" >"$tmp/out" 2>"$tmp/err"; code=$?
    expect "rm of one that is open elsewhere" 1
    expect_match "says which" "$tmp/err" "^pippin: $id: this conversation is open"
fi
run sessions rm "$more" "$more"; expect "rm of one that is named twice" 0
run sessions list
holds "is that of one" [ "$(grep -c . "$tmp/out")" = 1 ]
run sessions rename "$id" "  Ann's$nl name$(printf '\033')[31m "; expect "rename" 0
run sessions list
expect_match "gives another title, in one line" "$tmp/out" "^$id .* Ann's name$"
run sessions search Ann; expect_match "by which it is found" "$tmp/out" "^$id "
run sessions rename "$id" " "; expect "rename to nothing" 2
run sessions rename "$id" New title; expect "rename to several words" 2
expect_match "says what to do" "$tmp/err" 'put a text of several words in quotes$'
run sessions rename ffffffffffffffff x; expect "rename of one that is not there" 3
run sessions forget "$id"; expect "forget" 0
holds "removes the snapshot" [ -z "$(find "$tmp/cache" -name "$id*")" ]
run sessions rm "$id"; expect "rm" 0
holds "leaves no file of a conversation" [ -z "$(find "$tmp/data" "$tmp/cache" -name "$id*" -o -name "$more*")" ]
run sessions list
expect_out "an empty list" ""
expect_match "is said to be one" "$tmp/err" '^pippin: there are no saved conversations yet$'
run sessions list --json
expect_out "as JSON" "[]$nl"
holds "it speaks for itself" [ ! -s "$tmp/err" ]
run sessions show; expect "nor is there a latest one" 3

# --- interruption -----------------------------------------------------------------------------------------------

: >"$tmp/out" # emptied: its old contents would be mistaken for the first word
# one thread with the slowest kernels cannot finish before this script goes on
"$pippin" run --save --ignore-eos --temp 0 --ctx-size 2048 --no-draft -t 1 --kernels scalar --stats -p "$who" </dev/null \
    >"$tmp/out" 2>"$tmp/err" &
pid=$!
comes [ -s "$tmp/out" ]
kill -TERM $pid # a background job of a script ignores SIGINT; pippin handles both alike
wait $pid; code=$?; expect "a signal stops the answer" 130
tail -n 1 "$tmp/err" >"$tmp/stats"
expect_match "with its stats" "$tmp/stats" '"finish": "interrupted"'
run sessions list --json
run sessions show "$(text id "$tmp/out")" --json
expect_match "and what was there is kept" "$tmp/out" '"state": "cancelled", "content": "Hello'

# --- looking inside ---------------------------------------------------------------------------------------------

run tokenize -p Hello -f LICENSE; expect "two texts where one is taken" 2
run tokenize -p "<|eot_id|>"; plain=$(cat "$tmp/out")
run tokenize --special -p "<|eot_id|>"; expect_out "--special" "[4]$nl"
holds "control tokens are plain text otherwise" [ "$plain" != "[4]" ]
run tokenize --special --count --bos -p "<|eot_id|><|eot_id|>"; expect_out "--count" "3$nl"
: | "$pippin" tokenize --count >"$tmp/out" 2>"$tmp/err"; code=$?; expect_out "of nothing" "0$nl"
printf 'two lines\nand \303\244\303\266 \360\237\230\200, no end' >"$tmp/text"
"$pippin" tokenize <"$tmp/text" 2>"$tmp/err" | "$pippin" detokenize >"$tmp/out" 2>>"$tmp/err"
holds "tokenize and detokenize are inverse" cmp -s "$tmp/text" "$tmp/out"
printf '[4]\n[999999]\n' | "$pippin" detokenize >"$tmp/out" 2>"$tmp/err"
code=$?
expect "an id beyond the vocabulary" 2
holds "is named by its line" grep -q "line 2" "$tmp/err"
echo '[4, -1, 5]' | "$pippin" detokenize >"$tmp/out" 2>"$tmp/err"; code=$?; expect "what is no id" 2
holds "is named as it stands" grep -q '"-1" is not a token id' "$tmp/err"
echo Hello | "$pippin" template >"$tmp/out" 2>"$tmp/err"; code=$?; expect "messages that are none" 2
holds "are not laid to the template" grep -q '^pippin: the messages are not a JSON array; send one' "$tmp/err"
printf '[{"role": "user", "content": "Hi \\"x\\""}]' >"$tmp/messages"
run template -f "$tmp/messages"
expect_match "template renders" "$tmp/out" 'user' 'Hi "x"' 'assistant'
cp "$tmp/out" "$tmp/rendered"
{ printf %s "$mark"; cat "$tmp/messages"; } >"$tmp/marked"
printf '%s[]' "$mark" >"$tmp/no-tools"
run template -f "$tmp/marked" --tools "$tmp/no-tools"
holds "messages and tools behind a mark of UTF-8" cmp "$tmp/rendered" "$tmp/out"
printf '%s[4]' "$mark" | "$pippin" detokenize --special >"$tmp/out" 2>"$tmp/err"
expect_out "ids behind one" "<|eot_id|>"
printf '%s1,2' "$mark" | "$pippin" logits -o "$tmp/marked.safetensors" 2>"$tmp/err"; code=$?
expect "and those of logits" 0
run tokenize -p "${mark}Hello"; cp "$tmp/out" "$tmp/ids"
printf '%sHello' "$mark" | "$pippin" tokenize >"$tmp/out"
holds "but tokenize takes a text as it is" cmp "$tmp/ids" "$tmp/out"
cat >"$tmp/t.jinja" <<'END'
{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}{{ strftime_now("%Y-%m-%d %H") }}
END
run template --chat-template-file "$tmp/t.jinja" --bos-text "<s>" --eos-text "</s>" --now "2026-03-14 15:09:26" \
    -f "$tmp/messages"
expect_out "a template of one's own, exactly" '<s>Hi "x"</s>2026-03-14 15'
LC_ALL=C sed 's/llama-bpe/llama-bpX/' engine/starter/starter-draft-Q4_0.gguf >"$tmp/odd.gguf"
run template -m "$tmp/odd.gguf" -f "$tmp/messages"; expect "the template of a model whose vocabulary cannot be read" 0
expect_match "says what is missing in it" "$tmp/err" '^pippin: the texts of BOS and EOS are empty .* "llama-bpX" is not known'
run template -m "$tmp/odd.gguf" --bos-text B --eos-text E -f "$tmp/messages"
holds "but for what is given" [ ! -s "$tmp/err" ]
rm "$tmp/odd.gguf"
for zone in WST11 EST-13; do
    printf '{{ strftime_now("%%Y-%%m-%%d %%H") }}' >"$tmp/clock.jinja"
    TZ=$zone date '+%Y-%m-%d %H' >"$tmp/hour"
    TZ=$zone "$pippin" template --chat-template-file "$tmp/clock.jinja" -f "$tmp/messages" >"$tmp/out"
    TZ=$zone date '+%Y-%m-%d %H' >>"$tmp/hour"
    holds "a template's clock is the user's, $zone" grep -qxF "$(cat "$tmp/out")" "$tmp/hour"
done
run template --now yesterday -f "$tmp/messages"; expect "a time that is none" 2
printf '{%% if %%}' >"$tmp/t.jinja"
run template --chat-template-file "$tmp/t.jinja" -f "$tmp/messages"; expect "a template with an error" 1

# a model with one template for chats and another one for tools, in every format
printf '[{"type": "function", "function": {"name": "now"}}]' >"$tmp/tools"
run convert starter "$tmp/two"; expect "the starter as a folder" 0
mkdir "$tmp/broken-off" && touch "$tmp/broken-off/chat_template.jinja" "$tmp/broken-off/model.safetensors.77.tmp"
run convert starter "$tmp/broken-off"; expect "not into what a killed conversion has left" 2
expect_match "which is said" "$tmp/err" 'an interrupted conversion, such as model.safetensors.77.tmp: delete the folder'
mkdir -p "$tmp/two/additional_chat_templates"
printf 'chat {{ messages[0].content }}' >"$tmp/two/chat_template.jinja"
printf '{{ tools[0].function.name }} for {{ messages[0].content }}' \
    >"$tmp/two/additional_chat_templates/tool_use.jinja"
run convert "$tmp/two" "$tmp/two.gguf"; expect "a folder with two templates" 0
run convert "$tmp/two.gguf" "$tmp/two-again"; expect "and back" 0
for form in two two.gguf two-again; do
    run template -m "$tmp/$form" -f "$tmp/messages"
    expect_out "$form: the template of chats" 'chat Hi "x"'
    run template -m "$tmp/$form" --tools "$tmp/tools" -f "$tmp/messages"
    expect_out "$form: with tools the other one" 'now for Hi "x"'
done
run template --tools "$tmp/absent" -f "$tmp/messages"; expect "tools that are not there" 1
printf '{"no": "array"' >"$tmp/tools"
run template -m "$tmp/two" --tools "$tmp/tools" -f "$tmp/messages"; expect "tools that are no array" 2

run logits --ids 0,1,2 -o "$tmp/l.safetensors"
expect "logits" 0
head -c 200 "$tmp/l.safetensors" >"$tmp/head"
expect_match "with their shape" "$tmp/head" '"logits"' '\[3, ?8192\]' 'F32'
run logits --ids 0,999999 -o "$tmp/l2.safetensors"; expect "logits of an unknown id" 2
run logits --ids 0; expect "logits without -o" 2
mkdir "$tmp/own"
cp engine/starter/starter-draft-Q4_0.gguf "$tmp/own/model.gguf"
yes 1,2,3 | head -n 400 >"$tmp/own/ids"
cp -r "$tmp/own" "$tmp/kept"
run logits -m "$tmp/own/model.gguf" --ids 0 -o "$tmp/own/model.gguf"; expect "logits over the model" 2
run logits -f "$tmp/own/ids" -o "$tmp/own/ids"; expect "over the ids" 2
run imatrix -m "$tmp/own/model.gguf" -f "$tmp/own/ids" -c 64 -o "$tmp/own/model.gguf"; expect "an imatrix over the model" 2
run imatrix -m "$tmp/own/model.gguf" -f "$tmp/own/ids" -c 64 -o "$tmp/own/ids"; expect "over the text" 2
expect_match "which is said" "$tmp/err" 'is both input and output'
holds "all is as it was" diff -r "$tmp/own" "$tmp/kept"
run imatrix -m "$tmp/own/model.gguf" -f "$tmp/own/ids" -c 64 -o "$tmp/kept/im.gguf"
cp "$tmp/kept/im.gguf" "$tmp/own/im.gguf"
run quantize "$tmp/own/model.gguf" "$tmp/own/im.gguf" q4_0 --imatrix "$tmp/own/im.gguf"; expect "a model over its imatrix" 2
run convert "$tmp/own/model.gguf" "$tmp/own-folder"
cp "$tmp/own-folder/model.safetensors" "$tmp/kept"
run convert "$tmp/own-folder" "$tmp/own-folder/model.safetensors"; expect "a model over its folder's weights" 2
run logits -m "$tmp/own-folder" --ids 0 -o "$tmp/own-folder/model.safetensors"; expect "logits over them" 2
holds "all is as it was, too" cmp -s "$tmp/kept/model.safetensors" "$tmp/own-folder/model.safetensors"
(umask 027; "$pippin" logits --ids 0 -o "$tmp/shared.safetensors")
holds "whose file others may read as the user's umask says" [ "$(stat -c %a "$tmp/shared.safetensors")" = 640 ]
(ulimit -f 8; "$pippin" logits --ids 0,1,2 -o "$tmp/short.safetensors" 2>"$tmp/err"); code=$?
expect "ulimit -f is an error" 1
expect_match "that is told" "$tmp/err" 'cannot write .*short.safetensors: File too large'
# A command's own output may be overwritten, other files not; nor an importance matrix, which may have taken hours.
run logits --ids 3 -o "$tmp/l.safetensors"; expect "newer logits" 0
: >"$tmp/empty"
run logits --ids 3 -o "$tmp/empty"; expect "and over an empty file" 0
holds "which are they" cmp -s "$tmp/empty" "$tmp/l.safetensors"
echo 'a diary' >"$tmp/diary"
cp "$tmp/diary" "$tmp/diary.copy"
run logits --ids 0 -o "$tmp/diary"; expect "logits over a diary" 2
expect_match "which is said" "$tmp/err" 'diary exists and is not a file of logits; it was left unchanged'
cp "$tmp/own-folder/model.safetensors" "$tmp/weights.safetensors"
run logits --ids 0 -o "$tmp/weights.safetensors"; expect "over weights" 2
run imatrix -f "$tmp/own/ids" -c 64 --chunks 1 -o "$tmp/diary"; expect "an imatrix over a diary" 2
expect_match "which is said, too" "$tmp/err" 'diary exists and is not an importance matrix'
run quantize "$tmp/own/model.gguf" "$tmp/diary" q8_0; expect "a model over it" 2
expect_match "and that" "$tmp/err" 'diary exists and is not a GGUF file'
holds "all stay" cmp -s "$tmp/diary" "$tmp/diary.copy"
holds "the weights, too" cmp -s "$tmp/weights.safetensors" "$tmp/own-folder/model.safetensors"
cp "$tmp/kept/im.gguf" "$tmp/im.gguf"
run imatrix -f "$tmp/own/ids" -c 64 --chunks 1 -o "$tmp/im.gguf"; expect "an imatrix that is there" 2
expect_match "and what goes on with it" "$tmp/err" 'im.gguf exists and was left unchanged; --continue resumes it'
run quantize starter "$tmp/im.gguf" q4_0; expect "a model over an imatrix that it does not read" 2
holds "is not begun anew" cmp -s "$tmp/im.gguf" "$tmp/kept/im.gguf"
run imatrix --in-file "$tmp/im.gguf" -o "$tmp/im.gguf"; expect "but keeps what it adds" 0
cp "$tmp/own/model.gguf" "$tmp/again.gguf"
run quantize "$tmp/own/model.gguf" "$tmp/again.gguf" f32; expect "a model over an older one" 0
mkfifo "$tmp/pipe"
run logits --ids 0 -o "$tmp/pipe"; expect "logits over what is no file" 1
holds "which stays what it is" [ -p "$tmp/pipe" ]

run bench --n-prompt 16 --n-gen 4 -r 2 --json
expect_match "bench" "$tmp/out" '"prefill_tps": [1-9]' '"decode_tps": [1-9]' '"n_threads": [1-9]' \
    '"kernels": "' '"type": "Q4_K_M"' '"kv_type": "q8"'
expect_match "bench tells the bandwidth" "$tmp/out" '"read_test_gbps": [1-9]' '"read_share": [0-9][0-9]*\.' '"name": "decode 4 @ 16"'
holds "and what is being measured is told to a terminal alone" [ ! -s "$tmp/err" ]
if command -v script >/dev/null; then
    script -qec "$pippin bench -p 16 -n 4 -r 1" /dev/null </dev/null >"$tmp/out" 2>&1
    expect_match "to that at once" "$tmp/out" 'a prompt of 16 tokens +0 %' 'prefill 16 @ 0'
fi
run bench threads -t 1,511,512 --shape stories-15m --type q8_0 --layers 1 --vocab 300 -p 4 -n 2 -r 1
most=$(sed -n 's/^(no more than \([0-9]*\) threads*: .*/\1/p' "$tmp/out")
holds "bench counts no threads that there are not" [ "${most:-0}" -ge 1 ]
holds "and measures all of those as one" \
    [ "$(grep '^decode 2 @ 4' "$tmp/out" | grep -vc 'all 6 layers')" = $((most > 1 ? 2 : 1)) ]
holds "by its name" [ "$(grep -c '51[12] thread' "$tmp/out")" = 0 ]
run bench depth rows kernels memory --depth 0,64 --rows 1,3 -t 1,2 --kv-type q8,f16 -p 8 -n 2 -r 1 --json
expect_match "bench by depths, rows, KV types" "$tmp/out" '"name": "prefill 8 @ 0,[^"]* KV q8"' \
    '"name": "decode 2 @ 64,[^"]* KV f16"' '"name": "rows 3 own @ 64,[^"]* KV f16"' '"ratio": [0-9]' \
    '"kernel_times": ' '"stage": "gate.up"' '"gmacs": [0-9]' '"rss_bytes": [1-9]' '"mapped_bytes": [1-9]'
[ "${most:-0}" -lt 2 ] ||
    expect_match "and threads" "$tmp/out" '"prefill 8 @ 0, 1 thread, KV q8"' '"decode 2 @ 64, 2 threads, KV f16"'
run bench draft --shape stories-15m --layers 1 --vocab 300 -n 8 -r 1 --json
expect_match "bench of guesses" "$tmp/out" '"name": "no guesses"' '"name": "script right with 0.80, always 4"' \
    '"accepted": 0\.[0-9]' '"formula_tps": [1-9]'
run bench lora --shape stories-15m --type q8_0 --layers 1 --vocab 300 --rank 4 -p 8 -n 3 -r 1
expect_match "bench of adapters" "$tmp/out" '^decode 3, 0 adapters ' '^prefill 8, 4 adapters .* % time$' \
    '^decode 3, a DoRA .* % time$' '^1 adapter loaded, 0.1 MB, in memory .* ms ' '^an IA3 switched off .* ms '
# The first token of an answer needs no pass: a result of 100,000 tokens/s would mean that no pass was measured at all.
run bench lora -p 8 -n 2 -r 1
expect_match "the one pass of two tokens is measured" "$tmp/out" '^decode 2, 0 adapters *[0-9]{1,5}\.[0-9]+ tokens/s'
run bench kernels rows -p 8 -n 2 -r 1
expect_match "and as text" "$tmp/out" '^rows 16 same @ 8 ' 'times one row$' '^.same: rows of one' '^  gate.up ' '^memory is read at '
run bench speed; expect "bench of an unknown word" 2
expect_match "is told those that there are" "$tmp/err" 'measure "speed"; it knows quick, depth, .*, trace, sessions and all$'
run bench --depth 1,x; expect "bench with a depth that is none" 2
run bench --rows 0; expect "bench of no rows" 2
run bench -t 2,; expect "bench with a list that ends early" 2
run run -p x -t 1,2; expect "a list of threads where one number is wanted" 2
run bench --write "$tmp/x.gguf"; expect "bench --write without a shape" 2
run bench --shape stories-15m --type q8_0 --layers 1 --vocab 300 --write "$tmp/random.gguf" --json
expect_match "bench writes a random model" "$tmp/out" '"n_layers": 1' '"type": "Q8_0"'
run bench -m "$tmp/random.gguf" -p 8 -n 2 -r 1 --json
expect_match "which runs" "$tmp/out" '"decode_tps": [1-9]'
run bench --shape stories-15m --type q8_0 --layers 1 --vocab 300 --write "$tmp/two${nl}lines.gguf"
expect_match "bench --write of a name with a line break tells one line" "$tmp/out" '/two␊lines\.gguf: stories-15m'
ln -s "$PWD/engine/starter/starter-Q4_K_M.gguf" "$tmp/more${nl}lines.gguf"
run bench tokenizer -m "$tmp/more${nl}lines.gguf" -r 1
expect_match "so does bench of such a vocabulary" "$tmp/out" '/more␊lines\.gguf  8192 tokens'
TMPDIR="$tmp" run bench --shape stories-15m --layers 2 --vocab 300 -p 8 -n 2 -r 1 --json
expect_match "bench of a shape" "$tmp/out" '"n_layers": 2' '"full_layers": 6' '"decode_tps": [1-9]'
holds "which leaves no file" [ -z "$(ls "$tmp"/pippin-bench-* 2>/dev/null)" ]
expect_match "scaled to all its layers" "$tmp/out" '"scaled_decode_tps": [1-9]' 'decode 2 @ 8, all 6 layers'
run bench start tokenizer trace --adapters 3 --requests 5 -p 8 -n 2 -r 1 --json
expect_match "bench of start, tokenizer and a trace" "$tmp/out" '"what": "first_token"' '"what": "start"' '"what": "exec"' \
    '"name": "tokenize the built-in text"' '"unit": "MB/s"' '"what": "trace_latency"' '"name": "trace: adapters swapped"'
holds "which is JSON" python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$tmp/out"
XDG_CACHE_HOME="$tmp/fresh" run bench start --shape stories-15m --type q8_0 --layers 1 --vocab 300 -p 8 -r 2
expect_match "bench of a random model's start" "$tmp/out" '^no model, from exec to exit ' '^one token, from exec to exit '
holds "which keeps nothing of that model" [ -z "$(find "$tmp/fresh" -name '*.layout' -o -name '*.part' 2>/dev/null)" ]
# --- vectors ------------------------------------------------------------------------------------------------------

printf '%sHello there\r\nA table for two, please.\nHello there\n' "$mark" >"$tmp/lines"
run embed -f "$tmp/lines"; expect "a vector a line" 0
holds "of length 1, with the model's width" [ "$(awk -F'[][,]' '{s=0;for(i=2;i<NF;i++)s+=$i*$i;printf "%d:%.4f ",NF-2,s}' "$tmp/out")" = "512:1.0000 512:1.0000 512:1.0000 " ]
holds "the same text, the same vector" [ "$(sed -n 1p "$tmp/out")" = "$(sed -n 3p "$tmp/out")" ]
holds "another text, another one" [ "$(sed -n 1p "$tmp/out")" != "$(sed -n 2p "$tmp/out")" ]
cp "$tmp/out" "$tmp/first"
run embed -f "$tmp/lines" -t 1 --kernels scalar --kv-type f32; expect "in floats" 0
holds "the same direction" [ "$(paste -d'#' "$tmp/first" "$tmp/out" | awk -F'#' '{n=split($1,a,/[][,]/);split($2,b,/[][,]/);c=0;for(i=2;i<n;i++)c+=a[i]*b[i];if(c<0.999)print c}')" = "" ]
run embed --pooling mean -f "$tmp/lines"; expect "the mean of all tokens" 0
holds "is another vector" [ "$(sed -n 1p "$tmp/first")" != "$(sed -n 1p "$tmp/out")" ]
run convert engine/starter/bard.gguf "$tmp/bard"; expect "an adapter without its model" 2
expect_match "says how to name it" "$tmp/err" 'give it with --base'
head -c 100000 engine/starter/bard.gguf >"$tmp/half-bard.gguf"
run convert "$tmp/half-bard.gguf" "$tmp/half-bard" --base starter; expect "of a damaged one" 1
expect_match "is not said that it is no adapter" "$tmp/err" 'half-bard.gguf is truncated'
run convert engine/starter/bard.gguf "$tmp/bard" -m starter --to mlx; expect "an adapter as what adapters do not become" 2
expect_match "is told what it becomes" "$tmp/err" 'becomes a folder as PEFT writes it; leave --to mlx out'
run convert starter "$tmp/two-more" -m starter; expect "a model that belongs to one" 2
run convert engine/starter/bard.gguf "$tmp/bard" -m starter
invocation=$("$pippin" tokenize -p " table" | sed 's/^\[//; s/\].*//')
sed "1s/{/{\"alora_invocation_tokens\": [$invocation],/" "$tmp/bard/adapter_config.json" >"$tmp/config.json"
mv "$tmp/config.json" "$tmp/bard/adapter_config.json"
run embed -f "$tmp/lines" --lora "$tmp/bard"; expect "under an adapter that must be invoked" 0
holds "a line without its invocation" [ "$(sed -n 1p "$tmp/first")" = "$(sed -n 1p "$tmp/out")" ]
holds "a line with it" [ "$(sed -n 2p "$tmp/first")" != "$(sed -n 2p "$tmp/out")" ]
run run --lora "$tmp/bard" -n 1 -p Hello; expect "an adapter that the prompt does not invoke" 0
expect_match "is told of" "$tmp/err" 'adapter bard has no effect: the prompt does not contain the tokens that invoke it, " table"'
run run --lora "$tmp/bard" -n 1 -p "A table"; expect "one that it does" 0
holds "is not" [ "$(grep -c 'has no effect' "$tmp/err")" = 0 ]
run embed -p "$long$long$long$long" -c 32; expect "a line beyond the context" 5
sed -i 's/\("add_bos_token":[[:space:]]*\)true/\1false/' "$tmp/two/tokenizer_config.json"
printf 'Hello there\n\nHello there\n' >"$tmp/lines"
run embed -m "$tmp/two" -f "$tmp/lines"; expect "a line without tokens" 0
holds "has no vector, and the next one has" [ "$(sed -n 2p "$tmp/out")" = "[]" -a "$(sed -n 1p "$tmp/out")" = "$(sed -n 3p "$tmp/out")" ]
expect_match "which is said" "$tmp/err" 'line 2 is empty'
run embed --pooling first -p x; expect "--pooling: usage" 2
yes "Hello there, a table for two, please, and what would you like to talk about?" | head -n 60000 >"$tmp/lines"
timeout 60 "$pippin" embed -f "$tmp/lines" 2>"$tmp/err" | head -n 1 >"$tmp/out" # more than a minute for all lines
holds "and ends where nobody reads on" [ "$(cut -c1 "$tmp/out")" = "[" -a ! -s "$tmp/err" ]
holds "at once" [ "$({ timeout 60 "$pippin" embed -f "$tmp/lines"; echo $? >"$tmp/code"; } | head -c 1; cat "$tmp/code")" = "[1" ]
mkfifo "$tmp/unread" && exec 9<>"$tmp/unread" # stays open, and nothing reads it
timeout --foreground --preserve-status -s INT -k 60 2 "$pippin" embed -f "$tmp/lines" >"$tmp/unread" 2>"$tmp/err"; code=$?
exec 9>&-
expect "interrupted while nobody reads" 130
holds "without a word" [ ! -s "$tmp/err" ]
for seconds in 3 9 27; do # a busy machine may need long for a chunk; without --foreground there would be two signals
    timeout --foreground --preserve-status -s INT $seconds "$pippin" imatrix -f "$tmp/lines" -c 64 \
        --output-frequency 1 -o "$tmp/stopped.gguf" 2>"$tmp/err"; code=$?
    [ -e "$tmp/stopped.gguf" ] && break
done
expect "an imatrix that is stopped" 130
expect_match "says what is there" "$tmp/err" 'stopped; .*/stopped.gguf contains the first [0-9]+ of [0-9]+ chunks'
# An output that cannot be written is reported before anything is read; but a full disk may have space again at the end.
run imatrix -m "$tmp/absent.gguf" -f "$tmp/lines" -o "$tmp/nowhere/im.gguf"; expect "an imatrix into no folder" 1
run imatrix -f "$tmp/lines" -c 64 --chunks 1 -o "$tmp/one.gguf"; expect_match "one chunk is one" "$tmp/err" 'after 1 chunk$'
(ulimit -f 16 && run imatrix -f "$tmp/lines" -c 64 --chunks 3 --output-frequency 1 -o "$tmp/full.gguf"
    exit $code); code=$?; expect "an imatrix on a full disk" 1
expect_match "which goes on" "$tmp/err" 'after chunk 1 of 3: cannot write .*/full.gguf: .*; continuing' \
    'after chunk 2 of 3: ' '^pippin: cannot write '
holds "and leaves nothing" [ ! -e "$tmp/full.gguf" ]

run bench resume --depth 0; expect "bench of an empty conversation that is saved" 2
expect_match "says what is missing" "$tmp/err" "give --depth a number from 1 on"
run bench resume --depth 0,100,70 -r 2 --json
expect_match "bench of a conversation saved and read again" "$tmp/out" '"name": "100 tokens saved", "what": "save"' \
    '"name": "70 tokens read again", "what": "resume", "unit": "ms"' '"what": "resume_rate", "unit": "MB/s"'
run bench trace --lora engine/starter/bard.gguf --lora engine/starter/barista.gguf --requests 3 -r 1
expect_match "a trace over given adapters" "$tmp/out" '^trace: latency, 99 of 100 '
run bench tokenizer -f "$tmp/absent"; expect "bench of an absent text" 1
run bench tokenizer -m "$tmp/random.gguf"; expect "bench of no tokenizer" 2
if [ -r "$data/tokenizers/gpt-2.gguf" ]; then
    run bench tokenizer -m "$data/tokenizers/gpt-2.gguf" -r 1
    expect_match "bench of a vocabulary without a model" "$tmp/out" 'gpt-2.gguf  50257 tokens' 'detokenize it .* MB/s'
fi
run bench several --rows 1,3 -p 8 -n 4 -r 2 --json
expect_match "bench of several conversations" "$tmp/out" '"name": "1 conversation", [^}]*"median": [0-9.]*[1-9]' \
    '"name": "3 conversations", [^}]*"median": [0-9.]*[1-9][^}]*"rows": 3'
run bench several --rows 17 -p 8 -n 4 -r 1; expect "bench of more conversations than there may be" 2
run bench several -p 8 -n 1 -r 1; expect "bench of several answers of one token" 2
expect_match "says how many it takes" "$tmp/err" 'needs -n 2 or more'
cat >"$tmp/talks.jsonl" <<'END'
{"m": [["user", "Hi"], ["assistant", "Hello."]]}
no JSON
{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]}
END
# How many tokens a lookup drafts, and whether it drafts at all, depends on measured times: a sanitized program may find
# that it does not pay. In a quotation the model accepts what it drafts.
stood='  100 % stood'
[ -n "${PIPPIN_SANITIZED:-}" ] && stood='(  (9[0-9]|100) % stood)?'
tiny=engine/starter/starter-draft-Q4_0.gguf # small; its answers and its speed do not matter here
run bench draft -m $tiny -md $tiny -f "$tmp/talks.jsonl" -n 3 -r 1
expect_match "bench of guesses in given conversations" "$tmp/out" '^conversations, no guesses  .*1\.00 times none' \
    '^conversations, draft, a tree of 4 ' '^a quotation, draft, always 4 .* [1-9][0-9]? % stood' \
    "^a quotation, lookup .* times none$stood\$" '^code again, draft and lookup '
run bench draft -m $tiny -f "$tmp/talks.jsonl" --no-draft -n 3 -r 1
holds "without a draft none is measured" [ "$(grep -c ', draft' "$tmp/out")-$(grep -c ', lookup' "$tmp/out")" = 0-4 ]
echo >"$tmp/none.jsonl"
run bench draft -f "$tmp/none.jsonl" -n 3 -r 1; expect "bench of guesses in no conversations" 1
run bench draft -n 1 -r 1; expect "bench of guesses behind one token" 2
was=$XDG_DATA_HOME XDG_DATA_HOME="$tmp/lists"
run bench sessions -r 1; expect "bench of lists without conversations" 3
# The commonest word has two bytes per letter; the rarest and longest one would consist of control characters.
cat >"$tmp/accents.jsonl" <<'END'
{"messages": [{"role": "user", "content": "été été \u009b\u009b\u009b\u009b"}, {"role": "assistant", "content": "日本語日本語日本語日本語日本語 été"}]}
END
run sessions import "$tmp/accents.jsonl"; run bench sessions -r 1
expect_match "bench of lists and searches" "$tmp/out" '^list, first page, cold ' '^search, three letters été ' \
    '^search, one letter é, cold ' '^search, rare word "日本語日本語日本語日本語日 '
XDG_DATA_HOME=$was
holds "whose words are whole and safe to show" python3 -c 'import sys, unicodedata
sys.exit(any(unicodedata.category(c) == "Cc" for c in open(sys.argv[1], encoding="utf-8").read() if c != "\n"))' "$tmp/out"
run bench micro --rows 1,3 --depth 64,600 -r 1
expect_match "bench of kernels by themselves" "$tmp/out" '^matmul q6_k [a-z0-9]*, 3 rows +[0-9.]* GMAC/s' \
    '^attention llama-3.1-8b KV q8, 128 rows @ 64 ' '^attention llama-3.1-8b KV q8, 8 rows @ 600 ' \
    '^products: one thread reads memory at [0-9.]* GB/s .read test.'
run bench micro --kernels scalar --type q4_0 --shape stories-15m --rows 1 --depth 64 -r 1 --json
expect_match "also one of them" "$tmp/out" '"name": "matmul q4_0 scalar, 1 row"' '"name": "attention stories-15m'
run bench micro --type q4_k_m; expect "bench of products of a mixture" 2
run bench micro --rows 1000; expect "bench of products with too many rows" 2
figure() { # NAME BETTER MEDIAN STDDEV: a result with this figure
    printf '{"results": [{"name": "%s", "unit": "x", "better": "%s", "median": %s, "stddev": %s, "repetitions": 4}]}' "$@"
}
figure a more 100 1 >"$tmp/old.json"
figure a more 96 1 >"$tmp/new.json"
run bench --compare "$tmp/old.json" "$tmp/new.json"; expect "bench --compare: within the threshold" 0
expect_match "which is told" "$tmp/out" '^a +100\.00 +96\.00 x +0\.960 ' '^1 compared: 0 slower, 0 faster$'
run bench --compare "$tmp/old.json" "$tmp/new.json" --threshold 1%; expect "and beyond a smaller one" 1
expect_match "which is told, too" "$tmp/out" ' slower$' '^1 compared: 1 slower'
figure a more 80 20 >"$tmp/new.json"
run bench --compare "$tmp/old.json" "$tmp/new.json"; expect "noise is no regression" 0
figure a more 80 1 >"$tmp/new.json"
run bench --compare "$tmp/old.json" "$tmp/new.json" --json; expect "a regression is one" 1
expect_match "also in JSON" "$tmp/out" '"slower": 1' '"verdict": "slower"' '"speed": 0\.8000'
figure a less 100 1 >"$tmp/old.json"
figure a less 80 1 >"$tmp/new.json"
run bench --compare "$tmp/old.json" "$tmp/new.json"; expect "less time is faster" 0
run bench --compare "$tmp/new.json" "$tmp/old.json"; expect "and more is slower" 1
run bench --compare "$tmp/old.json"; expect "bench --compare of one file" 2
run bench --compare "$tmp/old.json" "$tmp/absent.json"; expect "of an absent file" 1
about() { # MODEL THREADS FIGURE...: the same with what was measured
    printf '{"model": "%s", "n_threads": %s, "kv_type": "q8", ' "$1" "$2"
    shift 2
    figure "$@" | cut -c2-
}
about Ann 2 a less 100 1 >"$tmp/old.json"
about 'Bob\u001b[31m' 4 a less 100 1 >"$tmp/new.json"
run bench --compare "$tmp/old.json" "$tmp/old.json"
expect_match "runs of one model differ in nothing" "$tmp/out" '^1 compared: 0 slower, 0 faster$'
holds "and nothing is said of it" [ "$(grep -c differ "$tmp/out")" = 0 ]
run bench --compare "$tmp/old.json" "$tmp/new.json"; expect "runs of different models" 0
expect_match "are told apart" "$tmp/out" '^the runs differ in model: "Ann", now "Bob.*"; n_threads: 2, now 4$'
holds "without orders to the terminal" [ "$(grep -c "$(printf '\033')" "$tmp/out")" = 0 ]
run bench --compare "$tmp/old.json" "$tmp/new.json" --json
expect_match "also in JSON" "$tmp/out" '"differing": \["model", "n_threads"\]'
figure a less 100 1 >"$tmp/old.json"
figure b less 80 1 >"$tmp/new.json"
run bench --compare "$tmp/old.json" "$tmp/new.json"; expect "of runs with nothing in common" 2
for bad in '' '{' '[]' '{"results": []}' '{"results": 1}' '{"results": [1]}' '{"results": [{"name": "a"}]}' \
    "$(figure a more 0 1)" "$(figure a more -1 1)" "$(figure a more 1e999 1)" "$(figure a more 1 null)" \
    "$(figure a more '"1"' 1)" "$(figure a more 1 -1)" "$(figure a sideways 1 1)"; do
    printf '%s' "$bad" >"$tmp/new.json"
    run bench --compare "$tmp/old.json" "$tmp/new.json"; expect "bench --compare with \"$bad\"" 1
done
run bench -p 8 -n 2 -r 2 --json; cp "$tmp/out" "$tmp/new.json"
run bench --compare "$tmp/new.json" "$tmp/new.json"; expect "a run is as fast as itself" 0
run bench --shape stories-15m --type q9 --write "$tmp/x.gguf"; expect "bench of an unknown type" 2
expect_match "names the types there are" "$tmp/err" 'Q8_0' 'IQ2_XS' 'Q4_K_M'
run bench --shape stories-15m --quant q8_0 --write "$tmp/x.gguf"; expect "bench --shape with --quant" 2
expect_match "names what does that" "$tmp/err" '--type'
i=0; while [ $i -lt 60 ]; do echo "The quick brown fox jumps over the lazy dog."; i=$((i + 1)); done >"$tmp/text"
run perplexity -f "$tmp/text" -c 64 --chunks 2 --json
expect_match "perplexity" "$tmp/out" '"perplexity": [1-9]' '"scored": 62' '"kv_type": "f32"' '"kind": "chunks"'
holds "no progress where no terminal is" [ ! -s "$tmp/err" ]
run perplexity -f "$tmp/text" -c 64 --chunks 2 --windows --json
expect_match "perplexity over windows" "$tmp/out" '"scored": 128' '"kind": "windows"'
echo "too short" >"$tmp/text"
run perplexity -f "$tmp/text"; expect "a text too short for a chunk" 2
run run -c 1000000000 -p Hello; expect "a context that fits in no memory" 4
expect_match "is told with the numbers" "$tmp/err" 'needs [0-9]+ GB of memory .* for the KV cache of 1000000000 tokens in q8' \
    'GB are free; choose a --ctx-size of at most [0-9]+, .*--memory-check off'
run run -c 1000000000 -p Hello --memory-check off; expect "nor in the cache's" 4
expect_match "which is told, too" "$tmp/err" 'needs .* GB of KV cache, but only .* GB may be used, enough for [0-9]+'
run run -c 2000000000 -p Hello; expect "a context beyond all bounds" 2
expect_match "and the bounds are told" "$tmp/err" 'from 0 to 1073741824, not "2000000000"'
run lora list --json
expect_match "lora list finds the bundled ones" "$tmp/out" 'bard' 'barista' '"rank": 16'
run lora info engine/starter/bard.gguf -m starter --json; expect "lora info with a model" 0
expect_match "says what the adapter does to logits, and what holding it otherwise does" "$tmp/out" \
    '"logits_changed_by": 1\.[0-9]+, "held_off_by": 0\.0[0-9]+'
run lora info engine/starter/bard.gguf -m starter; expect "in words, too" 0
expect_match "as a part of it" "$tmp/out" '^changes logits by 1\.[0-9]+; rounding to the in-memory type changes that by [0-9]\.[0-9]+ %'
run lora info bard; expect_match "by its name" "$tmp/out" 'bard.gguf'
mkdir -p "$XDG_DATA_HOME/pippin/adapters"
cp engine/starter/barista.gguf "$XDG_DATA_HOME/pippin/adapters/coffee.gguf"
run lora info coffee; expect_match "also in the adapters folder" "$tmp/out" 'adapters/coffee.gguf'
cp engine/starter/bard.gguf "$tmp/two${nl}lines.gguf"
run lora info "$tmp/two${nl}lines.gguf"
expect_match "a name of two lines is one of the list" "$tmp/out" '^Lora Bard .* /.*/two␊lines.gguf$'
rm "$tmp/two${nl}lines.gguf"
rm -r "$XDG_DATA_HOME/pippin/adapters"
run run --lora bard --temp 0 -n 8 -p Hello; expect "--lora takes names" 0; mv "$tmp/out" "$tmp/by-name"
run run --lora engine/starter/bard.gguf --temp 0 -n 8 -p Hello
holds "for what the path is" cmp "$tmp/by-name" "$tmp/out"
run run --lora baard -p Hello; expect "but no others" 3
expect_match "the nearest is told, and all" "$tmp/err" 'no adapter "baard"; did you mean "bard"\?.* bard, barista$'
mkdir "$tmp/experts"
module=base_model.model.model.layers.0.mlp.experts
header='{"'$module'.lora_A.weight":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]},"'$module'.lora_B.weight":'
header=$header'{"dtype":"F32","shape":[3,2],"data_offsets":[32,56]}}'
while [ $((${#header} % 8)) -ne 0 ]; do header="$header "; done
{ printf "\\$(printf %03o $((${#header} % 256)))\\$(printf %03o $((${#header} / 256)))\000\000\000\000\000\000%s" \
         "$header"; head -c 56 /dev/zero; } >"$tmp/experts/adapter_model.safetensors"
echo '{"peft_type":"LORA","r":1,"target_parameters":["experts.down_proj"],"peft_version":"0.20.0"}' \
     >"$tmp/experts/adapter_config.json"
run lora info "$tmp/experts"
expect_match "experts are told of in a line" "$tmp/out" 'blk.0.ffn_down_exps.weight .* in each of 2 experts'
run lora info whatever; expect "nor does lora info" 3
expect_match "which names what there is" "$tmp/err" 'no adapter "whatever"; known by name: bard, barista$'
run bench quick -p 4 -n 2 -r 1 --lora "$tmp/none.gguf"; expect "nor bench" 3
expect_match "which says it, too" "$tmp/err" 'no adapter ".*none.gguf"; known by name: '
run run --lora bard:0.5 -p Hello; expect "nor does --lora take a strength" 3
expect_match "which names what does" "$tmp/err" 'no adapter "bard:0.5"; .*; use --lora-scaled for NAME:SCALE$'

# --- what a conversation remembers, and pippin.conf -----------------------------------------------------------------

mkdir -p "$tmp/folder" "$XDG_CONFIG_HOME/pippin"
cp engine/starter/starter-draft-Q4_0.gguf "$tmp/folder/small.gguf"
printf '{%% for m in messages %%}<{{ m.content }}>{%% endfor %%}' >"$tmp/folder/t.jinja"
case $pippin in /*) at=$pippin ;; *) at=$PWD/$pippin ;; esac
cp engine/starter/bard.gguf "$tmp/folder/own.gguf"
(cd "$tmp/folder" && exec "$at" run --save -n 4 --temp 0 --lora ./own.gguf -p Hello) >"$tmp/out" 2>"$tmp/err" </dev/null
run run --continue -n 4 -p "$who" </dev/null; expect "an adapter of the current folder is found again from another" 0
rm "$tmp/folder/own.gguf"
run run --continue -n 4 -p "$who" </dev/null; expect "one that is gone" 3
expect_match "is said to be the conversation's, too" "$tmp/err" 'an adapter of this conversation .*own.gguf'
mkdir "$tmp/folder/o$(printf '\377')$nl d"
cp engine/starter/bard.gguf "$tmp/folder/o$(printf '\377')$nl d/own.gguf"
run run --save -n 4 --temp 0 --lora-scaled "$tmp/folder/o$(printf '\377')$nl d/own.gguf:0.123456" -p Hello </dev/null
run run --continue -n 4 -p "$who" --stats </dev/null; expect "one whose path is no text is found again" 0
holds "at the same scale, or its cache would not do" [ "$(number cached_tokens "$tmp/err")" -gt 0 ]
run run --save -n 2 --temp 0.000012345678 --seed 3 -p Hello </dev/null
run sessions export "$(sed -n 's/.*--resume //p' "$tmp/err")" --format jsonl
expect_match "settings keep all their digits" "$tmp/out" '"settings": *{[^}]*"temp": *1.2345678e-05' \
    '"params": *{[^}]*"temp": *1.2345678e-05'
(cd "$tmp/folder" && exec "$at" run --save -n 4 -m small.gguf --chat-template-file t.jinja -sys Kind. -p Hello --stats) \
    >"$tmp/out" 2>"$tmp/err" </dev/null; code=$?
expect "a model of the current folder" 0
first=$(sed -n 's/.*"prompt_tokens": \([0-9]*\).*/\1/p' "$tmp/err")
printf '[model]\nmodel = starter\nlora = bard\nquant = q8_0\n[sampling]\nsystem = Be brief, and then be briefer.\n' \
    >"$XDG_CONFIG_HOME/pippin/pippin.conf"
run run --continue -n 4 -p Hello --stats; expect "is gone on with from another one, whatever pippin.conf says" 0
expect_match "with its own draft, adapters and template" "$tmp/err" '"model": "Pippin Starter Draft"'
again=$(sed -n 's/.*"prompt_tokens": \([0-9]*\).*/\1/p' "$tmp/err")
holds "and its own system prompt: twice the text, and the answer" [ "$again" -le $((2 * first + 8)) ]
run run --continue -n 4 -m starter -p Hello --stats; expect "-m is stronger" 0
expect_match "and counts" "$tmp/err" '"model": "Pippin Starter"'
run run --continue -n 4 -p Hello --stats; expect_match "from then on" "$tmp/err" '"model": "Pippin Starter"'
run run --save -n 4 -m "$PWD/engine/starter/starter-Q4_K_M.gguf" -p Hello
printf '[model]\nmodel = %s\nmodel-draft = %s\n' "$PWD/engine/starter/starter-Q4_K_M.gguf" "$tmp/folder/small.gguf" \
    >"$XDG_CONFIG_HOME/pippin/pippin.conf"
run run --continue -n 40 --temp 0 --draft-always -p "$who" --stats; expect "a draft of pippin.conf" 0
expect_match "is for the model beside it" "$tmp/err" '"draft_tokens": [1-9]'
printf '[model]\nmodel = starter\nlora = bard\nquant = q8_0\n[sampling]\nsystem = Be brief.\n' \
    >"$XDG_CONFIG_HOME/pippin/pippin.conf"
run run -n 4 -p Hello; expect "a type of pippin.conf is for folders" 0
run bench quick -p 4 -n 2 -r 1; expect "in bench, too" 0
run run -n 4 -p Hello --quant q8_0; expect "one of the command line is refused" 2
printf '%s\n' Hello >"$tmp/line"
"$pippin" chat --plain --temporary -n 4 --quant q8_0 <"$tmp/line" >"$tmp/out" 2>"$tmp/err"; code=$?
expect "in the chat, too" 1
run run -n 4 -m "$tmp/folder/small.gguf" -p Hello; expect "adapters are for the model beside them" 0
run run --raw -n 4 -p Hello; expect "--raw passes the system prompt of pippin.conf over" 0
run run --raw -n 4 -p Hello --system x; expect "but not that of the command line" 2
rm "$tmp/folder/small.gguf" "$XDG_CONFIG_HOME/pippin/pippin.conf"

printf '[sampling]\npersona = Reviewer\n[persona Reviewer]\nsystem = You review code.\n' \
    >"$XDG_CONFIG_HOME/pippin/pippin.conf"
shown() { # PATTERN...: in the conversation that the last run has saved
    "$pippin" sessions show "$(sed -n 's/.*--resume //p' "$tmp/err")" >"$tmp/shown" 2>&1
    expect_match "$name" "$tmp/shown" "$@"
}
run run --save -n 2 -p Hello </dev/null; name="a persona of pippin.conf" shown '^You review code\.$'
run run --save -n 2 -p Hello --persona CONC </dev/null; name="one of the command line" shown '^Answer as briefly'
run --completion personas; expect_match "personas to complete" "$tmp/out" '^pirate	You are' '^Reviewer	You review'
run run --continue -n 2 -p Hello </dev/null; name="stays with the conversation" shown '^Answer as briefly'
run run --continue -n 2 -p Hello --persona Reviewer </dev/null; name="until there is another" shown '^You review'
run sessions export --all --format jsonl
expect_match "which is called by its name" "$tmp/out" '"persona":"Reviewer"'
run run --continue -n 2 -p Hello --system Kind. </dev/null; name="or another system prompt" shown '^Kind\.$'
id=$(sed -n 's/.*--resume //p' "$tmp/err")
run sessions export "$id" --format jsonl
holds "which is called by no persona's" sh -c '! grep -q persona "$1"' sh "$tmp/out"
run run --save -n 2 -p Hello --persona none </dev/null
"$pippin" sessions show "$(sed -n 's/.*--resume //p' "$tmp/err")" >"$tmp/out"
holds "none is no system prompt" sh -c '! grep -q "^system:" "$1"' sh "$tmp/out"
run run -n 2 -p Hello --persona pi </dev/null; expect "the beginning of a name" 0
run run -n 2 -p Hello --persona p </dev/null; expect "the beginning of two" 2
expect_match "is said to be that" "$tmp/err" '2 personas begin with "p"; choose from: none, '
run run -n 2 -p Hello --persona nobody </dev/null; expect "no such persona" 2
expect_match "is told those there are" "$tmp/err" 'no persona "nobody"; choose from: none, concise, .*, Reviewer$'
run run -n 2 -p Hello --persona pirate --system Kind. </dev/null; expect "a persona and a system prompt" 2
sed -i s/^persona.*/persona=gone/ "$XDG_CONFIG_HOME/pippin/pippin.conf"
run run -n 2 -p Hello </dev/null; expect "one of pippin.conf that is gone" 2
expect_match "is said to be of there" "$tmp/err" '^pippin: persona in pippin.conf: there is no persona "gone"'
rm "$XDG_CONFIG_HOME/pippin/pippin.conf"

# settings of an imported conversation that are no conversation's business
printf '%s%s\n' '{"pippin":1,"title":"h","settings":{"model":7,"stop":5,"chat-template-file":8,"ctx-size":32,"threads":9,' \
    '"lora":1,"temp":0,"n":3},"messages":[{"role":"user","content":"x","id":1}]}' >"$tmp/settings.json"
run sessions import "$tmp/settings.json"
run run --resume "$(cut -c 1-16 "$tmp/out")" -p "$who" --stats </dev/null; expect "numbers where options take texts" 0
expect_match "are passed over" "$tmp/err" '"model": "Pippin Starter"' '"finish": "length"'

run run --save -n 4 -m engine/starter/starter-draft-Q4_0.gguf -p Hello
cp engine/starter/starter-draft-Q4_0.gguf "$tmp/folder/small.gguf"
run run --continue -n 4 -m "$tmp/folder/small.gguf" -p Hello; rm "$tmp/folder/small.gguf"
run run --continue -n 4 -p Hello; expect "a model that is gone" 3
expect_match "is said to be the conversation's" "$tmp/err" 'the model of this conversation \(give another one with -m\): .*small.gguf'

# --- nowhere to keep anything -----------------------------------------------------------------------------------

home() { env -u XDG_CONFIG_HOME -u XDG_DATA_HOME -u XDG_STATE_HOME -u XDG_CACHE_HOME "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; code=$?; }
home env HOME=/proc "$pippin" run -n 4 -p "$who"; expect "an answer without a home" 0
home env HOME=/proc "$pippin" run --save -n 4 -p "$who"; expect "but none that is kept" 1
expect_match "which is said" "$tmp/err" 'cannot create the folder /proc/.*; set HOME, or XDG_DATA_HOME, '
mkdir -p "$tmp/loop/pippin" && ln -s pippin.conf "$tmp/loop/pippin/pippin.conf"
home env XDG_CONFIG_HOME="$tmp/loop" "$pippin" tokenize -p Hello; expect "a configuration that cannot be read" 1
expect_match "is named, and what to do" "$tmp/err" 'cannot open .*/pippin.conf: .*, or set HOME or XDG_CONFIG_HOME '
printf '%s\n' "$who" | env -u XDG_DATA_HOME HOME=/proc "$pippin" chat --plain --temp 0 >"$tmp/out" 2>&1; code=$?
expect "a chat without a home" 0
expect_match "says what it does not keep, and answers" "$tmp/out" 'this chat is not saved: cannot create the folder /proc/' 'Hello'
printf '%s\n' "$who" >"$tmp/line"
for limit in 5 7 9 16; do
    (ulimit -n $limit; exec "$pippin" chat --plain) <"$tmp/line" >"$tmp/out" 2>"$tmp/err"; code=$?
    expect "a chat with $limit files" 1
    expect_match "says what it lacks" "$tmp/err" 'the limit of open files is too low: .*ulimit -n 1024'
done
(ulimit -n 32; exec "$pippin" chat --plain --temp 0) <"$tmp/line" >"$tmp/out" 2>&1; code=$?
expect "32 are enough" 0
printf '%s\n' "$who" "$who" | "$pippin" --plain -n 4 >/dev/full 2>"$tmp/err"; code=$?
expect "a plain chat that cannot be written" 1
expect_match "says so" "$tmp/err" '^pippin: cannot write the output: '
printf 'caf\351\n/sessions\n%s\n' "$who" | XDG_DATA_HOME="$tmp/latin" "$pippin" --plain --temp 0 -n 8 >"$tmp/out" 2>&1; code=$?
expect_match "a line in another encoding is refused, and the next one answered" "$tmp/out" '^not accepted: byte <..> in line 1 is not valid UTF-8' 'Hello! I am Pippin'
holds "and nothing of it is kept" sh -c "! grep -q '^[0-9a-f]\{16\} ' '$tmp/out'"
printf '\001\n/sessions\n' | XDG_DATA_HOME="$tmp/bytes" "$pippin" --plain -n 1 >"$tmp/out" 2>&1; code=$?
expect_match "a question without letters has no title, which is said" "$tmp/out" 'stopped at the limit of 1 token' '^[0-9a-f]{16}  \(without a title\)$'
# Like timeout(1), with two signals; the second may come before or after the first one's handler has run. If this shell
# was delayed between the two, the second one may count as a new request, and the attempt proves nothing.
mkfifo "$tmp/typed" && exec 9<>"$tmp/typed"
tries=0 quick=0 code=0
while [ $tries -lt 20 ] && [ $quick -lt 5 ] && [ $code = 0 ]; do
    tries=$((tries + 1))
    : >"$tmp/out" # the shell goes on before its child has emptied it: old contents would be mistaken for the prompt
    "$pippin" --plain -n 4 <"$tmp/typed" >"$tmp/out" 2>&1 &
    pid=$!
    comes grep -q '^> ' "$tmp/out"
    begun=$(date +%s%N)
    kill -TERM $pid; sh -c "kill -TERM $pid" 2>/dev/null
    ended=$(date +%s%N)
    wait $pid; code=$?
    if [ $((ended - begun)) -lt 150000000 ]; then quick=$((quick + 1)); else code=0; fi
done
exec 9>&-
expect "a plain chat is left at a signal that comes twice" 0
printf '%s\n' "$who" /new "$who" /fork "$who" /quit | timeout 60 "$pippin" --plain --temp 0 -n 4 >"$tmp/out" 2>&1; code=$?
expect "a plain chat of several conversations" 0
holds "answers in each of them" [ "$(grep -c '^stopped at the limit of 4' "$tmp/out")" = 3 ]
printf '%s\n' "$who" "/delete yes" | "$pippin" --plain --temp 0 -n 4 >"$tmp/out" 2>&1; code=$?
expect_match "a plain chat whose conversation was deleted" "$tmp/out" '^deleted: Hello, who are you'
holds "tells of no way back to it" sh -c '! grep -q -- --resume "$0"' "$tmp/out"
printf '%s\n' "$who" /temporary "$who" | "$pippin" --plain --temp 0 -n 4 >"$tmp/out" 2>&1; code=$?
holds "nor one that ends as a temporary one" sh -c '! grep -q -- --resume "$0"' "$tmp/out"
printf '%s\n' "/lora bard 0.5" "$who" | "$pippin" --plain --temp 0 -n 8 >"$tmp/out" 2>&1; code=$?
expect "a plain chat that begins with an adapter" 0
expect_match "which is found before the line is taken" "$tmp/out" '^bard is on, scale 0.50'
"$pippin" run --temp 0 -n 8 --lora-scaled bard:0.5 -p "$who" >"$tmp/plain" 2>/dev/null </dev/null
holds "and used" grep -qF "$(head -n 1 "$tmp/plain")" "$tmp/out"
{ head -c 3000000 /dev/zero | tr '\0' x; printf ' /help\n%s\n' "$who"; } |
    timeout 60 "$pippin" --plain --temp 0 -n 8 >"$tmp/out" 2>&1; code=$?
expect "a line that is too long" 0
expect_match "is refused, and the next one answered" "$tmp/out" 'That line is too long' 'Hello! I am Pippin'
holds "and no part of it is taken for a line" [ "$(grep -c '^/quit' "$tmp/out")" = 0 ]
printf 'Hello,\0 who are you?\n' | "$pippin" --plain --temp 0 -n 8 >"$tmp/out" 2>&1
expect_match "what stands behind a NUL is not lost" "$tmp/out" 'Hello! I am Pippin'
printf '%s%s\r\n/sessions\r\n' "$mark" "$who" | XDG_DATA_HOME="$tmp/marked-data" "$pippin" --plain --temp 0 -n 8 >"$tmp/out" 2>&1
expect_match "nor is what other systems put around lines taken for a part of them" "$tmp/out" 'Hello! I am Pippin' "^[0-9a-f]{16}  Hello, who are you\?\$"
printf '%s\n' "$who" /sessions /undo | "$pippin" --plain --temporary -n 4 >"$tmp/out" 2>&1
expect_match "of a temporary chat none is said to open again" "$tmp/out" '^[0-9a-f]*  Hello, who are you\?$'
holds "because none can" sh -c "! grep -q 'resume ID' '$tmp/out'"
expect_match "what is taken back is told" "$tmp/out" 'took back the last question'
printf '%s\n' "$who" "/regen 3" "/compare none bard" | "$pippin" --plain --temp 0 -n 20 >"$tmp/out" 2>&1; code=$?
expect "several answers in a plain chat" 0
expect_match "of which one is gone on from" "$tmp/out" '^3 answers; your next message continues number 2; /branch N chooses another$'
"$pippin" run --temp 0 -n 20 -p "$who" >"$tmp/plain" 2>/dev/null </dev/null
grep -A 1 '^([2-5] of [46])' "$tmp/out" | grep -v '^[(-]' | sort -u >"$tmp/several"
holds "stand one behind the other, whole" cmp "$tmp/plain" "$tmp/several"
holds "each under its heading" [ "$(grep -c '^([2-6] of [46])$' "$tmp/out")$(grep -c '^(6 of 6, bard' "$tmp/out")" = 41 ]
printf '%s\n' "/branch 1" "$who" "/regen 3" "/compare none bard" "/branch 6" /branch "/branch 7" "Tell me a joke." "/branch 2" |
    "$pippin" --plain --temp 0 -n 20 >"$tmp/out" 2>&1; code=$?
expect "and one that is gone on from" 0
expect_match "by its number" "$tmp/out" 'there are no branches yet' 'answer 6 of 6$' 'answer 2 of 6$' \
    'this is answer 6 of 6; /branch N goes to another one'
bard=$(grep -A 1 '^(6 of 6, bard' "$tmp/out" | tail -n 1)
holds "which is read again" [ "$(grep -cF "$bard" "$tmp/out")" = 2 ]
run run --temp 0 -n 20 --continue -p x </dev/null
run sessions show "$(sed -n 's/.*--resume //p' "$tmp/err")"
holds "and the conversation stands there" [ "$(grep -c '^user:' "$tmp/out")" = 2 ]
printf '%s\n' "$who" /new | "$pippin" --plain --temp 0 -n 4 >"$tmp/out" 2>&1
expect_match "a new conversation is told" "$tmp/out" '^A new conversation\.$'
home env -u HOME "$pippin" lora list; expect "without HOME the password file's" 0

# --- names for a shell ----------------------------------------------------------------------------------------------

run --completion sessions; expect "IDs to complete" 0
run sessions list; cut -c 1-16 "$tmp/out" >"$tmp/ids"
"$pippin" --completion sessions | cut -f 1 >"$tmp/out"
holds "are those of the list" cmp "$tmp/ids" "$tmp/out"
run --completion adapters; expect_match "adapters to complete" "$tmp/out" '^bard	' '^barista	'
mkdir -p "$tmp/beside"
ln -s "$PWD/engine/starter/starter-Q4_K_M.gguf" "$tmp/beside/m.gguf"
ln -s "$PWD/engine/starter/bard.gguf" "$tmp/beside/mine.gguf"
run -m "$tmp/beside/m.gguf" --completion adapters; expect_match "those beside the model" "$tmp/out" '^mine	'
# what shells make of the completions: tested in the shells themselves
mkdir "$tmp/bin" "$tmp/nothing"
ln -s "$(cd "$(dirname "$pippin")" && pwd)/$(basename "$pippin")" "$tmp/bin/pippin"
for shell in bash zsh fish; do "$pippin" --completion $shell >"$tmp/completion.$shell"; done
if command -v bash >/dev/null; then
    (cd "$tmp/nothing" && PATH="$tmp/bin:$PATH" bash --norc -c '. "$1/completion.bash"
        COMP_WORDS=(pippin run -m "$1/beside/m.gguf" --lora mi) COMP_CWORD=5; _pippin
        printf "%s\n" "${COMPREPLY[@]}"' bash "$tmp") >"$tmp/out" 2>"$tmp/err"
    expect_match "bash completes an adapter beside the model" "$tmp/out" '^mine$'
    words() { # LAST WORD AT THE CURSOR, of a line of that many words
        (cd "$tmp/nothing" && bash --norc -c '. "$1/completion.bash"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
            _pippin; echo "${COMPREPLY[*]}"' bash "$tmp" "$@") >"$tmp/out" 2>"$tmp/err"
    }
    words pippin bench ""; expect_match "and what bench measures" "$tmp/out" '^quick depth rows threads .* sessions all$'
    words pippin bench -m x quick tr; expect_match "each of several words" "$tmp/out" '^trace$'
    words pippin quantize a.gguf b.gguf --imatrix m.dat q5_k; expect_match "types to quantize to, in any letter case" \
        "$tmp/out" '^Q5_K_M Q5_K_S$'
    words pippin quantize --imatrix m.dat a.gguf ""; expect_match "none where a file stands" "$tmp/out" '^$'
else skip "no bash here"; fi
if command -v fish >/dev/null; then
    (cd "$tmp/nothing" && HOME=$tmp PATH="$tmp/bin:$PATH" fish -N -c 'source $argv[1]/completion.fish
        complete -C "pippin run -m $argv[1]/beside/m.gguf --lora mi"
        complete -C "pippin --theme "
        complete -C "pippin lora info b"
        complete -C "pippin bench dep"
        complete -C "pippin quantize a b Q5_K_"' "$tmp") >"$tmp/out" 2>"$tmp/err"
    expect_match "fish completes an adapter beside the model, and more" "$tmp/out" '^mine	' '^mono	' '^bard	' \
        '^depth' '^Q5_K_S'
else skip "no fish here"; fi
if command -v zsh >/dev/null; then
    mkdir "$tmp/fpath" && cp "$tmp/completion.zsh" "$tmp/fpath/_pippin"
    (cd "$tmp/nothing" && HOME=$tmp PATH="$tmp/bin:$PATH" zsh -f -c 'zmodload zsh/zpty
        zpty z "zsh -f -i"
        zpty -w z "PS1=; fpath=($1/fpath \$fpath); autoload -U compinit; compinit -u -D; echo re""ady"
        zpty -r z out "*ready*"
        zpty -w -n z "pippin run -m $1/beside/m.gguf --lora mi"$'"'\t'"'
        for i in {1..200}; do sleep 0.1; zpty -r -t z out && print -r -- "$out" && [[ $out = *mine* ]] && break; done' zsh "$tmp") \
        >"$tmp/out" 2>"$tmp/err" </dev/null
    expect_match "zsh completes an adapter beside the model" "$tmp/out" 'mine'
else skip "no zsh here"; fi
run --completion models; expect_match "models to complete" "$tmp/out" '^starter	'

# --- what there is of a machine ------------------------------------------------------------------------------------

run doctor; expect "doctor" 0
expect_match "names what it found" "$tmp/out" '^processor +[^ ]' '^kernels +(avx2|avxvnni|avx512|amx|neon|dotprod|i8mm) \(available: scalar' \
    '^memory +[0-9.]+ GB, [0-9.]+ GB free' "^database +$XDG_DATA_HOME/pippin/pippin.db: [0-9]+ conversations?," '^no problems found'
mkdir -p "$tmp/odd/pippin"
printf '[sampling]\ntemp = hot\n' >"$tmp/odd/pippin/pippin.conf"
chmod 700 "$tmp/odd/pippin"
XDG_CONFIG_HOME="$tmp/odd" run doctor; expect "a value of pippin.conf that others stumble over" 1
expect_match "is told" "$tmp/out" 'pippin.conf:2: temp expects a number'
printf '[model]\nmodel = lost\nmodel-draft = %s\nlora = bard\n' "$tmp/bad.gguf" >"$tmp/odd/pippin/pippin.conf"
XDG_CONFIG_HOME="$tmp/odd" run doctor; expect "models that are named there and cannot be used" 1
expect_match "are told" "$tmp/out" '^! model of pippin.conf .*there is no model "lost"' '^! model-draft of .*bad.gguf is no'
holds "but not what may lie beside them" [ "$(grep -c '^!' "$tmp/out")" = 2 ]
XDG_CONFIG_HOME="$tmp/odd" run run -p x </dev/null; expect "with the model that pippin.conf names" 3
expect_match "it is said who names it" "$tmp/err" '^pippin: model of pippin.conf or the environment: there is no model "lost"'
XDG_CONFIG_HOME="$tmp/odd" run chat --plain </dev/null; expect "in the chat" 3
expect_match "too" "$tmp/err" '^pippin: model of pippin.conf or the environment: there is no model "lost"'
XDG_CONFIG_HOME="$tmp/odd" run run -m lsot -p x </dev/null
holds "and not of one that was asked for" grep -q '^pippin: there is no model "lsot"' "$tmp/err"
printf '{%% for' >"$tmp/open.jinja"
printf '[model]\nlora = brad\ndraft-lora = gone.gguf\nchat-template-file = %s\n' "$tmp/open.jinja" >"$tmp/odd/pippin/pippin.conf"
XDG_CONFIG_HOME="$tmp/odd" run doctor; expect "adapters and a template" 1
expect_match "likewise" "$tmp/out" '^! lora of pippin.conf: there is no adapter "brad"; did you mean "bard"' \
    '^! draft-lora of pippin.conf: there is no adapter "gone.gguf"' '^! chat-template-file of pippin.conf: .*open.jinja, line 1: '
printf '[model]\nmodel = starter\nmodel-draft = %s\nlora = bard\n' "$PWD/engine/starter/starter-draft-Q4_0.gguf" \
    >"$tmp/odd/pippin/pippin.conf"
XDG_CONFIG_HOME="$tmp/odd" run doctor; expect "what can be used is none" 0
run doctor --json --kernels scalar; expect "as JSON" 0
expect_match "with what was chosen" "$tmp/out" '^\{"version": "[0-9.]+", "processor": \{' '"chosen": "scalar"' '"problems": \[\]\}$'
cp engine/starter/starter-draft-Q4_0.gguf "$tmp/moved.gguf"
run models add "$tmp/moved.gguf"; rm "$tmp/moved.gguf"
run doctor; expect "a model that is gone" 1
expect_match "is a problem, with a way out" "$tmp/out" '^! the model "moved" is missing from .*moved.gguf; .*pippin models rm moved'
run models rm moved
chmod 755 "$XDG_CACHE_HOME/pippin"
run doctor --json; expect "a folder that others can read" 1
expect_match "is one, too" "$tmp/out" '"problems": \["other users can read .*chmod 700'
chmod 700 "$XDG_CACHE_HOME/pippin"
home env XDG_CACHE_HOME=/nothing-there "$pippin" doctor --json
[ -w / ] && can=true || can=false
expect_match "what would be made in / is asked of /" "$tmp/out" \
    "\"path\": \"/nothing-there/pippin\", \"there\": false, \"writable\": $can"

mkdir -m 700 -p "$tmp/newer/pippin"
cp "$XDG_DATA_HOME/pippin/pippin.db" "$tmp/newer/pippin/"
printf '\0\0\0\143' | dd of="$tmp/newer/pippin/pippin.db" bs=1 seek=60 conv=notrunc 2>/dev/null # its user_version
home env XDG_DATA_HOME="$tmp/newer" "$pippin" doctor; expect "a database of a newer version" 1
expect_match "is a problem" "$tmp/out" '^database .*pippin.db: cannot be used' '^! .*pippin.db was written by a newer version of pippin'

# --- conversations to files and back ---------------------------------------------------------------------------

run run --save --temp 0 -n 8 --seed 18446744073709551615 --system "Be kind." -p "$who" </dev/null
id=$(sed -n 's/.*conversation \([0-9a-f]*\);.*/\1/p' "$tmp/err")
run run --resume "$id" --top-k 7 -n 8 -p "And now?" </dev/null
run sessions export "$id"
expect_match "a conversation as Markdown" "$tmp/out" '^# Hello, who are you' '^## System' '^Be kind\.' '^## You' \
    '^\*Pippin Starter \(Q4_K_M\)\*' '^And now\?'
run sessions export "$id" -o "$tmp/talk.json"; expect "as JSON to a file" 0
holds "with no word" [ ! -s "$tmp/out" ]
holds "which nobody else reads" [ "$(stat -c %a "$tmp/talk.json")" = 600 ]
expect_match "a message a line, and a seed as it is" "$tmp/talk.json" '^    \{"role":"user","content":"And now\?","id":3' \
    '"seed":18446744073709551615'
cp "$tmp/talk.json" "$tmp/before"
run sessions export "$id" -o "$tmp/talk.json"; expect "not over a file that is there" 1
holds "which stays as it is" cmp "$tmp/before" "$tmp/talk.json"
run sessions import "$tmp/talk.json"; expect "import of what is here" 0
expect_match "which is told" "$tmp/out" "^$id  Hello, who are you\\?  \(already here\)\$"
expect_match "with what can be done about it" "$tmp/err" '1 conversation is already here; use --again to add it again'
run sessions import --again "$tmp/talk.json"
expect_match "back again, as another one" "$tmp/out" '^[0-9a-f]{16}  Hello, who are you\?$'
again=$(cut -d ' ' -f 1 "$tmp/out")
holds "with an ID of its own" [ "$again" != "$id" ]
run sessions export "$again" --format json
holds "and the same in every byte" cmp "$tmp/talk.json" "$tmp/out"
run run --resume "$again" --temp 0 -n 4 -p "Go on" </dev/null; expect "that goes on" 0
run sessions export "$id" "$again" --format jsonl
holds "two on two lines" [ "$(wc -l <"$tmp/out")" = 2 ]
cp "$tmp/out" "$tmp/two.jsonl"
"$pippin" sessions import --json <"$tmp/two.jsonl" >"$tmp/out" 2>"$tmp/err"; code=$?
expect_match "read from a pipe" "$tmp/out" '^\[\{"id": "[0-9a-f]{16}", .*\}, \{"id": .*"messages": 6, "outcome": "here"\}\]$'
run sessions export --all --json
holds "all of them" [ "$(grep -c '^{' "$tmp/out")" -ge 3 ]
run sessions export; expect "export of nothing" 2
run sessions export --all "$id"; expect "or of both" 2
run sessions export "$id" --format pdf; expect "or as something else" 2
printf '{"messages": [\n{"role": "user", "content": "x"},,]}' >"$tmp/bad.json"
run sessions list --json; cp "$tmp/out" "$tmp/before"
run sessions import </dev/null; expect "import of nothing" 1
expect_match "says so" "$tmp/err" 'standard input: the file is empty'
mkfifo "$tmp/silent"; "$pippin" sessions import "$tmp/silent" 2>"$tmp/err" & silent=$!
comes catches "$silent"; kill "$silent"; wait "$silent"; code=$?; expect "a pipe that nobody writes to is given up" 130
run sessions import "$tmp/two.jsonl" "$tmp/bad.json"; expect "import of no JSON" 1
expect_match "says where" "$tmp/err" 'bad.json: this is not JSON \(line 2\)'
holds "and what came before" [ "$(wc -l <"$tmp/out")" = 2 ]
printf '{"pippin": 1, "model": "/theirs.gguf", "messages": [{"role": "user", "content": "y"}]}' >"$tmp/theirs.json"
run sessions import "$tmp/theirs.json"
expect_match "what this machine lacks is told" "$tmp/err" 'not found on this machine: model /theirs.gguf; continuing without'
run sessions import "$tmp/none.json"; expect "import of no file" 1
mkfifo "$tmp/pipe-in"; cat "$tmp/two.jsonl" >"$tmp/pipe-in" &
run sessions import "$tmp/pipe-in"; expect "import of a pipe" 0
run sessions list; cp "$tmp/out" "$tmp/before"
run sessions backup "$tmp/saved.db"; expect "a copy of all" 0
holds "which nobody else reads" [ "$(stat -c %a "$tmp/saved.db")" = 600 ]
run sessions backup "$tmp/saved.db"; expect "but not over another file" 1
mkdir -p "$tmp/other/pippin"
cp "$tmp/saved.db" "$tmp/other/pippin/pippin.db"
XDG_DATA_HOME="$tmp/other" "$pippin" sessions list >"$tmp/out" 2>"$tmp/err"; code=$?
holds "is what was copied" cmp "$tmp/before" "$tmp/out"
LC_ALL=C sed 's/"draft_tokens":/"c":0}, "xxxx":/' "$tmp/saved.db" >"$tmp/other/pippin/pippin.db" # of the same length
for id in $(cut -d ' ' -f 1 "$tmp/before"); do
    XDG_DATA_HOME="$tmp/other" "$pippin" sessions show "$id" --json 2>&1
done >"$tmp/out"
expect_match "of a database that says more than JSON" "$tmp/out" '"role": "assistant"'
holds "only JSON is shown" [ "$(grep -c xxxx "$tmp/out")" = 0 ]
run sessions import "$tmp/saved.db"; expect "a copy is imported" 0
holds "which all is here already" [ "$(grep -c 'already here)$' "$tmp/out")" = "$(wc -l <"$tmp/before")" ]
XDG_DATA_HOME="$tmp/third" "$pippin" sessions import "$tmp/saved.db" >"$tmp/out" 2>"$tmp/err"; code=$?
expect "or into an empty database" 0
holds "all of it" [ "$(wc -l <"$tmp/out")" = "$(wc -l <"$tmp/before")" ]
# A page of a message is damaged: the other conversations are exported, and an import reads them, all the same.
filler=$(head -c 3000 /dev/zero | tr '\0' y)
{
    echo '{"messages": [{"role": "user", "content": "before it"}, {"role": "assistant", "content": "yes"}]}'
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"torn $filler\"}, {\"role\": \"assistant\"," \
        "\"content\": \"DAMAGED $filler\"}, {\"role\": \"user\", \"content\": \"$filler\"}]}"
    echo '{"messages": [{"role": "user", "content": "behind it"}, {"role": "assistant", "content": "no"}]}'
} >"$tmp/three.jsonl"
torn() { XDG_DATA_HOME="$tmp/torn" run "$@"; }
torn sessions import "$tmp/three.jsonl"
at=$(grep -abo DAMAGED "$tmp/torn/pippin/pippin.db" | head -n 1 | cut -d: -f1)
dd if=/dev/zero of="$tmp/torn/pippin/pippin.db" bs=4096 seek=$((at / 4096)) count=1 conv=notrunc 2>/dev/null
torn sessions export --all --format jsonl; expect "an export of all from a damaged database" 1
holds "has the other conversations" [ "$(grep -c '"before it"\|"behind it"' "$tmp/out")" = 2 ]
expect_match "and names the one that it lacks" "$tmp/err" '1 of 3 conversations could not be read.*"torn y'
XDG_DATA_HOME="$tmp/mended" run sessions import "$tmp/torn/pippin/pippin.db"; expect "an import of it" 1
holds "reads them, too" [ "$(XDG_DATA_HOME="$tmp/mended" "$pippin" sessions list | grep -c 'before it\|behind it')" = 2 ]
printf '%s\n' "/import $tmp/torn/pippin/pippin.db" /sessions |
    XDG_DATA_HOME="$tmp/chatted" "$pippin" --plain >"$tmp/out" 2>&1
expect_match "and so does that of the chat" "$tmp/out" '1 of 3 conversations could not be read' 'before it' 'behind it'
torn doctor; expect_match "and how to get them is told" "$tmp/out" 'is damaged; .*sessions export --all'
run sessions backup "$tmp/nowhere/x.db"; expect "not to a folder that is not there" 1
program=$(cd "$(dirname "$pippin")" && pwd)/$(basename "$pippin")
(cd "$tmp" && "$program" sessions backup :memory: 2>"$tmp/err"); code=$?
holds "a name is a name" [ -s "$tmp/:memory:" ]
printf '{"messages": [{"role": "user", "content": "%01000000d"}]}' 7 >"$tmp/long.json"
run sessions import "$tmp/long.json"
id=$(cut -d ' ' -f 1 "$tmp/out")
"$pippin" sessions export "$id" 2>"$tmp/err" | head -c 1 >"$tmp/out"
holds "a reader that goes away in the middle is not talked about" [ ! -s "$tmp/err" ]

# --- with the reference data ------------------------------------------------------------------------------------

if [ -d "$data/starter" ]; then
    run tokenize --special -f "$data/starter/val.txt"
    tr -d '[]\n' <"$tmp/out" | tr ',' '\n' >"$tmp/ids"; echo >>"$tmp/ids"
    od -An -v -t d4 -w4 "$data/starter/val_ids.i32" | tr -d ' ' >"$tmp/want"
    holds "the validation text has its ids" cmp -s "$tmp/ids" "$tmp/want"
    # At most 1 % worse than the reference (quants/starter_reference.json), and not suspiciously better.
    near() { awk -v p="$1" -v r="$2" 'BEGIN { exit !(p > r * 0.98 && p <= r * 1.01) }'; }
    run perplexity -f "$data/starter/val.txt" --windows --chunks 64 --json
    holds "the bundled model's perplexity over windows" near "$(number perplexity "$tmp/out")" 13.168
    run convert "$data/architectures/llama" "$tmp/llama.gguf"; expect "convert" 0
    holds "says nothing on stdout" [ ! -s "$tmp/out" ]
    run convert "$data/architectures/llama/lora-alpha" "$tmp/alpha.gguf" --base "$data/architectures/llama"
    expect "convert an adapter" 0
    run lora info "$tmp/alpha.gguf" -m "$tmp/llama.gguf" --json
    expect_match "which fits the converted model" "$tmp/out" '"targets": \[\{"tensor": "blk.0'
    run convert "$tmp/alpha.gguf" "$tmp/alpha" -m "$tmp/llama.gguf"; expect "and back" 0
    run lora info "$tmp/alpha" -m "$tmp/llama.gguf" --json
    expect_match "which fits as well" "$tmp/out" '"targets": \[\{"tensor": "blk.0'
    run quantize "$tmp/llama.gguf" "$tmp/llama-q8.gguf" q8_0; expect "quantize" 0
    run quantize "$tmp/llama.gguf" "$tmp/llama.gguf" q8_0; expect "not over itself" 2
    run quantize "$tmp/llama.gguf" "$tmp/x.gguf" q5_nonsense; expect "nor to an unknown type" 2
    run quantize "$tmp/llama.gguf" "$tmp/llama-q4.gguf" q4_k; expect "but to a type's usual mixture" 0
    run models info "$tmp/llama-q4.gguf"; expect_match "which is M" "$tmp/out" ', Q4_K_M, '
    head -c 40000 "$data/starter/val.txt" >"$tmp/read.txt"
    im="imatrix -f $tmp/read.txt -c 256"
    run $im --chunks 6 -o "$tmp/whole.gguf" --json; expect "imatrix" 0
    expect_match "imatrix says what it did" "$tmp/out" '"tensors": 56' '"chunks": 6' '"tokens_read": 1536'
    run $im --chunks 2 -o "$tmp/part.gguf"
    run $im --chunks 6 -o "$tmp/part.gguf" --continue --json
    expect_match "imatrix goes on" "$tmp/out" '"chunks": 6' '"tokens_read": 1024'
    holds "and gives the same" cmp -s "$tmp/whole.gguf" "$tmp/part.gguf"
    run imatrix -f "$tmp/read.txt" -c 128 -o "$tmp/part.gguf" --continue; expect "not with other chunks" 1
    run imatrix --in-file "$tmp/whole.gguf" --in-file "$tmp/part.gguf" -o "$tmp/both.gguf" --json
    expect_match "imatrix adds files" "$tmp/out" '"tensors": 56' '"chunks": 12' '"tokens_read": 0'
    run quantize starter "$tmp/starter.gguf" q4_0 --imatrix "$tmp/both.gguf"; expect "quantize --imatrix" 0
    expect_match "says what it did" "$tmp/err" 'all 56 matrices were quantised with '
    run quantize "$tmp/llama.gguf" "$tmp/x.gguf" q4_0 --imatrix "$tmp/both.gguf"; expect "of another model" 1
    expect_match "is said" "$tmp/err" 'columns for .* it was made for another model'
    run quantize "$tmp/llama.gguf" "$tmp/x.gguf" q4_0 --imatrix "$tmp/llama.gguf"; expect "a model is no imatrix" 1
    expect_match "is said, too" "$tmp/err" 'not an importance matrix; `pippin imatrix` makes one'
    run $im -o "$tmp/nowhere/x.gguf" --chunks 1; expect "imatrix to a folder that is not there" 1
    run imatrix --in-file "$tmp/read.txt" -o "$tmp/x.gguf"; expect "a text is no imatrix" 1
    run convert "$tmp/llama.gguf" "$tmp/llama-hf"; expect "a file to a folder" 0
    run convert "$tmp/llama.gguf" "$tmp/llama-hf"; expect "not over a model" 2
    run convert "$tmp/llama-hf" "$tmp/llama-mlx" --to mlx --bits 8; expect "which becomes one of MLX" 0
    run convert "$tmp/llama-hf" "$tmp/llama-mlx8" --bits 8; expect "bits are MLX's" 2
    run convert "$tmp/llama-mlx" "$tmp/llama-8.gguf"; expect "and a file again" 0
    run bench -m "$tmp/llama-mlx" --quant q4_0 --n-prompt 8 --n-gen 2 -r 1 --json
    expect_match "a folder is quantised while it is loaded" "$tmp/out" '"type": "Q4_0"' '"decode_tps": [1-9]'
    run imatrix -m "$tmp/llama-hf" -f "$tmp/read.txt" -c 32 --chunks 2 -o "$tmp/llama.imatrix"; expect "its imatrix" 0
    run run --raw --temp 0 -n 2 -m "$tmp/llama-hf" --quant q4_0 --imatrix "$tmp/llama.imatrix" -p a </dev/null
    expect "and that is weighed" 0
    run run --raw -n 2 -m "$tmp/llama-hf" --quant q4_0 --imatrix "$tmp/whole.gguf" -p a </dev/null
    expect "not by another model's" 1
    run run --raw -n 2 -m "$tmp/llama-hf" --imatrix "$tmp/llama.imatrix" -p a </dev/null; expect "nor alone" 2
    expect_match "and it says why" "$tmp/err" 'add --quant TYPE'
    run bench -m "$tmp/llama-8.gguf" --quant q4_0 --n-prompt 8 --n-gen 2 -r 1; expect "a file is not" 2
    run bench -m "$tmp/llama-q8.gguf" --n-prompt 8 --n-gen 2 -r 1 --json
    expect_match "the quantised file runs" "$tmp/out" '"type": "Q8_0"' '"decode_tps": [1-9]'
    run run --raw --temp 0 -n 40 -m "$data/stories260k/stories260K-f32.gguf" -p "Once upon a time" </dev/null
    expect_match "a model without chat template, raw" "$tmp/out" '^, there was a little girl named Lily'
    ln -s "$(cd "$data" && pwd)/stories260k/stories260K-f32.gguf" "$tmp/vicuna-x.gguf"
    run run --temp 0 -n 4 -m "$tmp/vicuna-x.gguf" -p Once </dev/null
    expect_match "its template is told by its name" "$tmp/err" 'no chat template; using vicuna, because of its name'
    run run --temp 0 -n 4 -m "$data/stories260k/stories260K-f32.gguf" -p Once </dev/null
    expect_match "or none is, and that is said" "$tmp/err" 'no chat template; using the plain one'
    run lora train tests/data/sonnets.jsonl -m "$tmp/vicuna-x.gguf" -o "$tmp/verses" --rank 1 --steps 1 --max-length 256 \
        --val-share 0
    expect "an adapter is trained with the same" 0
    expect_match "which is said, too" "$tmp/err" 'no chat template; using vicuna, because of its name'
    echo '[{"role": "user", "content": "Hi"}]' | "$pippin" template -m "$tmp/vicuna-x.gguf" >"$tmp/out" 2>"$tmp/err"
    expect_match "pippin template shows it" "$tmp/out" 'USER: Hi ASSISTANT:$'
else
    skip "$data is absent: reference tokens and conversions are not tested"
fi

if localedef -i tr_TR -f UTF-8 "$tmp/tr_TR.UTF-8" >/dev/null 2>&1; then
    LOCPATH="$tmp" LC_ALL=tr_TR.UTF-8 run quantize "$tmp/none.gguf" "$tmp/x.gguf" iq4_xs
    expect "types are known by small letters, also where i is no small I" 3
else
    skip "no Turkish locale can be made"
fi

counted
