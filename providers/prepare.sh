#!/bin/bash
# Makes a fresh machine fit for training, once, as root: local disks, clock, GPUs.
# prepare.sh USER DATA STATE [container]: writes "ok", or one line on what is wrong, to STATE when
# done. With "container" the machine is to have podman or docker.
set -u
user=$1 data=$2 state=$3 container=${4-}
mkdir -p "$(dirname "$state")"
exec 9>"$state.lock"
flock -n 9 || exit 0
[ -e "$state" ] && exit 0

finish() {
    printf '%s\n' "$1" >"$state.new"
    mv "$state.new" "$state"
    echo "spotd-prepare: $1" >/dev/console 2>/dev/null
    exit 0
}

# Disks that are part of the machine: of EC2 and GCP by model, of Azure by name as well.
local_disks() {
    lsblk -dnpo NAME,TYPE,MODEL,SERIAL | while read -r name type rest; do
        [ "$type" = disk ] || continue
        case "$rest" in
            *"Instance Storage"* | *nvme_card* | *"Microsoft NVMe Direct Disk"* | *"NVMe Direct"*) ;;
            *) continue ;;
        esac
        # Never one that has anything on it (a file system, a table of partitions), whoever put it
        # there, nor one that does not let itself be looked at.
        signs=$(wipefs --no-act "$name" 2>/dev/null) && [ -z "$signs" ] && echo "$name"
    done
}

# AWS's GPU images put their disks together by themselves: an LVM volume, mounted here.
theirs=/opt/dlami/nvme service=dlami-nvme

mount_data() {
    mkdir -p "$data"
    mountpoint -q "$data" && return 0
    # Waits for it, where it is still at work; one that fails leaves us what it has not touched.
    systemctl is-enabled -q "$service" 2>/dev/null && systemctl start "$service"
    if mountpoint -q "$theirs"; then
        mount --bind "$theirs" "$data" && return 0
        echo "$theirs cannot be mounted at $data"
        return 1
    fi
    mapfile -t disks < <(local_disks)
    case ${#disks[@]} in
        0) return 0 ;;
        1) device=${disks[0]} ;;
        *)
            command -v mdadm >/dev/null || { echo "mdadm is missing"; return 1; }
            device=/dev/md/spotd
            mdadm --create "$device" --run --quiet --level=0 --raid-devices=${#disks[@]} \
                "${disks[@]}" >/dev/null 2>&1 || { echo "RAID of ${disks[*]} failed"; return 1; }
            ;;
    esac
    # Scratch: nothing on it outlives the machine, so it may keep a journal of nothing.
    if ! mkfs.ext4 -q -F -O ^has_journal -E lazy_itable_init=1 "$device" >/dev/null 2>&1 ||
        ! mount -o noatime,discard "$device" "$data"; then
        echo "no file system on $device"
        return 1
    fi
}

clock_is_set() {
    for _ in $(seq 30); do
        [ "$(timedatectl show -p NTPSynchronized --value 2>/dev/null)" = yes ] && return 0
        chronyc -n tracking 2>/dev/null | grep -q '^Leap status *: Normal' && return 0
        sleep 1
    done
    return 1
}

# Where the PCI bus shows NVIDIA GPUs (class 0300 or 0302), all of them have to answer.
check_gpus() {
    want=0
    for device in /sys/bus/pci/devices/*; do
        [ "$(cat "$device/vendor" 2>/dev/null)" = 0x10de ] || continue
        case "$(cat "$device/class")" in 0x0300* | 0x0302*) want=$((want + 1)) ;; esac
    done
    [ "$want" = 0 ] && return 0
    # One that hangs costs a minute each time; the agent waits for us, and not for ever.
    until=$((SECONDS + 240))
    for _ in $(seq 60); do
        have=$(timeout 60 nvidia-smi --query-gpu=uuid --format=csv,noheader 2>/dev/null | grep -c GPU-)
        if [ "$have" = "$want" ] || [ "$SECONDS" -ge "$until" ]; then break; fi
        sleep 2
    done
    [ "$have" = "$want" ] || { echo "nvidia-smi shows $have of $want GPUs"; return 1; }
    if systemctl list-unit-files nvidia-fabricmanager.service >/dev/null 2>&1 &&
        systemctl is-enabled -q nvidia-fabricmanager 2>/dev/null; then
        systemctl start nvidia-fabricmanager || { echo "the fabric manager does not run"; return 1; }
    fi
    # Errors that a driver reports so early are the board's: 48 double bit, 64 row remapping failed,
    # 74 NVLink, 79 fallen off the bus, 94/95 contained and uncontained, 119/120 GSP.
    xid=$(dmesg 2>/dev/null | grep -oE 'Xid \([^)]*\): (48|64|74|79|94|95|119|120)\b' | head -1)
    [ -z "$xid" ] || { echo "a GPU reports $xid"; return 1; }
    nvidia-smi -pm 1 >/dev/null 2>&1
    return 0
}

# What a machine has is left as it is: GPU images come with docker and NVIDIA's part of it.
have_engine() {
    command -v podman >/dev/null && return 0
    if command -v docker >/dev/null; then
        systemctl start docker >/dev/null 2>&1
        return 0
    fi
    export DEBIAN_FRONTEND=noninteractive
    if command -v apt-get >/dev/null; then
        wait=(-o DPkg::Lock::Timeout=120)
        { timeout 300 apt-get "${wait[@]}" -q update &&
            timeout 600 apt-get "${wait[@]}" -q -y --no-install-recommends install podman; } >&2
    elif command -v dnf >/dev/null; then
        timeout 600 dnf -q -y install podman >&2
    fi
    command -v podman >/dev/null || { echo "podman cannot be installed"; return 1; }
}

wrong=$(mount_data) || finish "$wrong"
chown "$user" "$data"
clock_is_set || finish "the clock is not set: no time server answers"
wrong=$(check_gpus) || finish "$wrong"
if [ "$container" = container ]; then
    wrong=$(have_engine) || finish "$wrong"
fi
finish ok
