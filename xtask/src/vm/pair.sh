# In front of the scripts of two machines that are joined by a cable: ROLE is server or client, DEVICE the network card, ADDRESS this machine's address.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ROLE=$(sed 's/.*role=\([a-z]*\).*/\1/' /proc/cmdline)
# It only ends the machine: the script has its own, which says something.
trap 'echo o > /proc/sysrq-trigger; while :; do sleep 1; done' EXIT
ip link set lo up
DEVICE=$(ls /sys/class/net | grep -v '^lo$' | head -n 1)
[ $ROLE = server ] && ADDRESS=10.8.0.1 || ADDRESS=10.8.0.2
ip addr add $ADDRESS/24 dev $DEVICE && ip link set $DEVICE up || exit
