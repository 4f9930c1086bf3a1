# What `cargo xtask rdma` runs as the first process of two virtual machines that are joined by a network cable, each with a software RDMA
# device: ROLE `server` serves, ROLE `client` runs jobs. BIN, PROGRAMS and NAMES are set in front of this. Each line
# `ROW NAME SECONDS RESULT` of the client is a row of the table.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ROLE=$(sed 's/.*role=\([a-z]*\).*/\1/' /proc/cmdline)
uptime() { cut -d' ' -f1 /proc/uptime; }
# Ends the machine, whatever happens.
leave() { echo "END"; sync; echo o > /proc/sysrq-trigger; while :; do sleep 1; done; }
trap leave EXIT

ip link set lo up
DEVICE=$(ls /sys/class/net | grep -v '^lo$' | head -n 1)
[ $ROLE = server ] && ADDRESS=10.8.0.1 || ADDRESS=10.8.0.2
ip addr add $ADDRESS/24 dev $DEVICE && ip link set $DEVICE up || exit
rdma link add rx0 type rxe netdev $DEVICE || exit

mkdir -p /run/t/native && cd /run/t && ln -s $BIN/libsoftgpu.so native/libcuda.so.1
export HOME=/run/t XDG_CONFIG_HOME=/run/t XDG_CACHE_HOME=/run/t MRCUDA_TOKEN_FILE=/run/t/token TMPDIR=/run/t
export XDG_RUNTIME_DIR=/run/t/run && mkdir -m 700 run
(umask 077; printf '%064d' 7 > token)
# A port at which the client's machine gives commands to the server's.
COMMANDS=7000

if [ $ROLE = server ]; then
    # A server: serve NAME PORT OPTION…
    serve() {
        name=$1 port=$2; shift 2
        SOFTGPU_SEED_ID=$name $BIN/mrcuda serve --listen 10.8.0.1:$port --driver soft "$@" > $name.out 2> $name.err &
        for i in $(seq 600); do grep -q serving $name.out && return; sleep 0.1; done
        echo "no server $name: $(cat $name.out $name.err)"; exit
    }
    serve free 7878 --allow-plain
    serve strict 7879
    busybox nc -ll -p $COMMANDS -e /bin/sh &
    tail -F free.err strict.err
    exit
fi

PLACE=10.8.0.1:7878
# Runs a command on the server's machine.
there() { echo "$*" | busybox nc -w 10 10.8.0.1 $COMMANDS; }
for i in $(seq 600); do [ "$(there echo up 2> /dev/null)" = up ] && break; sleep 0.2; done

export SOFTGPU_SEED_ID=local
job() { place=$1; shift; timeout 300 $BIN/mrcuda run --driver soft --server $place -- "$@"; }
native() { LD_LIBRARY_PATH=/run/t/native timeout 300 "$@"; }
# Packets that this machine has sent over RDMA.
packets() { cat /sys/class/infiniband/rx0/ports/1/hw_counters/sent_pkts; }
# A row: row NAME BEGAN RESULT
row() { echo "ROW $1 $(echo "$(uptime) $2" | awk '{printf "%.1f", $1 - $2}') $3"; }
# What a file says, in one line.
said() { tail -q -n 3 "$@" 2>&1 | tr '\n' ' ' | cut -c 1-300; }

began=$(uptime)
job rdma://10.8.0.1:7879/0 $PROGRAMS/vecadd > strict.o 2> strict.e
if [ $? = 2 ] && grep -q "RDMA is not encrypted" strict.e; then row refused-without-allow-plain $began ok; else row refused-without-allow-plain $began "$(said strict.e)"; fi

for name in $NAMES; do
    native $PROGRAMS/$name > n.o 2> n.e; code=$?
    began=$(uptime) before=$(packets)
    job rdma://$PLACE/0 $PROGRAMS/$name > r.o 2> r.e; got=$?
    if [ $got = $code ] && cmp -s n.o r.o && [ $(packets) -gt $before ]; then row $name $began ok
    else row $name $began "exit status $got, natively $code, $(packets) packets after $before: $(said r.o r.e)"; fi
done

STEPS="--steps 4000 --progress"
native $BIN/orbit $STEPS --reports > orbit.o 2> /dev/null
# Starts orbit at a place, and waits until it works: orbit NAME PLACE
orbit() {
    ORBIT_END=/run/t/$1.end job $2 $BIN/orbit $STEPS > $1.o 2> $1.e &
    waiter=$!
    for i in $(seq 1200); do grep -q '^step [0-9][0-9]' $1.e && return; kill -0 $waiter 2>/dev/null || break; sleep 0.1; done
    echo "orbit $1 does not work: $(said $1.e)"
}
# A member of what `mrcuda ps` says about the only job.
about() { $BIN/mrcuda ps --json | tr ',{' '\n\n' | sed -n "s/.*\"$1\": *\"*\\([a-z0-9-]*\\).*/\\1/p" | head -n 1; }
# A row for a job that must have lost its server: lost ROW NAME BEGAN
lost() {
    wait $waiter; code=$?
    if [ $code = 2 ] && grep -q 'CUDA_ERROR_DEVICE_UNAVAILABLE (46)' $2.e && grep -q '^step [0-9][0-9]' $2.e; then row $1 $3 ok
    else row $1 $3 "exit status $code: $(said $2.e)"; fi
}

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
there "kill -9 \$(grep -o 'worker [0-9]* serves' free.err | tail -n 1 | cut -d' ' -f2)"
lost killed-worker killed $began

# A cable that is cut.
orbit cut rdma://$PLACE/0
began=$(uptime)
there "(sleep 1; ip link set $DEVICE down; sleep 30; ip link set $DEVICE up) < /dev/null > /dev/null 2>&1 &"
lost cut-link cut $began
for i in $(seq 600); do [ "$(there echo up 2> /dev/null)" = up ] && break; sleep 0.2; done

# It can be used again.
began=$(uptime)
native $PROGRAMS/vecadd > n.o 2> n.e
job rdma://$PLACE/0 $PROGRAMS/vecadd > r.o 2> r.e; code=$?
if [ $code = 0 ] && cmp -s n.o r.o; then row after-the-cut $began ok; else row after-the-cut $began "exit status $code: $(said r.o r.e)"; fi
grep -h panicked *.e
there "grep -h panicked *.err; echo o > /proc/sysrq-trigger"
