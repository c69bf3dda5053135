#!/bin/sh
# test_train.sh - pippin lora train as a script or a person uses it: messages, exit codes, the summary, interrupting and
# continuing, the bar on a terminal. With the bundled model, and a few steps.
. tests/commands.sh

train() {
    "$pippin" lora train "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    code=$?
}
# expect NAME CODE PATTERN...: the last training must have ended with this code, and standard error have these
expect() {
    name=$1
    [ "$code" = "$2" ] || { fail "$name" "exit code $code, not $2"; return; }
    shift 2
    for pattern; do
        grep -Eq -e "$pattern" "$tmp/err" || { fail "$name" "no $pattern on standard error"; return; }
    done
    pass "$name"
}

head -n 6 tests/data/sonnets.jsonl >"$tmp/six.jsonl"
head -n 1 tests/data/sonnets-val.jsonl >"$tmp/one.jsonl"

# --- what is refused ---------------------------------------------------------------------------------------------

train; expect "no file" 2 'usage: pippin lora train FILE -o FOLDER'
train "$tmp/six.jsonl"; expect "no folder" 2 'give the folder for the adapter'
train "$tmp/six.jsonl" -o "$tmp/x" --targets q,attn; expect "a projection that is none" 2 'unknown projection "attn"; choose from q, k, v'
train "$tmp/six.jsonl" -o "$tmp/x" --rank 0; expect "no rank" 2 '.--rank'
train "$tmp/nothing.jsonl" -o "$tmp/x"; expect "no such file" 1 'nothing.jsonl'
: >"$tmp/empty.jsonl"
train "$tmp/empty.jsonl" -o "$tmp/x"; expect "an empty file" 2 'empty.jsonl contains no examples'
{ cat "$tmp/six.jsonl"; echo '{"messages": [{"role": "user", "content": "Who?"}]}'; } >"$tmp/bad.jsonl"
train "$tmp/bad.jsonl" -o "$tmp/x"; expect "a line without an answer" 1 'bad.jsonl, line 7: no message is from the assistant'
train "$tmp/six.jsonl" -o "$tmp/x" --train-memory 1M; expect "too little memory" 4 'needs [0-9]+ MB .* 1 MB may be used'
train "$tmp/six.jsonl" -o "$tmp/y" --continue; expect "nothing to continue" 2 'no training to continue'
holds "and no folder is made for it" [ ! -e "$tmp/y" ]
train "$tmp/six.jsonl" -o /dev/null/x; expect "a folder that cannot be" 1 'cannot create the folder /dev/null/x'
train "$tmp/six.jsonl" -o "$tmp/not/there"; expect "a folder in none" 1 'the folder .*/not does not exist; create that first'
ln -s nowhere "$tmp/link"
train "$tmp/six.jsonl" -o "$tmp/link"; expect "a link that leads nowhere" 2 'broken symbolic link; create its target folder'
train "$tmp/six.jsonl" -o "$tmp/six.jsonl"; expect "a folder that is a file" 2 'six.jsonl exists and is not a folder; give another'
holds "and nothing was written" [ ! -e "$tmp/x/adapter_config.json" ]

# with two templates, conversations with tools are written by the one for tools, others by the one for chats
"$pippin" convert starter "$tmp/two" 2>/dev/null
mkdir -p "$tmp/two/additional_chat_templates"
echo "{{ raise_exception('the one for chats') }}" >"$tmp/two/chat_template.jinja"
echo "{{ raise_exception('the one for tools') }}" >"$tmp/two/additional_chat_templates/tool_use.jinja"
turns='"messages": [{"role": "user", "content": "Time?"}, {"role": "assistant", "content": "Noon."}]'
echo "{$turns}" >"$tmp/chat.jsonl"
echo "{$turns, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"now\"}}]}" >"$tmp/tools.jsonl"
train -m "$tmp/two" "$tmp/chat.jsonl" -o "$tmp/x"; expect "a conversation" 1 'the one for chats'
train -m "$tmp/two" "$tmp/tools.jsonl" -o "$tmp/x"; expect "a conversation with tools" 1 'the one for tools'
echo "{{ raise_exception('my own') }}" >"$tmp/own.jinja"
train -m "$tmp/two" "$tmp/tools.jsonl" -o "$tmp/x" --chat-template-file "$tmp/own.jinja"; expect "one's own template" 1 'my own'

# --- a small training ---------------------------------------------------------------------------------------------

small="--val $tmp/one.jsonl --rank 2 --targets q,v --batch 2 --steps 8 --eval-every 1 --lr 1e-3"
# shellcheck disable=SC2086
train "$tmp/six.jsonl" -o "$tmp/verse" $small --json -m engine/starter/starter-Q4_K_M.gguf
expect "a training" 0 'training: 6 examples, [0-9]+ tokens \([0-9]+ trained on\)' 'needs [0-9]+ MB' \
    'validation: 1 example, ' 'step 8 of 8, loss [0-9.]+, validation loss [0-9.]+'
for key in adapter steps first_validation_loss validation_loss memory_bytes seconds; do
    holds "its summary has $key" grep -q "\"$key\": " "$tmp/out"
done
holds "which is one line" [ "$(wc -l <"$tmp/out")" = 1 ]
for file in adapter_config.json adapter_model.safetensors verse.gguf; do
    holds "$file is there" [ -s "$tmp/verse/$file" ]
done
holds "and says from the root on where its model is" \
    grep -q '"base_model_name_or_path":[[:space:]]*"/.*/engine/starter/starter-Q4_K_M.gguf"' "$tmp/verse/adapter_config.json"
holds "the checkpoint is gone" [ ! -e "$tmp/verse/checkpoint.gguf" ]
for adapter in verse verse/verse.gguf; do
    "$pippin" lora info "$tmp/$adapter" -m starter --json >"$tmp/out" 2>"$tmp/err"
    holds "$adapter fits the model" [ $? = 0 ]
    holds "and changes q and v" grep -q '"rank": 2, "changes_nothing": false.*"n_targets": 16' "$tmp/out"
    "$pippin" run --lora "$tmp/$adapter" --temp 0 -n 8 -p "Hello" >"$tmp/$(basename "$adapter").txt" 2>"$tmp/err" </dev/null
    holds "and answers" [ $? = 0 ]
done
holds "both the same" cmp -s "$tmp/verse.txt" "$tmp/verse.gguf.txt"

# shellcheck disable=SC2086
train "$tmp/six.jsonl" -o "$tmp/verse" $small; expect "an adapter is not written over" 2 'verse already contains adapter_config.json'

# --- an interrupt --------------------------------------------------------------------------------------------------

# shellcheck disable=SC2086
"$pippin" lora train "$tmp/six.jsonl" -o "$tmp/broken" $small >"$tmp/out" 2>"$tmp/err" </dev/null &
pid=$!
i=0
while ! grep -q 'step 1 of 8' "$tmp/err" && [ $i -lt 1200 ] && kill -0 $pid 2>/dev/null; do sleep 0.05; i=$((i + 1)); done
# Shells start background jobs with SIGINT ignored; pippin handles SIGTERM in the same way.
kill -TERM $pid 2>/dev/null
wait $pid
code=$?
if [ $code = 0 ]; then
    echo "skip: the training was over before it could be interrupted"
else
    expect "an interrupt" 130 'stopped after step [1-7] of 8; run the same command with --continue to resume'
    holds "leaves a checkpoint" [ -s "$tmp/broken/checkpoint.gguf" ]
    # shellcheck disable=SC2086
    train "$tmp/six.jsonl" -o "$tmp/broken" $small; expect "is not overwritten" 2 'resume it with --continue'
    # shellcheck disable=SC2086
    train "$tmp/six.jsonl" -o "$tmp/broken" $small --rank 3 --continue
    expect "does not go on otherwise" 1 'rank was 2 and is now 3'
    head -n 2 tests/data/sonnets-val.jsonl >"$tmp/two.jsonl"
    # shellcheck disable=SC2086
    train "$tmp/six.jsonl" -o "$tmp/broken" $small --val "$tmp/two.jsonl" --continue
    expect "nor with other examples for validation" 1 'the examples for validation have changed'
    # shellcheck disable=SC2086
    train "$tmp/six.jsonl" -o "$tmp/broken" $small -t 1 --continue; expect "goes on" 0
    holds "to the same bits" cmp -s "$tmp/verse/adapter_model.safetensors" "$tmp/broken/adapter_model.safetensors"
fi

# --- a full disk ---------------------------------------------------------------------------------------------------

# tight NAME CODE BYTES PATTERN...: a training on a disk of that size; if it fails, it is continued with more space. Its
# adapter goes to $tmp/went.safetensors, the standard error of the continuation to $tmp/on.
tight() {
    name=$1 want=$2 disk_size=$3
    shift 3
    export pippin tmp disk_size few
    rm -f "$tmp/went.safetensors"
    unshare -rm sh -c 'mount -t tmpfs -o size="$disk_size" none "$tmp/disk" || exit 99
        "$pippin" lora train "$tmp/six.jsonl" -o "$tmp/disk/verse" $few >"$tmp/out" 2>"$tmp/err" </dev/null
        code=$?
        ls "$tmp/disk/verse" >"$tmp/there" 2>/dev/null
        mount -o remount,size=64m "$tmp/disk"
        [ "$code" = 0 ] ||
            "$pippin" lora train "$tmp/six.jsonl" -o "$tmp/disk/verse" $few --continue >"$tmp/out" 2>"$tmp/on" </dev/null
        cp "$tmp/disk/verse/adapter_model.safetensors" "$tmp/went.safetensors" 2>/dev/null
        exit "$code"' 2>/dev/null
    code=$?
    expect "$name" "$want" "$@"
}
mkdir "$tmp/disk"
few="--val $tmp/one.jsonl --rank 8 --batch 2 --steps 3 --lr 1e-3"
# shellcheck disable=SC2086
train "$tmp/six.jsonl" -o "$tmp/roomy" $few; expect "with room" 0
learnt=$(sed -n 's/.*: \([0-9,]*\) trainable parameters.*/\1/p' "$tmp/err" | tr -d ,)
kept=$((12 * learnt + 65536)) # the size of a checkpoint
if unshare -rm mount -t tmpfs none "$tmp/disk" 2>/dev/null; then
    tight "no room to begin with" 1 $((kept / 2)) 'cannot reserve [0-9.]+ MB in .* free some space, or give another folder'
    holds "begins nothing" [ ! -s "$tmp/there" ]
    few="$few --eval-every 3"
    tight "room for what is learnt alone" 1 $((kept + 200000)) \
        'cannot write .*adapter.*; the trained adapter is kept in .*checkpoint.gguf: free some space'
    holds "keeps it" grep -q '^checkpoint.gguf$' "$tmp/there"
    holds "and no half of an adapter" [ "$(wc -l <"$tmp/there")" = 1 ]
    holds "then --continue has nothing left to learn" grep -q 'step 3 of 3, validation' "$tmp/on"
    holds "and writes the same" cmp -s "$tmp/roomy/adapter_model.safetensors" "$tmp/went.safetensors"
    few="$few --eval-every 1"
    tight "room for one checkpoint more" 0 $((2 * kept)) 'no checkpoint written after step 2: cannot write'
    holds "is room for the adapter" cmp -s "$tmp/roomy/adapter_model.safetensors" "$tmp/went.safetensors"
else
    echo "skip: no file system of its own for a small disk here"
fi

# --- on a terminal -------------------------------------------------------------------------------------------------

if command -v script >/dev/null; then
    # shellcheck disable=SC2086
    script -qec "stty cols 100; $pippin lora train $tmp/six.jsonl -o $tmp/shown $small" /dev/null </dev/null >"$tmp/err" 2>&1
    code=$?
    expect "on a terminal" 0 'step 8/8 ████████████ [▁▂▃▄▅▆▇█ ]+ loss [0-9.]+ val [0-9.]+ 0:00 left'
    # the terminal becomes narrow while it runs: no line may be longer than that
    # shellcheck disable=SC2086
    script -qfec "stty cols 100; { until grep -q 'step 0/' $tmp/err; do sleep 0.05; done; stty -F /dev/tty cols 20; } & \
        $pippin lora train $tmp/six.jsonl -o $tmp/narrow $small" /dev/null </dev/null >"$tmp/err" 2>&1
    code=$?
    expect "a terminal made narrow" 0 'step 0/8 ░'
    tr '\r' '\n' <"$tmp/err" | grep 'step 8/8' | tail -n 1 >"$tmp/last"
    holds "is not written over its edge" grep -Eq '^.\[Kstep 8/8( loss [0-9.]+)?$' "$tmp/last"
else
    echo "skip: no script(1) for a terminal"
fi

counted
