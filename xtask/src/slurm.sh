#!/bin/bash
# What `cargo xtask slurm` runs, as root, on a machine with Slurm, munge and no cluster: a Slurm of four nodes on this machine, softgpu, the plugin. Each
# program's output must be that of a native run, and each must be where it was sent.
#
# usage: slurm.sh BIN, the directory with mrcuda, its libraries, libmrcuda_spank.so and orbit
set -u
bin=$(realpath "$1")
work=$(mktemp -d /tmp/mrcuda-slurm.XXXXXX)
mkdir -p "$work"/{etc,run,state,spool,log,dev,home,native}
chmod 755 "$work" "$work/run"
export SLURM_CONF=$work/etc/slurm.conf HOME=$work/home MRCUDA_DRIVER=soft
# What a login node passes on, and a compute node does not have.
export XDG_RUNTIME_DIR=/run/user/of-the-login-node
host=$(hostname -s)
cat >"$SLURM_CONF" <<END
ClusterName=mrcuda
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/run/munge.socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool/%n
SlurmctldPidFile=$work/run/slurmctld.pid
SlurmdPidFile=$work/run/slurmd-%n.pid
SlurmctldLogFile=$work/log/slurmctld.log
SlurmdLogFile=$work/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PlugStackConfig=$work/etc/plugstack.conf
MailProg=/bin/true
SchedulerParameters=batch_sched_delay=0,sched_interval=1
NodeName=n[1-4] NodeHostname=$host NodeAddr=127.0.0.1 Port=[17001-17004] CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
END
echo "required $bin/libmrcuda_spank.so mrcuda=$bin/mrcuda" >"$work/etc/plugstack.conf"
dd if=/dev/urandom of="$work/etc/munge.key" bs=1024 count=1 2>/dev/null
chmod 400 "$work/etc/munge.key"

servers=()
end() {
    scancel --full --user=root 2>/dev/null
    for file in "$work"/run/slurmd-*.pid "$work/run/slurmctld.pid" "$work/run/munged.pid"; do
        [ -f "$file" ] && kill "$(cat "$file")" 2>/dev/null
    done
    ((${#servers[@]})) && kill "${servers[@]}" 2>/dev/null
}
trap end EXIT
munged --force --key-file="$work/etc/munge.key" --socket="$work/run/munge.socket" --pid-file="$work/run/munged.pid" \
    --log-file="$work/log/munged.log" --seed-file="$work/run/munged.seed" --num-threads=2
slurmctld -i
for n in 1 2 3 4; do slurmd -N "n$n"; done
one=127.0.0.1:17101 two=127.0.0.1:17102
for address in "$one" "$two"; do
    "$bin/mrcuda" serve --listen "$address" >"$work/log/serve-${address##*:}.log" 2>&1 &
    servers+=($!)
done

passed=0 failed=0
check() { # what it is, and a command that must succeed
    if "${@:2}"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED: $1"; fi
}
within() { # seconds, and a command that must succeed by then
    local until=$((SECONDS + $1))
    until "${@:2}"; do ((SECONDS < until)) && sleep 0.5 || return 1; done
}
is_up() { [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 4 ]; }
check "the nodes are up" within 60 is_up

ln -s "$bin/libsoftgpu.so" "$work/native/libcuda.so.1"
run=("$bin/orbit" --steps 6000 --pace 3000)
(cd "$work/native" && LD_LIBRARY_PATH=. "$bin/orbit" --steps 6000 >orbit.out)
printf '#!/bin/bash\nsrun %s\n' "${run[*]}" >"$work/steps.sh"
printf '#!/bin/bash\n%s\n' "${run[*]}" >"$work/alone.sh"
printf '#!/bin/bash\n#SBATCH --error=%s\ntrap "echo trapped >&2" USR1\nsrun %s &\nwait\nwait\n' "$work/traps.err" "${run[*]}" >"$work/traps.sh"
submit() { sbatch --parsable --output="$work/$1.out" --job-name="$1" --mrcuda="tls://$one" "${@:2}"; }
places() { env -u XDG_RUNTIME_DIR "$bin/mrcuda" ps --all --json | python3 -c 'import json,sys; print(*sorted(j["devices"][0]["place"] for j in json.load(sys.stdin) if j["devices"]))'; }
count_is() { [ "$(places | tr ' ' '\n' | grep -c "$1")" = "$2" ]; }

said=$(srun --mrcuda=nowhere true 2>&1)
check "a wrong place is refused in words" grep -q 'mrcuda: .*invalid place `nowhere`' <<<"$said"
printf '[run]\npool = ["%s", "%s"]\n' "$one" "$two" >"$work/etc/mrcuda.toml"
check "each of two tasks takes a GPU of the pool" diff -q <(MRCUDA_CONFIG=$work/etc/mrcuda.toml srun --ntasks=2 --mrcuda=auto "$bin/orbit" --steps 6000 | sort) \
    <(cat "$work/native/orbit.out" "$work/native/orbit.out" | sort)
check "a task runs at the place" diff -q <(srun --mrcuda="tls://$one" "$bin/orbit" --steps 6000) "$work/native/orbit.out"

# The signal in every form: to steps, to the batch shell alone, to all of them, to arrays.
steps=$(submit steps --mrcuda-on-signal="tls://$two" "$work/steps.sh")
alone=$(submit alone "$work/alone.sh")
full=$(submit full "$work/steps.sh")
array=$(submit array%a --array=1-2 "$work/steps.sh")
traps=$(submit traps --mrcuda-traps "$work/traps.sh")
check "six jobs are at the server" within 60 count_is "$one" 6
scancel --signal=USR1 "$steps"
scancel --batch --signal=USR1 "$alone"
scancel --full --signal=USR1 "$alone"
scancel --full --signal=USR1 "$full"
scancel --signal=USR1 "$array"
scancel --full --signal=USR1 "$traps"
check "one has moved to the other server" within 60 count_is "$two" 1
check "five have moved into their processes" within 60 count_is local 5
is_over() { [ -z "$(squeue --noheader)" ]; }
check "all jobs end" within 120 is_over
check "the trap of a script has run" grep -q trapped "$work/traps.err"
for name in steps alone full array1 array2 traps; do
    check "$name prints what it prints natively" diff -q "$work/$name.out" "$work/native/orbit.out"
done

# Suspension parks the job, and it goes on where it was.
stopped=$(MRCUDA_ON_STOP=memory submit stopped "$work/steps.sh")
jobs_at() { "$bin/mrcuda" gpus "$1" --json | python3 -c 'import json,sys; print(sum(len(g["jobs"]) for g in json.load(sys.stdin)[0]["gpus"]))'; }
at_is() { [ "$(jobs_at "$1")" = "$2" ]; }
check "a job is at the server" within 60 count_is "$one" 1
scontrol suspend "$stopped"
check "a suspended job leaves the GPU" within 30 at_is "$one" 0
scontrol resume "$stopped"
check "a resumed job is back" within 30 at_is "$one" 1
check "it ends" within 120 is_over
# srun adds a line of its own.
check "stopped prints what it prints natively" diff -q <(grep -v "^srun: got SIGCONT" "$work/stopped.out") "$work/native/orbit.out"
echo "$passed passed, $failed failed; logs: $work"
((failed == 0))
