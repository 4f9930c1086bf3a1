#!/bin/sh
# Slurm's Epilog= on compute nodes: when all processes of a job have ended, removes its directory of sockets, and what killed processes of its
# user leave: sockets in /tmp/mrcuda-UID, and files of parked jobs in the directories of MRCUDA_SLURM_PARKED (separated by spaces). Name only
# directories of this node there: the processes of other nodes look dead here. Journals are in memory, unless MRCUDA_KEEP_JOURNAL keeps them.
# What belongs to a process that runs, of this job or of another one, stays. An epilog that fails drains the node: this one does not.
set -u
directory=${MRCUDA_SLURM_RUNTIME:-/run/mrcuda-slurm}
# As the job's user, who can have put links in place of files; nothing of others can be removed so.
as_user() {
    if [ "$(id -u)" = 0 ] && [ "$SLURM_JOB_UID" != 0 ]; then
        setpriv --reuid "$SLURM_JOB_UID" --regid "$(id -g "$SLURM_JOB_UID")" --clear-groups -- "$@"
    else
        "$@"
    fi
}
# shellcheck disable=SC2016 # the inner shell expands it
as_user env PARKED="${MRCUDA_SLURM_PARKED:-}" JOB="$directory/$SLURM_JOB_ID" sh -c '
    user=$(id -u)
    if [ -d "$JOB" ] && [ ! -L "$JOB" ]; then find "$JOB" -mindepth 1 -delete; fi
    remove_of_dead() { # files, and what is before the process id in their names
        prefix=$1 && shift
        for file; do
            name=${file##*/}
            pid=${name#"$prefix"} && pid=${pid%%[!0-9]*}
            [ -n "$pid" ] && [ ! -d "/proc/$pid" ] && [ -O "$file" ] && rm -f -- "$file"
        done
    }
    sockets=/tmp/mrcuda-$user
    if [ -d "$sockets" ] && [ -O "$sockets" ] && [ ! -L "$sockets" ]; then remove_of_dead "" "$sockets"/[0-9]*; fi
    for parked in $PARKED; do remove_of_dead mrcuda- "$parked"/mrcuda-[0-9]*.parked; done
' || :
rmdir "$directory/$SLURM_JOB_ID" 2>/dev/null
exit 0
