#!/bin/sh
# test_models_pull.sh - pippin models pull from a server on this machine that misbehaves (tests/http_server.c).
. tests/commands.sh
build=${BUILD:-build}
trap 'kill "$server" "$staller" 2>/dev/null; rm -rf "$tmp"' EXIT
export no_proxy='*'
model=engine/starter/starter-draft-Q4_0.gguf
models=$tmp/data/pippin/models

pull() { timeout 60 "$pippin" models pull "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; code=$?; }
# expect NAME CODE [ERR-PATTERN]
expect() {
    if [ "$code" != "$2" ]; then fail "$1" "exit code $code, not $2"; return; fi
    if [ -n "${3:-}" ] && ! grep -Eq -e "$3" "$tmp/err"; then fail "$1" "no $3 on standard error"; return; fi
    pass "$1"
}
# whole NAME FILE: it was downloaded completely, and nothing partial is left next to it
whole() {
    if ! cmp -s "$model" "$models/$2"; then fail "$1" "$2 is not the same file"; return; fi
    if [ -e "$models/$2.part" ] || [ -e "$models/$2.part.from" ]; then fail "$1" "something is left beside $2"; return; fi
    pass "$1"
}

mkdir -p "$tmp/www" "$tmp/config/pippin"
for n in aa ab ac a b c d e f g h i j k l m n o p v w x y z u twice endless q-Q8_0 q-Q4_K_M s-00001-of-00002 s-00002-of-00002; do ln -s "$PWD/$model" "$tmp/www/$n.gguf"; done
printf 'not a model' >"$tmp/www/text.gguf"
printf '\n<!DOCTYPE html>\n<html><body>Please sign in</body></html>\n' >"$tmp/www/page.gguf"
sum=$(sha256sum "$model" | cut -d' ' -f1)
size=$(wc -c <"$model" | tr -d ' ')
echo "$sum" >"$tmp/www/m.sha256"
"$build/http-server" "$tmp/www" >"$tmp/port" 2>/dev/null &
server=$!
comes [ -s "$tmp/port" ]
at=http://127.0.0.1:$(cat "$tmp/port")

# takes some seconds of waiting; checked at the end
(timeout 60 "$pippin" models pull "$at/never/v.gguf" >/dev/null 2>"$tmp/never"; echo $? >"$tmp/never-code") &
never=$!

"$build/http-server" "$tmp/www" >"$tmp/stall-port" 2>/dev/null & # another server, since /stall/ keeps it busy
staller=$!
comes [ -s "$tmp/stall-port" ]
# by_hand ARGUMENTS: pulls in the background; SIGINT to $hand interrupts it once, though a script's jobs ignore SIGINT
by_hand() {
    timeout --foreground 600 "$pippin" models pull "$@" >/dev/null 2>"$tmp/by-hand" </dev/null &
    hand=$!
}
by_hand "http://127.0.0.1:$(cat "$tmp/stall-port")/stall/u.gguf"
stall=$hand
mv "$tmp/by-hand" "$tmp/stall" # it goes on writing to the renamed file

pull; expect "pull what? usage" 2
pull nonsense; expect "what is no address" 2 'hf:OWNER/NAME'
pull "$at/"; expect "an address of no file" 2 'does not name a file'
HF_ENDPOINT=hub.example pull hf:o/n; expect "a hub that is none" 2 '"hub.example", the server for hf:, .*HF_ENDPOINT'
# libcurl and its libraries are loaded only for a download
mkdir "$tmp/none"
for n in libcurl.so.4 libcurl-gnutls.so.4 libcurl-nss.so.4; do echo none >"$tmp/none/$n"; done
LD_LIBRARY_PATH=$tmp/none pull "$at/plain/a.gguf"; expect "without libcurl" 1 'needs libcurl.*libcurl4 on Debian.*libcurl.so.4: '
if [ ! -e "$models/a.gguf" ] && [ ! -e "$models/a.gguf.part" ]; then pass "nothing is begun"; else fail "nothing is begun" "$(ls "$models")"; fi
LD_LIBRARY_PATH=$tmp/none "$pippin" models list >"$tmp/out" 2>"$tmp/err"; code=$?; expect "all else goes without it" 0
pull "$at/plain/a.gguf"; expect "a file" 0 "a is .*/models/a.gguf"
whole "is there" a.gguf
"$pippin" models list --json >"$tmp/out"
if grep -q "\"sha256\": \"$sum\"" "$tmp/out" && grep -q "\"source\": \"$at/plain/a.gguf\"" "$tmp/out"; then pass "noted with its source and checksum"; else fail "noted with its source and checksum" "$(cat "$tmp/out")"; fi
"$pippin" tokenize -m a -p Hello >"$tmp/out" 2>"$tmp/err"; code=$?; expect "and used by its name" 0
"$pippin" models rm a 2>/dev/null; rm "$models/a.gguf"
add() { timeout 60 "$pippin" models add "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; code=$?; }
add --sha256 "$sum" "$model"; expect "a checksum is for what is downloaded" 2 '--sha256 is for one URL'
add --sha256 "$sum" "$at/plain/a.gguf"; expect "adding an address downloads it" 0 "a is .*/models/a.gguf"
whole "and is there" a.gguf
"$pippin" models list --json >"$tmp/out"
if grep -q "\"source\": \"$at/plain/a.gguf\"" "$tmp/out"; then pass "noted with its source"; else fail "noted with its source" "$(cat "$tmp/out")"; fi
pull "$at/plain/a.gguf"; expect "not fetched twice" 0 'is already there'
"$pippin" models add "$models/a.gguf" >"$tmp/out" 2>"$tmp/err"; code=$?; expect "added by hand" 0
"$pippin" models list --json >"$tmp/out"
if grep -q "\"sha256\": \"$sum\"" "$tmp/out" && grep -q "\"source\": \"$at/plain/a.gguf\"" "$tmp/out"; then pass "it keeps source and checksum"; else fail "it keeps source and checksum" "$(cat "$tmp/out")"; fi
pull "$at/plain/a.gguf" --sha256 "$sum"; expect "there, and compared" 0 'is already there'
pull "$at/named/b.gguf/a.gguf"; expect "one of that name from elsewhere" 2 'a.gguf exists and was downloaded from .*/plain/a.gguf; move it'
pull "$at/named/b.gguf/a.gguf" --sha256 "$sum"; expect "which a checksum shows to be the same" 0 'is already there'
pull "$at/plain/a.gguf?token=1"; expect "what follows a question mark may be another" 2 'was downloaded from .*/named/b.gguf/a.gguf;'
"$pippin" models rm a 2>/dev/null; pull "$at/plain/a.gguf"; expect "where nobody knows whose it is" 0 'is already there'
long=$(printf '%0300d' 7)
pull "$at/named/a.gguf/$long.gguf"; expect "a name that no file can have" 0 "downloading"
pull "$at/named/a.gguf/$long.gguf"; expect "is cut" 0 'is already there'
pull "$at/named/a.gguf/1$long.gguf"; expect "and is not taken for a like one" 0 'downloading'
whole "both are there" "$(cd "$models" && ls | grep '^0000*_[0-9a-f]\{8\}0*7.gguf$')"
whole "whole" "$(cd "$models" && ls | grep '^1000*_[0-9a-f]\{8\}0*7.gguf$')"
pull "$at/named/a.gguf/$(printf '%0245d' 7).gguf"; expect "one that has no room for .part.from" 0 'downloading'
pull "$at/plain/a.gguf" --sha256 "$(echo "$sum" | tr 0-9 1-90)"; expect "there, and another one" 2 'a different file'
whole "is not touched" a.gguf
pull "$at/gone/x.gguf"; expect "404" 3 'does not exist \(HTTP status 404\)'
pull "$at/redirect/b.gguf"; expect "a redirection" 0; whole "is followed" b.gguf
pull "$at/loop/x.gguf"; expect "one in a circle" 1 'redirect'
pull "$at/away/passwd.gguf"; expect "one to another protocol" 1
[ -e "$models/passwd.gguf" ] && fail "is not followed" "it was" || pass "is not followed"
pull "$at/cut/c.gguf"; expect "a line that breaks again and again" 0; whole "is gone on with" c.gguf
pull "$at/wrong/z.gguf"; expect "another part than was asked for" 1 'sends a different part of the file'
pull "$at/plain/z.gguf" --sha256 "${sum}0"; expect "what is no checksum" 2 '64 hexadecimal digits'
pull "$at/norange/d.gguf"; expect "a server without ranges" 0; whole "begins anew" d.gguf
pull "$at/changed/e.gguf"; expect "a file that changes on the way" 0; whole "begins anew, too" e.gguf
pull "$at/swap/w.gguf"; expect "a file that changes, and not a byte of the new one" 0; whole "is of one piece" w.gguf
pull "$at/mixed/ac.gguf"; expect "one that changes unnoticed by the server" 0; whole "is of one piece as well" ac.gguf
pull "$at/empty/aa.gguf"; expect "an empty answer for the rest" 0; whole "is not the rest" aa.gguf
pull "$at/nothing/ab.gguf"; expect "a rest of nothing" 0; whole "is none, either" ab.gguf
pull "$at/416/f.gguf"; expect "416 for the rest" 0; whole "begins anew as well" f.gguf
pull "$at/weak/g.gguf"; expect "without a strong ETag" 0; whole "and so does that" g.gguf
pull "$at/busy/h.gguf"; expect "a server that is busy" 0; whole "is asked again" h.gguf
pull "$at/plain/i.gguf" --sha256 "$(echo "$sum" | tr 0-9 1-90)"; expect "a wrong checksum" 1 'the wrong checksum'
[ -e "$models/i.gguf" ] || [ -e "$models/i.gguf.part" ] && fail "is not kept" "it is" || pass "is not kept"
pull "$at/plain/i.gguf" --sha256 "$sum" --name Right; expect "the right one" 0 'Right is '
pull "$at/plain/i.gguf"; expect "that keeps its name" 0 'Right is '
pull "$at/plain/ak.gguf" --name right; expect "a name that is taken" 2 '"right" is already the name of .*/i.gguf; give another name with --name'
pull "$at/plain/starter.gguf"; expect "one that finds another model" 2 '"starter" cannot be the name of .*/starter.gguf.*--name'
if [ ! -e "$models/ak.gguf" ] && [ ! -e "$models/starter.gguf" ] && ! grep -q downloading "$tmp/err"; then pass "is told before anything is fetched"; else fail "is told before anything is fetched" "$(cat "$tmp/err")"; fi
pull "$at/plain/text.gguf"; expect "what is no model" 1 'text.gguf: it is not a GGUF file; it was not kept'
pull "$at/nosize/page.gguf"; expect "a page for a browser" 1 'page.gguf: it is not a GGUF file but a web page'
[ -e "$models/text.gguf" ] || [ -e "$models/page.gguf" ] || [ -e "$models/page.gguf.part" ] && fail "neither is kept" "$(ls "$models")" || pass "neither is kept"
head -c 3000000 "$model" >"$tmp/www/half.gguf"
pull "$at/plain/half.gguf"; expect "a model that is cut off there" 1 'half.gguf is truncated: .*; move it away first; pippin does not'
pull "$at/plain/half.gguf"; expect "and here now" 1 'half.gguf is truncated: .*; move it away first; pippin does not overwrite it$'
rm "$models/half.gguf"
cp "$tmp/www/page.gguf" "$models/page.gguf"
pull "$at/plain/page.gguf"; expect "one that lies there" 2 'page.gguf exists and is a different file'
rm "$models/page.gguf"
pull "http://127.0.0.1:1/x.gguf"; expect "nobody there" 1

pull "$at/secret/j.gguf"; expect "without a token" 1 'HF_TOKEN'
printf 'example.org\t\tnone\n%s \t  secret\r\n' "${at#http://}" >"$tmp/config/pippin/tokens" # in columns
chmod 644 "$tmp/config/pippin/tokens"
pull "$at/secret/j.gguf"; expect "tokens that others can read" 2 'chmod 600'
chmod 600 "$tmp/config/pippin/tokens"
pull "$at/secret/j.gguf"; expect "with one" 0; whole "is there" j.gguf
if grep -q secret "$tmp/err" && grep -v "$at/secret" "$tmp/err" | grep -q secret; then fail "that is not shown" "it is"; else pass "that is not shown"; fi

pull "http://ann:k3y0fmine@${at#http://}/plain/x.gguf"; expect "a password in the address" 2 'tokens, as a line'
grep -q k3y0fmine "$tmp/err" && fail "which is not repeated" "it is" || pass "which is not repeated"
pull "$at/plain/o.gguf?key=k3y0fmine"; expect "a key in the address" 0 'downloading .*/o.gguf$'; whole "is sent" o.gguf
pull "$at/gone/x.gguf?key=k3y0fmine"; expect "also of what is not there" 3 '/x.gguf does not exist'
"$pippin" models list --json >"$tmp/out"
if grep -q k3y0fmine "$tmp/out" "$tmp/err" || grep -qr k3y0fmine "$tmp/data"; then fail "and neither shown nor kept" "it is"; else pass "and neither shown nor kept"; fi
pull "$at/leak/x.gguf"; expect "another host does not get it" 1 'needs permission'
mv "$tmp/config/pippin/tokens" "$tmp/tokens"
printf '[{"type":"file","path":"n.gguf","size":%s,"lfs":{"oid":"%s"}}]' "$size" "$sum" >"$tmp/www/list.json"
pull hf:o/p --hf-base "$at"; expect "a gated model" 1 'HF_TOKEN'
export HF_TOKEN=secret
pull hf:o/p --hf-base "$at"; expect "with a token of the environment" 0; whole "is there, too" n.gguf
if grep -q secret "$tmp/err" "$tmp/out"; then fail "nor is that shown" "it is"; else pass "nor is that shown"; fi
HF_TOKEN=$(printf ' secret \r\n\t') # files may contain such blanks, and a line end in the token would end the header
pull hf:o/p --hf-base "$at"; expect "with blanks and a line end around it" 0 'is already there'
for inside in 'sec ret' "$(printf 'secret\r\nX-Evil: 1')" "$(printf 'secr\303\251t')"; do
    HF_TOKEN=$inside pull hf:o/p --hf-base "$at"; expect "with something in it" 2 'HF_TOKEN contains a space, a line end or'
    if grep -q secr "$tmp/err"; then fail "which is not shown" "it is"; else pass "which is not shown"; fi
done
HF_TOKEN=$(printf ' \r'); pull hf:o/p --hf-base "$at"; expect "an empty one" 1 'HF_TOKEN'
for file in ' \t%s secret\r\n' '\357\273\277%s secret and more\n' 'none\r\n%s\tsecret'; do
    printf "$file" "${at#http://}" >"$tmp/config/pippin/tokens"; chmod 600 "$tmp/config/pippin/tokens"
    pull hf:o/p --hf-base "$at"; expect "a file of tokens with blanks" 0 'is already there'
done
printf '%s sec\001ret\n' "${at#http://}" >"$tmp/config/pippin/tokens"
pull hf:o/p --hf-base "$at"; expect "one with something in it" 2 'tokens contains a space, a line end or'
rm "$tmp/config/pippin/tokens"
HF_TOKEN=secret

# a list of several pages; but no page is requested from another server, which would receive the token
echo '[{"type":"file","path":"README.md","size":3}]' >"$tmp/www/list.json"
echo '[{"type":"file","path":"LICENSE","size":3}]' >"$tmp/www/list-3.json"
printf '[{"type":"file","path":"r.gguf","size":%s,"lfs":{"oid":"%s"}}]' "$size" "$sum" >"$tmp/www/list-2.json"
ln -s "$PWD/$model" "$tmp/www/r.gguf"
more=/api/models/o/p/tree/main
link() { printf "$@" >"$tmp/www/link.txt"; pull hf:o/p --hf-base "$at"; }
link '<%s?cursor=2>; rel="next"' "$at$more"; expect "a list that goes on" 0 'downloading .*/r.gguf'; whole "is read to its end" r.gguf
link '<%s?cursor=9>; rel="prev", <%s?cursor=2&x=1>; title="a,b" ;REL=next' "$more" "$more"; expect "told in another way" 0 'is already there'
for rel in 'rel="prev  next"' 'rel = "next"' 'title="a \\" <b>, <c>; rel=last" ; x; rel="NEXT"' 'rel=next; rel=last' \
    'rel=next;title="open'; do
    link "<%s?cursor=2>; $rel" "$more"; expect "with $rel" 0 'is already there'
done
link '<a,b>; rel=last,,<%s?cursor=2>;rel=next' "$more"; expect "behind another one" 0 'is already there'
for rel in rel=nextish 'title="rel=next"' 'rel="last"; rel="next"' 'rel="next-archive"' 'rev=next' 'rel' 'rel=' 'rel="'; do
    link "<%s?cursor=2>; $rel" "$more"; expect "but not with $rel" 3 'neither GGUF'
done
link '<>; rel=next'; expect "nor at no address" 1 'next page of the list is not a URL'
link '<%s?cursor=\303\244>; rel=next' "$more"; expect "nor at one that is none" 1 'next page of the list is not a URL'
link '<%s?cursor=3>; rel=next' "$more"; expect "without a model on the way" 3 'neither GGUF'
link '<%s?cursor=2>; rel="last"' "$more"; expect "and not if nobody says that it goes on" 3 'neither GGUF'
link '<http://localhost:%s%s?cursor=2>; rel="next"' "${at##*:}" "$more"; expect "not at another server" 1 'is at http://localhost.* another server'
link '<file:///etc/passwd>; rel="next"'; expect "nor in another way" 1 'another server'
link '<%s>; rel="next"' "$(head -c 400000 /dev/zero | tr '\0' a)"; expect "nor with a header of any length" 1 "a header of the server's answer is too long"
link '<%s>; rel="next"' "$more"; expect "nor for ever" 1 'more files than 64 pages'
link '<%s?cursor=4>; rel="next"' "$more"; expect "nor with something else" 1 'not JSON'
link '<%s/x y>; rel="next"' "$at"; expect "nor at an address with a space" 1 'is at http://.*, which is not a valid URL'
link '<http://[::1>; rel="next"'; expect "nor at half of one" 1 'is at http://.*, which is not a valid URL'
link '<foo://%s%s>; rel="next"' "${at#http://}" "$more"; expect "nor by a protocol that nobody knows" 1 'another server'
{ printf '['; head -c $(((16 << 20) - 2)) /dev/zero | tr '\0' ' '; printf ']'; } >"$tmp/www/list-5.json"
link '<%s?cursor=5>; rel="next"' "$more"; expect "nor further than 16 MB" 1 'the list of files is longer than 16 MB'
echo >>"$tmp/www/list-5.json"
pull hf:o/p --hf-base "$at"; expect "nor a page that is longer by itself" 1 'longer than 16777216 bytes'
rm "$tmp/www/link.txt" "$tmp/www/list-5.json"
unset HF_TOKEN
mv "$tmp/tokens" "$tmp/config/pippin/tokens"
# when asked for the rest, the server tells the real length
pull "$at/long/y.gguf"; expect "a length that is a lie" 0; whole "ends where the file does" y.gguf

# a server that does not tell the length: the download ends where it does, at the latest when the disk is nearly full
pull "$at/nosize/p.gguf"; expect "without a length" 0; whole "is there, too" p.gguf
mkdir "$tmp/small"
# small NAME CODE PATTERN URL: downloads to a disk of 8 MiB; the names of the files there go to $tmp/there
small() {
    at_small=$4
    export pippin at_small tmp
    unshare -rm sh -c 'mount -t tmpfs -o size=8m none "$tmp/small" || exit 99
        export XDG_DATA_HOME="$tmp/small"
        timeout 60 "$pippin" models pull "$at_small" >"$tmp/out" 2>"$tmp/err" </dev/null
        code=$?
        df -P -k "$tmp/small" | awk "NR == 2 {print \$4}" >"$tmp/free"
        ls "$tmp/small/pippin/models" >"$tmp/there"
        exit "$code"' 2>/dev/null
    code=$?
    expect "$1" "$2" "$3"
}
if unshare -rm mount -t tmpfs none "$tmp/small" 2>/dev/null; then
    small "a small disk" 0 "" "$at/plain/x.gguf"
    small "without a length or an end" 1 'the total is unknown.*free some space' "$at/endless/x.gguf"
    holds "some of the disk stays free" [ "$(cat "$tmp/free")" -gt 400 ]
    holds "and nothing is kept that cannot be gone on with" [ ! -s "$tmp/there" ]
    small "without an end, and with a name" 1 'MB were kept' "$at/growing/x.gguf"
    holds "is kept" grep -q 'x.gguf.part$' "$tmp/there"
    dd if=/dev/zero of="$tmp/www/big.gguf" bs=1M count=9 2>/dev/null
    small "more than there is room for" 1 '9.4 MB are still missing' "$at/plain/big.gguf"
    holds "is not begun" [ ! -s "$tmp/there" ]
else
    skip "no file system of its own for a small disk here"
fi

# interrupted in the middle, and continued
: >"$tmp/www/held"
by_hand "$at/held/k.gguf"
comes [ -s "$models/k.gguf.part" ]; kill -INT $hand; wait $hand; code=$?
mv "$tmp/by-hand" "$tmp/err"
expect "an interrupt" 130
if [ -s "$models/k.gguf.part" ] && [ ! -e "$models/k.gguf" ]; then pass "keeps what there is"; else fail "keeps what there is" "$(ls -l "$models")"; fi
grep -q 'same command again to continue' "$tmp/err" && pass "and says so" || fail "and says so" "not"
rm "$tmp/www/held"
pull "$at/held/k.gguf"; expect "the rest" 0; whole "makes a whole" k.gguf

# killed: continued from what is surely on the disk, without the rest, which a power cut may have damaged
ln -s "$PWD/engine/starter/starter-Q4_K_M.gguf" "$tmp/www/killed.gguf"
: >"$tmp/www/held"
sure=100000
more_is_sure() { [ "$(sed -n 2p "$models/killed.gguf.part.from" 2>/dev/null || echo 0)" -gt "$sure" ] 2>/dev/null; }
"$pippin" models pull "$at/held/killed.gguf" >/dev/null 2>&1 </dev/null &
holds "what has come is noted" comes more_is_sure
kill -KILL $!; wait $! 2>/dev/null
holds "a kill leaves what was noted" more_is_sure
sure=$(sed -n 2p "$models/killed.gguf.part.from")
printf 'what is no part of it' >>"$models/killed.gguf.part"
by_hand "$at/held/killed.gguf"
holds "which is gone on with" comes more_is_sure
kill -INT $hand; wait $hand
pull "$at/plain/killed.gguf"; expect "and goes on" 0
holds "to a whole" cmp -s engine/starter/starter-Q4_K_M.gguf "$models/killed.gguf"

# two downloads at the same time would write to the same part
by_hand "$at/held/twice.gguf"
comes [ -s "$models/twice.gguf.part" ]
pull "$at/held/twice.gguf"; expect "what is being fetched is refused" 1 'another pippin is downloading .*twice.gguf'
rm "$tmp/www/held"
if wait $hand; then pass "and comes"; else fail "and comes" "it failed"; fi
whole "as it should" twice.gguf

# models of the hub
file() { printf '{"type":"file","path":"%s","size":%s,"lfs":{"oid":"%s"}}' "$1" "$2" "$3"; }
printf '[%s,%s,%s,%s]' "$(file q-Q8_0.gguf "$size" "$sum")" "$(file q-Q4_K_M.gguf "$size" "$sum")" \
    "$(file s-00001-of-00002.gguf "$size" "$sum")" "$(file s-00002-of-00002.gguf "$size" "$sum")" >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"; expect "hf: takes the usual type" 0 'downloading .*q-Q4_K_M.gguf'; whole "is there" q-Q4_K_M.gguf
pull hf:o/n:Q8_0 --hf-base "$at"; expect "or the one asked for" 0 'downloading .*q-Q8_0.gguf'
pull hf:o/n:Q9 --hf-base "$at"; expect "one that is not there" 3 'no file "Q9"'
pull hf:o --hf-base "$at"; expect "hf: half a name" 2
# an exact name is preferred to longer ones that contain it; files that accompany models are not chosen
for n in v-Q4_K_M v-UD-Q4_K v-Q4_K mmproj-v-Q8_0 imatrix-v v-F16; do ln -s "$PWD/$model" "$tmp/www/$n.gguf"; done
listed() { for n in "$@"; do file "$n.gguf" "$size" "$sum"; printf ,; done | sed 's/,$/]/; s/^/[/' >"$tmp/www/list.json"; }
listed imatrix-v mmproj-v-Q8_0 v-F16
pull hf:o/n --hf-base "$at"; expect "the only model" 0 'downloading .*/v-F16.gguf$'
pull hf:o/n:v --hf-base "$at"; expect "also by a part of its name" 0 '/v-F16.gguf is already there$'
pull hf:o/n:Q8_0 --hf-base "$at"; expect "what is no model is not meant" 3 'no file "Q8_0"'
listed v-Q4_K_M v-UD-Q4_K v-Q4_K
pull hf:o/n:v-Q4_K --hf-base "$at"; expect "a name before one that begins with it" 0 'downloading .*/v-Q4_K.gguf$'
pull hf:o/n:v-q4_k.gguf --hf-base "$at"; expect "with its ending too" 0 '/v-Q4_K.gguf is already there$'
listed v-Q4_K_M v-Q4_K
pull hf:o/n:q4_k --hf-base "$at"; expect "and a type" 0 '/v-Q4_K.gguf is already there$'
listed v-F16 s-00001-of-00002 s-00002-of-00002 v-Q4_K
pull hf:o/n:S --hf-base "$at"; expect "a split model by its name" 0 'downloading .*/s-00002-of-00002.gguf$'
rm "$models"/s-0000*.gguf
HF_ENDPOINT=$at pull hf:o/n:s-00001 ; expect "all parts of a split model" 0; whole "the second one too" s-00002-of-00002.gguf
"$pippin" models list --json >"$tmp/out"
holds "no part's checksum is the model's" grep -q '"path": "[^"]*/s-00001-of-00002.gguf".*"source": "hf:o/n:s-00001", "sha256": "", ' "$tmp/out"
pull hf:o/n:s-00001 --hf-base "$at" --sha256 "$sum"; expect "one checksum for several files" 2 'has 2'
echo other >"$models/l.gguf"
printf '[%s]' "$(file l.gguf "$size" "$sum")" >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"; expect "another file of that name" 2 'a different file'
[ "$(cat "$models/l.gguf")" = other ] && pass "is left alone" || fail "is left alone" "it is not"
rm "$models/l.gguf"
printf '[%s]' "$(file l.gguf 123 "$sum")" >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"; expect "a size that is not as announced" 1 'were announced'
printf '[%s]' "$(file endless.gguf "$size" "$sum")" >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"; expect "more than was announced" 1 "has more than the $size bytes"
[ -e "$models/endless.gguf" ] || [ -e "$models/endless.gguf.part" ] && fail "is not kept either" "it is" || pass "is not kept either"
for n in config.json tokenizer.json adapter_config.json; do echo '{}' >"$tmp/www/$n"; done
for n in model.safetensors consolidated.safetensors 'model-a b.safetensors'; do printf '\2\0\0\0\0\0\0\0{}' >"$tmp/www/$n"; done
printf '[%s,%s,%s,%s,%s,%s]' "$(file config.json 3 x)" "$(file tokenizer.json 3 x)" "$(file adapter_config.json 3 x)" \
    "$(file model.safetensors 10 x)" "$(file consolidated.safetensors 10 x)" "$(file 'model-a b.safetensors' 10 x)" >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"
for n in config.json tokenizer.json model.safetensors model-a%20b.safetensors; do
    grep -q "downloading .*/$n\$" "$tmp/err" && pass "a folder: $n" || fail "a folder: $n" "not fetched"
done
grep -q "downloading .*\(adapter_config\|consolidated\)" "$tmp/err" && fail "a folder: what else lies there" "was fetched" || pass "a folder: what else lies there"
[ -s "$models/o_n/config.json" ] && pass "in a folder of its own" || fail "in a folder of its own" "$(ls "$models")"
# files that are downloaded with a model: vocabularies of any name, templates, and the modules of sentence-transformers
# in their folders
mkdir -p "$tmp/www/1_Pooling"
printf '{"pooling_mode_mean_tokens":true}' >"$tmp/www/1_Pooling/config.json"
printf 'YQ== 0' >"$tmp/www/qwen.tiktoken"
for n in modules.json generation_config.json chat_template.json chat_template.jinja vocab.txt; do echo '{}' >"$tmp/www/$n"; done
printf '[%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s]' "$(file config.json 3 x)" "$(file model.safetensors 10 x)" \
    "$(file 1_Pooling/config.json 33 x)" "$(file qwen.tiktoken 6 x)" "$(file modules.json 3 x)" \
    "$(file generation_config.json 3 x)" "$(file chat_template.json 3 x)" "$(file chat_template.jinja 3 x)" \
    "$(file vocab.txt 3 x)" "$(file onnx/config.json 3 x)" "$(file ../../1_x/config.json 3 x)" >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"
for n in 1_Pooling/config.json qwen.tiktoken modules.json generation_config.json chat_template.json chat_template.jinja vocab.txt; do
    cmp -s "$tmp/www/$n" "$models/o_n/$n" && pass "goes along: $n" || fail "goes along: $n" "it is not there"
done
grep -q 'downloading .*\(onnx\|1_x\)' "$tmp/err" && fail "other folders stay" "fetched" || pass "other folders stay"
# weights of modules, templates for other purposes, and the description of NVIDIA's quantised weights
mkdir -p "$tmp/www/2_Dense" "$tmp/www/additional_chat_templates"
cp "$tmp/www/model.safetensors" "$tmp/www/2_Dense/"
for n in 2_Dense/config.json hf_quant_config.json additional_chat_templates/tool_use.jinja additional_chat_templates/rag.jinja; do echo '{}' >"$tmp/www/$n"; done
more() { printf ',%s' "$(file 2_Dense/config.json 3 x)" "$(file 2_Dense/model.safetensors 10 x)" "$(file hf_quant_config.json 3 x)" \
    "$(file additional_chat_templates/tool_use.jinja 3 x)" "$(file additional_chat_templates/rag.jinja 3 x)" "$(file 2_Dense/pytorch_model.bin 3 x)"; }
printf '[%s,%s%s]' "$(file config.json 3 x)" "$(file model.safetensors 10 x)" "$(more)" >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"
for n in 2_Dense/config.json 2_Dense/model.safetensors hf_quant_config.json additional_chat_templates/tool_use.jinja additional_chat_templates/rag.jinja; do
    cmp -s "$tmp/www/$n" "$models/o_n/$n" && pass "goes along: $n" || fail "goes along: $n" "it is not there"
done
[ -e "$models/o_n/tool_use.jinja" ] && fail "and nowhere else" "$(ls "$models/o_n")" || pass "and nowhere else"
grep -q 'downloading .*\.bin' "$tmp/err" && fail "pickles stay" "fetched" || pass "pickles stay"
printf '[%s%s]' "$(file config.json 3 x)" "$(more)" >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"; expect "a module's weights alone are no model" 3 'neither GGUF'
rm -r "$models/o_n"
cp "$tmp/www/page.gguf" "$tmp/www/model.safetensors"
printf '[%s,%s]' "$(file config.json 3 x)" "$(file model.safetensors 0 x)" >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"; expect "a page instead of weights" 1 'model.safetensors: it is not a safetensors file but a web page'
[ -e "$models/o_n/model.safetensors" ] && fail "is not kept, too" "it is" || pass "is not kept, too"
printf '[%s]' "$(file README.md 12 x)" >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"; expect "no model at all" 3 'neither GGUF'
printf 'rubbish' >"$tmp/www/list.json"
pull hf:o/n --hf-base "$at"; expect "an answer that is no JSON" 1 'not JSON'
pull ollama:m --ollama-base "$at"; expect "ollama:" 0 'm-latest is '; whole "is there" m-latest.gguf
pull ollama:m:elsewhere --ollama-base "$at"; expect "a manifest that leads elsewhere" 1 'no checksum for its model'

comes grep -q 'no data for' "$tmp/stall"; kill -INT $stall; wait $stall; code=$?
mv "$tmp/stall" "$tmp/err"
expect "a server that sends nothing any more is waited for aloud" 130 'no data for [1-9][0-9]* s; .*, 6 minutes'
expect "and what it sent is kept" 130 'MB were kept'
wait $never; code=$(cat "$tmp/never-code"); mv "$tmp/never" "$tmp/err"
expect "a line that breaks until nothing more is tried" 1 'the connection broke .*; try again later'
# The part may be of another file, whatever the ETag says.
printf 'another' | dd of="$models/v.gguf.part" bs=1 seek=100000 conv=notrunc 2>/dev/null
pull "$at/plain/v.gguf"; expect "the same name at another address" 0; whole "begins anew there" v.gguf

counted
