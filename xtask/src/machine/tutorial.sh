# What `cargo xtask machine tutorial` runs as the first process of two virtual machines that are joined by a network cable: ROLE `server` is
# gpubox, which only offers ssh; ROLE `client` is here, where a user without privileges follows the page. BIN, PROGRAM and DIRECTORY are set in
# front of this.
seconds() { cut -d. -f1 /proc/uptime; }
# Ends the machine, whatever happens.
leave() { echo "STATUS $?"; sync; echo o > /proc/sysrq-trigger; while :; do sleep 1; done; }
trap leave EXIT
printf '127.0.0.1 localhost\n10.8.0.1 gpubox\n10.8.0.2 here\n' > /etc/hosts
[ $ROLE = server ] && hostname gpubox || hostname here

# The same user on both, who can log in from here on gpubox: the first machine makes the key, as the second one has no other way to it.
useradd --create-home --shell /bin/bash --password '*' you
as_you() { runuser -u you -- env -u XDG_RUNTIME_DIR HOME=/home/you USER=you "$@"; }
if [ $ROLE = server ]; then
    mkdir -p /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f /run/host_key
    # The key comes from the other machine, once.
    as_you mkdir -m 700 /home/you/.ssh
    busybox nc -l -p 7000 > /run/keys < /dev/null
    (busybox nc -l -p 7001 < /dev/null; echo o > /proc/sysrq-trigger) &
    install -m 600 -o you /run/keys /home/you/.ssh/authorized_keys
    /usr/sbin/sshd -D -e -f /dev/null -h /run/host_key -o UsePAM=no -o Subsystem="sftp internal-sftp" -o MaxStartups=100
    exit
fi
as_you mkdir -m 700 /home/you/.ssh
as_you ssh-keygen -q -t ed25519 -N '' -f /home/you/.ssh/id_ed25519
as_you tee /home/you/.ssh/config > /dev/null <<END
StrictHostKeyChecking accept-new
LogLevel ERROR
ControlMaster auto
ControlPath /home/you/.ssh/%h
ControlPersist 600
END
for i in $(seq 120); do busybox nc -w 5 10.8.0.1 7000 < /home/you/.ssh/id_ed25519.pub && break; sleep 1; done
for i in $(seq 120); do as_you ssh gpubox true && break; sleep 1; done

# The page's first step, without the build.
began=$(seconds)
FILES="mrcuda mhelper libmrcuda_shim.so libmrcuda_nvml.so libsoftgpu.so"
cd $BIN && as_you sh -c "mkdir -p ~/bin && cp $FILES ~/bin/ && cd && ssh gpubox mkdir -p bin && scp -q bin/* gpubox:bin/" || exit
echo "copied after $(($(seconds) - began)) s"
cd $DIRECTORY
as_you env MRCUDA_BIN_DIR=$BIN MRCUDA_TUTORIAL_HOSTS=gpubox TMPDIR=/tmp "$PROGRAM" --nocapture tutorials::the_first_move
code=$?
took=$(($(seconds) - began))
# The other machine ends.
busybox nc -w 5 10.8.0.1 7001 < /dev/null
echo "the page took $took s of emulated time"
exit $code
