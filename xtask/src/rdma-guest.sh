# What `cargo xtask rdma` runs as the first process of two virtual machines that are joined by a network cable, each with a software RDMA
# device: ROLE `server` serves, ROLE `client` runs jobs. BIN, PROGRAMS, NAMES and QUICK (empty, or yes) are set in front of this. Each line
# `ROW NAME SECONDS RESULT` of the client is a row of the table.
uptime() { cut -d' ' -f1 /proc/uptime; }
# Ends the machine, whatever happens.
leave() { echo "END"; sync; echo o > /proc/sysrq-trigger; while :; do sleep 1; done; }
trap leave EXIT

rdma link add rx0 type rxe netdev $DEVICE || exit

mkdir -p /run/t/native && cd /run/t && ln -s $BIN/libsoftgpu.so native/libcuda.so.1
export HOME=/run/t XDG_CONFIG_HOME=/run/t XDG_CACHE_HOME=/run/t XDG_STATE_HOME=/run/t/state MRCUDA_TOKEN_FILE=/run/t/token TMPDIR=/run/t
export XDG_RUNTIME_DIR=/run/t/run && mkdir -m 700 run
(umask 077; printf '%064d' 7 > token)
# Everywhere, so that jobs may move: GPUs whose memory network cards could use. The software device refuses it, so that large copies go
# through host memory although the server permits the other way.
export SOFTGPU_ATTRIBUTES=110=1,118=100,124=1
# A port at which the client's machine gives commands to the server's.
COMMANDS=7000

# A server: serve NAME PORT OPTION…
serve() {
    name=$1 port=$2; shift 2
    SOFTGPU_SEED_ID=$name $BIN/mrcuda serve --listen $ADDRESS:$port --driver soft "$@" > $name.out 2> $name.err &
    for i in $(seq 600); do grep -q serving $name.out && return; sleep 0.1; done
    echo "no server $name: $(cat $name.out $name.err)"; exit
}
if [ $ROLE = server ]; then
    serve free 7878 --allow-plain --gpudirect
    serve strict 7879
    [ "$QUICK" ] || serve tight 7880 --allow-plain --max-pinned 44M
    [ "$QUICK" ] || serve none 7881 --allow-plain --max-pinned 1M
    busybox nc -ll -p $COMMANDS -e /bin/sh &
    tail -F free.err strict.err tight.err none.err
    exit
fi

# Places on the server's machine, and on this one.
PLACE=10.8.0.1:7878 STRICT=10.8.0.1:7879 TIGHT=10.8.0.1:7880 NONE=10.8.0.1:7881 NEAR=10.8.0.2:7878
serve near 7878 --allow-plain
# Runs a command on the server's machine.
there() { echo "$*" | busybox nc -w 10 10.8.0.1 $COMMANDS; }
wait_for_server() { for i in $(seq 600); do [ "$(there echo up 2> /dev/null)" = up ] && break; sleep 0.2; done; }
wait_for_server
# The commands that kill and stop the worker which the server has used last.
LAST="\$(grep -o 'worker [0-9]* serves' free.err | tail -n 1 | cut -d' ' -f2)"
KILL="kill -9 $LAST" STOP="kill -STOP $LAST"

export SOFTGPU_SEED_ID=local
job() { place=$1; shift; timeout 900 $BIN/mrcuda run --driver soft --server $place -- "$@"; }
native() { LD_LIBRARY_PATH=/run/t/native timeout 300 "$@"; }
COUNTERS=/sys/class/infiniband/rx0/ports/1/hw_counters
RECEIVED=$COUNTERS/rcvd_pkts
# Packets that this machine has sent over RDMA.
packets() { cat $COUNTERS/sent_pkts; }
# A row: row NAME BEGAN RESULT
row() { echo "ROW $1 $(echo "$(uptime) $2" | awk '{printf "%.1f", $1 - $2}') $3"; }
# Packets that the server's machine has received and sent over RDMA, and segments that this machine has received and sent over TCP.
wire() {
    there "cat $RECEIVED $COUNTERS/sent_pkts" | tr '\n' ' '
    awk '/^Tcp:/ { if (seen++) print $11 + $12 }' /proc/net/snmp
}
# What has become of these bytes since a call of `wire`: `ok` if as many came to the server's machine or went from it over RDMA, and few
# over TCP: went BYTES-TO-SERVER BYTES-FROM-SERVER BEFORE. A packet has 1024 bytes, a segment up to 1448.
went() {
    echo "$1 $2 $3 $(wire)" | awk '{
        to = $6 - $3; from = $7 - $4; tcp = $8 - $5
        if (to < $1 / 1024 || from < $2 / 1024 || tcp > ($1 + $2) / 1448 / 2)
            printf "%d and %d packets over RDMA and %d segments over TCP, for %d and %d bytes", to, from, tcp, $1, $2
        else print "ok" }'
}
# What a file says, in one line.
said() { tail -q -n 3 "$@" 2>&1 | tr '\n' ' ' | cut -c 1-300; }

began=$(uptime)
job rdma://$STRICT/0 $PROGRAMS/vecadd > strict.o 2> strict.e
if [ $? = 2 ] && grep -q "RDMA is not encrypted" strict.e; then row refused-without-allow-plain $began ok; else row refused-without-allow-plain $began "$(said strict.e)"; fi

if [ -z "$QUICK" ]; then
    began=$(uptime)
    job rdma://$NONE/0 $PROGRAMS/vecadd > none.o 2> none.e
    if [ $? = 2 ] && grep -q "more pinned memory than the 1 MiB" none.e; then row refused-beyond-max-pinned $began ok; else row refused-beyond-max-pinned $began "$(said none.e)"; fi
fi

for name in $NAMES; do
    native $PROGRAMS/$name > n.o 2> n.e; code=$?
    began=$(uptime) before=$(packets)
    job rdma://$PLACE/0 $PROGRAMS/$name > r.o 2> r.e; got=$?
    if [ $got = $code ] && cmp -s n.o r.o && [ $(packets) -gt $before ]; then row $name $began ok
    else row $name $began "exit status $got, natively $code, $(packets) packets after $before: $(said r.o r.e)"; fi
done

# A member of a text in JSON: the first one with this name: member NAME FILE
member() { tr ',{' '\n\n' < $2 | sed -n "s/.*\"$1\": *\"*\\([^\",}]*\\).*/\\1/p" | head -n 1; }
# A member of what `mrcuda ps` says about the only job.
about() { $BIN/mrcuda ps --json > ps.o; member $1 ps.o; }
# Starts a program that works until it is told to end, and waits until it has done a few rounds: begin NAME PLACE PROGRAM…
begin() {
    name=$1; place=$2; shift 2
    job $place "$@" > $name.o 2> $name.e &
    waiter=$!
    for i in $(seq 1200); do grep -q '^\(step [0-9]\|round \)[0-9]' $name.e && return; kill -0 $waiter 2>/dev/null || break; sleep 0.1; done
    echo "$name does not work: $(said $name.e)"
}
# `mill` copies 9 MiB to the device and 9 MiB to the host in each round.
mill() { begin $1 $2 $BIN/mill --until /run/t/$1.end; }
rounds() { grep -c '^round' $1.e; }
wait_rounds() { for i in $(seq 1800); do [ $(rounds $1) -ge $2 ] && return; kill -0 $waiter 2>/dev/null || return; sleep 0.1; done; }
# A row for a `mill` that is told to end: ended ROW NAME BEGAN
ended() {
    : > $2.end; wait $waiter; code=$?
    if [ $code = 0 ] && [ "$(tail -n 1 $2.o)" = "RESULT ok" ]; then row $1 $3 ok; else row $1 $3 "exit status $code: $(said $2.o $2.e)"; fi
}
# A row for a job that must have lost its server: lost ROW NAME BEGAN
lost() {
    wait $waiter; code=$?
    if [ $code = 2 ] && grep -q 'CUDA_ERROR_DEVICE_UNAVAILABLE (46)' $2.e && grep -q '^\(step\|round\) [0-9]' $2.e; then row $1 $3 ok
    else row $1 $3 "exit status $code: $(said $2.e)"; fi
}
CUT="ip link set $DEVICE down; sleep 25; ip link set $DEVICE up"
cut_link() { there "(sleep 1; $CUT) < /dev/null > /dev/null 2>&1 &"; }

# Large copies.
mill large rdma://$PLACE/0
began=$(uptime) before=$(wire) from=$(rounds large)
wait_rounds large $((from + 3))
bytes=$(( ($(rounds large) - from - 1) * 9 * 1048576))
result=$(went $bytes $bytes "$before")
by=$(about large_copies)
[ "$by" = rdma ] || result="they travel by $by"
row large-copies $began "$result"
ended after-large-copies large $(uptime)

# The card did not register the GPU's memory, which the server permits.
began=$(uptime)
if there "grep -c 'no more large copies go through the GPU.s memory: registering memory of the GPU' free.err" | grep -q '[1-9]'; then row refused-by-the-card $began ok
else row refused-by-the-card $began "$(there 'tail -n 3 free.err' | tr '\n' ' ')"; fi

# Memory that moves between two machines: move NAME TO DATA
move() {
    began=$(uptime) before=$(wire)
    timeout 250 $BIN/mrcuda migrate $(about pid) --to $2 --json > m.o 2> m.e; code=$?
    bytes=$(member bytes m.o) by=$(member data m.o) result=ok
    # An emulated machine can look like a slow link, on which memory is compressed.
    carried=$(member bytes_carried m.o)
    case $1 in *-here) here=0 back=$carried;; *) here=$carried back=0;; esac
    [ "$3" = rdma ] && result=$(went $here $back "$before")
    if [ $code = 0 ] && [ "$by" = $3 ] && [ "$bytes" -ge 18000000 ]; then row $1 $began "$result"
    else row $1 $began "exit status $code, $bytes bytes by $by: $(grep -o '"reason":"[^"]*"' m.o | head -n 1) $(said m.e)"; fi
}
mill moving rdma://$NEAR/0
move data-of-a-move-there rdma://$PLACE/0 rdma
move data-of-a-move-here rdma://$NEAR/0 rdma
# One of the two places wants encryption.
[ "$QUICK" ] || move data-to-an-encrypted-place tls://$STRICT/0 tls
[ "$QUICK" ] || move data-from-an-encrypted-place-here rdma://$NEAR/0 tls

# A move that breaks while memory travels: the job stays, whatever breaks it: broken ROW COMMAND
# REASON. The command runs on the server's machine when a quarter of the memory has arrived there. A link that is cut can also be
# found out by the time limit of the round: the sender's device may wait for the cable.
broken() {
    began=$(uptime) before=$(rounds moving)
    there "(until=\$((\$(cat $RECEIVED) + 4600)); while [ \$(cat $RECEIVED) -lt \$until ]; do sleep 0.01; done; $2) < /dev/null > /dev/null 2>&1 &"
    timeout 250 $BIN/mrcuda migrate $(about pid) --to rdma://$PLACE/0 --json > m.o 2> m.e; code=$?
    now=$(rounds moving)
    wait_rounds moving $((now + 2))
    if [ $code != 0 ] && grep -q "\"reason\":\"$3" m.o && [ $(rounds moving) -gt $now ] && [ "$(about place)" = "rdma://$NEAR/0" ]; then row $1 $began ok
    else row $1 $began "exit status $code, at $(about place), $before, $now and then $(rounds moving) rounds: $(grep -o '"reason":"[^"]*"' m.o | head -n 1) $(said m.e)"; fi
}
broken worker-killed-in-a-moves-data "$KILL" "precopy: "
# Its device still takes what is written.
broken worker-stopped-in-a-moves-data "$STOP" ""
there "$KILL"
broken link-cut-in-a-moves-data "$CUT" "\(precopy: \|cannot move: .* copied within\)"
wait_for_server
ended after-the-broken-moves moving $(uptime)

# A cable that is cut in the middle of large copies.
mill cut-large rdma://$PLACE/0
began=$(uptime)
cut_link
lost link-cut-in-large-copies cut-large $began
wait_for_server

if [ -z "$QUICK" ]; then
    # Registered memory is limited, enough for calls: large copies use the encrypted connections then.
    plain_job=$(declare -f job)
    job() { place=$1; shift; (ulimit -l 4096; setpriv --bounding-set=-ipc_lock timeout 900 $BIN/mrcuda run --driver soft --server $place -- "$@"); }
    mill limited rdma://$PLACE/0
    began=$(uptime) by=$(about large_copies)
    if [ "$by" = tls ]; then ended large-copies-without-rdma limited $began
    else row large-copies-without-rdma $began "by $by, calls by $(about transport)"; : > limited.end; wait $waiter; fi
    eval "$plain_job"

    # The worker's pinned memory is limited: there is room for its rings for calls, an area, and one data connection.
    mill tight rdma://$TIGHT/0
    began=$(uptime) by=$(about large_copies)
    if [ "$by" = rdma+tls ]; then ended large-copies-beyond-max-pinned tight $began
    else row large-copies-beyond-max-pinned $began "by $by, calls by $(about transport)"; : > tight.end; wait $waiter; fi

    # A worker that is stopped.
    mill stopped rdma://$PLACE/0
    began=$(uptime)
    there "$STOP"
    lost worker-stopped-in-large-copies stopped $began
    there "$KILL"

    # Copies between two GPUs, at places on two machines.
    began=$(uptime)
    MRCUDA_FAULT_SMALL_COPIES=1 MRCUDA_LOG=job=trace job rdma://$NEAR/0,rdma://$PLACE/0 $PROGRAMS/crossings > r.o 2> r.e; got=$?
    if [ $got = 0 ] && grep -q 'RESULT ok' r.o && grep -q 'connected for copies by rdma' r.e && grep -q 'went from place to place' r.e; then row copies-between-gpus $began ok
    else row copies-between-gpus $began "exit status $got: $(grep -c 'went from place' r.e) went from place to place, $(grep -o 'connected for copies.*' r.e | head -n 1), $(said r.o)"; fi
fi

if [ -z "$QUICK" ]; then
STEPS="--steps 4000 --progress"
native $BIN/orbit $STEPS --reports > orbit.o 2> /dev/null
orbit() { name=$1; place=$2; export ORBIT_END=/run/t/$name.end; begin $name $place $BIN/orbit $STEPS; unset ORBIT_END; }

# A job that moves between transports.
orbit moved $PLACE/0
from=$(about transport)
for to in rdma plain rdma tls; do
    began=$(uptime)
    timeout 200 $BIN/mrcuda migrate $(about pid) --to $to://$PLACE/0 > m.o 2>&1; code=$?
    now=$(about transport)
    wanted=$to; [ $to = plain ] && wanted=tcp
    if [ $code = 0 ] && [ "$now" = $wanted ]; then row move-$from-to-$now $began ok; else row move-$from-to-$to $began "$(said m.o)"; fi
    from=$now
done
began=$(uptime)
: > moved.end; wait $waiter; code=$?
# It may have ended early: its reports are among those of the native run.
if [ $code = 0 ] && [ "$(tail -n 1 moved.o)" = "RESULT ok" ] && ! grep -qvxFf orbit.o moved.o; then row after-the-moves $began ok
else row after-the-moves $began "exit status $code: $(said moved.o moved.e)"; fi

# A worker that dies.
orbit killed rdma://$PLACE/0
began=$(uptime)
there "$KILL"
lost killed-worker killed $began

# A cable that is cut.
orbit cut rdma://$PLACE/0
began=$(uptime)
cut_link
lost cut-link cut $began
wait_for_server
fi

# It can be used again.
began=$(uptime)
native $PROGRAMS/vecadd > n.o 2> n.e
job rdma://$PLACE/0 $PROGRAMS/vecadd > r.o 2> r.e; code=$?
if [ $code = 0 ] && cmp -s n.o r.o; then row after-the-cut $began ok; else row after-the-cut $began "exit status $code: $(said r.o r.e)"; fi
grep -h panicked *.e
there "grep -h panicked *.err; echo o > /proc/sysrq-trigger"
