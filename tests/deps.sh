#!/bin/sh
# deps.sh [look] [test] [fuzz] [lint] - installs what is needed to build pippin; with "test" also what the tests need,
# with "fuzz" the compiler of the fuzz targets, with "lint" the checkers of the source; with "look" it only says what is
# missing.
#
# On Debian and its relatives missing packages are installed, as root or by a sudo that asks for no password; otherwise
# the one command to type is printed. On other systems the missing libraries are named.
set -u

wanted="gcc libc6-dev libncurses-dev libreadline-dev libsqlite3-dev libcjson-dev libutf8proc-dev libpcre2-dev libmd4c-dev libinih-dev
        libxxhash-dev nettle-dev libcurl4-openssl-dev"
look=
test=
fuzz=
lint=
for word; do
    case $word in
    look) look=1 ;;
    test)
        test=1 wanted="$wanted libcmocka-dev tmux mandoc"
        # The kernels for ARM are built, and run in an emulator, by tests/test_arm.sh.
        [ "$(uname -m)" = x86_64 ] && wanted="$wanted gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"
        ;;
    fuzz) fuzz=1 wanted="$wanted libcmocka-dev clang" ;;
    lint) lint=1 wanted="$wanted cppcheck clang-tidy" ;;
    esac
done

# The version in the name of the compiler on which the package "clang" depends: its fuzzing runtime is a package of that
# version.
clang_number() {
    { dpkg-query -W -f='${Depends}\n' clang; apt-cache show clang; } 2>/dev/null | sed -n 's/.*clang-\([0-9][0-9]*\).*/\1/p' | head -n 1
}

if command -v dpkg-query >/dev/null 2>&1; then
    run=none
    if [ "$(id -u)" = 0 ]; then
        run=
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        run=sudo
    fi
    if [ -n "$fuzz" ]; then
        [ -z "$(clang_number)" ] && [ "$run" != none ] && $run apt-get update >/dev/null 2>&1
        number=$(clang_number)
        [ -n "$number" ] && wanted="$wanted libclang-rt-$number-dev"
    fi
    missing=
    for p in $wanted; do
        case "$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null)" in
        *"ok installed") ;;
        *) missing="$missing $p" ;;
        esac
    done
    [ -z "$missing" ] && exit 0
    if [ -n "$look" ]; then
        echo "These packages seem to be missing (make deps installs them):$missing" >&2
        exit 0
    fi
    install="apt-get install -y --no-install-recommends$missing"
    if [ "$run" = none ]; then
        echo "These packages are missing:$missing" >&2
        # Without the dash su keeps a PATH without the programs that dpkg calls.
        command -v sudo >/dev/null 2>&1 && install="sudo $install" || install="su - -c '$install'"
        echo "Install them with:  $install" >&2
        exit 1
    fi
    echo "installing:$missing"
    log=$(mktemp)
    # The package lists may be old or absent: they are fetched only if installing fails.
    if ! DEBIAN_FRONTEND=noninteractive $run $install >"$log" 2>&1; then
        $run apt-get update >"$log" 2>&1 &&
            DEBIAN_FRONTEND=noninteractive $run $install >>"$log" 2>&1 || {
            cat "$log" >&2
            echo "Installing failed; the command was:  $install" >&2
            rm -f "$log"
            exit 1
        }
    fi
    rm -f "$log"
    exit 0
fi

# On other systems: a library is there if its header compiles.
cc=${CC:-cc}
absent=
have() { printf '#include <stdio.h>\n#include <%s>\nint main(void){return 0;}\n' "$2" | $cc -D_GNU_SOURCE -x c -fsyntax-only - 2>/dev/null || absent="$absent $1"; }
have ncursesw ncurses.h
have readline readline/readline.h
have sqlite3 sqlite3.h
have cJSON cjson/cJSON.h
have utf8proc utf8proc.h
have md4c md4c.h
have inih ini.h
have xxHash xxhash.h
have nettle nettle/sha2.h
printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n' | $cc -x c -fsyntax-only - 2>/dev/null || absent="$absent PCRE2"
if [ -n "$test" ]; then
    printf '#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <setjmp.h>\n#include <cmocka.h>\n' |
        $cc -x c -fsyntax-only - 2>/dev/null || absent="$absent cmocka"
    command -v tmux >/dev/null || absent="$absent tmux"
    command -v mandoc >/dev/null || absent="$absent mandoc"
fi
if [ -n "$fuzz" ]; then
    printf 'int LLVMFuzzerTestOneInput(const char *p, long n) { return !p && n; }\n' |
        clang -x c -fsanitize=fuzzer - -o /dev/null 2>/dev/null || absent="$absent clang-with-libFuzzer"
fi
if [ -n "$lint" ]; then
    command -v cppcheck >/dev/null || absent="$absent cppcheck"
    command -v clang-tidy >/dev/null || absent="$absent clang-tidy"
fi
[ -z "$absent" ] && exit 0
echo "These libraries or programs are missing; install them with your system's package manager:$absent" >&2
[ -n "$look" ]
