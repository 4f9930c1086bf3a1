#!/bin/bash
# Measures on this machine's GPU what docs/migration.md and docs/measurements.md state, and prints
# one table. Arguments: the directory of the programs (built by build.sh, here if it is empty), and
# optionally which parts to run (default: all). MRCUDA=PATH has `overhead` and `loads` measure through that mrcuda, too.
set -u
here=$(cd "$(dirname "$0")" && pwd)
bin=${1:?usage: run-facts.sh DIRECTORY [PART ...]}
shift
parts=${*:-sequences libraries contexts requests memory waits heap globals loader graphs graph_rest graph_updates textures sparse hostmem legacy copies}
[ -x "$bin/placement" ] || "$here/build.sh" "$bin" || exit
cd "$bin" || exit
driver=$(ldconfig -p | awk '/libcuda\.so\.1 .*x86-64/ { print $NF; exit }')
for directory in ${LD_LIBRARY_PATH//:/ }; do
    [ -z "$driver" ] && [ -e "$directory/libcuda.so.1" ] && driver=$directory/libcuda.so.1
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
jobs=$(nproc)
row() { printf '| %-3s | %-66s | %s |\n' "$1" "$2" "$3"; }

# Runs placement for every line `NAME|ARGUMENTS|SCRIPT` of stdin, several at a time.
place_all() {
    tr '\n' '\0' | timeout 90 xargs -0 -P "$jobs" -I{} bash -c '
        IFS="|" read -r name arguments script <<<"$1"
        timeout 30 ./placement $arguments "$script" >"$2/$name.out" 2>"$2/$name.err" || echo "failed: $script" >>"$2/$name.out"' _ {} "$work"
}
# How many sequences gave the same under both variants (NAME-VARIANT.out).
equal() {
    local same=0 all=0 a b
    for a in "$work"/*-"$1".out; do
        b=${a%-"$1".out}-$2.out
        [ -e "$b" ] || continue
        all=$((all + 1))
        cmp -s "$a" "$b" && ! grep -q failed "$a" && same=$((same + 1))
    done
    echo "$same of $all equal"
}
# Whether runs have the same lines for the given word (second argument), whatever came before.
same() {
    local first=$work/$1.out word=$2 name answer=same
    shift 2
    for name; do
        [ "$(grep "^$word " "$first" | tail -1)" = "$(grep "^$word " "$work/$name.out" | tail -1)" ] || answer=DIFFERENT
    done
    grep -q "^$word " "$first" || answer=missing
    echo $answer
}

# 16 random sequences of loads, first uses and unloads of modules 1 to 4, the same every time;
# module 0 plays the executor's own.
sequences() {
    awk 'function chance() { seed = seed * 16807 % 2147483647; return seed / 2147483647 } # awks differ in rand
    BEGIN {
        seed = 20261121
        for (n = 0; n < 16; n++) {
            split("", live); script = ""; probes = ""; words = 4 + int(chance() * 9)
            for (i = 0; i < words; i++) {
                k = 1 + int(chance() * 4)
                if (live[k]) { script = script " u" k; live[k] = 0 }
                else { script = script " M" k (chance() < 0.6 ? " p" k : ""); live[k] = 1 }
            }
            for (k = 1; k < 5; k++) if (live[k]) probes = probes " p" k
            print script probes
        }
    }'
}
# Of the sequence in stdin, only the modules that live at the end, in the order of their last loads.
only_live() {
    awk '{
        for (i = 1; i <= NF; i++) { k = substr($i, 2); if ($i ~ /^M/) at[k] = i; if ($i ~ /^u/) delete at[k] }
        for (i = 1; i <= NF; i++) { k = substr($i, 2); if (k in at && i >= at[k]) printf " %s", $i }
    }'
}
# Of the sequence in stdin: without loads that left no trace, which are those unloaded again before
# another module that stays in the sequence was loaded.
without_traceless() {
    awk '{
        n = split($0, word)
        do {
            changed = 0
            for (i = 1; i <= n; i++) {
                if (word[i] !~ /^M/) continue
                k = substr(word[i], 2)
                for (j = i + 1; j <= n && word[j] !~ /^M/ && word[j] != "u" k; j++);
                if (j > n || word[j] != "u" k) continue
                for (m = i; m <= j; m++) if (substr(word[m], 2) == k) word[m] = ""
                changed = 1
            }
        } while (changed)
        for (i = 1; i <= n; i++) if (word[i] != "") printf " %s", word[i]
    }'
}

# How many of the sequences put what lives at their end where the variant does.
same_at_end() {
    local a want word same=0 all=0
    for a in "$work"/*-own.out; do
        want=$(grep '^p' "${a%-own.out}-$1.out" | tac | sort -u -k1,1 | sort)
        for word in $(cut -d' ' -f1 <<<"$want"); do grep "^$word " "$a" | tail -1; done | sort >"$work/kept"
        all=$((all + 1))
        [ "$(cat "$work/kept")" != "$want" ] || same=$((same + 1))
    done
    echo "$same of $all equal"
}

part_sequences() {
    local n=0 id script class pair a b
    while read -r script; do
        n=$((n + 1))
        id=$(printf %02d $n)
        echo "$id-own|-s calls|M0 p0 $script"
        echo "$id-noise|-s calls -b 2 -n $n -c sevmrg|M0 p0 $script"
        echo "$id-live|-s calls|M0 p0 $(only_live <<<"$script")"
        echo "$id-reduced|-s calls|M0 p0 $(without_traceless <<<"$script")"
        echo "$id-warm|-s calls|w0 M0 p0 $script"
        echo "$id-warmnoise|-s calls -b 1 -n $n -c sevmrg|w0 M0 p0 $script"
        [ $n -le 8 ] || continue
        for class in s g l a h; do echo "$id-own$class|-s calls -b 2 -n $n -c $class|M0 p0 $script"; done
        for class in s evmr; do echo "$id-early$class|-s calls -n $n -c $class|M0 p0 $script"; done
        [ $n -le 6 ] || continue
        echo "$id-none|-s none|$script"
        echo "$id-none2|-s none|$script"
        echo "$id-all||M0 p0 $script"
        echo "$id-eager|-s calls|M0 p0 $script"
    done < <(sequences) >"$work/list"
    grep -v '^[0-9]*-eager' "$work/list" | place_all
    grep '^[0-9]*-eager' "$work/list" | CUDA_MODULE_LOADING=EAGER place_all
    row 1 "not steered: same sequence in two processes" "$(equal none none2)"
    row 1a "steered: all requests against those of contexts and module calls" "$(equal own all)"
    row 1g "own module first, then other work (streams, graphs, events, ...)" "$(equal own noise)"
    row 1g "streams made and destroyed, own module, then other work" "$(equal warm warmnoise)"
    row 1g "streams made first or not" "$(equal own warm)"
    for class in "s streams" "g graphs" "l kernels with big local memory" "a cuMemAlloc" "h cuMemHostAlloc"; do
        row 1g "own module first, then only this: ${class#* }" "$(equal own "own${class%% *}")"
    done
    row 1a "streams before the first module" "$(equal own earlys)"
    row 1a "events, mapped and registered memory, memsets before the first" "$(equal own earlyevmr)"
    row 1h "eager against lazy loading" "$(equal own eager)"
    row 1b "own module first: history against only what is live at its end" "$(same_at_end live)"
    row 1b "own module first: history against the one without traceless loads" "$(same_at_end reduced), $(sequences | while read -r script; do without_traceless <<<"$script"; done | wc -w) of $(sequences | wc -w) words kept"
    row 1 "runs / of them failed" "$(wc -l <"$work/list") / $(grep -l failed "$work"/*.out | wc -l)"
    grep -hv '^range' "$work"/*.err | sort | uniq -c | head -5
    for pair in own:noise warm:warmnoise own:owns own:ownl own:warm; do
        for a in "$work"/*-"${pair%:*}".out; do
            b=${a%-*}-${pair#*:}.out
            [ ! -e "$b" ] || cmp -s "$a" "$b" || {
                echo "    differ ($pair): $(grep "^$(basename "${a%.out}")|" "$work/list")"
                diff "$a" "$b" | grep '^[<>]' | cut -c1-110 | sort -k2,2 | head -6
            }
        done | head -14
    done
}

part_libraries() {
    place_all <<'END'
once||M0 u0 M1 p1
alone||M1 p1
twice||M0 u0 M0 u0 M1 p1
often||M0 u0 M0 u0 M0 u0 M0 u0 M0 u0 M0 u0 M1 p1
pair||M0 u0 M2 u2 M1 p1
pair2||M0 u0 M2 u2 M0 u0 M2 u2 M1 p1
used||M0 p0 u0 M1 p1
mab||M0 M1 p0 p1
mba||M1 M0 p0 p1
mab-launch||M0 M1 p1 p0
mab-get||M0 M1 f1 c1 f0 c0 p0 p1
mab-global||M0 M1 g1 g0 p0 p1
mab-third||M0 M1 t1 t0 s0 p0 p1
lab||L0 L1 P0 P1
lba||L1 L0 P0 P1
lab-launch||L0 L1 P1 P0
lab-kernel||L0 L1 K1 K0 P0 P1
lab-function||L0 L1 K1 F1 K0 F0 P0 P1
lab-load||L0 L1 K1 C1 K0 C0 P0 P1
lab-global||L0 L1 G1 G0 P0 P1
lab-third||L0 L1 T1 T0 P0 P1
lab-unused||L0 L2 L1 P0 P1
lab-used||L0 L2 P2 L1 P0 P1
lab-unload||L0 L2 U2 L1 P0 P1
lba-launch||L1 L0 P1 P0
mba-launch||M1 M0 p1 p0
reload||M1 p1 u1 M1 p1
after2||M2 u2 M1 p1
after3||M3 u3 M1 p1
nested||M0 M2 u2 u0 M1 p1
deep||M0 p0 M1 d1 M3 p3 M4 p4
limit||M0 p0 M1 D1 M3 p3 M4 p4
twin||M0 p0 M1 z0 M3 p3 M4 p4
flat||M0 p0 M1 M3 p3 M4 p4
plain-none||M0 p0 M1 p1 M2 p2 M3 p3 M4 p4
plain-kept||M0 p0 n0 M1 p1 n0 M2 p2 n0 M3 p3 n0 M4 p4
plain-gone||M0 p0 n0 M1 p1 N0 n0 M2 p2 M3 p3 N0 M4 p4
window||M0 p0 M1 M2 u1 M3 u2 M1 u3 M2 u1 M3 u2 M4 u3 p4
window-half||M0 p0 M3 M1 u3 M2 u1 M3 u2 M4 u3 p4
window-last||M0 p0 M3 M4 u3 p4
window-alone||M0 p0 M4 p4
many|-s calls|w0 M0 p0 M2 M2 M2 p2 M2 p2 M2 p2 M1 p1
many-b|-s calls -b 1 -n 9 -c sevmrg|w0 M0 p0 M2 M2 M2 p2 M2 p2 M2 p2 M1 p1
own-once||M2 M0 u0 M1 p1
own-alone||M2 M1 p1
own-pair||M2 M0 M3 u0 u3 M1 p1
own-reload||M2 M1 u1 M1 p1
mixed||M2 L0 M3 L1 P0 P1
mixed-nolib||M2 M3 L0 L1 P0 P1
END
    CUDA_MODULE_LOADING=EAGER place_all <<'END'
eab||L0 L1 P0 P1
eba||L1 L0 P0 P1
eab-launch||L0 L1 P1 P0
END
    row 1b "another module stays loaded: pair A before B / two pairs / B reloaded" "$(same own-alone p1 own-once) / $(same own-alone p1 own-pair) / $(same own-alone p1 own-reload)"
    row 1 "local memory grows between loads: against not" "$(same flat p3 deep) $(same flat p4 deep)"
    row 1 "the same by stack limit and an own recursive kernel: against the launch" "$(same deep p3 limit) $(same deep p4 limit)"
    row 1 "the same by a like kernel of a module without variables" "$(same deep p3 twin) $(same deep p4 twin)"
    row 1g "streams, own module, more small variables than fit 2 MB, other work" "$(cmp -s "$work/many.out" "$work/many-b.out" && echo same || echo DIFFERENT)"
    row 1b "modules without variables in between, kept: what is loaded later" "$(same plain-none p1 plain-kept) $(same plain-none p2 plain-kept) $(same plain-none p3 plain-kept) $(same plain-none p4 plain-kept)"
    row 1b "modules without variables in between, unloaded out of turn" "$(same plain-none p1 plain-gone) $(same plain-none p2 plain-gone) $(same plain-none p3 plain-gone) $(same plain-none p4 plain-gone)"
    row 1b "window of loads, the oldest unloaded: against its last half / last two / alone" "$(same window p4 window-half) / $(same window p4 window-last) / $(same window p4 window-alone)"
    row 1b "module loaded again after its unload: same place" "$(same alone p1 reload)"
    row 1b "load+unload of A before B: changes B's place" "$(same alone p1 once)"
    row 1b "that pair twice, six times: against once" "$(same once p1 twice), $(same once p1 often)"
    row 1b "two pairs in turn, repeated: against once" "$(same pair p1 pair2)"
    row 1b "A used before its unload: against not used" "$(same once p1 used)"
    row 1c "modules: order of loading matters" "$(same mab p0 mba), $(same mab p1 mba)"
    row 1c "modules: order of first launches / get function + cuFuncLoad / get global / other kernels" "$(same mab p1 mab-launch) / $(same mab p1 mab-get) / $(same mab p1 mab-global) / $(same mab p1 mab-third)"
    row 1c "libraries: order of cuLibraryLoadData matters" "$(same lab P0 lba), $(same lab P1 lba)"
    row 1c "libraries: order of first launches" "$(same lab P0 lab-launch), $(same lab P1 lab-launch)"
    row 1c "libraries: order of cuLibraryGetKernel" "$(same lab P1 lab-kernel)"
    row 1c "libraries: order of cuKernelGetFunction" "$(same lab P1 lab-function)"
    row 1c "libraries: order of cuFuncLoad" "$(same lab P1 lab-load)"
    row 1c "libraries: order of cuLibraryGetGlobal" "$(same lab P1 lab-global)"
    row 1c "libraries: order of launches of other kernels" "$(same lab P1 lab-third)"
    row 1c "libraries: another one loaded between, never used / used / unloaded" "$(same lab P1 lab-unused) / $(same lab P1 lab-used) / $(same lab P1 lab-unload)"
    row 1c "libraries: modules loaded between or before their load" "$(same mixed P0 mixed-nolib), $(same mixed P1 mixed-nolib)"
    row 1c "libraries: reversed first use, whatever the order of loading" "$(same lab-launch P0 lba-launch), $(same lab-launch P1 lba-launch)"
    row 1c "a library's first use places like cuModuleLoadData" "$([ "$(sed 's/^P/p/' "$work/lab-launch.out")" = "$(cat "$work/mba-launch.out")" ] && echo yes || echo NO)"
    row 1c "eager libraries: order of loading / of first launches matters" "$(same eab P0 eba) $(same eab P1 eba) / $(same eab P0 eab-launch) $(same eab P1 eab-launch)"
    for name in alone once own-alone own-once own-pair own-reload deep limit twin flat many; do echo "    $name: $(tail -1 "$work/$name.out" | cut -c1-150)"; done
    grep -hv '^range' "$work"/*.err | sort | uniq -c | head -5
}

part_contexts() {
    place_all <<'END'
base||M0 p0 M1 p1 h0
keep||M2 p2 M3 p3 r0 M0 p0 M1 p1 h0
again||M2 p2 M3 p3 r1 M0 p0 M1 p1 h0
visit2||M0 p0 M1 p1 h0 r1 M0 p0 M1 p1 h0
visit3||M0 p0 M1 p1 h0 r1 M0 p0 M1 p1 h0 r1 M0 p0 M1 p1 h0
calls2|-s calls|M0 p0 M1 p1 h0 r1 M0 p0 M1 p1 h0
callsbase|-s calls|M0 p0 M1 p1 h0
second||e1 M0 p0 M1 p1 h0
second-b|-n 5 -c evmr|e1 M0 p0 M1 p1 h0
both||M0 p0 e1 M0 p0 e0 M1 p1 e1 M1 p1
both-b|-n 6 -c evmr|M0 p0 e1 M0 p0 e0 M1 p1 e1 M1 p1
END
    row 1d "after a reset, the range not begun again: module / heap" "$(same base p1 keep) / $(same base h keep)"
    row 1d "after a reset, the range begun again, other modules before: module / heap" "$(same base p1 again) / $(same base h again)"
    row 1f "second visit, third visit after resets, range begun again: modules" "$(same base p0 visit2) $(same base p1 visit2), $(same base p0 visit3) $(same base p1 visit3)"
    row 1f "the same: heap; with only module calls steered" "$(same base h visit2); $(same callsbase p0 calls2) $(same callsbase p1 calls2)"
    row 1e "second context: against the first one's places" "$(same base p0 second) $(same base p1 second), heap $(same base h second)"
    row 1e "second context: the same in a process with other work" "$(cmp -s "$work/second.out" "$work/second-b.out" && echo same || echo DIFFERENT)"
    row 1e "two contexts in turn: the same in a process with other work" "$(cmp -s "$work/both.out" "$work/both-b.out" && echo same || echo DIFFERENT)"
    for name in base second both; do
        echo "    $name"
        cut -d' ' -f1,2,3,5,7,9,12,13 "$work/$name.out"
        head -4 "$work/$name.err"
    done
}

part_requests() { timeout 60 ./requests; }
part_memory() { timeout 60 ./memory; }
part_waits() { timeout 60 ./waits; }
part_graphs() { timeout 120 ./graphs; }
part_graph_rest() { timeout 120 ./graph_rest; }
part_graph_updates() { timeout 60 ./graph_updates; }
part_textures() {
    timeout 120 ./textures
    for how in 0 1 2 3 4 5; do timeout 60 ./textures $how; done
}
part_sparse() {
    # Each part alone and not for long: a sparse volume of 16384 in each direction kept a 580 driver busy for longer than 20 s.
    local how
    for how in contents carried shapes waiting memory; do timeout -k 1 5 ./sparse $how || row - "sparse $how" "exit code $?"; done
    for how in 0 1 2 3 4 5; do timeout -k 1 5 ./sparse placement $how & done
    wait
    timeout -k 1 5 ./sparse codes || row - "sparse codes" "exit code $?"
    for how in 0 1 2; do timeout -k 1 5 ./sparse dangerous $how & done
    wait
}
part_legacy() { timeout 30 ./legacy; }
part_copies() { timeout 60 ./copies; }
part_staging() { timeout 200 ./staging; }
part_engines() { timeout 100 ./engines; }
part_kernel_copies() { timeout 100 ./kernel_copies; }
part_hostmem() { timeout 60 ./hostmem; }
part_peers() { timeout 120 ./peers; }
part_globals() { timeout 30 ./globals; }
part_overhead() {
    local how
    for how in "" streams steered arena priority relaxed module threads "streams steered arena relaxed module threads" "" \
        atomic clock "touch 16" "touch 64" "touch 256"; do
        # Unquoted: words of their own.
        timeout 30 ./overhead $how
    done
    timeout 30 ./overhead beside "$(realpath "$driver")"
    if [ -z "${MRCUDA:-}" ]; then
        echo "MRCUDA is not set: nothing is measured through mrcuda"
        return
    fi
    for how in 1 2; do timeout 60 "$MRCUDA" run --server local -- ./overhead beside "$(realpath "$driver")"; done
}
# Runs the words behind it as a job in a place: natively, in the job's process, at a server on this machine over shared memory or TCP.
at_place() {
    local place=$1 at=tls://127.0.0.1:21399 server code
    shift
    case $place in
        natively) timeout 60 "$@"; return ;;
        local) timeout 60 "$MRCUDA" run --server local -- "$@"; return ;;
        unix) at=unix:$work/server ;;
    esac
    : >"$work/served"
    "$MRCUDA" serve --listen 127.0.0.1:21399 --unix "$work/server" >"$work/served" 2>&1 &
    server=$!
    for code in 1 2 3 4 5 6 7 8 9 10; do
        grep -q serving "$work/served" && break
        sleep 0.5
    done
    timeout 60 "$MRCUDA" run --server "$at" -- "$@"
    code=$?
    kill "$server"
    wait "$server"
    return "$code"
}
part_loads() {
    local places=natively place run
    [ -z "${MRCUDA:-}" ] || places="natively local unix tcp"
    for place in $places; do
        # Each place begins without anything compiled; its second run finds what the first one has kept. The third compiles.
        for run in first second fresh; do
            echo "$place, $run run"
            CUDA_CACHE_PATH=$work/compiled-$place at_place "$place" ./loads "$run"
        done
    done
}
part_loader() { LD_LIBRARY_PATH=stand-in:${LD_LIBRARY_PATH:-} timeout 60 ./loader "$driver"; }

part_heap() {
    local limit used
    for limit in 8 64 1024; do timeout 8 ./heap extent $limit; done
    for limit in 8 64; do
        timeout 15 ./heap write "$work/heap" $limit || row 8 "source, heap of $limit MB" "exit code $?"
        for used in 0 1 2; do timeout 8 ./heap read "$work/heap" $limit $used || row 8 "target $used, heap of $limit MB" "exit code $?"; done
    done
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
for part in $parts; do
    started=$(date +%s.%N)
    "part_$part" 2>&1
    row - "part $part took" "$(awk -v a="$started" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f s", b - a }')"
done
