#!/bin/sh
# test_lora_screen.sh - the real program with the bundled starter in a private tmux: bard on, off, and half with barista.
# Each answer says on the screen what it was written under, and is, word for word, that of a new process that had the same
# adapters from the start. Then an adapter whose name a terminal would obey, a paste with
# the bytes of Ctrl-C, Ctrl-Z and Ctrl-\, a pipe in place of a file, and a context that is full.
program=${PIPPIN:-${BUILD:-build}/pippin}
case $program in /*) ;; *) program=$PWD/$program ;; esac
command -v tmux >/dev/null || { echo "skip: no tmux"; echo "0 passed, 0 failed"; exit 0; }
[ -r engine/starter/bard.gguf ] || { echo "skip: no starter"; echo "0 passed, 0 failed"; exit 0; }
work=$(mktemp -d /tmp/pippin-lora-XXXXXX)
socket=pippin-lora-$$
export HOME="$work" XDG_CONFIG_HOME="$work/config" XDG_DATA_HOME="$work/data" XDG_STATE_HOME="$work/state"
export XDG_CACHE_HOME="$work/cache" LC_ALL=C.UTF-8 INPUTRC=/dev/null
unset TMUX NO_COLOR
t() { tmux -L "$socket" -f /dev/null "$@"; }
trap 't kill-server 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# see TEXT [TIMES]: waits up to a minute until that many lines of the screen contain it
see() {
    i=0
    while [ $i -lt 300 ]; do
        t capture-pane -t chat: -p >"$work/screen" 2>/dev/null
        [ "$(grep -cF -- "$1" "$work/screen")" -ge "${2:-1}" ] && return 0
        i=$((i + 1))
        sleep 0.1
    done
    why="did not show: $1"
    return 1
}
keys() { t send-keys -t chat: "$@"; }
say() { t send-keys -t chat: -l "$1" && keys Enter; }

mkdir -p "$work/data/pippin/adapters"
cp engine/starter/bard.gguf "$work/data/pippin/adapters/$(printf 'zz\003\033[31m\n\t\177').gguf"
t new-session -d -s chat -x 100 -y 50 "$program -t 1 --seed 7 --temp 0 -n 12 --overflow stop; sleep 100"
t set-option -s escape-time 0
conversation() {
    see " ready " && keys F3 && see "fits; LoRA of rank" && see "[ ] bard" && keys Space && see "[x] bard" && keys Escape &&
        sleep 0.5 && say "Tell me about the sea." && see "pippin  bard 1.00" && see " ready " &&
        say "/lora off" && see "all adapters are off" && say "/regen" && see "‹ 2 of 2 ›" && see " ready " &&
        ! grep -q "2 of 2 ›  bard" "$work/screen" &&
        say "/lora bard 0.5" && see "scale 0.50" && say "/lora barista 0.5" && see "bard 0.50, barista 0.50" &&
        say "/regen" && see "‹ 3 of 3 ›  bard 0.50, barista 0.50" && see " ready " && compared
}
# stored NUMBER OPTION...: this answer of the conversation is what a run with these options writes
stored() {
    wanted=$1
    shift
    answer=$("$program" run -t 1 --seed 7 --temp 0 -n 12 "$@" -p "Tell me about the sea." 2>/dev/null </dev/null)
    [ -n "$answer" ] && sed -n "s/.*\"content\":\"\([^\"]*\)\".*/\1/;s/ *\$//;${wanted}p" "$work/answers" >"$work/answer" &&
        [ "$(cat "$work/answer")" = "$answer" ] && return 0
    why="answer $wanted is \"$(cat "$work/answer")\", not \"$answer\""
    return 1
}
compared() {
    "$program" sessions export --all --format jsonl 2>/dev/null | sed 's/{"role":/\n{"role":/g' |
        grep '^{"role":"assistant"' | sed 's/\(.*"id":\([0-9]*\).*\)/\2 \1/' | sort -n >"$work/answers"
    stored 1 --lora bard && stored 2 && stored 3 --lora-scaled bard:0.5 --lora-scaled barista:0.5
}
hostile() { # a name with control characters must not break the menu's frame, either
    keys F3 && see "zz␃␛[31m␊␉␡.gguf  +1.00 │" && keys Escape && sleep 0.5 &&
    mkfifo "$work/pipe" && say "/import $work/pipe" && see "is not a regular file" &&
        printf 'one \003 two \032 three \034 four' >"$work/paste" && t load-buffer "$work/paste" &&
        t paste-buffer -p -r -t chat: && see "four" && keys 'C-\' && see "pippin --resume"
}
no_room() { # answers side by side that could not begin must not look as if they went on
    t rename-session -t =chat before # tmux ends with its last session, and would take a new one with it
    t new-session -d -s chat -x 100 -y 50 "$program -t 1 --seed 7 --temp 0 -n 12 -c 64 --overflow stop; sleep 100"
    t kill-session -t =before
    see " ready " && say "Tell me about the sea." && see " ready · " &&
        say "And what of the ships, the old harbour, the lighthouse, and all the people who live there and wait for them?" && see "the context is full: " &&
        see "■ unfinished" && say "/compare none bard" && see "3 of 3" && see "■ unfinished" 1 && keys C-l &&
        grep -q "■ unfinished .*■ unfinished" "$work/screen"
}
passed=0
for part in conversation hostile no_room; do
    if $part; then
        echo "ok   $part"
        passed=$((passed + 1))
    else
        echo "FAIL $part ($why)"
        cat "$work/screen"
        echo "$passed passed, 1 failed"
        exit 1
    fi
done
echo "$passed passed, 0 failed"
