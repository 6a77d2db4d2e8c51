#!/bin/busybox sh
# Sets a guest up, and runs the commands of the tests.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
for dir in /dev/shm /tmp; do
    mount -t tmpfs tmpfs "$dir"
    chmod 1777 "$dir"
done
mount -t devpts devpts /dev/pts
mount -t cgroup2 cgroup /sys/fs/cgroup
for controller in memory cpu hugetlb; do
    echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done
ip link set lo up
while read -r module; do
    insmod "/modules/$module.ko"
done </modules/order
# The kernel turns words of its command line that it does not know into variables.
if [ "${swap_mib:-0}" -gt 0 ]; then
    echo "${swap_mib}M" >/sys/block/zram0/disksize
    mkswap /dev/zram0 >/dev/null
    swapon /dev/zram0
fi

# Runs the command that follows the name $1, within $limit_s seconds.
run() {
    echo "vm-begin: $1"
    shift
    timeout -s KILL "$limit_s" "$@" </dev/null 2>&1
    status=$?
    # The kernel's reasons for killing a program
    [ "$status" -lt 128 ] || dmesg | tail -n 20
    echo
    echo "vm-end: $status"
}

pages=$(awk '/KernelPageSize/ {print $2; exit}' /proc/self/smaps)
swap=$(awk '/SwapTotal/ {print $2}' /proc/meminfo)
# The first line continues a line of the firmware.
echo
echo "vm: Linux $(uname -rm), pages of $pages KiB, $(nproc) processors," \
    "$(ls -d /sys/devices/system/node/node* | wc -l) nodes, $swap KiB of swap"
. /commands
echo "vm: over"
poweroff -f
