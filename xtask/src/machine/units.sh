# What `cargo xtask machine units` runs as the first process of a virtual machine: it installs the package and becomes systemd, which runs the
# rest of this file as a service. PACKAGE, BIN and, for the rest, PART=checks are set in front of this. Each line `ROW NAME RESULT` is a check.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
PLACE=127.0.0.1:7878
SOCKET=/run/mrcuda/socket

if [ "$PART" != checks ]; then
    trap 'echo "STATUS $?"; echo o > /proc/sysrq-trigger; sleep 1000' EXIT
    ip link set lo up
    hostname gpubox
    dpkg --no-triggers --remove mrcuda > /dev/null 2>&1
    # The index of all manual pages takes minutes here.
    dpkg --no-triggers --install "$PACKAGE" || exit
    id ann > /dev/null 2>&1 || useradd --create-home --shell /bin/bash ann
    # Settings as docs/packages.md says, and the driver without a GPU.
    cat > /etc/mrcuda/config.toml <<END
[serve]
listen = "127.0.0.1:7878"
driver = "soft"
unix = "$SOCKET"
unix-users = ["ann"]
max-host-memory = "400M"
END
    # What is not to happen here: the files in /tmp are removed at a boot, and programs are there. A container has this file.
    ln -sf /dev/null /etc/systemd/system/systemd-tmpfiles-setup.service
    rm -f /.dockerenv
    sed 's/^PART=$/PART=checks/' "$0" > /etc/checks.sh
    cat > /etc/systemd/system/checks.service <<END
[Unit]
Description=The checks
[Service]
Type=oneshot
ExecStart=/bin/bash /etc/checks.sh
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
END
    printf '[Unit]\nDescription=What this machine boots\nRequires=checks.service\n' > /etc/systemd/system/checks.target
    trap - EXIT
    exec /lib/systemd/systemd --unit=checks.target --log-level=warning --show-status=no
fi

failed=0
# Ends the machine, whatever happens.
leave() { echo "STATUS $failed"; sync; echo o > /proc/sysrq-trigger; sleep 1000; }
trap leave EXIT
row() { if [ "$2" = ok ]; then echo "ROW $1 ok"; else failed=1; echo "ROW $1 FAILED: $2"; journalctl --no-pager -u mrcuda -n 20; fi; }
# Waits for a command to succeed.
until_true() { for i in $(seq 300); do "$@" > /dev/null 2>&1 && return; sleep 0.2; done; return 1; }
as_ann() { runuser -u ann -- env HOME=/home/ann XDG_RUNTIME_DIR=/run/user-ann MRCUDA_DRIVER=soft "$@"; }
install -d -m 700 -o ann /run/user-ann
state() { systemctl show mrcuda --property "$1" --value; }
# The worker that serves a job, by the server's own account.
worker() { mrcuda gpus --json "unix:$SOCKET" | grep -o '"worker": *[0-9]*' | grep -o '[0-9]*' | head -n 1; }
status() { sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status"; }

# It starts, as Type=notify, as its own user, with nothing more than it needs.
systemctl start mrcuda; code=$?
main=$(state MainPID)
[ $code = 0 ] && [ "$(state ActiveState)" = active ] && row start ok || row start "exit status $code, $(state ActiveState)"
[ "$(stat -c %U "/proc/$main")" = mrcuda ] && row user ok || row user "it runs as $(stat -c %U "/proc/$main")"
[ "$(status "$main" CapBnd)$(status "$main" NoNewPrivs)" = 00000000000000001 ] && row privileges ok ||
    row privileges "$(grep -E 'CapBnd|NoNewPrivs' "/proc/$main/status")"
[ "$(stat -c '%U %a' /var/lib/mrcuda/.config/mrcuda/token)" = "mrcuda 600" ] && row token-file ok || row token-file "$(ls -l /var/lib/mrcuda/.config/mrcuda)"
[ "$(systemctl is-enabled mrcuda)" = disabled ] && row not-enabled ok || row not-enabled "$(systemctl is-enabled mrcuda)"
grep -q 'workers: each has at most 400 MiB' <(journalctl -u mrcuda) && row delegated-cgroup ok || row delegated-cgroup "not in the log"
systemd-analyze --no-pager security mrcuda | tail -n 1

# What a user does with a token of their own, as docs/packages.md says.
runuser -u mrcuda -- env HOME=/var/lib/mrcuda mrcuda token add ann > /run/added 2>&1; code=$?
token=$(grep -oE '[0-9a-f]{64}' /run/added | head -n 1)
if [ $code = 0 ] && [ -n "$token" ]; then row token ok; else row token "exit status $code: $(cat /run/added)"; fi
as_ann mkdir -p -m 700 /home/ann/.config/mrcuda
(umask 077; echo "$token" > /run/user-ann/token; chown ann /run/user-ann/token)
as_ann cp -p /run/user-ann/token /home/ann/.config/mrcuda/token
STEPS="--steps 60 --progress"
mkdir /run/native && ln -s /usr/lib/mrcuda/libsoftgpu.so /run/native/libcuda.so.1
as_ann env LD_LIBRARY_PATH=/run/native "$BIN/orbit" $STEPS > /run/native.out 2> /run/native.err
identical() { cmp -s /run/native.out "$1"; }
[ -s /run/native.out ] && row native ok || row native "nothing"
as_ann mrcuda run --server $PLACE -- "$BIN/orbit" $STEPS > /run/tls.out 2> /run/tls.err; code=$?
if [ $code = 0 ] && identical /run/tls.out; then row job-by-token ok; else row job-by-token "exit status $code: $(tail -n 3 /run/tls.err)"; fi
as_ann mrcuda run --server unix:$SOCKET -- "$BIN/orbit" $STEPS > /run/unix.out 2> /run/unix.err; code=$?
if [ $code = 0 ] && identical /run/unix.out; then row job-by-socket ok; else row job-by-socket "exit status $code: $(tail -n 3 /run/unix.err)"; fi

# A worker's own cgroup, with its limit.
as_ann mrcuda run --server $PLACE -- "$BIN/orbit" $STEPS --pace 500000 > /run/kept.out 2> /run/kept.err & job=$!
until_true grep -q step /run/kept.err
worker=$(worker)
group=$(sed -n 's/^0:://p' "/proc/$worker/cgroup")
limit=$(cat "/sys/fs/cgroup$group/memory.max")
case $group in */mrcuda-worker-*) [ "$limit" = 419430400 ] && row worker-cgroup ok || row worker-cgroup "$limit" ;; *) row worker-cgroup "$group" ;; esac
[ "$(status "$worker" Seccomp)" = 2 ] && row worker-seccomp ok || row worker-seccomp "$(status "$worker" Seccomp)"

# Another process of the program takes over, and the job goes on.
systemctl reload mrcuda
other() { [ "$(state MainPID)" != "$main" ] && [ "$(state MainPID)" != 0 ] && [ "$(state ActiveState)" = active ]; }
until_true other && row reload ok || row reload "$(state MainPID), $(state ActiveState)"
as_ann mrcuda run --server $PLACE -- "$BIN/orbit" $STEPS > /run/new.out 2> /run/new.err; code=$?
if [ $code = 0 ] && identical /run/new.out; then row job-of-the-new-one ok; else row job-of-the-new-one "exit status $code: $(tail -n 3 /run/new.err)"; fi
wait $job; code=$?
if [ $code = 0 ] && identical /run/kept.out; then row job-over-a-reload ok; else row job-over-a-reload "exit status $code: $(tail -n 3 /run/kept.err)"; fi

# The server ends by a signal that nobody asked for: systemd starts it again.
before=$(state MainPID)
kill -KILL "$before"
again() { [ "$(state MainPID)" != "$before" ] && [ "$(state MainPID)" != 0 ] && [ "$(state ActiveState)" = active ]; }
until_true again && row restart-on-failure ok || row restart-on-failure "$(state MainPID), $(state ActiveState)"
as_ann mrcuda run --server $PLACE -- "$BIN/orbit" $STEPS > /run/again.out 2> /run/again.err; code=$?
if [ $code = 0 ] && identical /run/again.out; then row job-after-it ok; else row job-after-it "exit status $code: $(tail -n 3 /run/again.err)"; fi
groups=$(ls -d /sys/fs/cgroup/system.slice/mrcuda.service/mrcuda-worker-"$before"-* 2> /dev/null)
[ -z "$groups" ] && row cgroups-of-the-killed-one ok || row cgroups-of-the-killed-one "left: $groups"

# Where jobs go when it is stopped.
sed -i 's/^max-host-memory.*/&\ndrain = "local"/' /etc/mrcuda/config.toml
systemctl restart mrcuda
as_ann mrcuda run --server $PLACE -- "$BIN/orbit" $STEPS --pace 500000 > /run/drained.out 2> /run/drained.err & job=$!
until_true grep -q step /run/drained.err
systemctl stop mrcuda; code=$?
[ $code = 0 ] && [ "$(state ActiveState)" = inactive ] && [ "$(state Result)" = success ] && row stop ok || row stop "exit status $code, $(state ActiveState), $(state Result)"
wait $job; code=$?
if [ $code = 0 ] && identical /run/drained.out; then row job-over-a-stop ok; else row job-over-a-stop "exit status $code: $(tail -n 3 /run/drained.err)"; fi

# The server of root with workers of users, as docs/packages.md says.
mkdir -p /etc/systemd/system/mrcuda.service.d
cat > /etc/systemd/system/mrcuda.service.d/root.conf <<END
[Service]
User=root
Environment=HOME=/var/lib/mrcuda
CapabilityBoundingSet=CAP_SETUID CAP_SETGID CAP_SETPCAP CAP_CHOWN CAP_KILL CAP_IPC_LOCK CAP_DAC_OVERRIDE
SystemCallFilter=@setuid @chown capset
NotifyAccess=main
ExecReload=
END
sed -i 's/^drain.*/worker-user = "client,mrcuda"/' /etc/mrcuda/config.toml
systemctl daemon-reload
systemctl start mrcuda; code=$?
[ $code = 0 ] && [ "$(stat -c %U "/proc/$(state MainPID)")" = root ] && row start-as-root ok || row start-as-root "exit status $code, $(state ActiveState)"
as_ann mrcuda run --server unix:$SOCKET -- "$BIN/orbit" $STEPS --pace 300000 > /run/root.out 2> /run/root.err & job=$!
until_true grep -q step /run/root.err
worker=$(worker)
[ "$(stat -c %U "/proc/$worker")" = ann ] && row worker-of-the-user ok || row worker-of-the-user "worker $worker of $(stat -c %U "/proc/$worker")"
[ "$(status "$worker" CapEff)" = 0000000000000000 ] && row worker-without-capabilities ok || row worker-without-capabilities "$(status "$worker" CapEff)"
wait $job; code=$?
if [ $code = 0 ] && identical /run/root.out; then row job-at-roots-server ok; else row job-at-roots-server "exit status $code: $(tail -n 3 /run/root.err)"; fi
systemctl stop mrcuda; code=$?
[ $code = 0 ] && [ "$(state Result)" = success ] && row stop-as-root ok || row stop-as-root "exit status $code, $(state Result)"
rm -r /etc/systemd/system/mrcuda.service.d
sed -i '/^worker-user/d' /etc/mrcuda/config.toml
systemctl daemon-reload

# The agent parks a job of a server that is to be empty. Without its file it does not run.
systemctl start mrcuda mrcuda-agent
agent() { systemctl show mrcuda-agent --property "$1" --value; }
[ "$(agent ConditionResult)" = no ] && row no-agent-without-its-file ok || row no-agent-without-its-file "it runs"
install -D -m 600 /var/lib/mrcuda/.config/mrcuda/token /var/lib/mrcuda-agent/mrcuda/token
as_ann mrcuda run --server $PLACE -- "$BIN/orbit" $STEPS --pace 500000 > /run/parked.out 2> /run/parked.err & job=$!
until_true grep -q step /run/parked.err
printf 'servers = ["%s"]\n[[policy]]\nkind = "drain"\nservers = ["%s"]\npark = true\n' $PLACE $PLACE > /etc/mrcuda/agent.toml
systemctl start mrcuda-agent
listed() { mrcuda ps --all | grep orbit; }
parked() { listed | grep -q parked; }
until_true parked && row agent-parks ok || { row agent-parks "$(listed)"; journalctl --no-pager -u mrcuda-agent -n 20; }
systemctl stop mrcuda-agent
mrcuda resume "$(listed | grep -oE '[0-9]+' | head -n 1)" --to $PLACE/0 > /run/resumed 2>&1; code=$?
[ $code = 0 ] && row resume-as-root ok || row resume-as-root "exit status $code: $(cat /run/resumed)"
wait $job; code=$?
if [ $code = 0 ] && identical /run/parked.out; then row job-that-was-parked ok; else row job-that-was-parked "exit status $code: $(tail -n 3 /run/parked.err)"; fi

# It goes without a trace but the user's files.
dpkg --no-triggers --remove mrcuda > /run/removed 2>&1; code=$?
if [ $code = 0 ] && [ "$(state ActiveState)" != active ] && [ -e /var/lib/mrcuda/.config/mrcuda/token ]; then row remove ok; else row remove "exit status $code, $(state ActiveState): $(tail -n 3 /run/removed)"; fi
