# shellcheck shell=bash disable=SC2154 # the variables of cluster.sh, which reads this
# A day of a cluster, in some minutes: 40 jobs on four nodes and two servers, an agent with policies that is killed and started again, two
# preemptions, a server that another one takes over from, a slurmctld that is ended and started again, a node and a server that are drained. No
# job may be lost by any of these: each job's output must be that of a native run, and for each move a log must say why.
(cd "$work/native" && LD_LIBRARY_PATH=. "$bin/orbit" --steps 3000 >day.out)
printf '#!/bin/bash\nsrun %s --steps 3000 --pace 3000\n' "$bin/orbit" >"$work/day.sh"
export MRCUDA_CONFIG=$work/etc/mrcuda.toml XDG_STATE_HOME=$work/state-of-user
mkdir "$XDG_STATE_HOME"
mrcuda() { env -u XDG_RUNTIME_DIR "$bin/mrcuda" "$@"; }

policies() { # more of them, before the others
    # In one step: the agent reads it again when it changes.
    {
        printf 'servers = ["%s", "%s"]\nevery = "1s"\nsettle = "2s"\nrest = "5s"\nmoves_per_minute = 60\n' "$one" "$two"
        printf '[[job]]\nname = "%s-*"\n' morning noon evening
        # Other jobs of root are none of its business.
        printf '[[job]]\nname = "urgent-*"\npriority = 10\n[[job]]\nname = "*"\nleave = true\n%b[[policy]]\nkind = "yield"\n[[policy]]\nkind = "balance"\n' "${1:-}"
    } >"$work/etc/agent.new"
    mv "$work/etc/agent.new" "$work/etc/agent.toml"
}
agent() {
    env -u XDG_RUNTIME_DIR "$bin/mrcuda" agent --all --json --config "$work/etc/agent.toml" --metrics $((port + 13)) \
        >>"$work/log/agent.jsonl" 2>>"$work/log/agent.err" &
    agent=$!
    servers+=("$agent") # ended with them
}
submitted=()
submit() { # its name and options: a job at any GPU of the pool, which parks when Slurm suspends it
    local name=$1
    submitted+=("$name")
    local id
    id=$(MRCUDA_NAME=$name MRCUDA_ON_STOP=memory sbatch --parsable --output="$work/$name.out" --error="$work/$name.err" --job-name="$name" --mrcuda=auto \
        --cpus-per-task=2 "${@:2}" "$work/day.sh")
    echo "$name" >"$work/name-of-$id"
}
count_of() { squeue --noheader --states="$1" --format=%i | wc -l; }
at_least() { [ "$(count_of "$1")" -ge "$2" ]; }
decided() { grep -q "\"event\":\"decision\".*\"policy\":\"$1\"" "$work/log/agent.jsonl"; }
has_left() { at_is "$two" 0; }
is_suspended() { [ -n "$(squeue --noheader --states=SUSPENDED --format=%i --nodelist="$1")" ]; }

policies
agent
for n in $(seq 1 18); do submit "morning-$n"; done
check "jobs run" within 60 at_least RUNNING 8
# Each needs a whole node, and preempts what is there.
submit urgent-1 --partition=urgent --nodelist=n1 --cpus-per-task=8
check "a preemption suspends jobs of n1" within 90 is_suspended n1
kill -KILL "$agent"
wait "$agent" 2>/dev/null
check "the agent is killed" [ "$?" = 137 ]
for n in $(seq 1 10); do submit "noon-$n"; done
agent
submit urgent-2 --partition=urgent --nodelist=n2 --cpus-per-task=8
check "another one suspends jobs of n2" within 90 is_suspended n2
scontrol update NodeName=n4 State=DRAIN Reason=maintenance
# What Slurm knows is in its state; the jobs, the servers and the agent go on without it.
known() { squeue --noheader --format="%i %T" | sort; }
known >"$work/known-before"
controller=$(cat "$work/run/slurmctld.pid")
kill "$controller"
has_ended() { ! kill -0 "$1" 2>/dev/null; }
check "slurmctld ends" within 60 has_ended "$controller"
sleep 5
check "jobs run without slurmctld" pgrep --full "^$bin/orbit --steps 3000 --pace" >"$work/without-slurmctld"
slurmctld
answers() { [ "$(scontrol ping 2>/dev/null | grep -c "is UP")" = 1 ]; }
check "slurmctld is back" within 60 answers
known >"$work/known-after"
is_known_or_right() { # id: the job is in the queue, or has ended as natively
    grep -q "^$1 " "$work/known-after" || diff -q "$work/$(cat "$work/name-of-$1").out" "$work/native/day.out" >/dev/null
}
lost=0
while read -r id _; do is_known_or_right "$id" || { lost=$((lost + 1)) && echo "job $id is lost"; }; done <"$work/known-before"
check "slurmctld has lost no job" [ "$lost" = 0 ]
suspended() { awk '$2 == "SUSPENDED" { print $1 }' "$work/$1"; }
check "jobs were suspended before" [ -n "$(suspended known-before)" ]
is_drain() { [[ $(sinfo --noheader --nodes=n4 --format=%T) == drain* ]]; }
check "the node is still to be drained" is_drain
# The jobs of the server stay with its process until they end or move.
former=$server
serve "$one" --take-over
has_taken_over() { grep -q ", after process $former" "$work/log/serve-${one##*:}.log"; }
check "another process takes over from a server" within 60 has_taken_over
for n in $(seq 1 10); do submit "evening-$n"; done
policies "[[policy]]\nkind = \"drain\"\nservers = [\"$two\"]\n"
check "the drained server is left" within 180 has_left
check "by decisions of the agent" decided drain
metrics=$(curl --silent "http://127.0.0.1:$((port + 13))/metrics")
check "its metrics count them" grep -q '^mrcuda_agent_moves_total{policy="drain",action="move",outcome="done"} [1-9]' <<<"$metrics"
is_drained() { [ "$(sinfo --noheader --nodes=n4 --format=%T)" = drained ]; }
check "the drained node is empty" within 240 is_drained
policies
check "all jobs end" within 420 is_over
check "the server that was taken over from has ended" within 60 has_ended "$former"
wait "$former"
check "by itself, when its jobs had left" [ "$?" = 0 ]
check "they are 40" [ "${#submitted[@]}" = 40 ]
natural=0
for name in "${submitted[@]}"; do
    if diff -q "$work/$name.out" "$work/native/day.out" >/dev/null; then
        natural=$((natural + 1))
    else
        echo "$name differs: $work/$name.out"
    fi
done
check "all outputs are those of a native run" [ "$natural" = 40 ]
mrcuda moves --json >"$work/log/moves.json"
# The agent says why in its log; Slurm, by a line of srun in what a job writes to stderr, that it has suspended the job and continued it.
check "a log explains each move" python3 - "$work/log/moves.json" "$work/log/agent.jsonl" "$work" <<'END'
import collections, json, sys
moves = json.load(open(sys.argv[1]))
lines = [json.loads(line) for line in open(sys.argv[2])]
decided = [(l["pid"], l["policy"], l["why"]) for l in lines if l["event"] == "decision"]
whys, unexplained = collections.Counter(), []
for move in moves:
    pid, it = move["pid"], move
    if it["id"].startswith("agent-"):
        policy = it["id"].split("-")[1]
        why = next((why for p, by, why in decided if (p, by) == (pid, policy) and why), None)
        whys["agent: " + policy] += 1
    else:
        kind = {"signal": "suspended by Slurm", "request": "continued by Slurm"}.get(it["by"], it["by"])
        why = kind if "got SIGCONT" in open(f"{sys.argv[3]}/{move['name']}.err").read() else None
        whys[kind] += 1
    if why is None:
        unexplained.append((pid, it["id"], it["by"]))
print("moves, by their reasons:", dict(whys), "of these done:", sum(move["ok"] for move in moves), "of", len(moves))
for l in lines[:3] + [l for l in lines if l["event"] == "decision" and l["policy"] == "drain"][:2]:
    print(" ", json.dumps(l))
if unexplained:
    sys.exit(f"without a reason: {unexplained}")
END
echo "$passed passed, $failed failed$( ((failed)) && echo "; logs: $work")"
((failed == 0))
