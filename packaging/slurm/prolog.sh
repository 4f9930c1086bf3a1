#!/bin/sh
# Slurm's Prolog= on compute nodes: makes a directory for the sockets of the job, which only its user can enter. The plugin has the job's tasks
# use it (runtime=DIRECTORY in plugstack.conf). epilog.sh removes it. A prolog that fails drains the node, so this one fails only if it cannot
# make the directory.
set -eu
directory=${MRCUDA_SLURM_RUNTIME:-/run/mrcuda-slurm}
install -d -m 0755 "$directory"
install -d -m 0700 -o "$SLURM_JOB_UID" -g "${SLURM_JOB_GID:-$(id -g "$SLURM_JOB_UID")}" "$directory/$SLURM_JOB_ID"
