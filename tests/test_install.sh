#!/bin/sh
# test_install.sh - make install puts everything in its place under DESTDIR and PREFIX, the program finds its files
# there wherever it is started, and make uninstall leaves nothing behind.
set -u
BUILD=${BUILD:-build}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0
holds() { # NAME COMMAND...: the command succeeds
    name=$1
    shift
    if "$@" >"$tmp/out" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED %s\n' "$name"
        sed 's/^/  | /' "$tmp/out"
    fi
}
# a separate make, not a part of the one that runs the tests
remake() { env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make BUILD="$BUILD" DESTDIR="$tmp/root" PREFIX=/opt/pippin "$@"; }
share=$tmp/root/opt/pippin/share
answers() (
    cd / && echo "Hello, who are you?" |
        env HOME="$tmp/home" "$1/bin/pippin" run --temp 0 -n 32 | grep -q "^Hello! I am Pippin"
)

holds "make install" remake install
for file in ../bin/pippin man/man1/pippin.1 man/man5/pippin.conf.5 man/man5/pippin-formats.5 \
    pippin/themes/dark.theme pippin/starter/starter-Q4_K_M.gguf pippin/starter/bard.gguf doc/pippin/LICENSE \
    bash-completion/completions/pippin zsh/site-functions/_pippin fish/vendor_completions.d/pippin.fish; do
    holds "$file" test -s "$share/$file"
done
holds "the completion is one that bash reads" bash -n "$share/bash-completion/completions/pippin"
mv "$tmp/root/opt/pippin" "$tmp/moved"
holds "the program finds its model, also when moved" answers "$tmp/moved"
mv "$tmp/moved" "$tmp/root/opt/pippin"
holds "make uninstall" remake uninstall
holds "leaves no file" test -z "$(find "$tmp/root" ! -type d)"
holds "make help" sh -c 'make help | grep -q "make install"'
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
