#!/usr/bin/env bash
# The part of check-deploy.sh that runs in a booted root with Slurm in it: a controller and two nodes, n0
# and n1, each with a network, a host name and a /run/shoal of its own, and what srun starts on them.
#
#   slurm-inside.sh
set -uo pipefail

# shellcheck source=scripts/packages/inside.sh
. "$(dirname "$0")/../packages/inside.sh"
examples=/shoal/worker/python/examples
names=(n0 n1)

# Munge proves to each who the others are. Without control groups; each node says that it has four cores.
lay_out() {
    local memory
    memory=$(awk '$1 == "MemTotal:" { print int($2 / 2048) }' /proc/meminfo)
    mkdir -p /etc/slurm /var/spool/slurmctld /var/spool/n0 /var/spool/n1
    printf '10.79.0.1 n0\n10.79.0.2 n1\n' >>/etc/hosts
    printf 'CgroupPlugin=disabled\n' >/etc/slurm/cgroup.conf
    cat >/etc/slurm/slurm.conf <<END
ClusterName=shoal
SlurmctldHost=n0
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmctldTimeout=60
SlurmdTimeout=60
NodeName=n[0-1] CPUs=4 RealMemory=$memory
PartitionName=all Nodes=ALL Default=YES State=UP
END
}

# A command on a node: its network, and, since that has mounts of its own, its name and sockets.
on_node() {
    local name=$1
    shift
    # shellcheck disable=SC2016  # the inner shell expands
    ip netns exec "$name" unshare --uts bash -c 'hostname "$0" && mkdir -p /run/shoal && mount --bind "/root/run-$0" \
        /run/shoal && exec "$@"' "$name" "$@"
}

make_nodes() {
    local name
    for name in "${names[@]}"; do
        ip netns add "$name" && ip -n "$name" link set lo up && mkdir "/root/run-$name" || return
        # The socket's folder; the daemons here are root's, as the jobs are.
        chmod 755 "/root/run-$name"
    done
    ip -n n0 link add eth0 type veth peer name eth0 netns n1 || return
    ip -n n0 address add 10.79.0.1/24 dev eth0 && ip -n n1 address add 10.79.0.2/24 dev eth0 || return
    ip -n n0 link set eth0 up && ip -n n1 link set eth0 up
}

# In the background, in their own sessions: they end with process 1.
start_slurm() {
    local name
    systemctl restart munge || return
    on_node n0 slurmctld -D >/root/slurmctld.log 2>&1 &
    for name in "${names[@]}"; do
        on_node "$name" slurmd -D -N "$name" >"/root/slurmd-$name.log" 2>&1 &
    done
    wait_for two_are_idle || {
        tail -n 15 /root/slurmctld.log /root/slurmd-n*.log
        return 1
    }
}

two_are_idle() {
    [[ $(on_node n0 sinfo --noheader --format '%D %t') == '2 idle' ]]
}

# Debian's torch is built without the store that it takes by default.
run_step() {
    USE_LIBUV=0 on_node n0 timeout --kill-after 5 "$LIMIT_S" srun --chdir /root "$@"
}

# The ranks start a daemon on each node for the job: four ranks have one loss, which falls.
torch_alone() {
    run_step -N2 --ntasks-per-node=2 python3 "$examples/digits_ddp.py" --steps 10 >/root/torch.log 2>&1
    local status=$?
    cat /root/torch.log
    ((status == 0)) && wait_for no_daemon
}

# The launcher starts a daemon on each node, and the ranks.
launch() {
    run_step -N2 --ntasks-per-node=1 shoalrun -n 2 -- "$@"
}

torch_launched() {
    local said
    said=$(launch python3 "$examples/digits_ddp.py" --steps 10 2>&1) || {
        printf '%s\n' "$said"
        return 1
    }
    printf '%s\n' "$said" | tail -n 5
    wait_for no_daemon
}

c_launched() {
    gcc -o /root/first /shoal/worker/examples/first.c -lshoal || return
    sums_are_right launch /root/first && wait_for no_daemon
}

# Without a daemon a program says how it is started with one, and that line is true.
c_alone_says_the_line() {
    local said line
    said=$(run_step -N2 --ntasks-per-node=2 /root/first 2>&1) && return 1
    printf '%s\n' "$said"
    line=$(sed -n 's/.*start this program with one: srun //p' <<<"$said" | head -n 1)
    [[ $line == '-N2 --ntasks-per-node=1 shoalrun -n 2 -- /root/first' ]] || return
    # shellcheck disable=SC2086  # words
    sums_are_right run_step $line && wait_for no_daemon
}

# Rank and size from Slurm, whichever daemons there are.
sums_are_right() {
    local said
    said=$("$@" 2>&1)
    printf '%s\n' "$said"
    [[ $(sort <<<"$said") == "$(printf 'rank %d of 4: 4 40 400 6\n' 0 1 2 3)" ]]
}

# Daemons that ranks have started end with the job.
no_daemon() {
    ! pgrep -x shoald
}

# As on a cluster whose administrator has set it up: one of each node.
start_daemons() {
    local name number=1
    shoalctl secret /etc/shoal/slurm-secret || return
    for name in "${names[@]}"; do
        cat >"/etc/shoal/$name.json" <<END
{
    "node": "$name",
    "listen": { "address": "10.79.0.$number" },
    "secret_file": "/etc/shoal/slurm-secret",
    "servers": [
        { "name": "n0", "address": "10.79.0.1:7070" },
        { "name": "n1", "address": "10.79.0.2:7070" }
    ]
}
END
        on_node "$name" shoald --config "/etc/shoal/$name.json" >"/root/shoald-$name.log" 2>&1 &
        number=$((number + 1))
    done
    wait_for peer_is_up || {
        tail -n 15 /root/shoald-n*.log
        return 1
    }
}

peer_is_up() {
    on_node n0 shoalctl status --json | grep -q '"state": "up"'
}

torch_with_daemons() {
    run_step -N2 --ntasks-per-node=2 env SHOAL_SOCKET=/run/shoal/shoald.sock python3 "$examples/digits_ddp.py" --steps 10
}

# Two jobs of one allocation do not meet: each step is a job. The arguments stand before the program.
two_steps() {
    local first=0 second=0
    run_step -N2 --ntasks-per-node=1 --overlap "$@" /root/first &
    run_step -N2 --ntasks-per-node=1 --overlap "$@" /root/first || second=$?
    wait $! || first=$?
    ((first == 0 && second == 0))
}

# A rank that is killed is named by the others. The arguments start the ranks.
killed_is_named() {
    local said
    # shellcheck disable=SC2016  # the task's shell expands
    said=$("$@" sh -c '[ ${RANK-$SLURM_PROCID} = 3 ] && exec timeout -s KILL 3 shoalperf all_reduce -b 1M -n 100000000
         exec shoalperf all_reduce -b 1M -n 100000000' 2>&1) && return 1
    printf '%s\n' "$said"
    grep -Eq 'rank lost: rank 3 on node n1 is gone' <<<"$said"
}

printf '%s, %s\n' "$(slurmd -V)" "$(munge --version | head -n 1)"
systemctl stop shoald
check 'a configuration of Slurm with two nodes' lay_out
check 'two nodes with networks of their own' make_nodes
check 'controller, two nodes and munge run' start_slurm
check 'srun of a torch script: the ranks start the daemons, which end' torch_alone
check 'srun of shoalrun: it starts the daemons and a C program; they end' c_launched
check 'srun of a C program without a daemon: the line that it says' c_alone_says_the_line
check 'srun of shoalrun: a torch script' torch_launched
check 'two such steps at once do not meet' two_steps shoalrun --
check 'a killed rank of such a step is named' killed_is_named launch
check 'a daemon on each node' start_daemons
check 'srun of a torch script, through these' torch_with_daemons
check 'srun of a C program, through these' sums_are_right run_step -N2 --ntasks-per-node=2 /root/first
check 'two steps at once do not meet' two_steps
check 'a killed rank is named' killed_is_named run_step -N2 --ntasks-per-node=2 --kill-on-bad-exit=0
