#!/bin/sh
# test_lora_files.sh - how pippin lora list, lora info, convert and run --lora report adapters that are damaged,
# incomplete, of an unsupported kind, or oddly named.
. tests/commands.sh

say() {
    "$pippin" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    code=$?
}
# expect NAME CODE OUT ERR: patterns in standard output and standard error; OUT "": it is not checked; ERR "-": it must
# be empty
expect() {
    [ "$code" = "$2" ] || { fail "$1" "exit code $code, not $2"; return; }
    [ -z "$3" ] || grep -Eq -e "$3" "$tmp/out" || { fail "$1" "no $3 on standard output"; return; }
    if [ "$4" = - ]; then
        [ ! -s "$tmp/err" ] || { fail "$1" "something on standard error"; return; }
    else
        grep -Eq -e "$4" "$tmp/err" || { fail "$1" "no $4 on standard error"; return; }
    fi
    pass "$1"
}
# weights FILE JSON BYTES: writes a safetensors file with that header, followed by so many zero bytes
weights() {
    n=${#2}
    # shellcheck disable=SC2059
    printf "\\$(printf %03o $((n % 256)))\\$(printf %03o $((n / 256 % 256)))\\0\\0\\0\\0\\0\\0" >"$1"
    printf %s "$2" >>"$1"
    head -c "$3" /dev/zero >>"$1"
}
# folder NAME CONFIG JSON BYTES: writes an adapter to $tmp/a
folder() {
    mkdir -p "$tmp/a/$1"
    printf %s "$2" >"$tmp/a/$1/adapter_config.json"
    [ $# -lt 4 ] || weights "$tmp/a/$1/adapter_model.safetensors" "$3" "$4"
}
q=base_model.model.model.layers.0.self_attn.q_proj.lora_
lora='{"peft_type":"LORA","r":2,"lora_alpha":4}'
a='{"dtype":"F32","shape":[2,512],"data_offsets":[0,4096]}'
b='{"dtype":"F32","shape":[512,2],"data_offsets":[4096,8192]}'

folder zeros "$lora" "{\"${q}A.weight\":$a,\"${q}B.weight\":$b}" 8192
say lora info "$tmp/a/zeros"
expect "one that was never trained" 0 'no effect: its matrices or its alpha are all zero' -
e=base_model.model.model.embed_tokens.lora_
folder table '{"peft_type":"LORA","r":2,"lora_alpha":4,"use_dora":true}' "{\"${e}embedding_A\":$a,\"${e}embedding_B\":$b,\
\"${e}magnitude_vector\":{\"dtype\":\"F32\",\"shape\":[512],\"data_offsets\":[8192,10240]}}" 10240
say lora info "$tmp/a/table"
expect "a DoRA of the embeddings" 0 'token_embd.weight +512 -> 512 +rank 2 +F32 +scale 2 magnitudes$' -
folder half "$lora" "{\"${q}A.weight\":$a}" 4096
say lora info "$tmp/a/half"
expect "a half" 1 '' 'only one of the matrices .*; download the adapter again'
folder weightless "$lora"
say lora info "$tmp/a/weightless"
expect "one without weights" 3 '' 'weights are missing .adapter_model.safetensors.; download'
mkdir "$tmp/a/npz"
: >"$tmp/a/npz/adapters.npz"
say lora info "$tmp/a/npz"
expect "an empty file in MLX's first format" 1 '' 'adapters.npz is not an .npz file, or is damaged or truncated'
cp tests/data/adapters.npz "$tmp/a/npz/adapters.npz"
say lora info "$tmp/a/npz"
expect "one that Python wrote" 0 'attn_v.weight +512 -> 256 +rank 2 +F16 +scale 20$' -
expect "its scale is assumed" 0 "^its scale is not stored, so MLX's default is assumed: 20; if it was trained with" -
say lora info --json "$tmp/a/npz"
expect "in JSON, too" 0 '"scale_assumed": true' -
say run --lora "$tmp/a/npz" --temp 0 -n 2 -p Hello
expect "and where it is used" 0 '' "adapter npz: its scale is not stored, so MLX's default is assumed: 20;"
printf 'Hello\n' | "$pippin" chat --plain --lora "$tmp/a/npz" --temp 0 -n 2 >"$tmp/out" 2>"$tmp/err"
code=$?
expect "also in the chat" 0 "adapter npz: its scale is not stored, so MLX's default is assumed: 20;" -
printf %s '{"lora_parameters":{"rank":8,"alpha":16,"scale":1}}' >"$tmp/a/npz/adapter_config.json"
say lora info "$tmp/a/npz"
expect "one that is stated" 0 'rank 2 +F16 +scale 8$' -
holds "is not assumed" [ "$(grep -c assumed "$tmp/out")" = 0 ]
say convert --base engine/starter/starter-Q4_K_M.gguf "$tmp/a/npz" "$tmp/a/npz.gguf"
holds "it can be converted" [ "$code" = 0 ]
say lora info "$tmp/a/npz.gguf"
expect "to GGUF" 0 'attn_q.weight +512 -> 512 +rank 2 +F16 +scale 8$' -
say lora info "$tmp/a/npz/adapters.npz"
expect "the file alone" 1 '' 'adapters.npz is only one file of an adapter; give the folder that contains it, as adapters.npz'
folder flat "$lora" "{\"${q}A.weight\":{\"dtype\":\"F32\",\"shape\":[1024],\"data_offsets\":[0,4096]}}" 4096
say lora info "$tmp/a/flat"
expect "a vector in a matrix's place" 1 '' 'lora_A.weight is not a matrix, .*download the adapter again'
folder empty "$lora" "{\"${q}A.weight\":{\"dtype\":\"F32\",\"shape\":[0,512],\"data_offsets\":[0,0]}}" 0
say lora info "$tmp/a/empty"
expect "a matrix of nothing" 1 '' 'lora_A.weight is not a matrix, '
folder doubles "$lora" "{\"${q}A.weight\":{\"dtype\":\"F64\",\"shape\":[1,512],\"data_offsets\":[0,4096]}}" 4096
say lora info "$tmp/a/doubles"
expect "a type that cannot be run" 1 '' 'a type that pippin cannot run; save the adapter again in F32, F16 or BF16'
folder strange "$lora" '{"one\npippin: \u001b[31mall is well":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' 4
say lora info "$tmp/a/strange"
expect "a name with a line break" 1 '' 'its first tensor is one␊pippin: '
holds "makes no line of its own" [ "$(wc -l <"$tmp/err")" = 1 ]

# --- lora list ---------------------------------------------------------------------------------------------------

there=$XDG_DATA_HOME/pippin/adapters
say lora list -m nobody.gguf
expect "a model that is not there" 3 '' 'nobody.gguf'
mkdir -p "$there"
cp engine/starter/bard.gguf "$there/own.gguf"
say lora list -m nobody.gguf
expect "does not keep other adapters out" 3 'own.gguf' 'nobody.gguf'
say lora list -m nobody.gguf --json
expect "nor from JSON" 3 '^\[\{"path": ".*/own.gguf".*\}\]$' 'nobody.gguf'
head -c 5000 engine/starter/bard.gguf >"$there/cut.gguf"
echo text >"$there/text.txt"
cp -r "$tmp/a/half" "$there/half"
say lora list
expect "damaged ones" 0 'own.gguf' 'cut.gguf is '
holds "are told, each once" [ "$(grep -c "$there/half" "$tmp/err")$(grep -c "$there/half.*$there/half" "$tmp/err")" = 10 ]
holds "and other files are not" [ "$(wc -l <"$tmp/err")" = 2 ]
say lora list --json
expect "as JSON, too" 0 '^\[\{.*\}\]$' 'cut.gguf is '
# a name with a line break and an escape sequence: shown on one line everywhere
rm -r "$there"
mkdir "$there"
broken=$(printf 'one\n\033[31mtwo.gguf')
cp engine/starter/bard.gguf "$there/$broken"
say lora list
expect "a file's name with a line break" 0 '/one␊.\[31mtwo.gguf$' -
holds "is one line of the list" [ "$(grep -c one "$tmp/out")$(grep -c '^.*\[31mtwo' "$tmp/out")" = 11 ]
say lora info "$there/$broken"
expect "and of what is told of it" 0 '/one␊.\[31mtwo.gguf$' -
head -c 5000 engine/starter/bard.gguf >"$there/$broken"
say lora info "$there/$broken"
expect "and of what is wrong with it" 1 '' '/one␊.*: .*'
holds "alone" [ "$(wc -l <"$tmp/err")" = 1 ]
cp engine/starter/bard.gguf "$there/$broken"
cp -r "$tmp/a/half" "$there/half"
printf '/lora\n/lora one\n' | "$pippin" chat --plain >"$tmp/out" 2>"$tmp/err"
code=$?
expect "and in the chat's list" 0 '^one␊␛\[31mtwo: off, scale 1.00; fits; LoRA of rank 16, 2.3 MB; 56 projections: ' -
holds "which says why one cannot be used" \
    grep -q '^half: cannot be used, scale 1.00: .*has only one of the matrices' "$tmp/out"
rm -r "$there/half"
expect "and in its notices" 0 '^one␊␛\[31mtwo is on' -
printf '/lora one 0.5\n/lora save mine\n/lora preset other\n/lora\n' | "$pippin" chat --plain >"$tmp/out" 2>"$tmp/err"
code=$?
expect "presets are in the list, too" 0 '^mine .chosen.: one␊␛\[31mtwo 0.50$' -
expect "which is what an unknown one leads to" 0 'no preset "other"; /lora lists them' -
rm -r "$there"
# what a switch costs in this conversation, as F3 says it
long=$(printf 'Tell me about %s. ' rain snow wind fog hail ice sun dew frost mist heat cold light dark day night)
printf '%s\n/lora\n/lora bard\n/lora\n' "$long" | "$pippin" chat --plain --temp 0 -n 8 >"$tmp/out" 2>"$tmp/err"
code=$?
cost='[0-9]+ tokens to recompute, (about [0-9.]+ s|at most [0-9.]+ s|in less than 0.1 s)'
expect "a switch's cost is told before it" 0 "^bard switched on: $cost$" -
expect "and what it costs to stay" 0 '^as it is: already in the cache$' -
expect "or to go back" 0 '^bard switched off: already in the cache$' -
expect "and after it" 0 "^as it is: $cost$" -
printf '/lora\n' | "$pippin" chat --plain >"$tmp/out" 2>"$tmp/err"
code=$?
holds "nothing of it without a conversation" [ "$(grep -c 'switched on:' "$tmp/out")" = 0 ]
ln -s "$there" "$there"
say lora list
expect "a folder that cannot be read" 1 'bard' 'cannot read the adapter folder .*/adapters: '
rm "$there"
# a program without its starter, as before it is installed
cp "$pippin" "$tmp/alone"
mkdir "$there"
cp engine/starter/bard.gguf "$there/own.gguf"
(cd "$tmp" && ./alone lora list >out 2>err </dev/null)
code=$?
expect "without a model" 0 'own.gguf' -
rm "$there/own.gguf"
(cd "$tmp" && ./alone lora list >out 2>err </dev/null)
code=$?
if [ -s "$tmp/out" ]; then # the starter is installed on this machine
    skip "a starter is installed here"
else
    expect "nor an adapter" 0 '' 'no adapters found next to the model or in .*/adapters; put one there'
fi

counted
