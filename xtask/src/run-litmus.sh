#!/bin/bash
# Tries on this machine's GPU in which order host and GPU see each other's writes (docs/consistency.md): natively, and under mrcuda at every
# place. litmus.txt gets what each place shows; the output lists what was wrong. Options go to the program: ./run-litmus.sh --rounds 50
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[ -d programs ] || tar -xzf programs.tar.gz
litmus=programs/static/litmus
directory=$(mktemp -d)
export XDG_CONFIG_HOME="$directory" XDG_RUNTIME_DIR="$directory" XDG_STATE_HOME="$directory/state"
port=${LITMUS_PORT:-7898}
bin/mrcuda serve --listen "127.0.0.1:$port" --unix "$directory/socket" >"$directory/log" 2>&1 &
server=$!
trap 'kill "$server"; rm -rf "$directory"' EXIT
for _ in $(seq 200); do [ -S "$directory/socket" ] && break; sleep 0.1; done
options=(--rounds 20 --counts)
[ $# -gt 0 ] && options=(--counts "$@")
: >litmus.txt
failed=0
# What one machine's memory promises and copies of it do not is tried only where there is one memory.
attempt() {
    local place=$1
    shift
    echo "== $place" | tee -a litmus.txt
    "$@" >"$directory/out" 2>&1 || failed=1
    cat "$directory/out" >>litmus.txt
    echo "$(grep -c ' ok ' "$directory/out" || true) ok"
    grep -v ' ok ' "$directory/out" || true
}
attempt native "$litmus" "${options[@]}"
attempt local bin/mrcuda run --server local -- "$litmus" "${options[@]}"
for place in helper "unix:$directory/socket/0"; do
    attempt "${place%%:*}, no registered memory" bin/mrcuda run --server "$place" -- "$litmus" "${options[@]}" --unregistered
    attempt "${place%%:*}" bin/mrcuda run --server "$place" -- "$litmus" "${options[@]}" --except sb/
done
attempt tcp bin/mrcuda run --server "tls://127.0.0.1:$port/0" -- "$litmus" "${options[@]}" --except sb/
exit "$failed"
