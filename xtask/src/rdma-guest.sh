# What `cargo xtask rdma` runs in its virtual machine, as the first process: two hosts, which are network namespaces joined by a virtual
# cable with an RDMA device at each end. BIN, PROGRAMS and NAMES are set in front of this. Each line `ROW NAME SECONDS RESULT` is a row of the table.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
uptime() { cut -d' ' -f1 /proc/uptime; }
# Ends the machine, whatever happens.
leave() { echo "END"; sync; echo o > /proc/sysrq-trigger; while :; do sleep 1; done; }
trap leave EXIT

ip link set lo up
ip netns add server && ip netns add client
ip link add srv netns server type veth peer name cli netns client
ip -n server addr add 10.8.0.1/24 dev srv && ip -n client addr add 10.8.0.2/24 dev cli
for end in server client; do ip -n $end link set lo up; done
ip -n server link set srv up && ip -n client link set cli up
ip netns exec server rdma link add rxs type rxe netdev srv || exit
ip netns exec client rdma link add rxc type rxe netdev cli || exit

mkdir -p /run/t/native && cd /run/t && ln -s $BIN/libsoftgpu.so native/libcuda.so.1
export HOME=/run/t XDG_CONFIG_HOME=/run/t XDG_CACHE_HOME=/run/t MRCUDA_TOKEN_FILE=/run/t/token TMPDIR=/run/t
export XDG_RUNTIME_DIR=/run/t/run && mkdir -m 700 run
PLACE=10.8.0.1:7878

# A server: serve NAME PORT OPTION…
serve() {
    name=$1 port=$2; shift 2
    SOFTGPU_SEED_ID=$name ip netns exec server $BIN/mrcuda serve --listen 10.8.0.1:$port --driver soft "$@" > $name.out 2> $name.err &
    for i in $(seq 600); do grep -q serving $name.out && return; sleep 0.1; done
    echo "no server $name: $(cat $name.out $name.err)"; exit
}
# Any command on the client's host.
there() { SOFTGPU_SEED_ID=local ip netns exec client "$@"; }
job() { place=$1; shift; there timeout 300 $BIN/mrcuda run --driver soft --server $place -- "$@"; }
native() { SOFTGPU_SEED_ID=local LD_LIBRARY_PATH=/run/t/native timeout 300 "$@"; }
# Packets that a host has sent over RDMA.
packets() { cat /sys/class/infiniband/rxs/ports/1/hw_counters/sent_pkts; }
# A row: row NAME BEGAN RESULT
row() { echo "ROW $1 $(echo "$(uptime) $2" | awk '{printf "%.1f", $1 - $2}') $3"; }
# What a file says, in one line.
said() { tail -n 3 "$@" 2>&1 | tr '\n' ' ' | cut -c 1-300; }

serve free 7878 --allow-plain
serve strict 7879

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
pid() { there $BIN/mrcuda ps --json | tr ',{' '\n\n' | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1; }
transport() { there $BIN/mrcuda ps --json | tr ',{' '\n\n' | sed -n 's/.*"transport": *"\([a-z-]*\)".*/\1/p' | head -1; }

# A job that moves between transports.
orbit moved $PLACE/0
from=$(transport)
for to in rdma plain rdma tls; do
    began=$(uptime)
    there timeout 200 $BIN/mrcuda migrate $(pid) --to $to://$PLACE/0 > m.o 2>&1; code=$?
    now=$(transport)
    wanted=$to; [ $to = plain ] && wanted=tcp
    if [ $code = 0 ] && [ "$now" = $wanted ]; then row "move-$from-to-$now" $began ok; else row "move-$from-to-$to" $began "$(said m.o)"; fi
    from=$now
done
began=$(uptime)
: > moved.end; wait $waiter; code=$?
# It may have ended early: its reports are those of the native run, which has one more for each number of steps.
last=$(tail -n 1 moved.o)
if [ $code = 0 ] && [ "$last" = "RESULT ok" ] && [ "$(head -n -1 moved.o | grep -vxFf orbit.o | wc -l)" = 0 ]; then row after-the-moves $began ok
else row after-the-moves $began "exit status $code: $(said moved.o moved.e)"; fi

# A worker that dies.
orbit killed rdma://$PLACE/0
began=$(uptime)
kill -9 $(grep -o 'worker [0-9]* serves' free.err | tail -n 1 | cut -d' ' -f2)
wait $waiter; code=$?
if [ $code = 2 ] && grep -q 'CUDA_ERROR_DEVICE_UNAVAILABLE (46)' killed.e; then row killed-worker $began ok; else row killed-worker $began "exit status $code: $(said killed.e)"; fi

# A cable that is cut.
orbit cut rdma://$PLACE/0
began=$(uptime)
ip -n server link set srv down
wait $waiter; code=$?
if [ $code = 2 ] && grep -q 'CUDA_ERROR_DEVICE_UNAVAILABLE (46)' cut.e; then row cut-link $began ok; else row cut-link $began "exit status $code: $(said cut.e)"; fi
ip -n server link set srv up
for i in $(seq 100); do ip netns exec client ping -c 1 -W 1 -q 10.8.0.1 > /dev/null && break; done

# It can be used again.
began=$(uptime)
native $PROGRAMS/vecadd > n.o 2> n.e
job rdma://$PLACE/0 $PROGRAMS/vecadd > r.o 2> r.e; code=$?
if [ $code = 0 ] && cmp -s n.o r.o; then row after-the-cut $began ok; else row after-the-cut $began "exit status $code: $(said r.o r.e)"; fi
grep -h panicked *.err *.e
