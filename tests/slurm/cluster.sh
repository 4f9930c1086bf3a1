#!/bin/bash
# What `cargo xtask slurm` and the system tests `slurm` run, as root, on a machine with Slurm, munge and no cluster: a Slurm of four nodes on this
# machine, softgpu, the plugin. Each program's output must be that of a native run, and each must be where it was sent.
#
# usage: cluster.sh BIN [PART…]: BIN is the directory with mrcuda, its libraries, libmrcuda_spank.so and orbit; the parts are below, all of them
# unless some are named, or `day`: day.sh instead
set -u
bin=$(realpath "$1") here=$(realpath "$(dirname "$0")")
all=(places signals suspension counting policies nodes directories requeue runtime)
parts=("${@:2}")
((${#parts[@]})) || parts=("${all[@]}")
for part in "${parts[@]}"; do
    [[ " ${all[*]} day " = *" $part "* ]] || { echo "there is no part $part: ${all[*]} day" >&2 && exit 2; }
done
PATH=$PATH:/usr/sbin:/sbin
# Clusters of different parts can run at the same time, each with ports of its own; one of the same part waits for the other.
number=${#all[@]}
for i in "${!all[@]}"; do [ "${all[i]}" = "${parts[0]}" ] && number=$i; done
port=$((17000 + 100 * number))
exec {turn}>"/tmp/mrcuda-slurm-$number.lock" && flock --timeout 900 $turn || exit
packaged=$here/../../packaging/slurm
work=$(mktemp -d /tmp/mrcuda-slurm.XXXXXX)
mkdir -p "$work"/{etc,run,state,spool,log,dev,home,native,parked}
chmod 755 "$work" "$work/run"
export SLURM_CONF=$work/etc/slurm.conf HOME=$work/home MRCUDA_DRIVER=soft
# What a login node passes on, and a compute node does not have.
export XDG_RUNTIME_DIR=/run/user/of-the-login-node
host=$(hostname -s) || exit
cat >"$SLURM_CONF" <<END
ClusterName=mrcuda
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
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
MessageTimeout=60
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
PlugStackConfig=$work/etc/plugstack.conf
MailProg=/bin/true
SchedulerParameters=batch_sched_delay=0,sched_interval=1
Prolog=$work/etc/prolog.sh
Epilog=$work/etc/epilog.sh
GresTypes=rgpu
Licenses=rgpu:2
PreemptType=preempt/partition_prio
PreemptMode=SUSPEND,GANG
NodeName=n[1-4] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 4))] CPUs=8 RealMemory=1000 Gres=rgpu:2 State=UNKNOWN
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 OverSubscribe=FORCE:1
PartitionName=urgent Nodes=n[1-4] MaxTime=INFINITE State=UP PriorityTier=10 OverSubscribe=FORCE:1 PreemptMode=OFF
END
echo "NodeName=n[1-4] Name=rgpu Count=2 Flags=CountOnly" >"$work/etc/gres.conf"
echo "required $bin/libmrcuda_spank.so mrcuda=$bin/mrcuda runtime=$work/jobs count=rgpu" >"$work/etc/plugstack.conf"
for script in prolog epilog; do # which Slurm starts without the environment of slurmd
    printf '#!/bin/sh\n[ -e %s/without-prolog ] && exit 0\nMRCUDA_SLURM_RUNTIME=%s/jobs MRCUDA_SLURM_PARKED=%s/parked exec %s/%s.sh\n' \
        "$work" "$work" "$work" "$packaged" "$script" >"$work/etc/$script.sh"
    chmod +x "$work/etc/$script.sh"
done
dd if=/dev/urandom of="$work/etc/munge.key" bs=1024 count=1 2>/dev/null
chmod 400 "$work/etc/munge.key"

servers=()
passed=0 failed=0
is_over() { [ -z "$(squeue --noheader 2>/dev/null)" ]; }
end() {
    # Those that wait to be told that they may end.
    touch "$work/moved" "$work/returned" "$work/parted"
    scancel --full --signal=KILL --user=root 2>/dev/null
    for _ in $(seq 20); do
        is_over && break
        sleep 0.5
    done
    for file in "$work"/run/slurmd-*.pid "$work/run/slurmctld.pid" "$work/run/munged.pid"; do
        [ -f "$file" ] && kill "$(cat "$file")" 2>/dev/null
    done
    ((${#servers[@]})) && kill "${servers[@]}" 2>/dev/null
    # Steps and jobs whose controller has gone.
    sleep 1
    for process in $(grep -slz "^SLURM_CONF=$SLURM_CONF$" /proc/[0-9]*/environ | cut -d/ -f3); do
        [ "$process" = $$ ] || [ "$process" = $BASHPID ] || kill -KILL "$process" 2>/dev/null
    done
    ((failed == 0 && passed > 0)) && rm -rf "$work"
}
trap end EXIT
munged --force --key-file="$work/etc/munge.key" --socket="$work/run/munge.socket" --pid-file="$work/run/munged.pid" \
    --log-file="$work/log/munged.log" --seed-file="$work/run/munged.seed" --num-threads=2
slurmctld -i
for n in 1 2 3 4; do slurmd -N "n$n"; done
one=127.0.0.1:$((port + 11)) two=127.0.0.1:$((port + 12))
serve() { # its address and further options
    SOFTGPU_DEVICES=2 "$bin/mrcuda" serve --listen "$1" --munge any --munge-socket "$work/run/munge.socket" "${@:2}" >>"$work/log/serve-${1##*:}.log" 2>&1 &
    server=$!
    servers+=("$server")
}
serve "$two"
serve "$one"

check() { # what it is, and a command that must succeed
    if "${@:2}"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED: $1"; fi
}
within() { # seconds, and a command that must succeed by then; where more runs than there are processors, a second counts as the share of one
    local left=$(($1 * 1000)) processors runnable
    processors=$(nproc)
    until "${@:2}"; do
        ((left > 0)) || return 1
        sleep 0.5
        read -r _ _ _ runnable _ </proc/loadavg
        runnable=${runnable%/*}
        left=$((left - 500 * processors / (runnable > processors ? runnable : processors)))
    done
}
is_up() { [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 4 ]; }
check "the nodes are up" within 60 is_up

ln -s "$bin/libsoftgpu.so" "$work/native/libcuda.so.1"
printf '[run]\npool = ["%s", "%s"]\n' "$one" "$two" >"$work/etc/mrcuda.toml"
jobs_at() { "$bin/mrcuda" gpus "$1" --json | python3 -c 'import json,sys; print(sum(len(g["jobs"]) for g in json.load(sys.stdin)[0]["gpus"]))'; }
at_is() { [ "$(jobs_at "$1")" = "$2" ]; }
# Of the jobs of this cluster, and not of what else root runs on this machine: an expression of Python for each job `j`.
of_jobs() {
    env -u XDG_RUNTIME_DIR "$bin/mrcuda" ps --all --json | python3 -c '
import json, sys
def is_ours(j):
    try: return sys.argv[1].encode() in open("/proc/%d/environ" % j["pid"], "rb").read()
    except OSError: return False
print(*sorted(eval(sys.argv[2]) for j in json.load(sys.stdin) if j["devices"] and is_ours(j)))' "SLURM_CONF=$SLURM_CONF" "$1"
}
if [ "${parts[0]}" = day ]; then
    # shellcheck source=day.sh
    . "$here/day.sh"
    exit
fi
run=("$bin/orbit" --steps 6000 --pace 3000)
(cd "$work/native" && LD_LIBRARY_PATH=. "$bin/orbit" --steps 6000 >orbit.out && LD_LIBRARY_PATH=. "$bin/orbit" --steps 6000 --reports >reports.out)
printf '#!/bin/bash\nsrun %s\n' "${run[*]}" >"$work/steps.sh"
printf '#!/bin/bash\n%s\n' "${run[*]}" >"$work/alone.sh"
printf '#!/bin/bash\n#SBATCH --error=%s\ntrap "echo trapped >&2" USR1\nsrun %s &\nwait\nwait\n' "$work/traps.err" "${run[*]}" >"$work/traps.sh"
submit() { sbatch --parsable --output="$work/$1.out" --job-name="$1" --mrcuda="tls://$one" "${@:2}"; }
count_is() { [ "$(of_jobs 'j["devices"][0]["place"]' | tr ' ' '\n' | grep -c "$1")" = "$2" ]; }
# Of a job that ends when it is told to: a part of what a native run reports.
is_native() { python3 -c 'import sys; part, all = (open(f).read() for f in sys.argv[1:]); sys.exit(not part or part not in all)' "$1" "$work/native/reports.out"; }

# Where a task runs, and who lets it in.
places() {
    said=$(srun --mrcuda=nowhere true 2>&1)
    check "a wrong place is refused in words" grep -q 'mrcuda: .*invalid place `nowhere`' <<<"$said"
    check "each of two tasks takes a GPU of the pool" diff -q <(MRCUDA_CONFIG=$work/etc/mrcuda.toml srun --ntasks=2 --mrcuda=auto "$bin/orbit" --steps 6000 | sort) \
        <(cat "$work/native/orbit.out" "$work/native/orbit.out" | sort)
    without_token=(MRCUDA_TOKEN_FILE="$work/none" MRCUDA_MUNGE=root MRCUDA_MUNGE_SOCKET="$work/run/munge.socket")
    check "a task without a token is let in by munge" diff -q <(env "${without_token[@]}" srun --mrcuda="tls://$one" "$bin/orbit" --steps 6000) "$work/native/orbit.out"
    check "as the user who has submitted it" grep -q "serves job .* of root at 127.0.0.1:" "$work/log/serve-${one##*:}.log"
    said=$(env "${without_token[@]}" MRCUDA_MUNGE= srun --mrcuda="tls://$one" "$bin/orbit" --steps 6000 2>&1)
    check "without munge it is refused in words" grep -q 'requires a token, and there is none' <<<"$said"
    check "a task runs at the place" diff -q <(srun --mrcuda="tls://$one" "$bin/orbit" --steps 6000) "$work/native/orbit.out"
}

# The signal in every form: to steps, to the batch shell alone, to all of them, to arrays.
signals() {
    # However slow the machine is, none ends before it has moved.
    local -x ORBIT_END=$work/moved
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
    touch "$work/moved"
    check "all jobs end" within 120 is_over
    check "the trap of a script has run" grep -q trapped "$work/traps.err"
    for name in steps alone full array1 array2 traps; do
        check "$name prints what it prints natively" is_native "$work/$name.out"
    done
}

# Suspension parks the job, and it goes on where it was.
suspension() {
    local -x ORBIT_END=$work/parted
    stopped=$(MRCUDA_ON_STOP=memory submit stopped "$work/steps.sh")
    check "a job is at the server" within 60 count_is "$one" 1
    scontrol suspend "$stopped"
    check "a suspended job leaves the GPU" within 30 at_is "$one" 0
    scontrol resume "$stopped"
    check "a resumed job is back" within 30 at_is "$one" 1
    touch "$work/parted"
    check "it ends" within 120 is_over
    # srun adds a line of its own.
    sed -i "/^srun: got SIGCONT/d" "$work/stopped.out"
    check "stopped prints what it prints natively" is_native "$work/stopped.out"
}

# Slurm counts remote GPUs, as licences of the cluster and as a gres of each node, and `auto` takes as many.
counting() {
    state_is() { [ "$(squeue --noheader --jobs="$1" --format="$2" 2>/dev/null)" = "$3" ]; }
    devices_are() { [ "$(of_jobs 'len(j["devices"])')" = "$1" ]; }
    local -x MRCUDA_CONFIG=$work/etc/mrcuda.toml
    counted() { sbatch --parsable --output="$work/$1.out" --job-name="$1" --mrcuda=auto "${@:2}" "$work/steps.sh"; }
    first=$(counted licences1 --licenses=rgpu:2)
    check "a job gets as many GPUs as licences" within 60 devices_are 2
    second=$(counted licences2 --licenses=rgpu:1)
    check "a job waits for its licence" within 20 state_is "$second" "%T %r" "PENDING Licenses"
    check "the second runs after the first" within 120 state_is "$second" %T RUNNING
    check "the first has ended by then" state_is "$first" %T ""
    check "and gets one GPU" within 60 devices_are 1
    check "they end" within 120 is_over
    first=$(counted gres1 --gres=rgpu:2 --nodelist=n1)
    check "a job gets as many GPUs as its gres" within 60 devices_are 2
    second=$(counted gres2 --gres=rgpu:1 --nodelist=n1)
    check "a job waits for the gres of its node" within 20 state_is "$second" "%T %r" "PENDING Resources"
    check "they end in turn" within 240 is_over
    for name in licences1 licences2 gres1 gres2; do
        check "$name prints what it prints natively" diff -q "$work/$name.out" "$work/native/orbit.out"
    done
    both=$(srun --nodes=1 --ntasks=2 --gres=rgpu:2 --mrcuda=auto "$bin/orbit" --steps 6000)
    check "tasks of a node share what it has" diff -q <(sort <<<"$both") <(cat "$work/native/orbit.out" "$work/native/orbit.out" | sort)
    both=$(srun --nodes=1 --ntasks=2 --gres=rgpu:2 --mrcuda=auto printenv MRCUDA_SERVERS)
    check "each has got one" [ "$(grep -c '^[^,]*$' <<<"$both")" = 2 ]
    said=$(srun --nodes=1 --ntasks=2 --gres=rgpu:1 --mrcuda=auto true 2>&1)
    check "too few for the tasks are refused in words" grep -q '2 tasks cannot share 1 rgpu' <<<"$said"
}

# A job carries where it belongs and which policies may move it, and the agent goes by that.
policies() {
    said=$(srun --mrcuda="tls://$one" --mrcuda-home=memory true 2>&1)
    check "a home where nothing is executed is refused in words" grep -q 'mrcuda: .*nothing is executed at `memory`' <<<"$said"
    said=$(srun --mrcuda="tls://$one" --mrcuda-policy=drain true 2>&1)
    check "a policy that is not for the job is refused in words" grep -q 'mrcuda: .*`drain` is none of home, consolidate, balance' <<<"$said"
    {
        printf 'servers = ["%s", "%s"]\nevery = "500ms"\nsettle = "500ms"\nrest = "1s"\nreserve_mib = 0\n' "$one" "$two"
        # Other jobs of root are none of its business.
        printf '[[job]]\nname = "goes"\n[[job]]\nname = "stays"\n[[job]]\nname = "*"\nleave = true\n[[policy]]\nkind = "home"\n'
    } >"$work/etc/agent.toml"
    local -x ORBIT_END=$work/parted
    MRCUDA_NAME=goes submit goes --mrcuda-home="tls://$two/1" "$work/steps.sh" >/dev/null
    MRCUDA_NAME=stays submit stays --mrcuda-home="tls://$two/0" --mrcuda-policy=balance "$work/steps.sh" >/dev/null
    check "two jobs are at the server" within 60 count_is "$one" 2
    wishes=$(of_jobs 'j["name"] + "=" + j["home"] + "," + j["policy"]')
    check "they say where they belong" [ "$wishes" = "goes=tls://$two/1, stays=tls://$two/0,balance" ]
    env -u XDG_RUNTIME_DIR "$bin/mrcuda" agent --all --config "$work/etc/agent.toml" >"$work/log/agent.out" 2>&1 &
    servers+=($!)
    check "one goes home" within 60 count_is "$two/1" 1
    sleep 3
    check "the other stays, since it lets no policy move it there" count_is "$one" 1
    kill "${servers[-1]}"
    touch "$work/parted"
    check "they end" within 120 is_over
    for name in goes stays; do
        check "$name prints what it prints natively" is_native "$work/$name.out"
    done
}

# A server on a node that Slurm drains is left, and used again afterwards.
nodes() {
    {
        printf 'servers = ["%s", "%s"]\nslurm_nodes = { "%s" = "n4" }\nslurm_every = "1s"\nevery = "500ms"\nsettle = "500ms"\nrest = "1s"\nreserve_mib = 0\n' "$one" "$two" "$two"
        printf '[[job]]\nname = "guest"\nhome = "%s/0"\n[[job]]\nname = "*"\nleave = true\n[[policy]]\nkind = "drain"\nslurm = true\n[[policy]]\nkind = "home"\n' "$two"
    } >"$work/etc/agent.toml"
    local -x ORBIT_END=$work/returned # as in `signals`
    MRCUDA_NAME=guest submit guest --nodelist=n1 "$work/steps.sh" >/dev/null
    check "a job is at the server" within 60 count_is "$one" 1
    env -u XDG_RUNTIME_DIR "$bin/mrcuda" agent --all --config "$work/etc/agent.toml" >"$work/log/agent.out" 2>&1 &
    servers+=($!)
    check "it goes to the server on n4" within 60 count_is "$two" 1
    scontrol update NodeName=n4 State=DRAIN Reason=maintenance
    check "it leaves that server when n4 is drained" within 60 count_is "$one" 1
    check "which is the reason" grep -q "Slurm drains n4, the node of $two" "$work/log/agent.out"
    scontrol update NodeName=n4 State=RESUME
    check "it returns when n4 is back" within 60 count_is "$two" 1
    touch "$work/returned"
    check "it ends" within 120 is_over
    kill "${servers[-1]}"
    check "guest prints what it prints natively" is_native "$work/guest.out"
}

# A job has a directory of its own for sockets, and leaves nothing.
directories() {
    private=$(submit private "$work/steps.sh")
    has_socket() { [ -n "$(ls "$work/jobs/$private/mrcuda" 2>/dev/null)" ]; }
    check "a job's socket is in its own directory" within 60 has_socket
    check "which only its user can enter" [ "$(stat --format=%a:%u "$work/jobs/$private")" = 700:0 ]
    process=$(ls "$work/jobs/$private/mrcuda")
    env -u XDG_RUNTIME_DIR "$bin/mrcuda" suspend "$process" --to "file:$work/parked" >/dev/null
    is_parked_in_file() { compgen -G "$work/parked/mrcuda-$process-*.parked" >/dev/null; }
    check "it is parked in a file" is_parked_in_file
    touch "$work/parked/mrcuda-$$-0-0011223344556677.parked" # of a process that runs
    scancel --full --signal=KILL "$private"
    check "it ends" within 60 is_over
    is_removed() { [ ! -e "$work/jobs/$private" ]; }
    check "the epilog removes its directory" within 30 is_removed
    is_clean() { ! is_parked_in_file; }
    check "and the file of the killed job" within 30 is_clean
    check "but none of a job that runs" [ -e "$work/parked/mrcuda-$$-0-0011223344556677.parked" ]
    rm "$work/parked/mrcuda-$$-0-0011223344556677.parked"
}

# A job that is requeued starts anew.
requeue() {
    again=$(submit again --requeue "$work/steps.sh")
    check "a job is at the server" within 60 count_is "$one" 1
    scontrol requeue "$again"
    check "a requeued job leaves the GPU" within 60 at_is "$one" 0
    scontrol update JobId="$again" StartTime=now
    check "it starts once more" within 180 count_is "$one" 1
    check "it ends" within 120 is_over
    check "again prints what it prints natively" diff -q "$work/again.out" "$work/native/orbit.out"
}

# Without a directory of the job, what the login node has passed on must not matter.
runtime() {
    touch "$work/without-prolog"
    mkdir "$work/of-another" && chown 12345 "$work/of-another"
    printf '#!/bin/bash\necho "${XDG_RUNTIME_DIR-none}" >&2\nexec %s\n' "${run[*]}" >"$work/says.sh"
    for given in /nonexistent "$work/of-another" relative; do
        name=runtime-${given##*/}
        XDG_RUNTIME_DIR=$given sbatch --parsable --export=ALL --output="$work/$name.out" --error="$work/$name.err" --mrcuda="tls://$one" "$work/says.sh" >/dev/null
        check "a job with XDG_RUNTIME_DIR=$given is found" within 60 count_is "$one" 1
        check "it ends" within 120 is_over
        check "$name prints what it prints natively" diff -q "$work/$name.out" "$work/native/orbit.out"
        check "$name is not used" grep -qx none "$work/$name.err"
        check "and slurmd's log says so" grep -q "XDG_RUNTIME_DIR=$given is no directory of this user here" "$work"/log/slurmd-n*.log
        said=$(XDG_RUNTIME_DIR=$given MRCUDA_LOG=info srun "$bin/mrcuda" run --server "tls://$one" -- "$bin/orbit" --steps 6000 2>&1 >"$work/$name.out")
        check "without the plugin the program says so" grep -q "XDG_RUNTIME_DIR=$given is no directory of this user here: the control socket is /tmp/mrcuda-0/" <<<"$said"
        check "and prints what it prints natively" diff -q "$work/$name.out" "$work/native/orbit.out"
    done
}

for part in "${parts[@]}"; do
    rm -f "$work/parted"
    "$part"
done
echo "$passed passed, $failed failed$( ((failed)) && echo "; logs: $work")"
((failed == 0))
