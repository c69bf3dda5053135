#!/bin/sh
# Screen tests: keys in, screen text out, in a private tmux, with the double of the controller
# (tests/fake_controller.c).
#   tests/screens/run.sh [PROGRAM [CASE ...]]     PROGRAM: $BUILD/pippin-fake, build/pippin-fake
# Prints a line for each case; fails if one fails. Waits for what it expects instead of sleeping.

program=${1:-${BUILD:-build}/pippin-fake}
[ $# -gt 0 ] && shift
wanted=$*
case $program in /*) ;; *) program=$PWD/$program ;; esac
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
command -v tmux >/dev/null || { echo "skip: no tmux, the screen tests did not run"; echo "0 passed, 0 failed"; exit 0; }
[ -x "$program" ] || { echo "no program $program"; exit 1; }

socket=pippin-test-$$
work=$(mktemp -d /tmp/pippin-screens-XXXXXX)
export HOME="$work" XDG_CONFIG_HOME="$work/config" XDG_DATA_HOME="$work/data"
export XDG_STATE_HOME="$work/state" XDG_CACHE_HOME="$work/cache"
export LC_ALL=C.UTF-8 INPUTRC=/dev/null
unset NO_COLOR COLORFGBG VISUAL EDITOR PIPPIN_FAKE_MESSAGES TMUX
mkdir -p "$work/config/pippin"
ln -s "$root/themes" "$work/config/pippin/themes"
# a name that need not be quoted in shells
ln -s "$program" "$work/pippin"
program=$work/pippin
trap 'tmux -L $socket kill-server 2>/dev/null; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

t() { tmux -L "$socket" -f /dev/null "$@"; }
# hold: from now on the double's loading, reading of a question and searches do not end, until release
export PIPPIN_FAKE_HOLD="$work/hold"
hold() { : >"$PIPPIN_FAKE_HOLD"; }
release() { rm -f "$PIPPIN_FAKE_HOLD"; }
t new-session -d -s base "exec cat" && t set-option -s escape-time 0

# start SIZE [ENVIRONMENT] [ARGUMENTS]: a shell runs the program, then shows its exit code; the terminal's modes before
# and after are saved, the latter before the exit code is shown
start() {
    t kill-session -t =case 2>/dev/null
    run="sh -c 'echo \$\$ >$work/pid; exec env $2 $program $3'"
    t new-session -d -s case -x "${1%x*}" -y "${1#*x}" \
        "stty -echoctl; stty -a >$work/before; $run; code=\$?; stty -a >$work/after; echo exit=\$code; cat >/dev/null"
}
screen() { t capture-pane -t case: -p "$@"; }
keys() { t send-keys -t case: "$@"; }
text() { t send-keys -t case: -l "$1"; }
resize() { t resize-window -t case: -x "${1%x*}" -y "${1#*x}"; }
paste() { t load-buffer - && t paste-buffer -p -t case:; }
ask_tmux() { t display-message -t case: -p "$1"; }
say() { t send-keys -t case: -l "$1" \; send-keys -t case: Enter; }
# a sanitized program (make asan-scripts) needs more address space than there is memory
can_limit() { command -v prlimit >/dev/null && [ -z "${PIPPIN_SANITIZED:-}" ]; }

# Waits until the command ends with the status: 0 for text that must appear, 1 for text that must go; but no longer than
# a minute, which suffices on a busy machine, too.
tries=1200
becomes() { # status, command...
    want=$1
    shift
    i=0
    while [ $i -lt $tries ]; do
        "$@"
        [ $? -eq "$want" ] && return 0
        i=$((i + 1))
        [ $i -gt 3 ] && sleep 0.05 || sleep 0.02
    done
    return 1
}
shows() { # called most often: takes only one process
    case $(exec tmux -L "$socket" capture-pane -t case: -p $2 2>/dev/null) in *"$1"*) ;; *) false ;; esac
}
shows_styled() { screen -e 2>/dev/null | grep -q -- "$1"; }
shows_behind() { screen | grep -A 3 -F -- "$1" | grep -qF -- "$2"; }
# see TEXT / gone TEXT: waits until it is (or no longer is) on the screen
see() { becomes 0 shows "$1" "$2" || { why="did not show: $1"; return 1; }; }
gone() { becomes 1 shows "$1" || { why="did not go: $1"; return 1; }; }
# see_styled RE / gone_styled RE: waits until it matches (or no longer matches) the screen with its escape sequences
see_styled() { becomes 0 shows_styled "$1" || { why="did not show in its style: $1"; return 1; }; }
gone_styled() { becomes 1 shows_styled "$1" || { why="did not lose its style: $1"; return 1; }; }
# see_behind TEXT MORE: waits until MORE is at most three lines below TEXT
see_behind() { becomes 0 shows_behind "$1" "$2" || { why="did not show behind \"$1\": $2"; return 1; }; }
# same FILE: waits until the screen is exactly this
is_same() { screen >"$work/screen" && cmp -s "$work/screen" "$here/$1"; }
same() {
    [ -z "$UPDATE" ] || tries=100
    becomes 0 is_same "$1" && return 0
    [ -n "$UPDATE" ] && { cp "$work/screen" "$here/$1"; return 0; }
    why="differs from tests/screens/$1: $(diff "$here/$1" "$work/screen" | head -6)"
    return 1
}
has() { grep -qF -- "$2" "$1" || { why="no '$2' in $1"; return 1; }; }
pid_of() { cat "$work/pid"; }
# rests: waits until the program has read everything that was typed, an Escape also as a key of its own, has drawn the
# result, and sleeps: for some looks in succession it has not run, nor was it stopped or kept waiting
rests() {
    at_rest=0
    tmux_is_done && becomes 0 sleeps && tmux_is_done || { why="did not come to rest"; return 1; }
}
tmux_is_done() { ask_tmux '' >/dev/null && ask_tmux '' >/dev/null; } # tmux handles one request after the other
sleeps() {
    now=$(awk '/^State/ {print $2} /ctxt/ {print $2}' "/proc/$(pid_of)/status")
    case $now in S*) [ "$now" = "$looked" ] && at_rest=$((at_rest + 1)) || at_rest=0 ;; *) at_rest=0 ;; esac
    looked=$now
    [ $at_rest -ge 4 ]
}

greeting_80x24() { start 80x24 && see "ready" && same greeting-80x24.txt; }
greeting_60x16() { start 60x16 && see "ready" && see "Enter sends  ·  F1 shows all keys"; } # nothing is cut off
greeting_20x5() { start 20x5 && see "ready" && same greeting-20x5.txt; }
absurd_sizes() { # sizes that a terminal may claim to have
    start 80x24 && see "ready" && say hello && see "You said" || return 1
    tty=$(ask_tmux '#{pane_tty}')
    for size in "65535 65535" "1 65535" "65535 1" "32767 32767" "0 0"; do
        stty -F "$tty" rows "${size% *}" cols "${size#* }"
        sleep 0.2
    done
    stty -F "$tty" rows 24 cols 80 && see "F10Quit" && see "You said" && keys F10 && see "exit=0"
}
size_of_another() { # the size of another terminal, from the environment
    start 80x24 "COLUMNS=1000000 LINES=1000000" && see "ready" && same greeting-80x24.txt &&
        start 80x24 "COLUMNS=20 LINES=5" && see "ready" && same greeting-80x24.txt &&
        start 80x24 "TERM=linux COLUMNS=20 LINES=5" && see "F10Quit" # terminfo knows no size of it
}
greeting_132x50() { start 132x50 && see "ready" && same greeting-132x50.txt; }
tiny() { # also with an error over a menu
    start 6x2 && see "›" && resize 1x1 && rests && resize 80x24 && see "F10Quit" && keys F3 && see bard &&
        text 7x && keys Enter && see "a scale is" && resize 2x2 && rests && resize 1x2 && rests &&
        resize 1x1 && rests && resize 80x24 && see "LoRA"
}

send_and_stream() {
    hold
    start 80x24 && see loading && release && see ready && hold && say "Hello there" && see "290 of 300 tokens" && release &&
        see "You said: Hello there" &&
        see "1,203 tok/s" &&
        same answer-80x24.txt
}
small_answer() { start 20x5 && see ready && say "some words to wrap" && see "wrap" && same answer-20x5.txt; }
markdown() {
    start 80x24 && see ready && say markdown && see "end of markdown" && see ready && same markdown-80x24.txt;
}
markdown_raw() { start 80x30 && see ready && keys F9 && say markdown && see '```c' && see '**bold**'; }
unicode() { start 60x12 && see ready && say unicode && see "end of unicode" && see ready && same unicode-60x12.txt; }
resize_while_streaming() {
    start 80x24 && see ready && say slow && see "word 20" && resize 33x9 && see "answering" &&
        resize 20x5 && see "answering" && resize 132x50 && see "word 80" && keys Escape && see "stopped"
}
follow_the_tail() {
    start 80x20 && see ready && say long && see "line 200 of" && keys PPage PPage && gone "line 200" && keys Home &&
        see "line 1 of" && keys End && see "line 200 of" && keys S-Up S-Up S-Up && gone "line 200"
}
first_number() { screen | sed -n 's/^ ▎ \([0-9][0-9]*\) .*/\1/p' | sed -n 1p; }
filled() { screen | sed -n 55,56p | grep -q " 3000"; } # of 60 lines, up to the one above the input line or a notice
begins_with() { screen | sed -n '1,2s/$/ /p' | grep -q "[^0-9]$1 "; }
place_is_kept() { # of a long message's text at the top, however lines are wrapped; a larger screen is filled
    start 80x20 && see ready && seq -s' ' 1 3000 | paste && see "3000" && keys Enter && see "1,203 tok/s" && see ready &&
        keys Home && see "▎ You" && keys NPage NPage NPage NPage && gone "▎ You" || return 1
    place=$(first_number)
    for size in 37x14 100x40 21x6 80x20; do
        resize $size && becomes 0 begins_with "$place" || { why="at $size the top was not $place"; return 1; }
    done
    keys F9 && see "Markdown is shown as plain text" && becomes 0 begins_with "$place" || { why="F9 left $place"; return 1; }
    keys F9 End && see " 3000" && keys PPage && gone " 3000" && resize 80x60 && becomes 0 filled
}
enlarged_to_the_tail() { # if the tail comes into view, the screen follows it; if it is still below the screen, it stays
    start 40x12 && see ready && say slow && see "word 70" && keys PPage && see "↓ new text" && resize 40x60 &&
        gone "↓ new text" && see "word 500" && keys PPage PPage && see "↓ new text" && resize 40x62 && sleep 0.3 &&
        see "↓ new text" && keys Escape
}
new_text_mark() {
    start 80x12 "" && see ready && say long && see "line 200 of" && see ready && keys PPage && say slow &&
        see "word 20" && keys PPage &&
        see "↓ new text" && keys End && gone "↓ new text" && keys PPage && see "↓ new text" && keys Escape &&
        see ready && say /undo && say /undo && gone "line 200 of" && gone "↓ new text"
}
many_messages() {
    start 80x24 PIPPIN_FAKE_MESSAGES=10000 && see "message number 10000" && keys Home && see "message number 1" &&
        keys End &&
        see "message number 10000"
}

loading_ends() {
    start 80x24 PIPPIN_FAKE_MESSAGES=4 && see "message number 4" && see ready && gone "loading the model"
}
paste_lines() {
    start 80x24 && see ready && printf 'one\ntwo\n\tthree' | paste && see "    three" && gone "You" &&
        keys Enter && see "You said: one" && see "two"
}
paste_megabyte() {
    start 80x24 && see ready && head -c 1000000 /dev/zero | tr '\0' 'x' | paste && see "xxxx" &&
        text "END" && see "xEND" && keys C-c && see "Write a message" && keys Up && see "xEND" && keys C-c &&
        ! grep -q xxxx "$work/state/pippin/history" 2>/dev/null
}
more_addresses() { # sets the limit to this many bytes more than the program has
    prlimit --pid "$(pid_of)" --as=$(($(awk '/^VmSize/ { print $2 }' "/proc/$(pid_of)/status") * 1024 + $1)):
}
paste_without_memory() { # an error is shown, and the program goes on; the text in the line stays
    can_limit || return 0
    for bytes in 12500000 42500000 77500000; do
        start 80x24 && see ready && more_addresses $bytes && text "before " &&
            head -c 16000000 /dev/zero | tr '\0' 'x' | paste && see "the paste was lost" && see "› before" &&
            text "after" && see "before after" && keys C-u && see "Write a message" || return 1
    done
    start 80x24 && see ready && head -c 4000000 /dev/zero | tr '\0' 'x' | paste && see "xxxx" &&
        for key in C-j M-Enter M-C-j; do
            more_addresses 0 && keys $key && see "the text was not changed" &&
                prlimit --pid "$(pid_of)" --as=unlimited: && keys Escape && gone "the text was not changed" || return 1
        done
    keys C-j && text "END" && see "  END"
}
paste_of_no_text() { # stays in the line, to be corrected
    start 80x24 && see ready && printf 'caf\351 here' | paste && see "here" && keys Enter && see "not accepted: that is not valid UTF-8" &&
        gone "You said" && see "here" && keys C-u && say "and so on" && see "You said: and so on"
}
paste_without_end() {
    start 80x24 && see ready && text "$(printf '\033[200~one\ntwo')" && see "mark the end of the paste" && see "› one" &&
        text "!" && see "two!" && keys Enter && see "You said: one" && see ready &&
        text "$(printf 'seen\033[200~, still coming')" && see "› seen" && kill -TERM "$(pid_of)" && see "exit=0" &&
        has "$work/state/pippin/history" "seen, still coming"
}
paste_behind_a_menu() { # the menu takes no text: it goes into the input line
    start 80x24 && see ready && keys F8 && see "Enter changes" && printf 'two\nlines' | paste &&
        see "the pasted text is in the" && keys Escape &&
        gone "Enter changes" && see "› two" && see "lines" && keys C-c && see "Write a message" && keys F2 &&
        see "Rain in" && printf 'evil' | paste && see "Search: evil" && keys Escape && see "› Write a message" &&
        start 44x14 && see ready && keys F8 && see "Enter changes" && printf 'two\nlines' | paste &&
        see "the pasted text is in the" && see "this menu" && keys Down && gone "this menu" && see "Enter changes"
}
paste_while_leaving() { # a paste that pauses is saved as far as it came, with the line and not with the result of a search
    start 80x24 PIPPIN_FAKE_CLOSES=300 && see ready && text "$(printf 'begun\033[200~ and pasted')" && see "› begun" &&
        kill -TERM "$(pid_of)" && see "exit=0" && has "$work/state/pippin/history" "begun and pasted" &&
        start 80x24 && see ready && text "line" && keys C-r && text "$(printf 'b\033[200~ and more')" &&
        see "› begun" && kill -TERM "$(pid_of)" && see "exit=0" && has "$work/state/pippin/history" "line and more"
}
multi_line() {
    start 80x24 && see ready && text first && keys C-j && text second && keys M-Enter && text third && keys Up &&
        text X && see "seconXd" &&
        keys Enter && see "You said: first"
}
history() {
    start 80x24 && see ready && say "alpha one" && see "You said: alpha" && see ready && say "beta two" &&
        see "You said: beta" && see ready &&
        keys Up Up && see "› alpha one" && keys C-c && keys C-r && text "beta" && see "reverse-i-search" &&
        see "› beta two" && keys C-c &&
        see "Write a message" && has "$work/state/pippin/history" "alpha one" &&
        keys Up && see "› alpha one" && keys C-c && see "Write a message" && text "typed since" && keys Up &&
        see "› alpha one" && keys Down && see "› typed since"
}
draft_comes_back() { # the text typed before an older line was looked up and sent
    start 80x24 && see ready && say "first one" && see "You said: first one" && see ready && text "not sent yet" &&
        keys Up && see "› first one" && keys Enter && see "› not sent yet" && keys C-u && see "› Write a message" &&
        see ready && say "/reasoning" && text "still to come" && keys Up && see "› /reasoning" && keys Enter &&
        see "› still to come" && keys Down Down && see "› still to come" && keys Up Up && gone "still to come" &&
        keys C-c && see "› Write a message" && keys Up Up && see "› still to come"
}
vi_keys() {
    printf 'set editing-mode vi\n' >"$work/vi"
    start 80x24 INPUTRC="$work/vi" && see ready && text "helo" && keys Escape && see "‹ helo" && text "il" &&
        keys Escape Escape &&
        see "‹ hello" && keys A && text "!" && see "› hello!" && keys C-c &&
        yes '日本語の文章は' | head -n 2800 | tr -d '\n' | paste && see "文章" && keys C-c && gone "文章" &&
        text "needle in hay" && keys C-c && see "Write a message" && keys Escape && see "‹" && text "/hay" &&
        keys Enter && see "‹ needle in hay" && keys A && text "!" && see "› needle in hay!" && keys C-c &&
        keys Escape && see "‹" && text "/no such" && keys Enter i && text "still there" && see "› still there"
}
older_lines() { # a refused line stays where it was looked up; an edited older line and the original are both kept
    printf '#!/bin/sh\nprintf " and the editor" >>"$1"\n' >"$work/ed.sh" && chmod +x "$work/ed.sh"
    start 80x24 EDITOR="$work/ed.sh" && see ready && say "oldest one" && see "You said: oldest" && see ready &&
        text "please refuse" && keys C-c && see "› Write a message" && text "half typed" && keys Up &&
        see "› please refuse" && keys Enter && see "Not now" && see "› please refuse" && keys Up && see "› oldest one" &&
        keys Down Down && see "› half typed" && keys Up && see "› please refuse" && text " this" && keys Enter &&
        see "Not now" && keys Up && see "› oldest" && keys Down && see "› please refuse this" && keys Down &&
        see "› half typed" && keys C-u Up Up && see "› oldest one" && text " changed" && keys C-c &&
        see "› Write a message" && keys Up && see "› oldest one changed" && keys Up Up Up && gone changed &&
        see "› oldest one" && keys C-g && see "› oldest one and the editor" && keys Down && gone editor && keys Up &&
        see "› oldest one and the editor"
}
wrong_keys() { # errors in the user's file of keys are shown in a safe form; a pipe is not waited for
    printf '"\033Pq: self-insert\nset bell-style none\n' >"$work/keys"
    start 80x24 INPUTRC="$work/keys" && see ready && see "/keys: line 1:" && keys F10 && see "exit=0" &&
        ! screen | grep -q "line 1" || return 1
    printf '"\\C-y": re-read-init-file\n' >"$work/keys" && start 80x24 INPUTRC="$work/keys" && see ready || return 1
    for key in "C-x C-r" C-y; do # both read the file again
        printf '"\033Pq: self-insert\n"\\C-t": "by a new key"\n' >"$work/keys"
        keys $key && see "/keys: line 1:" && keys C-t && see "› by a new key" && rm "$work/keys" &&
            mkfifo "$work/keys" && keys $key && see "the key bindings in" && keys C-u && see "› Write" || return 1
        rm "$work/keys" && printf '"\\C-t": "once more"\n' >"$work/keys" && keys $key C-t && see "› once more" &&
            keys C-u && see "› Write" || return 1
    done
    keys F10 && see "exit=0" && ! screen | grep -q "line 1" || return 1
    printf '"\\C-t": "before it"\n$include %s\n"\\C-y": re-read-init-file\n' "$work/keys" >"$work/keys" # includes itself
    start 80x24 INPUTRC="$work/keys" && see ready && see "includes itself" && keys C-t && see "› before it" &&
        keys C-u C-y && see "› Write" && keys C-t && see "› before it" && keys F10 && see "exit=0" || return 1
    rm -f "$work/keys.pipe"
    mkfifo "$work/keys.pipe" && start 80x24 INPUTRC="$work/keys.pipe" && see ready && see "the key bindings in" &&
        say "hello" && see "You said: hello"
}
alt_ctrl_j() { # does not leave the emacs mode
    start 80x24 && see ready && text "one" && keys M-C-j && text "two" && see "  two" && keys Escape && rests &&
        text "hi" && see "twohi"
}
whole_letters() { # letters of several characters: the cursor passes them, and keys delete them, as one
    start 80x24 && see ready && text "a👨‍👩‍👧b" && see "› a👨" && keys Left Left && text "X" && see "› aX👨" &&
        keys C-e Left BSpace && see "› aXb" && text "🇩🇪" && see "🇩" && keys BSpace && gone "🇩" && see "› aXb" &&
        keys C-a && text "👍🏽" && see "› 👍" && keys C-a DC && see "› aXb" && keys C-e && text "e" &&
        keys C-u && text "x👨‍👩‍👧y" && see "› x👨" && keys C-a Right Right && text "Z" && see "Zy" &&
        keys C-u && say "hello" && see "You said: hello" && see ready && text "xa👨‍👩‍👧" && see "› xa👨" && keys C-p &&
        see "› hello" && # and a line from the history is not taken for a rest of it
        keys C-c && see "Write a message" && text "e" && see "› e" && text "$(printf '\314\201')" &&
        see "$(printf 'e\314\201')" && keys C-_ && gone "$(printf 'e\314\201')" && see "› e" || return 1 # undoes the last insertion only
    printf 'set editing-mode vi\n' >"$work/vi"
    start 80x24 INPUTRC="$work/vi" && see ready && text "abc👨‍👩‍👧" && see "› abc👨" && keys Escape && see "‹ abc" && keys x &&
        gone "👨" && keys x && gone "abc" && see "‹ ab"
}
search_ends_with_a_key() { # End and the like; a prefix key ends it, too
    start 80x24 && see ready && say "alpha one" && see "You said: alpha" && see ready && keys C-r && text "alp" &&
        see "reverse-i-search" && keys End && gone "reverse-i-search" && see "› alpha one" && keys C-x a && text " more" &&
        see "alpha one more" && keys C-c C-r && text "alp" && see "reverse-i-search" && keys M-b && gone "reverse-i-search" &&
        text "X" && see "Xalpha one" && keys C-c && text "$(printf '\022\033[F\030\tyes')" && see "yes"
}
search_asks() { # Alt-P: it shows a hint, other keys are not inserted as text, and a text that is not found stays
    start 80x24 && see ready && say "alpha one" && see "You said: alpha" && see ready && keys M-p && see "Esc cancels" &&
        keys Escape && gone "Esc cancels" && text "typed" && keys M-p && text "alp" && keys Left Enter &&
        gone "Esc cancels" && see "› alpha one" && text "X " && see "› X alpha one" &&
        keys M-p && text "none" && see "› none" && keys Escape && see "› X alpha one" && keys M-p && text "none" &&
        keys Enter && see 'contains "none"' && see "› X alpha one" &&
        keys C-c && text "half" && keys Up && see "› X alpha one" && keys Up && see "› typed" && keys Up && see "› alpha one" &&
        text " more" && keys M-p && text "zz" && keys Escape && see "› alpha one more" &&
        keys Down Down Down && see "› half" && keys Up Up Up && see "› alpha one more" && keys M-p && text "zz" &&
        keys Enter && see 'contains "zz"' && see "› alpha one more" && keys Down Down Down && see "› half" && keys C-u && see "› Write a message" && keys M-p &&
        text "A long message" && keys Enter && see 'contains "A long message"' && see "› A long message"
}
raw_keys() { # sent exactly as terminals send them
    t send-keys -t case: -H $(printf "$1" | od -An -tx1)
}
keys_without_a_use() { # no part of them is inserted into the line
    start 80x24 && see ready && text ab && see "› ab" || return 1
    for k in '[24~' '[15;2~' '[3;3~' '[1;3A' '[57414u' '\033[A' '\033OP' '\033[3~'; do raw_keys "\033$k"; done
    rests && keys C-a && text "c|" && see "› c|ab" && rests && screen | grep -q "› c|ab *$" || return 1
    printf 'set editing-mode vi\n"\\e[24~": "typed by F12"\n' >"$work/vi-rc"
    start 80x24 "INPUTRC=$work/vi-rc" && see ready && say one && see "You said: one" && see ready && text two &&
        raw_keys '\033\033[A' && see "‹ one" && keys i && raw_keys '\033[24~' && see "typed by F12" && # bound
        raw_keys '\033[23~' && text x && see "typed by F12x"
}
keys_that_would_lose() { # keys of readline: one sends the line as a comment, one takes back everything that was typed
    printf 'set editing-mode vi\n' >"$work/vi"
    start 80x24 && see ready && text "some words" && keys 'M-#' && rests && text " more" && see "› some words more" &&
        keys M-r && see "› Write a message" && keys Up && see "› some words more" &&
        start 80x24 INPUTRC="$work/vi" && see ready && text "some words" && keys Escape && see "‹ some words" &&
        text "#A more" && see "› some words more"
}
counted_keys() { # a number typed before a command must not fill the memory
    printf 'set editing-mode vi\n' >"$work/vi"
    start 80x24 INPUTRC="$work/vi" && see ready && text "some words" && keys Escape && see "‹ some words" &&
        text "yb99999999pA!" && see "word!" && keys C-c && text "and on" && see "› and on"
}
starts_late() { # starts once $work/go exists; until then nothing reads the terminal
    t kill-session -t =case 2>/dev/null
    rm -f "$work/go"
    t new-session -d -s case -x 80 -y 24 "until [ -e $work/go ]; do sleep 0.05; done; $program; cat >/dev/null"
}
typed_ahead() { # before the program reads the terminal: a line ended by Enter is sent, several lines become text
    starts_late && say "typed early" && see "typed early" && tmux_is_done && : >"$work/go" && see "You said: typed early" &&
        starts_late && say "one" && say "two" && see "two" && tmux_is_done && : >"$work/go" && see "› one" &&
        see "  two" || return 1
    screen | grep -qF "You said" && { why="several lines were sent"; return 1; }
    return 0
}
# Enter while the model is being loaded: the line is sent after that, unless it was changed or Esc was pressed.
asked_early() { # loading lasts until release
    hold
    start 80x24 && say "asked early" && see "this is sent when"
}
nothing_is_said() { rests && ! shows "You said" || { why=${why:-"it was sent"}; return 1; }; }
enter_while_loading() {
    asked_early && release && see "You said: asked early" &&
        asked_early && text " on" && see "early on" && release && see ready && nothing_is_said && see "› asked early on" &&
        asked_early && keys Escape && gone "this is sent when" && release && see ready && nothing_is_said && see "› asked early" &&
        asked_early && keys F2 && see "Enter opens" && release && see ready && nothing_is_said && keys Escape &&
        see "You said: asked early" &&
        asked_early && keys F2 && see "Enter opens" && keys Down Enter && see "What was it like" &&
        see "your message was not sent" && release && see ready && nothing_is_said && see "› asked early"
}
no_model() { # the line below says so, and the message that was to be sent stays
    hold
    start 80x24 PIPPIN_FAKE_NO_MODEL=1 && see loading && gone draft && say "what of this?" && see "this is sent when" &&
        release && see "no model" && see "it does not fit into memory" && see "still in the line" && gone draft &&
        see "› what of this?" && ! shows "You said"
}
too_large_model() { # the previous model stays; a message meant for the new one is sent to it only after another Enter
    start 80x24 && see ready && see draft && hold && say "/model too-large" && see loading && say "what of this?" &&
        see "this is sent when" && release && see "it does not fit into memory" &&
        see "Enter sends it to the" && see ready && see "› what of this?" && ! shows "You said" && keys Enter &&
        see "You said: what of this?"
}
lone_escape() { # with nothing to stop, it does not swallow any key that follows
    start 80x24 && see ready && keys Escape && rests && text "Tell me" && see "› Tell me" && keys M-b && text "X" &&
        see "› Tell Xme"
}
no_locale() {
    start 80x24 "LC_ALL=C" && see ready && text "日本é" && see "› 日本é" && keys BSpace BSpace && text "x" && see "› 日x";
}
editor() {
    printf '#!/bin/sh\nprintf "from the editor\\nline 2" >>"$1"\n' >"$work/ed.sh" && chmod +x "$work/ed.sh"
    start 80x24 EDITOR="$work/ed.sh" && see ready && text "start " && keys C-g && see "start from the editor" &&
        see "line 2"
}
editor_writes_too_much() { # text that is too long for the line stays in the file
    printf '#!/bin/sh\nhead -c 17000000 /dev/zero | tr "\\0" x >"$1"\n' >"$work/ed.sh" && chmod +x "$work/ed.sh"
    start 80x24 EDITOR="$work/ed.sh" && see ready && text "start" && keys C-g && see "is larger than 16 MB" &&
        see "start" && [ "$(cat "$work"/state/pippin/message-*.md | wc -c)" = 17000000 ]
}
editor_writes_no_text() { # the text in the line stays
    printf '#!/bin/sh\ncat "${0%%.sh}.bytes" >"$1"\n' >"$work/ed.sh" && chmod +x "$work/ed.sh"
    for bytes in '\0\0\0' 'a\0b' '\377\376'; do
        rm -rf "$work/state"
        printf "$bytes" >"$work/ed.bytes"
        start 120x24 EDITOR="$work/ed.sh" && see ready && text "start" && keys C-g && see "is not valid UTF-8" &&
            see "› start" && keys F10 && see "exit=0" && ls "$work"/state/pippin/message-*.md >/dev/null || return 1
    done
}
editor_leaves_a_pipe() { # nothing would ever write to it; what is not a regular file is not touched
    printf '#!/bin/sh\nrm "$1" && mkfifo "$1"\n' >"$work/ed.sh" && chmod +x "$work/ed.sh"
    start 80x24 EDITOR="$work/ed.sh" && see ready && text "start" && keys C-g && see "cannot read the edited" && text "ed" &&
        see "› started"
}
editor_without_memory() { # the text stays in the file if there is no memory for it in the line
    can_limit || return 0
    printf '#!/bin/sh\nhead -c 15000000 /dev/zero | tr "\\0" x >"$1"\n' >"$work/ed.sh" && chmod +x "$work/ed.sh"
    for bytes in 12500000 19500000 27500000; do
        rm -rf "$work/state"
        start 80x24 EDITOR="$work/ed.sh" && see ready && more_addresses $bytes && text "start" && keys C-g &&
            see "was left in" && see "› start" && [ "$(cat "$work"/state/pippin/message-*.md | wc -c)" = 15000000 ] ||
            return 1
    done
}
editor_dies() { # after saving
    printf '#!/bin/sh\necho "two words" >>"$1"\nkill -KILL $$\n' >"$work/ed.sh" && chmod +x "$work/ed.sh"
    start 80x24 EDITOR="$work/ed.sh" && see ready && text "start " && keys C-g && see "failed; the line was not changed" &&
        see "and the editor's text" && grep -q "start two words" "$work"/state/pippin/message-*.md
}
editor_is_suspended() { # its Ctrl-Z stops both programs, and fg continues both
    printf '#!/bin/sh\nkill -TSTP 0\nprintf "back again" >>"$1"\n' >"$work/ed.sh" && chmod +x "$work/ed.sh"
    t kill-session -t =case 2>/dev/null
    t new-session -d -s case -x 80 -y 24 "PS1='shell> ' sh -i" && see "shell>" &&
        say "EDITOR=$work/ed.sh $program" && see ready && text "gone and " && keys C-g && see "shell>" &&
        say "echo under" && see under && say fg && see "gone and back again"
}
editor_takes_keys() { # Ctrl-C and Ctrl-\ are the editor's; our handling of signals does not reach it
    printf '%s\n' '#!/bin/sh' 'n=0; trap "n=\$((n + 1)); echo key \$n" INT QUIT; echo "editor is here"' \
        'while [ $n -lt 2 ]; do sleep 0.1; done' 'yes 2>>"$1" | head -n 1 >/dev/null' \
        'printf "after %d keys" $n >>"$1"' >"$work/ed.sh" && chmod +x "$work/ed.sh"
    start 80x24 EDITOR="$work/ed.sh" && see ready && text "written " && keys C-g && see "editor is here" &&
        keys C-c && see "key 1" && keys 'C-\' && see "written after 2 keys" && keys Enter && see "You said: written"
}
is_cut() { screen | grep -q '[a-z/]… *$'; }
long_notice() { # a notice that is cut shows so, and keeps its end, which gives the reason
    start 40x10 && see ready && say "/read $work/no-such-folder/and/a/file/that/has/a/name/which/is/far/too/long/for/all/lines/on/a/screen/of/forty/columns/so/that/it/is/cut$(printf '/more%.0s' $(seq 60))" &&
        see "cannot open" && becomes 0 is_cut && see ": No such file" ||
        { why=${why:-"no mark where it is cut"}; return 1; }
}
notice_stays_behind() { # an error in one conversation is not shown in another
    start 80x24 && see ready && keys F2 && see "Enter opens" && keys Down Enter && see "What was it like" &&
        say "/nonsense" && see "There is no such command" && keys F2 && see "Enter opens" && keys Enter &&
        see "Rain in the harbour" && gone "There is no such command"
}
two_notices() { # an error from an answer's beginning is still shown after the answer's end; the next message removes it
    start 80x24 && see ready && say warned && see "and that was all" && see "answered without it" && say again &&
        gone "answered without it" && see "You said: again"
}
small_notice() { # an error can be read on the smallest screen, too, and then the previous text returns; in menus, too
    start 20x5 && see ready && say "this is unsaved" && see "sent: the disk is" && see "full" &&
        see "› this is unsaved" && sleep 2.1 && keys Escape && see "─────" && gone "not saved" && keys C-u &&
        say "please refuse" && see "Not now: wait until" && see "the answer is there." && see "› please refuse" &&
        keys C-u F3 && see bari && text 7x && keys Enter && see "a scale is a" && see "number from -2 to" &&
        see "Scale:"
}
corrected_scale() { # why a scale was refused is gone once it is corrected, or given up, behind the menu, too
    start 80x40 && see ready && keys F3 && see bari && text 7x && keys Enter && see "a scale is a number" &&
        keys C-u && text 8 && keys Enter && see "a scale is a number" && keys C-u && text 0.5 && keys Enter &&
        see "0.50" && gone "a scale is a number" && keys Escape && gone "LoRA adapters" && see ready &&
        gone "a scale is a number" && keys F3 && see bari && text 7 && keys Enter && see "a scale is a number" &&
        keys Escape && gone "a scale is a number" && see bari
}
refused() { start 80x24 && see ready && say "please refuse" && see "Not now" && see "› please refuse"; }
not_saved() {
    start 80x24 && see ready && say "this is unsaved" && see "not saved and not sent" && see "› this is unsaved" &&
        keys C-u && say "fine" && see "You said: fine" && see ready && say "/edit" && see "› fine" &&
        text " but unsaved" && keys Enter && see "not saved and not sent" && see "› fine but unsaved" &&
        keys Escape && see "› Write a message"
}
unsaved_stays() { # whatever notices follow, also after Esc
    start 80x24 && see ready && say "the disk is full" && see "cannot save: no room" && see ready &&
        see "and that was all" && [ "$(screen | grep -c "cannot save: no room")" = 1 ] && say "/nosuch" &&
        see "no such command" && see "and it is tried again" && [ "$(screen | grep -c "cannot save: no room")" = 1 ] && keys Escape &&
        gone "no such command" && see "cannot save: no room" && say "make room" && see "saving works again" &&
        gone "cannot save: no room"
}
slash_commands() {
    start 80x24 && see ready && text "/th" && keys Tab && see "/theme" && text "light" && keys Enter && gone "/theme" &&
        say "/nosuch" && say "said at once" && see "You said: said at once" && see ready && say "/nosuch" &&
        see "no such command" && see "› Write a message" && keys Up && see "› /nosuch" && keys C-u &&
        say "/path/like/text" && see "You said: /path/like/text" && see ready && printf '/theme light\ndark' | paste &&
        keys Enter && see "takes one line" && see "› /theme light" && keys BSpace BSpace BSpace BSpace BSpace Enter &&
        see "› Write a message"
}
completion() { # also after commands; the choices are shown
    mkdir -p "$work/two/folder" && : >"$work/two/file"
    start 80x24 && see ready && text "/te" && keys Tab && see "› /template" && text "ch" && keys Tab &&
        see "› /template chatml" && keys C-u && text "/lora ba" && keys Tab Tab && see "  bard  barista" &&
        see "› /lora bar" && keys C-u && text "/theme li" && keys Tab && see "› /theme light" && keys C-u &&
        text "/compare none OLD" && keys Tab && see "› /compare none old whale" && keys C-u &&
        text "/compare bard+old w" && keys Tab && see "› /compare bard+old whale" && keys C-u &&
        text "/draft l" && keys Tab && see "› /draft lookup" && keys C-u && text "/read $work/two/f" && keys Tab && see "  file  folder/" &&
        keys C-u && text "/read " && keys Tab && see "LICENSE  Makefile  " && see "› /read" &&
        keys C-u F3 && see barista && keys a && see "Tab completes" && keys Tab && see "LICENSE  Makefile  " &&
        text "$work/two/f" && keys Tab &&
        see "  file  folder/"
}
read_file() { # Tab completes; a question follows; files that are not text are refused
    printf '\357\273\277first line\r\nsecond line\r\n\r\n' >"$work/notes.txt"
    printf 'a\0b' >"$work/notes.bin"
    printf ' \n\n' >"$work/notes.blank"
    printf '\357\273\277\r\n' >"$work/notes.marked"
    start 80x24 && see ready && text "/read $work/notes.t" && keys Tab && see "notes.txt" && keys Enter &&
        see "› first line" && text "What is this?" && keys Enter &&
        see_behind "You said: first line" "What is this" && see ready && say "/read $work/notes.bin" &&
        see "is not UTF-8 text" && say "/read $work/notes.blank" && see "notes.blank is empty" && see "› Write a message" &&
        say "/read $work/notes.marked" && see "notes.marked is empty" && see "› Write a message" &&
        say "/read" && see "/read FILE" &&
        say "/read ~/none.txt" && see "none.txt"
}
full_while_typing() { # the question waits: the next Enter does not answer it
    start 80x24 && see ready && text "/full" && keys Enter x y z && see "› xyz" && rests &&
        ! screen | grep -qF "Stop here" || { why=${why:-"the menu opened"}; return 1; }
    keys C-c && see "Write a message" && say "/full" && see "Stop here"
}
full_and_typing_on() { # text goes into the line, and does not answer the question
    start 80x24 && see ready && say "/full" && see "Stop here" && text "just so" && gone "Stop here" &&
        see "› just so" && keys C-u && say "/full" && see "Stop here" && printf 'two\nlines' | paste &&
        gone "Stop here" && see "› two"
}
full_context() {
    start 80x24 PIPPIN_FAKE_MESSAGES=10 && see "message number 10" && say "/full" && see "The context is full" &&
        keys Down Enter && see "messages above are no longer seen by the model" && see "They spoke of rain" &&
        say "/full" && see "Drop the oldest turns, fast but inexact" && keys Enter && gone "They spoke of rain" && see "messages above are"
}
edit_last() {
    start 80x24 && see ready && say "first words" && see "You said: first" && see ready && say "/edit" &&
        see "› first words" && text " changed" &&
        keys Enter && see "You said: first words changed" && see ready && say "//tmp is full" &&
        see "You said: /tmp is full" && see ready && say /edit && see "› //tmp is full" &&
        text " again" && keys Escape && see "› Write a message" && keys Up && see "› //tmp is full again"
}

edit_others() { # an earlier message; an answer; not while one is being written
    start 80x24 && see ready && say "/edit answer" && see "no answer to edit" && say "first words" &&
        see "You said: first" && see ready && say "other words" && see "You said: other" && see ready && say "/edit x" &&
        see "/edit 2 the one before" && say "/edit 3" && see "no such message" && say "/edit 2" && see "› first words" &&
        see "── editing an earlier message; the rest stays as a branch · Esc cancels ──" && text " changed" && keys Enter &&
        see "You said: first words changed" && gone "other words" && see ready && say "/edit answer" &&
        see "› You said: first words changed" && see "── editing the last answer" && keys C-u && see "› Edit the answer" &&
        text "//a path" && keys Enter && see "▎ /a path" && gone "You said" && say slow && see "word 5" &&
        say "/edit answer" && see "being written" && keys Escape && see ready
}
edit_ends_with_its_message() {
    start 80x24 && see ready && say "first words" && see "You said: first" && see ready && say "/edit" &&
        see "› first words" && see "── editing your last message" && keys C-u && say "/undo" && gone "You said: first" &&
        see "› Write a message" && gone "changing your" && say "other words" && see "You said: other words"
}
edit_ends_with_its_conversation() {
    start 80x24 && see ready && say "first words" && see "You said: first" && see ready && say "/edit" &&
        see "› first words" && keys F2 && see "Rain in the harbour" && keys Enter && see "It rained, and the lamps" &&
        keys Enter && see "You said: first words" && see "It rained, and the lamps"
}

stop_by_escape() {
    start 80x24 && see ready && say slow && see "word 5" && keys Escape && see "■ stopped · /continue goes on" &&
        see ready && say hi && see "You said: hi" && see "■ stopped" && ! shows "/continue"
}
stop_by_interrupt() {
    start 80x24 && see ready && say slow && see "word 5" && keys C-c && see "■ stopped" &&
        keys C-c && see "Ctrl-C again to leave" && keys C-c && see "exit=0";
}
leave() {
    start 80x24 && see ready && say hi && see "You said" && see ready && keys C-c && see "Ctrl-C again" &&
        keys C-c && see "exit=0" &&
        see "pippin --resume 0123456789abcdef" && cmp -s "$work/before" "$work/after"
}
leave_the_only_screen() { # on a terminal without a second screen, the last lines are printed below ours, not within it
    start 80x24 TERM=vt100 && see ready && say hi && see "You said" && keys F10 && see "exit=0" && see "pippin --resume" &&
        ! screen | sed -n '/pippin --resume/,$p' | grep -q "Quit"
}
leave_in_words() { # such words are sent as messages, with a hint how to leave
    start 80x24 && see ready && say ":q" && see "press Ctrl-D" && see "You said: :q" && see ready && say "help" &&
        see "for help, press F1" && see "You said: help" && see ready && say "help me" && see "You said: help me" &&
        ! shows "sent to the model"
}
leave_by_ctrl_d() { start 80x24 && see ready && keys C-d && see "exit=0" && cmp -s "$work/before" "$work/after"; }

menus() {
    start 132x24 && see ready && keys F1 && see "Alt-Enter, Ctrl-J" && keys F3 && see barista &&
        gone "Alt-Enter, Ctrl-J" && keys F3 && gone barista &&
        keys F2 && see "Rain in the harbour" && see "Evil ␛]0;owned␇ title" && keys Down Down DC &&
        see "y deletes permanently, any other key keeps it: \"Evil" && keys y && gone "Evil" &&
        keys Home C-r && see "New title" && text "!" && keys Enter && see "harbour!" && keys Enter &&
        see "It rained, and the lamps" &&
        keys F3 && see barista && keys Space Right Right && see "+1.10" && see "bard 1.10" && text "0.5" &&
        keys Enter && see "+0.50" &&
        keys Escape && gone barista && keys F4 && see chatml && keys Down Enter && see "template chatml" &&
        keys M-5 && see Pirate && keys Down Enter &&
        gone "Answers like" && see Pirate && keys F6 && see "Draft model: starter-draft" &&
        see "Nothing was drafted" && keys Down Enter &&
        gone "starter-draft" &&
        keys F8 && see top-p && keys Enter && see "temp:" && keys C-u && text "0.2" && keys Enter && see "0.2"
}
adapters() {
    start 90x30 && see ready && keys F3 && see "fits; LoRA of rank 16 for starter, 2.3 MB; 42 projections: attn_q" &&
        see "no speed measured yet" && see "switched on: 512 tokens to recompute, about 2.5 s" &&
        see "as it is: already in the cache" && see "cannot be used" && same adapters-90x30.txt &&
        keys Down && see "fits, but has no effect" && see "45 tokens/s with it, 50 without" && keys Space && see "switched off: 512" &&
        keys -- -0.5 && see "Scale: -0.5" && keys Enter && see "-0.50" && keys Up && see "conflicts with barista │" &&
        see "one as an" && see "no note" && keys Down && see "45 tokens/s with it" &&
        keys S-Up && keys n && see "Note:" && text "for coffee" && keys Enter && see "note: for coffee" &&
        keys p && see "as preset:" && text "mornings" && keys Enter && keys l && see "mornings" &&
        see "barista -0.50" && keys DC && see "y deletes the preset, any other" && keys y && see "No presets yet" &&
        keys Escape && gone "No presets yet" && see "LoRA adapters" && keys F3 && gone "LoRA adapters" &&
        keys F3 && see whale && keys End && see "64 wide, not 576" && see "room in two lines" &&
        keys a && see "Tab completes" && text "$work/con" && keys Tab && see "config/" && keys Enter Escape &&
        see "/config/" && see "barista -0.50" && resize 44x14 && see "· 1 adapter" && resize 90x30 && see "barista -0.50"
}
first_adapter() { screen | grep -o '\[[ x]\] [a-z]*' | sed -n 1p | grep -q "$1"; }
adapter_path_refused() { # stays to be corrected, until another key
    start 90x30 && see ready && keys F3 && see "no note" && keys a && see "Tab completes" && text "$work/confug" &&
        keys Enter && see "$work/confug does not exist" && see "Tab completes): $work/confug" && keys BSpace BSpace &&
        text ig && keys Enter && gone "Tab completes" && see "$work/config"
}
adapters_change_places() { # during a question about one of them: the answer applies to that one
    hold
    start 90x30 PIPPIN_FAKE_LOADS=1 && keys F3 && see "no note" && becomes 0 first_adapter bard && keys n && see "Note:" &&
        text "for verse" && release && becomes 0 first_adapter old && keys Enter && see "no note" && keys End &&
        see "note: for verse" && keys 0 && text ".5" && see "Scale: 0.5" && keys Enter && see "[x] bard"
}
presets_of_long_names() { # are cut, so that there is room for their contents
    start 90x30 && see ready && keys F3 && keys Space && see "[x] bard" && keys p && see "as preset:" &&
        text a-preset-with-a-name-that-is-longer-than-half-a-menu && keys Enter && keys l &&
        see "a-preset-with-a-name-that-is-longer-th… bard"
}
presets_change_places() { # before one is deleted: the one that was asked about is deleted
    hold
    start 90x30 PIPPIN_FAKE_LOADS=1 && keys F3 && see "no note" && keys p && see "as preset:" && text "mornings" &&
        keys Enter && keys l && see "Adapter presets" && keys DC && see 'keeps it: "mornings"' && release && see "earlier" &&
        keys y && gone "mornings" && see "earlier"
}
comparison() {
    start 90x24 && see ready && say Hello && see "You said: Hello" && say "/regen 2" && see "no adapter" &&
        see "3 of 3  bard 0.80" && resize 58x20 && see "▎ ‹ 2 of 3 ›  no adapter " && resize 40x20 && keys S-Right && see "‹ 3 of 3 ›  bard 0.80"
}
menu_tells() { # errors are shown in a menu that hides notices, until the next key; a question is, even in place of the title
    start 40x10 && see ready && keys F8 && see "Enter changes" && keys Enter && see "temp:" && text x && keys Enter &&
        see "That is no number." && see "0.80x" && gone "Enter changes" && keys BSpace && gone "no number" &&
        see "temp: 0.80" && keys Enter && see "Enter changes" &&
        keys F2 && see "Rain in" && keys DC && see "y deletes permanently" && keys n && see "Rain in"
}
menu_letters() { # vi's letters, in menus without a search
    start 80x24 && see ready && keys F1 && see "Enter " && keys q && gone "Alt-Enter, Ctrl-J" && keys F8 && see "temp " &&
        keys j && see "sample from the" && keys k && see "temperature (0.8)" && keys k && see "the same seed" && keys q &&
        gone "the same seed" && keys F2 && see "Rain in" && text "jq" && see "Search: jq"
}
unfit_terminals() { # are named, with what helps
    start 80x24 "-u TERM" && see "TERM, the terminal's type, is not set; set it, or use --plain" && see "exit=1" &&
        start 80x24 TERM=nosuch && see 'the terminal "nosuch" (TERM) is unknown' && see "exit=1" &&
        start 80x24 TERM=dumb && see "cannot move its cursor; use --plain" && see "exit=1"
}
menu_explains() { # parameters, as in --help; the whole prompt of a persona
    start 80x24 && see ready && keys F8 && see "temperature (0.8); 0: greedy, always the likeliest token" && keys End &&
        see "the same seed gives the same answer" && see_behind "the same seed" "time" && keys Escape &&
        gone "the same seed" && keys F5 && see Teacher && gone "all is clear" && keys End && see "asks whether all is clear"
}
menu_keys() { # the keys of the bar at the bottom work in a menu, too, also with Alt
    start 80x24 && see ready && keys F2 && see "Rain in" && keys M-3 && see barista && keys M-3 && gone barista &&
        keys F2 && see "Rain in" && keys F9 && keys Escape && see "Markdown is shown as plain text" && keys F8 && see "Enter changes" &&
        keys F10 && see "exit=0"
}
menu_ctrl_d() { # does not delete a conversation
    start 80x24 && see ready && keys F2 && see "Rain in" && text "evil" && see "Search: evil" && keys C-a C-d &&
        see "Search: vil" && text "y" && see "Search: yvil" && keys C-e C-d && text "z" && see "Search: yvilz" &&
        gone "deletes permanently"
}
menu_fields() { # a paste becomes one line; keys of readline; a text that is too long is refused with a notice
    start 80x24 && see ready && keys F2 && see "Rain in" && keys C-r && see "New title" && keys C-u &&
        printf '\tin two\nlines\r\n' | paste && see "New title:  in two lines" && keys M-b M-b && text "no " &&
        see " in no two lines" && keys C-f C-d C-Right M-BSpace && text "three" && see "in no three lines" &&
        keys C-a M-d M-d && see "New title:  three lines" && keys Enter && see "three lines" &&
        keys C-r && see "New title" && head -c 3000 /dev/zero | tr '\0' 'x' | paste && see "the field is full" &&
        see "xxxxx" && keys Escape && gone "New title" && keys F3 && see barista && keys n && see "Note:" &&
        yes 'für' | head -n 60 | tr -d '\n' | paste && see "the field is full" && keys Enter && see "note:" &&
        see "ürfürfürfü " && gone "<C3>" # whole letters
}
long_titles() { # end with a whole character, even if most of it has no width
    start 80x24 && see ready && keys F2 && see "Rain in" && keys C-r && see "New title" && keys C-u &&
        { printf Fog; yes "$(printf '\342\200\215')" | head -n 130 | tr -d '\n'; } | paste && see "New title: Fog" &&
        keys Enter && gone "New title" && see Fog && gone "<E2>"
}
edit_is_given_up() { # also after all of its text was deleted
    start 80x24 && see ready && say "first words" && see "You said: first" && see ready && say "/edit" &&
        see "› first words" && keys C-u && see "› Edit the message" && keys C-c && see "› Write a message" &&
        gone "Ctrl-C again"
}
help_in_full() { # no line is cut, on the usual screen and on a narrow one
    start 80x24 && see ready && keys F1 && keys Down Down Down Down Down Down Down Down Down Down Down Down Down &&
        keys Down Down Down Down Down Down Down Down Down Down Down && see "start, end (when the line is empty)" &&
        see "empty)" && resize 40x10 && see "Esc closes" && keys Home && see "Alt-Enter, Ctrl-J" &&
        see "    start a new line"
}
help_by_pages() { # a page down shows what was below, a page up what was above
    start 80x24 && see ready && keys F1 && see "start a new line" && keys NPage && gone "start a new line" &&
        see "start, end (when the line is empty)" && keys PPage && see "start a new line" && gone "F7 " && keys NPage NPage NPage NPage NPage &&
        gone "Ctrl-PgUp" && keys Up && see "Esc closes" && keys Home && see "start a new line"
}
menus_over_wide_text() { # their edges cut characters of two columns
    wide=日本語の文章は日本語の文章は日本語の文章は日本語の文章は日本語の文章は
    start 80x24 && see ready && text "a$wide$wide" && see "›" && keys Enter && see "You said: a" && see ready &&
        rests && say "$wide$wide$wide" && see "You said: 日" && see ready && rests && screen >"$work/before" &&
        keys F1 && see "Alt-Enter, Ctrl-J" && keys Escape && gone "Alt-Enter, Ctrl-J" && rests &&
        screen >"$work/closed" && { cmp -s "$work/before" "$work/closed" ||
        { why=$(diff "$work/before" "$work/closed" | head -6); return 1; }; }
}
menus_narrow() { # text without room in a row goes on in the next: keys, the description of a row, a question
    start 40x16 && see ready && keys F2 && see "Rain in" && see "^R rename" && see "Del delete" && keys DC &&
        see "y deletes permanently" && see "Rain in the harbour" && keys n && see "^R rename" && keys Escape &&
        gone "^R rename" && say /model && see "18.60 GB" && keys Up &&
        see "30.5 billion" && see " 40,960" && see "20.10 GB" && see "free now" &&
        see "/models/large.gguf" && see "Esc closes" && keys Escape && gone "Esc closes" &&
        keys F3 && see "p l presets" && see " attn_q ffn_up" && see "about 2.5 s" || return 1
    start 20x6 && see ready && keys F2 && see "Rain in" && see "Enter opens" && keys F3 && see bard # as before
}
menu_hides_a_notice() { # completely: no two letters of it next to the frame
    start 80x24 && see ready && keys F8 && see "Enter changes" && keys Enter && see "temp:" && text x && keys Enter &&
        see "That is no number." && gone "Th│"
}
menus_small() {
    start 20x5 && see ready && keys F2 && see "Rain in" && keys Down Enter && see "lit." && keys F1 &&
        see Writing && keys F3 && see "+1.00" && keys F8 && see "0.80" && keys Escape && gone "0.80"
}
themes() {
    start 80x24 "TERM=tmux-256color" && see ready && keys F7 && see harbour && rests && screen -e >"$work/dark" &&
        keys Down && rests && screen -e >"$work/other" &&
        ! cmp -s "$work/dark" "$work/other" && keys Enter && gone paper &&
        has "$work/state/pippin/ui.ini" "theme = harbour" && cp "$root/themes/dark.theme" "$work/my.theme" &&
        say "/theme $work/my.theme" && see "used until you leave" && has "$work/state/pippin/ui.ini" "theme = harbour" &&
        say "/theme /etc/passwd" && see "passwd is not a theme" && say "/theme ./gone.theme" && see "there is no file ./gone"
}
theme_unkept() { # the reason is shown
    : >"$work/state" && start 120x24 && see ready && keys F7 && see harbour && keys Down Enter && gone paper &&
        see "not saved for the next start: $work/state"
}
configured_theme() { # overrides the menu's choice, and the screen says so (the double treats no option as given)
    start 80x24 "" "--theme paper" && see ready && say "/theme paper" && ! shows "sets another" &&
        say "/theme mono" && see "sets another theme, paper,"
}
broken_theme() {
    rm "$work/config/pippin/themes" && mkdir "$work/config/pippin/themes" &&
        cp "$root"/themes/*.theme "$work/config/pippin/themes" &&
        printf '[styles]\ntext = blurple\n' >"$work/config/pippin/themes/bad.theme"
    start 80x24 "" "--theme bad" && see "line 2: 'blurple'" && see ready && say hi && see "You said: hi" &&
        keys F7 && keys End Home && see "line 2: 'blurple'" && keys Down && gone blurple && keys Up && see "line 2: 'blurple'" &&
        keys Escape && gone "Enter keeps it" && gone blurple || return 1
    start 80x24 "PIPPIN_FAKE_TEMPORARY=1" "--theme bad" && see ready && see "this chat is temporary" && see "line 2: 'blurple'"
}
selected_row() { # is visible even if a theme has too many colours for the terminal, or none are wanted
    start 80x24 "TERM=linux" "--theme dark" && see ready && keys F2 && see "Rain in" && see_styled "\[[0-9;]*7m[^│]*Rain in" &&
        start 80x24 "NO_COLOR=1" "--theme dark" && see ready && keys F2 && see "Rain in" &&
        see_styled "\[[0-9;]*7m[^│]*Rain in"
}
no_color() {
    start 80x24 "NO_COLOR=1 TERM=tmux-256color" && see ready && say markdown && see "end of markdown" &&
        screen -e >"$work/mono" &&
        ! grep -q "$(printf '\033')\[[0-9;]*[34][0-8][;m]" "$work/mono"
}

reasoning_is_open() { # while it is being written
    start 80x24 && see ready && say "ponder" && see "▾ thinking" && see "hm 9" && keys Escape && see "■ stopped" &&
        see "▸ thought for" && gone "hm 9"
}
reasoning() { # afterwards one line; Ctrl-O unfolds and folds it
    start 80x24 && see ready && say "think of tea" && see "▸ thought for 36 tokens, 1.2 s" && gone "They want" &&
        see "You said: think of tea" &&
        see ready && same reasoning-folded-80x24.txt && keys C-o && see "▾ thought for 36 tokens" && see "␛[31mred" &&
        see "I say it slowly" && same reasoning-80x24.txt && keys C-o && gone "They want" && say "/reasoning hide" &&
        gone "thought for" && say "/reasoning show" && see "They want" && say "/reasoning loud" &&
        see "show, fold or hide"
}
reasoning_is_stopped() {
    start 80x24 "" "--reasoning hide" && see ready && say "ponder" && see "▸ thinking" && gone "hm 9" && keys C-o &&
        see "hm 9" && keys Escape && see "■ stopped" && see "▾ thought for" && resize 20x5 && see "hm" &&
        resize 80x24 && keys C-o && see "▸ thought for" && gone "hm 9"
}
plain_reasoning() {
    printf 'think of tea\n' | "$program" --plain >"$work/out" 2>&1 && has "$work/out" "(thinking)" &&
        has "$work/out" "(thought for 36 tokens, 1.2 s)" && ! has "$work/out" "They want" &&
        has "$work/out" "You said: think of tea" && printf 'think of tea\n/reasoning hide\nthink of it\n' |
        "$program" --plain --reasoning show >"$work/out" 2>&1 && has "$work/out" "They want to know **something**" &&
        has "$work/out" "␛[31mred" && [ "$(grep -c "(thinking)" "$work/out")" = 1 ] &&
        has "$work/out" "You said: think of it"
}

# Text from draft tokens has a colour of its own, or without colours a line below it; the choice is kept.
tint() {
    esc=$(printf '\033')
    start 80x24 "TERM=tmux-256color" "--theme dark" && see ready && say "guessed words" && see "said: guessed words" &&
        see ready && gone_styled "${esc}\\[38;5;146m[^$esc]*id: gu" &&
        keys F6 && see "71 % of drafts accepted, 1.31 times" && see "▇▄▁  (1st: 90 % of 20)" &&
        see "m tint" && text m && keys Escape && gone "m tint" && see "are tinted" &&
        see_styled "You sa${esc}[^ ]*38;5;146m[^ ]*id: gu" && has "$work/state/pippin/ui.ini" "tint = yes" || return 1
    start 80x24 "NO_COLOR=1 TERM=tmux-256color" && see ready && say "guessed words" && see "said: guessed words" &&
        see ready && see_styled "${esc}\\[4mid: gu${esc}" &&
        say "/draft tint" && see "draft tokens are not tinted" && has "$work/state/pippin/ui.ini" "tint = no" &&
        gone_styled "${esc}\\[4mid: gu"
}

# Other draft models: their descriptions, why one does not fit, and a path that is typed.
drafters() {
    start 90x30 && see ready && keys F6 && see "Draft models" && see "2.4 MB" && see "does not fit" &&
        keys Down Down Down Down Down Down && see "10 % of the model's size; matches tokens by text; another chat template" &&
        keys Enter && see "/models/stories drafts tokens" && keys Down && see "its vocabulary differs: the tokens" &&
        keys Enter && see "tales does not fit" && keys f && see "Tab completes" && text "$work/con" && keys Tab &&
        see "config/" && keys Enter && see "config/ drafts tokens" && keys Escape && gone "Draft models"
}

models() { # models that can be loaded, and why one cannot; letters search, even vi's
    start 80x24 && see ready && say /model && see "Models" && see "• starter" && see "26.2 million parameters; trained" &&
        see "/models/starter.gguf" && keys Down && see "it ends in the middle" && see "cannot be used" &&
        keys Enter && see "broken.gguf cannot be used: it ends" && keys Down && see "not read yet" &&
        text jk && see "No models found" && keys BSpace BSpace && text LAR && gone "starter.gguf" && see "18.60 GB" &&
        see "30.5 billion parameters, 3.3 billion active per token" && see "needs 20.10 GB of memory for 16,384 tok" &&
        keys Enter && gone "Models" && see "/models/large.gguf"
}

copied() { t show-buffer 2>/dev/null | cmp -s - "$work/wanted"; }
copy() { # an answer, or a block of its code; into a buffer of tmux, which by default accepts no OSC 52 from programs
    start 80x24 && see ready && say /copy && see "no answer to copy" && say "one thing" && see "1,203 tok/s" && see ready &&
        say "/copy code" && see "no code block" && say /copy && see "was copied to the terminal" || return 1
    printf 'You said: one thing' >"$work/wanted"
    becomes 0 copied || { why="copied: $(t show-buffer)"; return 1; }
    say two && see "You said: two" && see ready && say "/copy 2" && see "the answer 2 from the end was copied" &&
        becomes 0 copied && say "/copy 3" && see "not that many answers" && say "/copy 0" && see "/copy 2 the one before" &&
        say "/copy 2 code" && see "/copy 2 the one before" && printf 'You said: two' >"$work/wanted" && say "/copy 1" &&
        becomes 0 copied || return 1
    printf 'int main(void)\n{\n\treturn 0;\n}\n' >"$work/wanted"
    say markdown && see "end of markdown" && see ready && say "/copy code" && see "block 1 of 1" && becomes 0 copied &&
        say "/copy code 2" && see "has 1 code block" && say "/copy codes" && see "/copy code"
}

injection() {
    start 80x24 && see ready && say hostile && see "done hostile" && see "␛]0;owned␇␛[2J" && see "<U+009B>2J" &&
        see "<U+202E>abc" &&
        [ "$(ask_tmux '#{pane_title}')" != owned ] && see "› Write a message"
}
title_injection() {
    start 80x24 && see ready && text "title a" && keys -H c2 9b && text "2Jb" && keys Enter && see "<U+009B>2Jb ──";
}

crash() { # SIGNAL
    start 80x24 && see ready && kill -"$1" "$(pid_of)" && see "exit=" && [ "$(ask_tmux '#{alternate_on}')" = 0 ] &&
        cmp -s "$work/before" "$work/after" || { why=${why:-"the terminal was not given back"}; return 1; }
}
# The wheel, as the terminal reports it on request; without the option the mouse is not used.
mouse_reports() { becomes 0 reported "$1"; }
reported() { [ "$(ask_tmux '#{mouse_any_flag}#{mouse_sgr_flag}')" = "$1" ]; }
mouse_key() { t send-keys -t case: -H 1b 5b 3c $1 3b 35 3b 35 4d; } # the button: its digits in hexadecimal
mouse() {
    wheel_up="36 34" wheel_down="36 35"
    start 80x20 "" "--mouse --theme dark" && see ready && mouse_reports 11 && say long && see "line 200 of" && mouse_key "$wheel_up" &&
        gone "line 200 of" && see "line 197 of" && mouse_key "$wheel_down" && see "line 200 of" && text "typed" &&
        mouse_key 30 && see "hold Shift" && see "› typed" && keys F7 && see "• dark" && mouse_key "$wheel_down" &&
        keys Enter && gone "• dark" && keys F7 && see "• harbour" && mouse_key "$wheel_up" &&
        keys Enter && gone "• harbour" && keys F7 && see "• dark" && keys Escape && gone "• dark" &&
        kill -ABRT "$(pid_of)" && see "exit=" && mouse_reports 00 && start 80x20 && see ready && mouse_reports 00 || return 1
    t kill-session -t =case
    t new-session -d -s case -x 80 -y 24 "PS1='shell> ' sh -i" && see "shell>" && say "$program --mouse" && see ready &&
        mouse_reports 11 && keys C-z && see "shell>" && mouse_reports 00 && say fg && see "Write a message" &&
        mouse_reports 11 && keys C-d && mouse_reports 00
}
# Three answers in columns; Shift-Right chooses; a narrow window shows only the chosen one.
alternatives() {
    start 90x24 && see ready && say Hello && see "You said: Hello" && say "/regen 3" && see "2 of 4 ›" &&
        see "3 of 4" && same alternatives-90x24.txt &&
        keys S-Right && see "3 of 4 ›" && see "a list" &&
        resize 60x20 && see "‹ 3 of 4 ›" && gone "The third" && resize 90x24 && see "The third" &&
        say "next" && gone "The third"
}
alternatives_think() { # reasoning is shown where the text will be, and stays if there is no text
    start 110x24 && see ready && say Hello && see "You said: Hello" && say "/regen 4" && see "5 of 5" &&
        see "▸ thought for 7 tokens" && see "It might be four." && keys C-o && gone "thought for" &&
        [ "$(screen | grep -o "It might be four" | wc -l)" = 2 ] && say "/reasoning hide" && see "▸ thinking, 7 tokens" &&
        gone "It might" && gone "thought for"
}
impatient_search() { # Enter before the search has ended opens the result, not a row that was shown before
    start 80x24 PIPPIN_FAKE_SEARCH=1 && see ready && hold && keys F2 && see "Rain in" && text "evil" && keys Enter &&
        see "Search: evil" && release && see "─ Evil" && gone "Rain in" || return 1
    start 80x24 PIPPIN_FAKE_SEARCH=1 && see ready && hold && keys F2 && see "Rain in" && text "evil" && keys Enter Escape &&
        gone "Search" && release && rests && ! screen | grep -qF "─ Evil" || { why=${why:-"it was opened after Esc"}; return 1; }
}
empty_list() { # until this text is shown
    for i in $(seq 12); do keys DC && see "y deletes" && keys y && gone "y deletes" && shows "$1" && return 0; done
}
none_is_found() { # and the reason
    start 80x24 && see ready && keys F2 && see "Rain in" && empty_list "none yet" &&
        see "none yet: send a message to start one" && text "👩 +" && see "the search needs letters or digits" && text x &&
        see "none found" || return 1
    start 80x24 PIPPIN_FAKE_UNREAD=1 && see ready && keys F2 && see "Rain in" && empty_list "cannot be" &&
        see "cannot be read at the moment; F2 tries again" || return 1
    start 80x24 PIPPIN_FAKE_SEARCH=1 && see ready && keys F2 && see "Rain in" && empty_list "none yet" && hold && text x &&
        see "│   … " && release && see "none found"
}
told_elsewhere() { # a notice about an empty conversation goes when another one is opened
    start 80x24 && see ready && say "/edit 3" && see "no such message" && keys F2 && see "Rain in" && keys Enter &&
        see "the lamps" && gone "no such message"
}
found_is_shown() { # also in the open conversation, and on another branch
    start 80x24 "PIPPIN_FAKE_SEARCH=1 PIPPIN_FAKE_HIT=70" && see ready && keys F2 && see "Rain in" && text "old" &&
        see "what was found" && keys Enter && see "old message 70" && gone "the lamps" &&
        gone "new text" && keys End && see "the lamps" &&
        keys F2 && see "what was found" && text "old" && keys Enter && see "old message 70" || return 1
    start 80x24 "PIPPIN_FAKE_SEARCH=1 PIPPIN_FAKE_HIT=999" && see ready && keys F2 && see "Rain in" && text "old" &&
        see "what was found" && keys Enter && see "found on another branch" && see "the lamps" &&
        start 80x24 "PIPPIN_FAKE_SEARCH=1 PIPPIN_FAKE_HIT=998" && see ready && keys F2 && see "Rain in" && text "old" &&
        see "what was found" && keys Enter && see "It stands on another branch" && keys End && gone "It stands" &&
        start 80x24 "PIPPIN_FAKE_SEARCH=1 PIPPIN_FAKE_HIT=0" && see ready && keys F2 && see "Rain in" && text "70 OLD" &&
        gone "Rain in" && keys Enter && see "old message 70" && gone "the lamps" && see_styled "7mold" &&
        see_styled "7m70"
}
found_here() { # in the open conversation: from the newest message back, and then from the newest again
    start 80x24 PIPPIN_FAKE_MESSAGES=120 && see ready && say /find && see "/find WORDS goes to" && say "/find number xyz" &&
        see 'no message of this conversation contains "number xyz"' && say "/find NUMBER 7" &&
        see 'the newest message with "NUMBER 7"' && see "message number 79" && gone "message number 120" || return 1
    see_styled "7mnumber 7" || return 1
    say /find && see "this one also contains" && see "message number 78" && gone "message number 88" && keys Escape &&
        gone_styled "7mnumber 7" || return 1
    say "/find nÚmber 77" && see "message number 77" && see_styled "7mnumber 77" && say "/find 66 messáge" &&
        see "message number 66" && see_styled "7mmessage" && see_styled "7m66" || return 1
    say "/find umber 120" && see "the newest message with" && see "message number 120" && say "/find umber 120" &&
        see "back at the newest" && keys End && say "/find message-number" && see "no message of this" &&
        start 20x6 PIPPIN_FAKE_MESSAGES=12 && see ready && say "/find number 11" && see "the newest" &&
        see "▎ message number 11" # after the notice it is still in its place
}
a_message_at_a_time() {
    start 80x14 PIPPIN_FAKE_MESSAGES=40 && see ready && see "message number 40" && keys C-PgUp && gone "message number 40" &&
        keys C-PgUp && keys M-PgUp && see "message number 37" && gone "message number 39" && keys M-PgDn &&
        gone "message number 35" && keys C-PgDn C-PgDn C-PgDn C-PgDn && see "message number 40" && say hello &&
        see "You said: hello" && see "message number 40" && keys Home && see "message number 1" && gone "message number 40" &&
        keys C-PgUp C-PgDn && see "message number 2" && gone "message number 1 "
}
elsewhere() {
    start 80x24 PIPPIN_FAKE_ELSEWHERE=2 && see "2 answers elsewhere" && keys F2 && see "answering" && see "✎ 雨の港" &&
        see "● Evil"
}
crash_segv() { crash SEGV; }
crash_abrt() { crash ABRT; }
crash_quit() {
    start 80x24 && see ready && kill -QUIT "$(pid_of)" && see "exit=131" && cmp -s "$work/before" "$work/after"
}
interrupt_while_starting() { # Ctrl-C is a key already: ncurses must not handle the signal and end the program
    mkdir -p "$work/slow/x" && rm -f "$work/slow/x/xterm-slow" && mkfifo "$work/slow/x/xterm-slow" || return 1
    known=$(find /usr/share/terminfo /lib/terminfo /etc/terminfo -path '*/x/xterm' 2>/dev/null | head -n 1)
    [ -n "$known" ] || return 0
    start 80x24 "TERM=xterm-slow TERMINFO=$work/slow"
    { kill -INT "$(pid_of)" && sleep 0.1 && cat "$known"; } >"$work/slow/x/xterm-slow" # waits for a reader
    see "press Ctrl-C again" && keys C-c && see "exit=0"
}
gentle_term() {
    start 80x24 && see ready && say hi && see "You said" && see ready && kill -TERM "$(pid_of)" && see "exit=" &&
        see "pippin --resume";
}
stuck_end() { # when closing does not end by itself, and no key is pressed
    start 80x24 PIPPIN_FAKE_STUCK=1 && see ready && kill -TERM "$(pid_of)" && see "exit=0" &&
        start 80x24 PIPPIN_FAKE_STUCK=1 --plain && see "lists commands" && keys C-d && see "exit=0"
}
# One Ctrl-C too many does not interrupt saving, nor remove the messages about it; a later one does.
left_in_a_hurry() {
    start 80x24 PIPPIN_FAKE_SAVES=700 && see ready && keys F10 && gone F10Quit && kill -INT "$(pid_of)" &&
        kill -QUIT "$(pid_of)" && kill -INT "$(pid_of)" && see "exit=0" || return 1
    start 80x24 PIPPIN_FAKE_SAVES=60000 && see ready && keys F10 && gone F10Quit && sleep 1.1 &&
        kill -INT "$(pid_of)" && see "exit=130"
}
# A terminal that nothing reads any more; as there are many full redraws, its buffer is full.
stuck_terminal() { # SIGNALS
    start 200x50 && see ready && say slow && see "word 20" || return 1
    server=$(ask_tmux '#{pid}')
    pid=$(pid_of)
    kill -STOP "$server"
    for i in $(seq 100); do kill -CONT "$pid"; sleep 0.01; done
    for s in $1; do kill "-$s" "$pid" && sleep 0.1; done
    becomes 1 kill -0 "$pid" 2>/dev/null || { why="it did not end"; kill -KILL "$pid"; }
    kill -CONT "$server"
    [ -z "$why" ]
}
stuck_terminal_term() { stuck_terminal TERM; }
stuck_terminal_twice() { stuck_terminal "TERM TERM"; }
half_typed() { # is found again, however the program ended; a line that is in the history already is not saved twice
    start 80x24 && see ready && say "alpha one" && see "You said: alpha" && see ready && text "half a" && keys C-j &&
        text "thought" && see "thought" && kill -HUP "$(pid_of)" && see "exit=" && see "Up brings it back" &&
        start 80x24 && see ready && keys Up && see "half a" && see "thought" && keys C-c && see "Write a message" &&
        text "typed before" && see "› typed before" && keys Up && see "› half a" && kill -TERM "$(pid_of)" &&
        see "exit=" && start 80x24 && see ready && keys Up && see "› typed before" && keys C-c &&
        see "Write a message" && text "searching" && see "› searching" && keys C-r && text "alp" && see "› alpha one" &&
        kill -TERM "$(pid_of)" && see "exit=" && start 80x24 && see ready && keys Up && see "› searching" && keys Up &&
        see "› typed before" && keys 'C-\' && see "exit=" || return 1
    screen | grep -qF "brings it back" && { why="what is in the history was kept again"; return 1; }
    return 0
}
suspend() {
    t kill-session -t =case 2>/dev/null
    t new-session -d -s case -x 80 -y 24 "PS1='shell> ' sh -i" && see "shell>" && say "$program" && see ready &&
        keys C-z && see "shell>" && say "echo under" &&
        see under && say fg && see "Write a message" && say "still there" && see "You said: still there" &&
        keys F2 && see "Enter opens" && keys C-z && see "Stopped" && say "echo beside" && see beside && say fg &&
        see "Enter opens" && keys Escape && gone "Enter opens" && see "You said: still there"
}
stopped_from_outside() {
    start 80x24 && see ready && p=$(pid_of) && kill -STOP "$p" && sleep 0.1 && kill -CONT "$p" && see ready &&
        say "still there" &&
        see "You said: still there"
}
plain() {
    start 80x24 "" --plain && see "lists commands" && say "Hello" && see "You said: Hello" && say hostile &&
        see "␛]0;owned␇" && say slow && see "word 9" && keys C-c &&
        see "(stopped)" && say "this is unsaved" && see "not saved and not sent" &&
        [ "$(screen | grep -c "(stopped)")" = 1 ] && keys C-d && see "exit=0" && see "pippin --resume"
}
plain_lists() { # the lists that menus show
    printf '/model\n/lora\n/persona\n/template\n/params\n/draft\n/edit\n/theme\n/overflow\n' | "$program" --plain >"$work/out" 2>&1 &&
        has "$work/out" "bard: off, scale" && has "$work/out" "chatml" && has "$work/out" "/persona NAME chooses one" &&
        has "$work/out" "top-k: 40" && has "$work/out" "draft model: starter-draft" &&
        has "$work/out" "/undo takes the last question back" && has "$work/out" "/overflow shift, summarise" &&
        has "$work/out" "large: Q4_K_M, 18.60 GB" && has "$work/out" "starter (loaded): Q4_K_M, 16.4 MB" &&
        has "$work/out" "broken.gguf: cannot be used: it ends" && has "$work/out" "/model PATH loads another one" &&
        has "$work/out" "harbour" && has "$work/out" "pippin --theme NAME" || return 1
    [ "$(grep -c "This needs the full screen" "$work/out")" = 1 ] || { why="something else needs the full screen"; return 1; }
    echo "/theme light" | "$program" --plain >"$work/out" 2>&1 && has "$work/out" "Themes need the full screen" &&
        printf '/copy\n' | "$program" --plain >"$work/out" 2>&1 && has "$work/out" "/export FILE writes"
}
plain_pipe() {
    printf 'one\ntwo' | "$program" --plain >"$work/out" 2>&1 && has "$work/out" "You said: one" &&
        has "$work/out" "You said: two" || return 1
    { head -c 1100000 /dev/zero | tr '\0' x; printf '\nthree\n'; } | "$program" --plain >"$work/out" 2>&1 &&
        has "$work/out" "That line is too long" && has "$work/out" "You said: three"
}
# A message of several lines between """ and """.
plain_quoted() {
    printf '"""\n\nfirst line\n  /quit\n"""  \n"""one"""\nafter\n"""\n\n"""\n"""to the\nend' | "$program" --plain >"$work/out" 2>&1 &&
        has "$work/out" "You said: first line" && has "$work/out" "  /quit" && has "$work/out" "You said: one" &&
        has "$work/out" "You said: after" && has "$work/out" "You said: to the" && has "$work/out" "end" &&
        [ "$(grep -c "You said" "$work/out")" = 4 ] && ! grep -q '"""' "$work/out" || return 1
    start 80x24 "" --plain && see "lists commands" && say '"""not' && say this && see "... this" && keys C-c &&
        see "The message was not sent" && say /help && see 'begins with """' && say '"""a' && text b && keys Up Enter &&
        see "Not added to the message" && say 'c"""' && see "You said: a" && see c && gone "You said: not" && ! shows "exit="
}
# rings N: the terminal's bell has rung N times
rings() {
    [ "$(tr -cd '\007' <"$work/raw" | wc -c)" = "$1" ]
}
bell() {
    for way in "" --plain; do
        start 80x24 "" "$way --bell 0" && see "${way:+lists commands}" && { [ "$way" ] || see ready; } &&
            t pipe-pane -t case: "cat >$work/raw" && say Hello && see "You said: Hello" &&
            becomes 0 rings 1 && say more && see "said: more" && becomes 0 rings 2 || { why="$way rang otherwise"; return 1; }
        start 80x24 "" "$way --bell 3600" && see "${way:+lists commands}" && { [ "$way" ] || see ready; } &&
            t pipe-pane -t case: "cat >$work/raw" && say Hello && see "You said: Hello" && sleep 0.3 &&
            becomes 0 rings 0 || { why="$way rang too soon"; return 1; }
    done
}
more_lines_than_rows() { # a typed text: marks for more lines above or below
    start 80x24 && see ready && seq -f 'row %g' 1 7 | paste && see "row 7" && ! shows "↑" && keys C-u && sleep 0.1 &&
        seq -f 'row %g' 9 40 | paste && see "row 40" && see "↑" && ! shows "↓" || return 1
    i=0
    while [ $i -lt 40 ]; do keys Up; i=$((i + 1)); done
    see "row 9" && see "↓" && gone "↑" && keys Down && resize 80x110 && see "row 40" && gone "↓"
}
plain_file() { # the next message is about it
    printf 'first line\nsecond line\n' >"$work/a text" && printf 'more' >"$work/other.txt" &&
        printf '/read\n/read %s\nWhat is it?\nno file\n' "$work/a text" | "$program" --plain >"$work/out" 2>&1 &&
        has "$work/out" "/read FILE" && has "$work/out" "a text will precede your next message; /read alone removes it." &&
        has "$work/out" "You said: first line" && has "$work/out" "second line" && has "$work/out" "What is it?" &&
        has "$work/out" "You said: no file" && [ "$(grep -c "second line" "$work/out")" = 1 ] &&
        printf '/read %s\n/read %s\n/read\nWhat now?\n' "$work/a text" "$work/other.txt" |
        "$program" --plain >"$work/out" 2>&1 && has "$work/out" "precede your next message, too; /read alone removes all." &&
        has "$work/out" "The file was removed from your next message." && has "$work/out" "You said: What now?" &&
        printf '/read %s\nHello\n' "$work/none" | "$program" --plain >"$work/out" 2>&1 && has "$work/out" "No such file" &&
        has "$work/out" "You said: Hello"
}
plain_keys() { # a terminal in line mode turns such keys into text, which is refused; from a pipe it is accepted
    start 80x24 "" --plain && see "lists commands" && text "Hello" && keys Up Enter && see "Not sent: the line contains" &&
        ! shows "You said" && say "Hello" && see "You said: Hello" || return 1
    printf 'a\033[A\n' | "$program" --plain >"$work/out" 2>&1 && has "$work/out" "You said: a"
}
renamed_elsewhere() { start 60x12 PIPPIN_FAKE_RENAMED=by-another && see ready && gone by-another && text x && see by-another; }
idle_costs_nothing() {
    start 80x24 && see ready && rests && p=$(pid_of) && a=$(cut -d' ' -f14,15 "/proc/$p/stat") &&
        n=$(awk '/ctxt/ {s += $2} END {print s}' "/proc/$p/status") &&
        sleep 1 && [ "$a" = "$(cut -d' ' -f14,15 "/proc/$p/stat")" ] &&
        [ "$n" = "$(awk '/ctxt/ {s += $2} END {print s}' "/proc/$p/status")" ] ||
        { why="the idle program ran"; return 1; }
}

# a line that cannot be saved is at least shown, also if the same line could not be saved before
half_typed_unkept() {
    mkdir -p "$work/state/pippin/history" && start 140x24 && see ready && say "kept nowhere" && see "kept nowhere" &&
        text "kept nowhere" && keys F10 && see "exit=" && see "Is a directory" &&
        see "could not be saved; here it is" && see "kept nowhere"
}
half_typed_temporary() { # if nothing can be saved, it is shown; if nothing was to be saved, it is lost
    start 80x24 PIPPIN_FAKE_TEMPORARY=unwanted && see ready && text "kept nowhere" && keys F10 && see "exit=" &&
        see "could not be saved; here it is" && see "kept nowhere" &&
        start 80x24 PIPPIN_FAKE_TEMPORARY=wanted && see ready && text "kept nowhere" && keys F10 && see "exit=" &&
        ! screen | grep -q "kept nowhere" && ! grep -qs "kept nowhere" "$work/state/pippin/history"
}
said_of_names() { # above the typed text, which is longer than a screen
    t capture-pane -t case: -p -J -S - | grep -q "unsent.txt and unsent-2.txt to unsent-999.txt all exist; delete"
}
# a text that is too long for the history goes to a new file next to existing ones; without a free name it is shown
long_typed() {
    mkdir -p "$work/state/pippin" && echo other >"$work/state/pippin/unsent.txt" && start 140x24 && see ready &&
        seq -s' ' 1 20000 | paste && see " 20000" && keys F10 && see "exit=" && see "/unsent-2.txt; /read inserts" &&
        has "$work/state/pippin/unsent-2.txt" " 20000" && has "$work/state/pippin/unsent.txt" other || return 1
    for i in $(seq 3 999); do echo other >"$work/state/pippin/unsent-$i.txt"; done
    start 140x24 && see ready && seq -s' ' 1 20000 | paste && see " 20000" && keys F10 && see "exit=" && see " 20000" &&
        becomes 0 said_of_names && has "$work/state/pippin/unsent-999.txt" other
}

cases="greeting_80x24 size_of_another absurd_sizes greeting_60x16 greeting_20x5 greeting_132x50 tiny send_and_stream small_answer markdown
markdown_raw unicode resize_while_streaming follow_the_tail place_is_kept enlarged_to_the_tail new_text_mark many_messages loading_ends paste_lines
paste_megabyte paste_without_memory paste_of_no_text paste_without_end paste_behind_a_menu paste_while_leaving multi_line
history draft_comes_back older_lines vi_keys wrong_keys alt_ctrl_j whole_letters search_ends_with_a_key search_asks keys_without_a_use keys_that_would_lose counted_keys typed_ahead
enter_while_loading no_model too_large_model lone_escape no_locale editor
editor_writes_too_much editor_writes_no_text editor_leaves_a_pipe editor_without_memory editor_dies editor_is_suspended editor_takes_keys refused long_notice small_notice corrected_scale two_notices notice_stays_behind not_saved unsaved_stays
slash_commands completion read_file full_context full_while_typing full_and_typing_on edit_last edit_others edit_is_given_up edit_ends_with_its_message edit_ends_with_its_conversation stop_by_escape
stop_by_interrupt leave leave_the_only_screen leave_by_ctrl_d leave_in_words menus menu_tells menu_letters unfit_terminals menu_explains menu_keys menu_ctrl_d menu_fields long_titles help_in_full help_by_pages menus_over_wide_text menus_small menus_narrow menu_hides_a_notice themes theme_unkept configured_theme selected_row no_color tint
drafters models copy injection title_injection crash_segv crash_abrt crash_quit interrupt_while_starting gentle_term stuck_end left_in_a_hurry stuck_terminal_term stuck_terminal_twice half_typed half_typed_unkept half_typed_temporary long_typed suspend
stopped_from_outside plain plain_lists plain_pipe plain_quoted bell more_lines_than_rows plain_file plain_keys reasoning reasoning_is_open reasoning_is_stopped plain_reasoning idle_costs_nothing renamed_elsewhere broken_theme
alternatives alternatives_think adapters adapter_path_refused adapters_change_places presets_change_places presets_of_long_names comparison elsewhere impatient_search none_is_found found_is_shown found_here told_elsewhere a_message_at_a_time mouse"
passed=0 failed=0
for c in ${wanted:-$cases}; do
    why=
    rm -rf "$work/state" "$work/after" "$work/hold"
    if $c; then
        passed=$((passed + 1))
        echo "ok   $c"
    else
        failed=$((failed + 1))
        echo "FAIL $c ${why:+($why)}"
        [ -n "$SHOW" ] && screen
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
