#!/bin/sh
# Boots systemd in namespaces of its own, on a copy of this machine's files that nobody else sees, as often as it is told
# to; afterwards nothing of it is left.
#
#   sh boot.sh keep DISK GROUP SHARED…   reads its input: `boot` starts the machine, `cut` is a power failure, and so is the
#                                        end of the input, which ends this as well. DISK: an empty folder, where its files
#                                        are kept from boot to boot, in memory. GROUP: the control group to make for it.
#                                        SHARED…: folders of this machine that are seen there, read-only.
#   sh boot.sh inside DISK SHARED…       what becomes the first process there; it prints `pid N`, as seen from outside
#
# `keep` itself must run in a mount namespace of its own.
set -eu

keep() {
    disk=$1 group=$2
    shift 2
    mount -t tmpfs -o mode=755 hotbunk-machine "$disk"
    mkdir "$disk/upper" "$disk/units"
    unshare=
    while read -r word; do
        cut_off
        case $word in boot) boot "$@" ;; esac
    done
    cut_off
    umount -l "$disk"
    rmdir "$disk" 2>/dev/null || true
}

boot() {
    mkdir "$group"
    (
        echo 0 >"$group/cgroup.procs"
        exec setpriv --pdeathsig KILL unshare --mount --pid --ipc --uts --net --cgroup --fork --kill-child -- \
            sh "$0" inside "$disk" "$@"
    ) &
    unshare=$!
}

# The first process takes all others with it, and dies with `unshare`.
cut_off() {
    [ -n "$unshare" ] || return 0
    kill -9 "$unshare" 2>/dev/null || true
    wait "$unshare" || true
    unshare=
    until grep -q 'populated 0' "$group/cgroup.events"; do sleep 0.02; done
    find "$group" -depth -type d -exec rmdir {} \;
}

inside() {
    disk=$1
    shift
    # This proc is still the outer one, so the number is the outer one as well.
    read -r pid _ </proc/self/stat
    echo "pid $pid"

    root=$disk/root-$pid
    mkdir "$disk/work-$pid" "$root"
    mount -t overlay -o "lowerdir=/,upperdir=$disk/upper,workdir=$disk/work-$pid" hotbunk-machine "$root"
    mount -t proc proc "$root/proc"
    # Each boot has its own name, as on a real machine; here the kernel's is the host's.
    cat /proc/sys/kernel/random/uuid >"$disk/boot-id"
    mount --bind "$disk/boot-id" "$root/proc/sys/kernel/random/boot_id"
    mount -t sysfs -o ro sysfs "$root/sys"
    mountpoint -q "$root/sys/fs/cgroup" || mount -t tmpfs cgroup "$root/sys/fs/cgroup"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    for memory in run tmp dev; do mount -t tmpfs "$memory" "$root/$memory"; done
    for node in null zero full random urandom tty; do
        : >"$root/dev/$node"
        mount --bind "/dev/$node" "$root/dev/$node"
    done
    mkdir "$root/dev/shm" "$root/dev/pts"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    for folder in "$@"; do
        mkdir -p "$root/$folder"
        mount --bind -o ro "$folder" "$root/$folder"
    done

    # What this machine has enabled is not started there, nor what belongs to hardware or to people at a terminal.
    mkdir -p "$root/etc/systemd/system"
    mount --bind "$disk/units" "$root/etc/systemd/system"
    for unit in systemd-udevd.service systemd-udev-trigger.service systemd-sysctl.service systemd-modules-load.service \
        systemd-remount-fs.service systemd-tmpfiles-setup-dev.service systemd-binfmt.service systemd-firstboot.service \
        systemd-sysusers.service systemd-logind.service systemd-networkd.service systemd-resolved.service \
        systemd-timesyncd.service proc-sys-fs-binfmt_misc.automount sys-kernel-debug.mount sys-kernel-tracing.mount \
        sys-fs-fuse-connections.mount dev-hugepages.mount dev-mqueue.mount getty.target; do
        ln -sf /dev/null "$root/etc/systemd/system/$unit"
    done

    cd "$root"
    mkdir -p old
    pivot_root . old
    umount -l old
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=hotbunk-tests \
        "$(command -v /usr/lib/systemd/systemd || echo /lib/systemd/systemd)" \
        --system --unit=multi-user.target --log-target=journal-or-kmsg >&2
}

"$@"
