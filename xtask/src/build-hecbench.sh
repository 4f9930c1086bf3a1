#!/bin/bash
# Compiles the CUDA programs of HeCBench (https://github.com/zjin-lcf/HeCBench), unchanged, on a machine with nvcc and a GPU, and writes a
# list of those that build for `run-apps.sh SRC --list FILE`, with the arguments of their `make run` and a hundredth of the repetitions.
# ./build-hecbench.sh SRC FILE [SECONDS]: SRC is HeCBench's directory `src`; SECONDS (default 300) is when no further program is begun.
set -euo pipefail
src=$(cd "${1:?usage: build-hecbench.sh SRC FILE [SECONDS]}" && pwd)
list=${2:?usage: build-hecbench.sh SRC FILE [SECONDS]}
arch=${ARCH:-sm_$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)}
end=$(($(date +%s) + ${3:-300}))
export end arch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$src"

# Prints the line of one program's directory.
build() {
    [ "$(date +%s)" -lt "$end" ] || return 0
    local program=$1 line arguments
    timeout 120 make -s -C "$program" ARCH="$arch" CC=nvcc >/dev/null 2>&1 || return 0
    # What `make run` would execute: "LAUNCHER ./main 100 200".
    line=$(make -s -n -C "$program" run ARCH="$arch" CC=nvcc LAUNCHER= 2>/dev/null | grep -oE '\./[A-Za-z0-9_.-]+( .*)?$' | head -1) || return 0
    [ -f "$program/${line%% *}" ] || return 0
    arguments=${line#* }
    [ "$arguments" = "$line" ] && arguments=
    # The last number is that of the repetitions.
    arguments=$(awk '{ for (i = NF; i > 0; i--) if ($i ~ /^[0-9]+$/) { if ($i >= 100) $i = int($i / 100); break } print }' <<<"$arguments")
    case $arguments in *[\;\|\<\>\&]*) return 0 ;; esac
    local name=${line%% *}
    echo "$program/${name#./} $arguments @directory=$program"
}
export -f build
printf '%s\0' *-cuda | xargs -0 -P "$(nproc)" -I{} bash -c 'build "$1" >"$2/$1"' _ {} "$work"
cat "$work"/* >"$list"
echo "$(wc -l <"$list") of $(ls -d ./*-cuda | wc -l) programs build and can be called"
