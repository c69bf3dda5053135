#!/bin/sh
# test_models.sh - pippin models: registering by path or folder, finding by name and tag, removing; error messages.
. tests/commands.sh

models() { "$pippin" models "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; code=$?; }
# expect NAME CODE [OUT-PATTERN [ERR-PATTERN]]
expect() {
    if [ "$code" != "$2" ]; then fail "$1" "exit code $code, not $2"; return; fi
    if [ -n "${3:-}" ] && ! grep -Eq -e "$3" "$tmp/out"; then fail "$1" "no $3 in: $(cat "$tmp/out")"; return; fi
    if [ -n "${4:-}" ] && ! grep -Eq -e "$4" "$tmp/err"; then fail "$1" "no $4 on standard error"; return; fi
    pass "$1"
}

mkdir -p "$tmp/store/deep/er" "$tmp/store/.hidden" "$tmp/store/empty"
cp engine/starter/starter-draft-Q4_0.gguf "$tmp/store/deep/er/small.gguf"
cp engine/starter/starter-draft-Q4_0.gguf "$tmp/store/.hidden/unseen.gguf"
printf 'GGUF rubbish' >"$tmp/store/broken.gguf"
printf 'GGUF rubbish' >"$tmp/store/big-00002-of-00003.gguf"

models; expect "nothing yet" 0 '' 'no model is registered'
models add; expect "add what? usage" 2
models add "$tmp/absent"; expect "what is not there" 3 '' 'absent'
models add "$tmp/store/broken.gguf"; expect "what is no model" 1 '' 'broken.gguf'
models add "$tmp/store/empty"; expect "a folder without models" 3 '' 'no model that pippin can use'
models add --name x "$tmp/store"; expect "one name for several: usage" 2
mkdir "$tmp/adapter"
echo '{"peft_type":"LORA"}' >"$tmp/adapter/adapter_config.json"
models add "$tmp/adapter"; expect "an adapter's folder is no empty one" 3 '' 'is a LoRA adapter, not a model; give it with --lora'
models add "$tmp/store"; expect "a folder, and below" 0 '' 'small is .*deep/er/small.gguf'
expect "what cannot be used is told" 0 '' 'left out: .*broken.gguf is no'
holds "once" [ "$(grep -o broken.gguf "$tmp/err" | wc -l)" = 1 ]
models; expect "and listed" 0 '^small +Q4_0 +4M +3\.1 MB  .*/deep/er/small.gguf$'
if grep -Eq 'unseen|00002' "$tmp/out"; then fail "neither hidden files nor parts" "$(cat "$tmp/out")"; else pass "neither hidden files nor parts"; fi
models add --name Tiny engine/starter/starter-Q4_K_M.gguf; expect "under another name" 0
models add --name "$(printf 'a\nb')" engine/starter/starter-Q4_K_M.gguf; expect "a name of two lines" 2 '' 'on one line'
models add --name "$(printf '%0101d' 0)" engine/starter/starter-Q4_K_M.gguf; expect "a long name" 2 '' '1 to 100 bytes'
models add --name '' engine/starter/starter-Q4_K_M.gguf; expect "no name" 2 '' '1 to 100 bytes'
models add --name small engine/starter/starter-Q4_K_M.gguf; expect "a name that is taken" 2 '' 'is already the name of .*small.gguf'
cp engine/starter/starter-draft-Q4_0.gguf "$tmp/$(printf 'two\nlines.gguf')"
models add "$tmp/$(printf 'two\nlines.gguf')"; expect "a file with a name of two lines has another" 0 '' 'two_lines is '
models; expect "and one line in the list" 0 '^two_lines .*/two␊lines.gguf$'
models info two_lines; expect "and of what is told about it" 0 '^  /.*/two␊lines.gguf$'
models rm two_lines
latin=$(printf 'caf\351')
cp engine/starter/starter-draft-Q4_0.gguf "$tmp/$latin.gguf"
models add "$tmp/$latin.gguf"; expect "a file with a name in another encoding has one in UTF-8" 0 '' 'caf_ is '
"$pippin" tokenize -m caf_ -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?; expect "and is found by that" 0 '^\['
models tag caf_ "$latin"; expect "no tag is in another" 2 '' 'bytes of UTF-8'
models add --name "$latin" "$tmp/$latin.gguf"; expect "nor a name" 2 '' 'on one line, in UTF-8'
models rm caf_; expect "by which it is forgotten" 0
models add engine/starter/starter-Q4_K_M.gguf; expect "added again it keeps that name" 0 '' '^(pippin: )?Tiny is '
models add engine/starter; expect "with the folder as well" 0 '' '^(pippin: )?Tiny is '
models; expect "and is listed by it" 0 '^Tiny .*/starter-Q4_K_M.gguf$'
models add --name huge engine/starter/starter-Q4_K_M.gguf; expect "a new one is taken" 0 '' 'huge is '
models add --name starter engine/starter/starter-Q4_K_M.gguf; expect "but not that of the bundled model" 2 '' 'could not be found again'
for name in /huge .huge ./huge; do
    models add --name $name engine/starter/starter-Q4_K_M.gguf; expect "nor $name" 2 '' 'looks like a path'
done
cp engine/starter/starter-draft-Q4_0.gguf "$tmp/starter.gguf"
models add "$tmp/starter.gguf"; expect "nor if the file has it" 2 '' 'another with --name'
models tag huge starter; expect "nor as a tag" 2 '' 'the bundled model'
models add --name Tiny engine/starter/starter-Q4_K_M.gguf; expect "and the old one again" 0 '' 'Tiny is '
models rm starter-draft-Q4_0; expect "the other of that folder" 0
models tag TINY fast good; expect "tags" 0
models tag small fast; expect "a tag moves" 0 '' 'fast pointed to .*starter-Q4_K_M'
"$pippin" bench --shape stories-15m --type q8_0 --layers 1 --vocab 1 --write "$tmp/tiniest.gguf" >"$tmp/out" 2>&1
models add "$tmp/tiniest.gguf"; models; expect "less than a million parameters are not none" 0 '^tiniest +Q8_0 +1\.0M '
models rm tiniest
if [ -d "$data/architectures/mixtral" ]; then
    models add "$data/architectures/mixtral"; models
    expect "nor are those that a token uses" 0 '/mixtral  \([0-9.]+M active\)$'
    models rm mixtral
fi
models --json; expect "as JSON" 0 '"name": "small".*"tags": "fast"'
models tag small 'a b'; expect "what cannot be a tag" 2
models tag small "$(printf 'a\033[2Jb')"; expect "nor can what moves the cursor" 2 '' 'control characters'
models tag small tiny; expect "nor is another model's name one" 2 '' 'is already the name of a model'
models tag smal fast; expect "the nearest name" 3 '' 'did you mean "small"'
models info fast; expect "what it is" 0 'needs [0-9.]+ MB for weights, [0-9.]+ MB for the KV cache of [0-9,]+ tokens .* [0-9.]+ GB free$'
models info small -c 128 --json; expect "for a context" 0 '"kv_tokens": 128, "kv_bytes": [1-9]'
models info absent small gone; expect "what there is, beside what there is not" 3 'small.gguf$' '"absent'
expect "which is told, too" 3 '' '"gone'
models info small absent --json; expect "and as JSON" 3 '^\[\{"name": "Pippin[^]]*\]$' absent
"$pippin" tokenize -m FAST -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?; expect "used by a tag" 0 '^\['
"$pippin" tokenize -m good -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?; expect "and by the other's" 0 '^\['
"$pippin" tokenize -m tinny -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?; expect "or the nearest is told" 3 '' 'did you mean "Tiny"'
"$pippin" tokenize -m tin -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?
expect "all that are near are told" 3 '' 'did you mean "Tiny"\?$'
models tag small tinier
"$pippin" tokenize -m tin -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?
expect "nearest first" 3 '' 'there is no model "tin"; did you mean "Tiny" or "tinier"\?$'
models info tin; expect "also where models are managed" 3 '' 'did you mean "Tiny" or "tinier"\?$'
models rm tin; expect "and forgotten" 3 '' 'did you mean "Tiny" or "tinier"\?$'
models untag tinier
models untag good; expect "no tag any more" 0
models untag good; expect "nor one to take away" 3 '' 'no model has the tag'
"$pippin" tokenize -m good -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?; expect "it names nothing" 3
rm "$tmp/store/deep/er/small.gguf"
models; expect "what went away is marked" 0 'small.gguf.*missing'
"$pippin" tokenize -m small -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?; expect "and not found" 3
models rm small; expect "forgotten" 0
models rm "$PWD/engine/starter/starter-Q4_K_M.gguf"; expect "by its path" 0
models; expect "all gone" 0 '' 'no model is registered'
[ -f engine/starter/starter-Q4_K_M.gguf ] && pass "files stay" || fail "files stay" "gone"


# the cache of Hugging Face's programs: links with models' names, in folders and to files named by hashes
hub="$tmp/hub/models--acme--Tiny-Model"
mkdir -p "$hub/blobs" "$hub/snapshots/0123abcd/Q4" "$tmp/hub/models--acme--Folder/snapshots"
"$pippin" convert engine/starter/starter-draft-Q4_0.gguf "$tmp/hub/models--acme--Folder/snapshots/4567cdef" >"$tmp/out" 2>&1
cp engine/starter/starter-draft-Q4_0.gguf "$hub/blobs/89ab"
ln -s ../../blobs/89ab "$hub/snapshots/0123abcd/Tiny-Q4_0.gguf"
models add "$tmp/hub"; expect "a cache of snapshots" 0 '' 'Folder is .*/snapshots/4567cdef$'
expect "whose files are called as the links are" 0 '' 'Tiny-Q4_0 is .*/snapshots/0123abcd/Tiny-Q4_0.gguf$'
"$pippin" tokenize -m Tiny-Q4_0 -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?; expect "and found so" 0 '^\['
models rm "$hub/snapshots/0123abcd/Tiny-Q4_0.gguf"; expect "and forgotten" 0
models rm Folder; expect "and so is the folder" 0
echo '{"model_type":"llama"}' >"$hub/snapshots/0123abcd/config.json" # often published together with GGUF files
models add "$tmp/hub"; expect "also beside a config.json" 0 '' 'Tiny-Q4_0 is .*/snapshots/0123abcd/Tiny-Q4_0.gguf$'
holds "of which nothing is said" [ "$(grep -c 'left out' "$tmp/err")" = 0 ]
models rm Tiny-Q4_0; models rm Folder
models add "$hub/snapshots/0123abcd"; expect "and in that folder itself" 0 '' 'Tiny-Q4_0 is '
models rm Tiny-Q4_0
models add --name tiny "$hub/snapshots/0123abcd"; expect "which is no model" 2 '' 'contains several'
models info "$hub/snapshots/0123abcd"
expect "that is told" 3 '' 'is a folder of GGUF files; give one of them, such as .*/0123abcd/Tiny-Q4_0.gguf$'
rm "$hub/snapshots/0123abcd/config.json"
models info "$hub/snapshots/0123abcd"; expect "also without the other" 3 '' 'such as .*/0123abcd/Tiny-Q4_0.gguf$'
mkdir "$tmp/hub/models--acme--Folder/refs"
printf 4567cdef >"$tmp/hub/models--acme--Folder/refs/main"
"$pippin" tokenize -m "$tmp/hub/models--acme--Folder" -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?
expect "a repository there is its newest snapshot" 0 '^\['
printf ../../.. >"$tmp/hub/models--acme--Folder/refs/main"
"$pippin" tokenize -m "$tmp/hub/models--acme--Folder" -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?
expect "and nothing else" 3 '' 'models--acme--Folder'

# a model folder registered from inside gets the folder's name
"$pippin" convert engine/starter/starter-draft-Q4_0.gguf "$tmp/Nearby" >"$tmp/out" 2>"$tmp/err"; code=$?; expect "a model folder" 0
program=$(cd "$(dirname "$pippin")" && pwd)/$(basename "$pippin")
(cd "$tmp/Nearby" && "$program" models add . >"$tmp/out" 2>"$tmp/err" </dev/null); code=$?; expect "is registered from inside" 0 '' 'Nearby is .*/Nearby$'
(cd "$tmp/Nearby" && "$program" models info . >"$tmp/out" 2>"$tmp/err" </dev/null); code=$?; expect "and is called so" 0 '^Nearby'

# if a folder or database cannot be written to, the error names what was requested
# read_only PATH COMMAND...: runs the command with that folder or file mounted read-only
read_only() {
    export pippin
    unshare -rm sh -c 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 99
        shift
        exec "$pippin" "$@"' sh "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    code=$?
}
folder=$XDG_DATA_HOME
read_only "$folder" models list
if [ $code != 99 ]; then
    expect "what cannot be written to is listed" 0 'Nearby'
    read_only "$folder" models add "$tmp/store"
    expect "but nothing added" 1 '' 'no model was added: .*models: the database is read-only; check the permissions'
    read_only "$folder" models rm Nearby; expect "nor forgotten" 1 '' 'no model was removed: .*read-only'
    read_only "$folder" models tag Nearby a; expect "nor tagged" 1 '' 'no tag was set: .*read-only'
    read_only "$folder" models pull hf:a/b; expect "nor fetched" 1 '' 'nothing was downloaded: .*read-only'
    file=$folder/pippin/pippin.db
    read_only "$file" models list; expect "a database that is read-only, too" 0 'Nearby'
    read_only "$file" models add "$tmp/store"
    expect "is not added to" 1 '' 'no model was added: .*models: the database is read-only; check the permissions'
    read_only "$file" chat --plain; expect "and a chat is temporary then" 0 'this chat is not saved: .*read-only'
    read_only "$file" doctor; expect "as the doctor says" 1 'pippin.db is not writable: conversations are not saved'
else
    skip "no mounts of its own for a read-only folder here"
fi
counted
