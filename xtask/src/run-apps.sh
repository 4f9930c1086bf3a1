#!/bin/bash
# Runs programs on this machine's GPU natively, over TCP, over shared memory, in the job's process, in a helper process, and moved again
# and again, and compares output and time: those of tests/programs/apps, or of a directory. ./run-apps.sh [DIRECTORY [--list FILE]] [--json FILE];
# --help lists more.
set -euo pipefail
bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -d "$bundle/programs" ] || tar -C "$bundle" -xzf "$bundle/programs.tar.gz"
export MRCUDA_BIN_DIR="$bundle/bin" MRCUDA_PROGRAMS="$bundle/programs"
exec "$bundle/bin/xtask" apps "$@"
