#!/bin/bash
# Measures on this machine's GPU how fast managed memory is used: natively, and at a server of this machine over TCP, where it is mirrored, without
# and with `--managed exclusive`. managed.txt gets all of it. First the program that checks every byte runs in these ways, and its output is
# compared. Options go to the measuring program: ./run-managed.sh --mib 4096 --kernels 20
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
[ -d programs ] || tar -xzf programs.tar.gz
directory=$(mktemp -d)
export XDG_CONFIG_HOME="$directory" XDG_RUNTIME_DIR="$directory" XDG_STATE_HOME="$directory/state"
port=${MANAGED_PORT:-7897}
bin/mrcuda serve --listen "127.0.0.1:$port" --unix "$directory/socket" >"$directory/log" 2>&1 &
server=$!
trap 'kill "$server"; rm -rf "$directory"' EXIT
for _ in $(seq 200); do [ -S "$directory/socket" ] && break; sleep 0.1; done
failed=0
: >managed.txt
programs/static/exclusive >"$directory/native"
for managed in concurrent exclusive; do
    MRCUDA_LOG=memory=debug bin/mrcuda run --server "tls://127.0.0.1:$port/0" --managed "$managed" -- programs/static/exclusive \
        >"$directory/out" 2>"$directory/err" || failed=1
    cmp "$directory/native" "$directory/out" || failed=1
    echo "== exclusive, --managed $managed: blocks in the GPU's memory $(grep -c "there: true" "$directory/err" || true)," \
        "in host memory $(grep -c "there: false" "$directory/err" || true)" | tee -a managed.txt
done
measure() {
    local how=$1
    shift
    echo "== $how" | tee -a managed.txt
    "$@" 2>&1 | tee -a managed.txt || failed=1
}
for prefetch in "" --prefetch; do
    measure "natively" programs/static/managed_times "$@" $prefetch
    for managed in concurrent exclusive; do
        measure "--managed $managed" bin/mrcuda run --server "tls://127.0.0.1:$port/0" --managed "$managed" -- \
            programs/static/managed_times "$@" $prefetch
    done
done
exit "$failed"
