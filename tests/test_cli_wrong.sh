#!/bin/sh
# test_cli_wrong.sh - errors of the commands without a screen: files that must not change, odd names, and messages. Runs
# $BUILD/pippin (or $PIPPIN) in the repository's root.
. tests/commands.sh

run() { "$pippin" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; code=$?; }
# expect NAME CODE [OUT-PATTERN [ERR-PATTERN]]: the last run must have ended with this code, and its outputs have such
# lines
expect() {
    if [ "$code" != "$2" ]; then fail "$1" "exit code $code, not $2"; return; fi
    if [ -n "${3:-}" ] && ! grep -Eq -e "$3" "$tmp/out"; then fail "$1" "no $3 in: $(head -c 400 "$tmp/out")"; return; fi
    if [ -n "${4:-}" ] && ! grep -Eq -e "$4" "$tmp/err"; then fail "$1" "no $4 on standard error"; return; fi
    pass "$1"
}
mkdir "$tmp/bin" && ln -s "$(cd "$(dirname "$pippin")" && pwd)/$(basename "$pippin")" "$tmp/bin/pippin"
small=$PWD/engine/starter/starter-draft-Q4_0.gguf

# --- files that stay ----------------------------------------------------------------------------------------------

random="bench --shape stories-15m --type q8_0 --layers 1 --vocab 300 --write"
cp "$small" "$tmp/model.gguf"
run $random "$tmp/model.gguf"; expect "a random model over one that somebody has" 2 '' 'model.gguf exists and is not a random model; it was left unchanged'
holds "is not written" cmp -s "$small" "$tmp/model.gguf"
run $random "$tmp/random.gguf"; expect "one by another name" 0 'Q8_0, 1 layer, '
run $random "$tmp/random.gguf"; expect "takes the place of an older one" 0
run quantize "$small" "$tmp/q8.gguf" q8_0; expect "a model quantised" 0 '' 'wrote .*q8.gguf, 5.0 MB'
run quantize "$small" /dev/stdout q8_0; expect "to stdout, which is a file" 0 '' 'wrote /dev/stdout, 5.0 MB'
holds "is the same" cmp -s "$tmp/q8.gguf" "$tmp/out"
"$pippin" quantize "$small" /dev/stdout q8_0 2>"$tmp/err" | cat >"$tmp/out"
holds "and a pipe gets none" grep -q '^pippin: cannot write /dev/stdout: it is a device or a pipe; give a file' "$tmp/err"
run $random /dev/stdout; expect "a random one to stdout" 0
holds "is one, too" cmp -s "$tmp/random.gguf" "$tmp/out"

long=$(printf '%0250d' 7) # too long for the suffix of a temporary file's name
run quantize "$small" "$tmp/$long.gguf" q8_0; expect "a name as long as names can be" 0 '' 'wrote '
holds "is there" cmp -s "$tmp/q8.gguf" "$tmp/$long.gguf"
run logits -m "$small" --ids 1 -o "$tmp/$long.bin"; expect "one of another file" 0
run sessions backup "$tmp/$long.dbs"; expect "or of a copy of all conversations" 0
left=$(cd "$tmp" && ls -d -- *.tmp* 2>/dev/null)
holds "and nothing is left beside them" [ -z "$left" ]
run lora train no-such.jsonl -o "$tmp/model.gguf"; expect "an adapter's folder that is a file, before examples are read" 2 '' 'model.gguf exists and is not a folder; give another'
run lora train no-such.jsonl -o "$tmp/not/there"; expect "one that cannot be made" 1 '' 'cannot create the folder .*/not/there'
mkdir "$tmp/there" && echo '{}' >"$tmp/there/config.json"
run lora train no-such.jsonl -o "$tmp/there"; expect "or one with a model in it" 2 '' '/there contains a model \(config.json\); give another'
run convert engine/starter/bard.gguf "$tmp/there" --base starter; expect "also for one that is converted" 2 '' '/there contains a model \(config.json\); give another'
holds "which is not written" [ ! -e "$tmp/there/adapter_config.json" ]
run lora train no-such.jsonl -o "$tmp/new/"; expect "one that can be" 1 '' 'no-such.jsonl'
holds "is not made for nothing" [ ! -e "$tmp/new" ]
ln -s round "$tmp/round"; ln -s nowhere "$tmp/lost"
run tokenize -m "$tmp/round" -p x; expect "a link to itself" 3 '' '^pippin: cannot open .*/round: Too many levels'
run tokenize -m "$tmp/lost" -p x; expect "or to nothing" 3 '' '/lost is a broken symbolic link'

# --- models by name -----------------------------------------------------------------------------------------------

cp "$small" "$tmp/other.gguf"
run models add "$tmp/model.gguf" "$tmp/other.gguf"; run models tag model one
run models rm model no-such; expect "of several models one is not known" 3 '' 'no model "no-such"'
run models list; expect "and the others stay" 0 '^model .*\[one\]'
run models rm model one "$tmp/model.gguf" model; expect "one by all its names" 0 '' 'model is no longer registered'
holds "goes once" [ "$(grep -c . "$tmp/err")" = 1 ]
run models tag other two; run models untag two two; expect "and so does a tag" 0

mkdir -m 700 -p "$tmp/pipe/pippin" && mkfifo "$tmp/pipe/pippin/pippin.db"
for words in "tokenize -m no-such -p x" "models list" "run -m no-such -p x" "sessions list"; do
    XDG_DATA_HOME="$tmp/pipe" timeout -s KILL 60 "$pippin" $words >"$tmp/out" 2>"$tmp/err" </dev/null; code=$?
    holds "${words%% *} does not wait for a pipe in the database's place" [ "$code" -lt 4 ]
done

# --- what a template is given -------------------------------------------------------------------------------------

hi='[{"role": "user", "content": "Hi"}]'
run template -p "$hi junk"; expect "messages with something behind them" 1 '' '^pippin: the messages: not valid JSON: there is text after'
run template -p '[{"role": "user", "content": "a\u0000"}]'; expect "or with what no text has" 1 '' '^pippin: the messages: a text holds'
: >"$tmp/none.json"
run template -p '[{"role": "user", "content": "Hi"}, 1]'; expect "messages that are none" 2 '' '^pippin: message 2 is not a JSON object; '
run template -p "$hi" --tools "$tmp/none.json"; expect "tools that are none" 2 '' 'none.json does not contain a JSON array of tools; leave'
echo '[{]' >"$tmp/none.json"
run template -p "$hi" --tools "$tmp/none.json"; expect "or no JSON" 1 '' '^pippin: the tools: not valid JSON: a key'

# --- what is said -------------------------------------------------------------------------------------------------

run logits --ids "$(seq -s, 1 2049)" -o "$tmp/logits"; expect "more ids than the model was trained for" 5 '' '2049 token ids were given, but the context holds 2048; give fewer$'
run logits --ids "$(seq -s, 1 33)" -c 32 -o "$tmp/logits"; expect "or than fit a small context" 5 '' 'give a larger --ctx-size, up to 2,048$'
holds "write nothing" [ ! -e "$tmp/logits" ]
run bench -m "$small" -c 32 -p 64; expect "a context smaller than what is measured" 5 '' 'the context of 32 tokens is smaller than what is to be measured; '
for command in "tokenize -p x" "template -p []" "embed -p x" "bench" "bench tokenizer" "lora info engine/starter/bard.gguf" \
    "lora train tests/data/sonnets.jsonl -o $tmp/learnt"; do
    LLAMA_ARG_MODEL=lost run $command
    expect "${command%% -*} with a model that the environment names and nobody has" 3 '' \
        '^pippin: model of pippin.conf or the environment: there is no model "lost"'
done
run tokenize -m lost -p x; expect "and not one that was asked for" 3 '' '^pippin: there is no model "lost"'
mkdir -m 700 -p "$tmp/empty/pippin"
: >"$tmp/empty/pippin/pippin.db" # as after creating it on a full disk
XDG_DATA_HOME="$tmp/empty" run doctor; expect "doctor, before anything is kept" 0 '^database .*pippin.db: empty$'
XDG_DATA_HOME="$tmp/empty" run doctor --json; expect "as JSON" 0 '"there": true, "conversations": 0, "bytes": 0'
mkdir -m 700 -p "$tmp/odd/pippin"
for line in '[sampling' '[nothing]' 'kernels = slow'; do
    printf '[model]\n%s\nx = 1\n' "$line" >"$tmp/odd/pippin/pippin.conf"
    XDG_CONFIG_HOME="$tmp/odd" run doctor; expect "doctor with a pippin.conf of \"$line\"" 1 '^! .*pippin.conf:[23]: '
    XDG_CONFIG_HOME="$tmp/odd" run doctor --json; expect "as JSON" 1 '"problems": \[".*pippin.conf:[23]: '
done
rm "$tmp/odd/pippin/pippin.conf" && mkdir "$tmp/odd/pippin/pippin.conf"
XDG_CONFIG_HOME="$tmp/odd" run doctor; expect "or one that is a folder" 1 '^! .*pippin.conf is not a regular file' ''
XDG_CONFIG_HOME="$tmp/odd" run tokenize -p x; expect "which keeps the others from beginning" 1 '' 'pippin.conf is not a regular file$'
XDG_CONFIG_HOME="$tmp/odd" run doctor --no-such; expect "a wrong option of its own is not told so" 2 '' '^pippin: unknown option'
run run --stop "$(printf 'caf\351')" -p x; expect "a text to stop at that none can have" 2 '' '^pippin: --stop: the text is not valid UTF-8'
run run --lora "" -p x; expect "an adapter without a name" 2 '' '^pippin: --lora needs the name of an adapter$'

run help run; cp "$tmp/out" "$tmp/help"
run run --help; holds "help as a word is --help" cmp -s "$tmp/help" "$tmp/out"
run help -p; expect "and no prompt" 2 '' '^pippin: -p needs a value'

# --- no conversations ---------------------------------------------------------------------------------------------

mkdir -m 700 "$tmp/nobody" && export XDG_DATA_HOME="$tmp/nobody"
run sessions export --all; expect "an export of all there is, which is nothing" 0 '' '^pippin: there are no saved conversations yet$'
run sessions backup "$tmp/nothing.db"; expect "a copy of it" 0
run sessions import "$tmp/nothing.db"; expect "says that it is empty" 0 '' 'nothing.db contains no conversations$'
run sessions import --json "$tmp/nothing.db"; expect "beside the JSON" 0 '^\[\]$' 'nothing.db contains no conversations$'

# --- what shells complete -----------------------------------------------------------------------------------------

mkdir "$tmp/shell" && cd "$tmp/shell" || exit 1
PATH=$tmp/bin:$PATH
for shell in bash zsh fish; do pippin --completion $shell >"$tmp/completion.$shell"; done
# words LAST WORD AT THE CURSOR, as bash splits them
words() { bash --norc -c '. "$0"; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _pippin; echo "${COMPREPLY[*]}"' "$tmp/completion.bash" "$@" >"$tmp/out" 2>"$tmp/err"; code=$?; }
if command -v bash >/dev/null; then
    words pippin run --lora = ba; expect "bash: a value behind an equals sign" 0 '^bard barista$'
    words pippin run --kv-type =; expect "all values there" 0 '^q8 q8_0 f16'
    words pippin models --json in; expect "a subcommand behind an option" 0 '^info$'
    words pippin models --kv-type = f16 info st; expect "names behind both" 0 '^starter$'
    words pippin bench --seed = 1 -m x ker; expect "what bench measures behind others" 0 '^kernels$'
    words pippin help mod; expect "what help is about" 0 '^models$'
else skip "no bash here"; fi
if command -v fish >/dev/null; then
    HOME=$tmp fish -N -c 'source $argv[1]; complete -C "pippin help mod"; complete -C "pippin run --lora=ba"' "$tmp/completion.fish" >"$tmp/out" 2>"$tmp/err"; code=$?
    expect "fish: what help is about" 0 '^models'; expect "and a value behind an equals sign" 0 '^--lora=bard'
else skip "no fish here"; fi
if command -v zsh >/dev/null; then
    mkdir functions && cp "$tmp/completion.zsh" functions/_pippin && mkdir empty && cd empty || exit 1
    # one line after another, each followed by what it must become
    HOME=$tmp zsh -f -c 'zmodload zsh/zpty; zpty z "zsh -f -i"
        zpty -w z "PS1=; fpath=($1 \$fpath); autoload -U compinit; compinit -u -D; bindkey -e; stty -echo; echo re""ady"
        zpty -r z out "*ready*"; shift
        while (( $# )); do
            zpty -w -n z "$1"$'"'\t'"'
            all=
            for i in {1..200}; do sleep 0.05; zpty -r -t z out && all+=$out; [[ $all = *$2* ]] && { print -r -- "$1: $2"; break; }; done
            zpty -w -n z $'"'\025'"'; shift 2
        done' zsh "$tmp/shell/functions" "pippin help mod" "models" \
        "pippin run --lora=baris" "barista" "pippin quantize a.gguf b.gguf bf" "BF16" >"$tmp/out" 2>"$tmp/err" </dev/null; code=$?
    expect "zsh: what help is about" 0 '^pippin help mod: '; expect "a value behind an equals sign" 0 '^pippin run --lora=baris: '
    expect "types in any letter case" 0 '^pippin quantize .* bf: BF16'
else skip "no zsh here"; fi

counted
