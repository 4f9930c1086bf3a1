# What `cargo xtask machine tests` runs as the first process of a virtual machine. BIN, PROGRAM, DIRECTORY and TESTS are set in front of this.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# Ends the machine, whatever happens.
leave() { echo "STATUS $?"; sync; echo o > /proc/sysrq-trigger; while :; do sleep 1; done; }
trap leave EXIT
ip link set lo up
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /run/home && cd $DIRECTORY || exit
export HOME=/run/home TMPDIR=/run/home MRCUDA_BIN_DIR=$BIN RUST_TEST_THREADS=1
eval "$PROGRAM --nocapture $TESTS"
