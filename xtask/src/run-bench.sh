#!/bin/bash
# Measures everything on this machine's GPU in about five minutes: two runs of mrcuda bench, the second with other amounts;
# models are fitted to the first and validated on the second. Tables go to the terminal, JSON and plots to $OUT.
# $SECONDS_FOR_MOVES changes how long the moves of the first run may take.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
out="${OUT:-$here/bench}"
mrcuda="$here/bin/mrcuda"
moves="${SECONDS_FOR_MOVES:-120}"
mkdir -p "$out"
{
    "$mrcuda" bench --seconds "$moves" --out "$out/fit"
    echo
    echo "== validation: other amounts"
    "$mrcuda" bench --validation --only calls,record,moves --seconds "$((moves / 2))" --out "$out/validation"
    echo
    echo "== models, fitted to the first run"
    "$mrcuda" models fit "$out/fit/bench.json" --out "$out/models.json"
    echo "== the same, on the second run"
    # Models that do not hold are a finding, not a failure of this script.
    "$mrcuda" models validate "$out/models.json" "$out/validation/bench.json" --plot "$out/validation.svg" || true
} | tee "$out/tables.txt"
