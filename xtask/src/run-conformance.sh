#!/bin/bash
# Calls every driver function on this machine's GPU, natively and under mrcuda in every way, and compares what is answered.
# conformance.txt gets the native transcript and everything that differs from it; the end of the output says how many differences
# have no reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export MRCUDA_BIN_DIR="$PWD/bin"
exec bin/xtask conformance --driver real --out conformance.txt "$@"
