#!/bin/sh
# test_layers.sh - includes point one way: src/main.c -> ui -> src -> engine -> engine/base; and files stay small.
set -u
passed=0
failed=0
check() { # name, offending lines
    if [ -z "$2" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED %s\n%s\n' "$1" "$2"
    fi
}
includes() { grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$@" /dev/null; }

check 'engine/base includes only engine/base' "$(includes engine/base/*.[ch] | grep -v '"engine/base/')"
check 'engine includes only engine' "$(includes engine/*.[ch] engine/arch/*.[ch] engine/cpu/*.[ch] | grep -v '"engine/')"
check 'src includes only src and engine' "$(includes $(ls src/*.[ch] | grep -v '^src/main.c$') | grep -vE '"(src|engine)/')"
check 'ui includes only ui, src and engine' "$(includes ui/*.[ch] | grep -vE '"(ui|src|engine)/')"
check 'src/main.c includes no further than ui' "$(includes src/main.c | grep -vE '"(ui|src|engine)/')"
# The application and the screen use the engine through its public headers and the base, not its internal ones, with the
# exceptions named here.
public='"engine/(engine|text|reasoning|grammar|convert|train|stats|safetensors|gguf|source|adapter_file|bench|fit)\.h"|"engine/base/'
check 'src uses public headers of the engine' "$(includes src/*.[ch] | grep '"engine/' | grep -vE "$public")"
check 'ui uses public headers of the engine' "$(includes ui/*.[ch] | grep '"engine/' | grep -vE "$public")"
check 'no terminal in engine and src' "$(grep -HnE '#include <(curses|ncurses|readline)' engine/*.[ch] engine/*/*.[ch] src/*.[ch])"
check 'no database outside src/store' "$(grep -HnE '#include <sqlite3' engine/*.[ch] engine/*/*.[ch] ui/*.[ch] $(ls src/*.[ch] | grep -v '^src/store'))"
check 'upper and lower case do not hang on the locale (engine/base/word.h)' \
      "$(grep -HnE '(^|[^_a-z0-9])(strn?casecmp|strcasestr|tolower|toupper|is(alpha|alnum|upper|lower|space|punct))\(' engine/*.[ch] engine/*/*.[ch] src/*.[ch] ui/*.[ch] | grep -v ':[[:space:]]*\(/\*\| \*\|"\)')"
check 'members of JSON are asked for as they are written (pp_json_member)' \
      "$(grep -HnE 'cJSON_(Get|Has)ObjectItem\(' engine/*.[ch] engine/*/*.[ch] src/*.[ch] ui/*.[ch])"
check 'members of JSON that are only read are asked for by one name (pp_json_member)' \
      "$(grep -Hn 'cJSON_GetObjectItemCaseSensitive(' engine/*.[ch] engine/arch/*.[ch] engine/cpu/*.[ch] src/*.[ch] ui/*.[ch] | grep -v ':  *cJSON \*[a-z]* = cJSON_Get')"
check 'no file that is opened is handed to programs that are started' \
      "$(grep -HnE '[^_a-z](fopen|fdopen)\([^;]*, "[rwa]b?\+?"\)|[^_a-z.>](open|openat)\([^;]*O_(RD|WR)|[^_a-z]dup2?\(' engine/*.c engine/*/*.c src/*.c ui/*.c | grep -vE 'O_CLOEXEC|fdopen|"/dev/null"')"
check 'families stay out of the backend' "$(grep -HnEi 'llama|qwen|gemma|mistral' engine/cpu/*.[ch])"
check 'files of at most 1,200 lines' "$(wc -l engine/*.[ch] engine/*/*.[ch] src/*.[ch] ui/*.[ch] tests/*.[ch] | awk '$2 != "total" && $1 > 1200 {print $2 ": " $1 " lines"}')"
check 'lines of at most 120 columns' "$(LC_ALL=C.UTF-8 grep -nE '^.{121,}' engine/*.[ch] engine/*/*.[ch] src/*.[ch] ui/*.[ch] tests/*.[ch] | cut -c1-100)"
check 'nothing below main exits' "$(grep -HnE '(^|[^_a-z])exit\(' engine/*.c engine/*/*.c $(ls src/*.c | grep -vE '^src/main.c$'))"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
