#!/usr/bin/env bash
# A cluster on this machine: each node a network namespace with a daemon in it, joined by virtual
# cables of a given rate to a bridge, which has a namespace of its own. Nothing outside them changes.
#
#   scripts/cluster.sh up --nodes N [--cpu-nodes K] [--rate RATE] [options]
#   scripts/cluster.sh run [-n RANKS_PER_NODE] -- COMMAND [ARGUMENT...]
#   scripts/cluster.sh exec NODE -- COMMAND [ARGUMENT...]
#   scripts/cluster.sh status
#   scripts/cluster.sh down
#
# Needs root. See scripts/README.md.
set -euo pipefail

readonly STATE_ROOT=/run/shoal-cluster
readonly NETWORK=10.77 PORT=7070
# Of a link: its bucket; how long a byte may wait in the bridge before it is dropped; and the queue of
# a node's own end, which never fills, since a host holds its TCP back and drops nothing of its own.
readonly BURST_US=1000 QUEUE_MS=10 OWN_QUEUE_BYTES=16777216
# Congestion control, where the kernel has it: Linux's default. With bbr, which a machine may prefer,
# every connection all but stops for 200 ms every 10 s, to measure its delay anew.
readonly TCP=cubic
readonly UP_S=90 DOWN_S=10 GRACE_S=10

usage() {
    cat <<'USAGE'
usage: scripts/cluster.sh COMMAND [--name NAME] ...
  up --nodes N           nodes with ranks, node0, node1, ...
     [--cpu-nodes K]     nodes that own shards and have no ranks, cpu0, cpu1, ...
     [--rate RATE]       of each link, each way, as tc(8) writes it: 1gbit, 500mbit (default: unshaped)
     [--tcp NAME]        congestion control of the nodes (default: cubic, whatever the machine's)
     [--weights W,C]     shares of a node and of a CPU node (default: those that load no link more
                         than needed, as shoalrun's)
     [--set KEY=JSON]    a key of the daemons' configuration, such as data.chunk_bytes=131072 or
                         protect='"none"'; may repeat
     [--build DIR]       where the programs are (default: build)
     [--no-daemons]      the network alone
  run [-n N] -- COMMAND  N ranks (1) on every node with ranks; the exit code is the first failing
                         rank's. Sets what shoal and torch.distributed read: RANK, WORLD_SIZE,
                         LOCAL_RANK, LOCAL_WORLD_SIZE, SHOAL_JOB, SHOAL_SOCKET, MASTER_ADDR,
                         MASTER_PORT, GLOO_SOCKET_IFNAME, and CLUSTER_ADDRESSES with the address of
                         every rank; DIR/bin leads PATH
  exec NODE -- COMMAND   one command in a node's namespace
  status                 nodes, addresses, daemons, bytes that the links carried
  down                   ends whatever runs in the namespaces and removes them
  --name NAME            of the cluster (default: default); clusters of different names do not meet
USAGE
}

fail() {
    printf 'cluster.sh: %s\n' "$1" >&2
    exit "${2:-1}"
}

usage_error() {
    printf 'cluster.sh: %s\n' "$1" >&2
    usage >&2
    exit 2
}

# Without a process that could be left behind.
pause() { read -rt "$1" <> <(:) || true; }

name=default
nodes=0 cpu_nodes=0 rate='' tcp='' weights='' build='' daemons=1 ranks_per_node=1
declare -A extra=()
extra_top=''

need_number() {
    if [[ ! $2 =~ ^[0-9]{1,3}$ ]] || ((10#$2 < $3 || 10#$2 > $4)); then
        usage_error "$1: got \"$2\", must be a number from $3 to $4"
    fi
}

set_name() {
    [[ $1 =~ ^[a-z0-9][a-z0-9-]{0,23}$ ]] ||
        usage_error "--name: got \"$1\", must be at most 24 of a-z, 0-9 and -"
    name=$1
}

set_extra() {
    if [[ $1 =~ ^([a-z_]+)=(.+)$ ]]; then
        extra_top+="  \"${BASH_REMATCH[1]}\": ${BASH_REMATCH[2]},"$'\n'
        return
    fi
    [[ $1 =~ ^([a-z]+)\.([a-z_]+)=(.+)$ ]] ||
        usage_error "--set: got \"$1\", must be key=JSON or section.key=JSON"
    local section=${BASH_REMATCH[1]} key=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]}
    extra[$section]+="${extra[$section]:+, }\"$key\": $value"
}

# --- the state of a cluster: a folder with shell-free text files -------------------------------

state() { printf '%s/%s' "$STATE_ROOT" "$name"; }
namespace() { printf 'shoal-%s-%s' "$name" "$1"; }
address() { printf '%s.%d.%d' "$NETWORK" $(($1 / 200)) $(($1 % 200 + 1)); }

# The node's name for its number: CPU nodes come last.
node_name() {
    if (($1 < nodes)); then printf 'node%d' "$1"; else printf 'cpu%d' $(($1 - nodes)); fi
}

state_load() {
    [[ -r $(state)/shape ]] ||
        fail "there is no cluster \"$name\": scripts/cluster.sh up --name $name ..."
    read -r nodes cpu_nodes daemons rate build <"$(state)/shape"
}

# Namespaces of this cluster, also those that a broken `up` left.
namespaces() {
    ip netns list 2>/dev/null | awk -v prefix="$(namespace '')" '
        index($1, prefix) == 1 && substr($1, length(prefix) + 1) ~ /^(node[0-9]+|cpu[0-9]+|bridge)$/ { print $1 }'
}

# --- up -----------------------------------------------------------------------------------------

bits_per_s() {
    [[ $1 =~ ^([0-9]+)(k|m|g)bit$ ]] || usage_error "--rate: got \"$1\", must be like 500mbit or 1gbit"
    local -A unit=([k]=1000 [m]=1000000 [g]=1000000000)
    ((BASH_REMATCH[1] > 0)) || usage_error "--rate: got \"$1\", must be more than nothing"
    printf '%d' $((BASH_REMATCH[1] * ${unit[${BASH_REMATCH[2]}]}))
}

# Shape what leaves through a device. The bucket holds at least one packet of segmentation offload.
shape() {
    local inside=$1 device=$2 bits bucket
    local -a queue=(latency "${QUEUE_MS}ms")
    [[ $device != eth0 ]] || queue=(limit "$OWN_QUEUE_BYTES")
    [[ $rate != - ]] || return 0
    bits=$(bits_per_s "$rate")
    bucket=$((bits * BURST_US / 8000000))
    ((bucket >= 98304)) || bucket=98304
    tc -n "$inside" qdisc add dev "$device" root tbf rate "$rate" burst "$bucket" "${queue[@]}"
}

# A switch has no firewall. The hooks of the machine's, in this namespace without rules, would cost
# each packet processor time that the nodes need. Where they cannot be taken out, all works as well.
firewall_off() {
    local hook
    for hook in /proc/sys/net/bridge/bridge-nf-call-*; do
        [[ ! -e $hook ]] || printf 0 | ip netns exec "$1" tee "$hook" >/dev/null 2>&1 || true
    done
}

hardware_address() { printf '02:00:00:00:%02x:%02x' $(($1 / 256)) $(($1 % 256)); }

# All nodes know each other's addresses. What they had to ask for would stand in a table that all
# namespaces of the machine share, and which 32 nodes fill.
neighbours_set() {
    local i=$1 other
    for ((other = 0; other < nodes + cpu_nodes; other++)); do
        ((other == i)) || printf 'neighbour add %s lladdr %s dev eth0 nud permanent\n' \
            "$(address "$other")" "$(hardware_address "$other")"
    done | ip -n "$(namespace "$(node_name "$i")")" -batch -
}

network_up() {
    local bridge i node inside
    bridge=$(namespace bridge)
    ip netns add "$bridge"
    firewall_off "$bridge"
    ip -n "$bridge" link add br0 type bridge forward_delay 0 mcast_snooping 0
    ip -n "$bridge" link set br0 up
    for ((i = 0; i < nodes + cpu_nodes; i++)); do
        node=$(node_name "$i")
        inside=$(namespace "$node")
        ip netns add "$inside"
        # Both ends are made inside, so that no name is taken outside.
        ip -n "$inside" link add eth0 address "$(hardware_address "$i")" type veth peer name "$node" \
            netns "$bridge"
        ip -n "$inside" addr add "$(address "$i")/16" dev eth0
        ip -n "$bridge" link set "$node" master br0
        shape "$inside" eth0
        shape "$bridge" "$node"
        ip -n "$inside" link set lo up
        ip -n "$inside" link set eth0 up
        ip -n "$inside" route change "$NETWORK.0.0/16" dev eth0 src "$(address "$i")" \
            congctl "${tcp:-$TCP}" 2>/dev/null || [[ ! $tcp ]] || {
            step="--tcp: the kernel has no congestion control \"$tcp\""
            exit 1
        }
        ip -n "$bridge" link set "$node" up
        neighbours_set "$i"
    done
}

# Weights of the least load on the busiest link: n - k to 2 (n - 1); from k = n on the CPU nodes alone.
weights_best() {
    if ((cpu_nodes == 0 || nodes == 1)); then
        printf '1,1'
    elif ((cpu_nodes >= nodes)); then
        printf '0,1'
    else
        printf '%d,%d' $((nodes - cpu_nodes)) $((2 * (nodes - 1)))
    fi
}

config_write() {
    local self=$1 node=$2 directory i section weight separator=
    directory=$(state)
    {
        printf '{\n  "node": "%s",\n  "secret_file": "%s/secret",\n%s  "servers": [' "$node" "$directory" \
            "$extra_top"
        for ((i = 0; i < nodes + cpu_nodes; i++)); do
            weight=${weights%,*}
            ((i < nodes)) || weight=${weights#*,}
            printf '%s\n    {"name": "%s", "address": "%s:%d", "weight": %d}' "$separator" \
                "$(node_name "$i")" "$(address "$i")" "$PORT" "$weight"
            separator=,
        done
        printf '\n  ],\n  "socket": {"path": "%s/%s.sock"%s},\n' "$directory" "$node" \
            "${extra[socket]:+, ${extra[socket]}}"
        printf '  "listen": {"address": "%s"%s}' "$(address "$self")" "${extra[listen]:+, ${extra[listen]}}"
        for section in "${!extra[@]}"; do
            [[ $section == socket || $section == listen ]] ||
                printf ',\n  "%s": {%s}' "$section" "${extra[$section]}"
        done
        printf '\n}\n'
    } >"$directory/$node.json"
}

daemon_start() {
    local node=$1 directory
    directory=$(state)
    setsid ip netns exec "$(namespace "$node")" "$build/bin/shoald" --config "$directory/$node.json" \
        >"$directory/$node.log" 2>&1 </dev/null &
    printf '%d\n' $! >"$directory/$node.pid"
}

# Whether the daemon has joined all others, control and fabric.
daemon_is_joined() {
    local up
    up=$("$build/bin/shoalctl" --socket "$(state)/$1.sock" status --json 2>/dev/null |
        grep -c '"fabric": "up"') || true
    ((${up:-0} == nodes + cpu_nodes - 1))
}

daemon_await() {
    local node=$1 deadline=$2 directory
    directory=$(state)
    # Until its socket is there nothing can be waited on; then each answer of the daemon is one.
    until [[ -S $directory/$node.sock ]] && "$build/bin/shoalctl" --socket "$directory/$node.sock" \
        status --json >/dev/null 2>&1 && daemon_is_joined "$node"; do
        if ! kill -0 "$(<"$directory/$node.pid")" 2>/dev/null; then
            cat "$directory/$node.log" >&2
            fail "the daemon of $node has ended, see above"
        fi
        if ((SECONDS >= deadline)); then
            tail -n 5 "$directory/$node.log" >&2
            fail "the daemon of $node has not joined the others within $UP_S s, see above"
        fi
        pause 0.05
    done
}

daemons_up() {
    local i deadline=$((SECONDS + UP_S)) directory
    directory=$(state)
    (umask 077 && head -c 32 /dev/urandom | base64 >"$directory/secret")
    for ((i = 0; i < nodes + cpu_nodes; i++)); do
        config_write "$i" "$(node_name "$i")"
        "$build/bin/shoald" --check-config "$directory/$(node_name "$i").json" >/dev/null ||
            fail "the configuration of $(node_name "$i") is wrong, see above"
    done
    for ((i = 0; i < nodes + cpu_nodes; i++)); do
        daemon_start "$(node_name "$i")"
    done
    for ((i = 0; i < nodes + cpu_nodes; i++)); do
        daemon_await "$(node_name "$i")" "$deadline"
    done
}

step='' # what is said when it fails
up_undo() {
    local code=$?
    trap '' INT TERM HUP
    trap - EXIT
    [[ ! $step ]] || printf 'cluster.sh: %s\n' "$step" >&2
    remove
    exit "$code"
}

up() {
    ((nodes > 0)) || usage_error 'up: --nodes is missing'
    [[ ! $rate ]] || bits_per_s "$rate" >/dev/null
    rate=${rate:--}
    weights=${weights:-$(weights_best)}
    build=$(cd "${build:-$(dirname "$0")/../build}" && pwd) || fail "there is no folder ${build:-build}"
    if ((daemons)) && [[ ! -x $build/bin/shoald || ! -x $build/bin/shoalctl ]]; then
        fail "$build/bin has no shoald and shoalctl: make"
    fi
    mkdir -p "$STATE_ROOT"
    # The folder is what makes the name unique: only one `up` gets to make it.
    mkdir "$(state)" 2>/dev/null ||
        fail "there is a cluster \"$name\": take it down, or give another --name"
    trap up_undo EXIT
    trap 'step=interrupted; exit 130' INT TERM HUP
    step='the network cannot be made: are network namespaces, bridges, veth and tbf allowed here?'
    network_up
    step=''
    printf '%d %d %d %s %s\n' "$nodes" "$cpu_nodes" "$daemons" "$rate" "$build" >"$(state)/shape"
    ((!daemons)) || daemons_up
    trap - EXIT INT TERM HUP
    printf 'cluster "%s": %d nodes, %d CPU nodes, links of %s\n' "$name" "$nodes" "$cpu_nodes" \
        "${rate/#-/no limit}"
}

# --- down ---------------------------------------------------------------------------------------

pids() {
    local inside
    for inside in $(namespaces); do
        ip netns pids "$inside" 2>/dev/null || true
    done
}

# Ends what lives in the namespaces (nothing else can be in them), then removes them.
remove() {
    local inside pid deadline=$((SECONDS + DOWN_S)) signal
    for signal in TERM KILL; do
        for pid in $(pids); do
            kill -"$signal" "$pid" 2>/dev/null || true
        done
        while [[ $(pids) ]] && ((SECONDS < deadline)); do
            pause 0.05
        done
        deadline=$((SECONDS + DOWN_S))
    done
    for inside in $(namespaces); do
        ip netns del "$inside" || printf 'cluster.sh: %s could not be removed\n' "$inside" >&2
    done
    rm -rf "${STATE_ROOT:?}/${name:?}"
}

down() {
    if [[ ! -d $(state) && ! $(namespaces) ]]; then
        fail "there is no cluster \"$name\""
    fi
    remove
}

# --- run, exec, status --------------------------------------------------------------------------

declare -A rank_of=() # by pid

ranks_signal() {
    local pid
    for pid in "${!rank_of[@]}"; do
        kill -"$1" -- "-$pid" 2>/dev/null || true
    done
}

# Interrupted: end the ranks, all of them in groups of their own, and wait until they are gone.
run_interrupted() {
    trap '' INT TERM HUP
    ranks_signal TERM
    (pause "$GRACE_S" && ranks_signal KILL) >/dev/null 2>&1 &
    local timer=$!
    wait "${!rank_of[@]}" 2>/dev/null || true
    # What a rank has started may end after it.
    local pid until_s=$((SECONDS + GRACE_S + 2))
    for pid in "${!rank_of[@]}"; do
        while kill -0 -- "-$pid" 2>/dev/null && ((SECONDS < until_s)); do
            pause 0.02
        done
    done
    kill "$timer" 2>/dev/null || true
    exit 130
}

rank_start() {
    local rank=$1 node
    node=$(node_name $((rank / ranks_per_node)))
    RANK=$rank LOCAL_RANK=$((rank % ranks_per_node)) SHOAL_SOCKET=$(state)/$node.sock \
        setsid setpriv --pdeathsig KILL ip netns exec "$(namespace "$node")" "${command[@]}" &
    rank_of[$!]=$rank
}

# The next rank that has ended, in $pid, and its $status; none when a signal came. `wait -n` does not
# find one that bash has collected already, `wait` does.
rank_wait() {
    status=0 pid=''
    wait -n -p pid "${!rank_of[@]}" 2>/dev/null || status=$?
    [[ ! ${pid:-} ]] || return 0
    for pid in "${!rank_of[@]}"; do
        kill -0 "$pid" 2>/dev/null && continue
        status=0
        wait "$pid" 2>/dev/null || status=$?
        return 0
    done
    pid=''
}

run() {
    state_load
    ((${#command[@]} > 0)) || usage_error 'run: the command is missing'
    local code=0 status pid timer='' rank separator=
    export WORLD_SIZE=$((nodes * ranks_per_node)) LOCAL_WORLD_SIZE=$ranks_per_node
    export SHOAL_JOB=cluster-$name-$$-$RANDOM PATH=$build/bin:$PATH
    MASTER_ADDR=$(address 0)
    export MASTER_ADDR MASTER_PORT=$((20000 + RANDOM % 10000)) GLOO_SOCKET_IFNAME=eth0
    CLUSTER_ADDRESSES=$(for ((rank = 0; rank < WORLD_SIZE; rank++)); do
        printf '%s%s' "$separator" "$(address $((rank / ranks_per_node)))"
        separator=,
    done)
    export CLUSTER_ADDRESSES
    trap run_interrupted INT TERM HUP
    for ((rank = 0; rank < WORLD_SIZE; rank++)); do
        rank_start "$rank"
    done
    while ((${#rank_of[@]} > 0)); do
        rank_wait
        [[ $pid ]] || continue
        if ((status != 0 && code == 0)); then
            code=$status
            printf 'cluster.sh: rank %d on %s: exit code %d\n' "${rank_of[$pid]}" \
                "$(node_name $((rank_of[$pid] / ranks_per_node)))" "$status" >&2
            # The others hear of it through shoal; who does not is ended.
            (pause "$GRACE_S" && ranks_signal TERM && pause 2 && ranks_signal KILL) >/dev/null 2>&1 &
            timer=$!
        fi
        unset "rank_of[$pid]"
    done
    [[ ! $timer ]] || kill "$timer" 2>/dev/null || true
    exit "$code"
}

exec_one() {
    state_load
    [[ $node ]] || usage_error 'exec: the node is missing'
    ((${#command[@]} > 0)) || usage_error 'exec: the command is missing'
    namespaces | grep -qxF "$(namespace "$node")" ||
        fail "cluster \"$name\" has no \"$node\": node0 to node$((nodes - 1))$( ((cpu_nodes == 0)) ||
            printf ', cpu0 to cpu%d' $((cpu_nodes - 1))), or bridge"
    export SHOAL_SOCKET PATH=$build/bin:$PATH
    SHOAL_SOCKET=$(state)/$node.sock
    exec ip netns exec "$(namespace "$node")" "${command[@]}"
}

link_bytes() {
    ip -n "$1" -s -j link show dev eth0 |
        sed -E 's/.*"rx":\{"bytes":([0-9]+).*"tx":\{"bytes":([0-9]+).*/\1 \2/'
}

# By what is in its namespace: the number alone is kept by a process that nobody has waited for, and
# then goes to another.
daemon_lives() {
    local pids
    pids=$(ip netns pids "$(namespace "$1")" 2>/dev/null) || return 1
    [[ $'\n'$pids$'\n' == *$'\n'$2$'\n'* ]]
}

status() {
    state_load
    local i node daemon bytes
    printf '%-8s %-16s %-10s %-14s %16s %16s  %s\n' NODE ADDRESS RATE DAEMON 'BYTES IN' 'BYTES OUT' NAMESPACE
    for ((i = 0; i < nodes + cpu_nodes; i++)); do
        node=$(node_name "$i") daemon=none
        if ((daemons)); then
            daemon="pid $(<"$(state)/$node.pid")"
            daemon_lives "$node" "${daemon#pid }" || daemon=ended
        fi
        read -ra bytes <<<"$(link_bytes "$(namespace "$node")")"
        printf '%-8s %-16s %-10s %-14s %16d %16d  %s\n' "$node" "$(address "$i")" "$rate" "$daemon" \
            "${bytes[0]}" "${bytes[1]}" "$(namespace "$node")"
    done
}

# --- arguments ----------------------------------------------------------------------------------

command=() node=''
action=${1:-}
[[ ! $action ]] || shift
while (($# > 0)); do
    case $1 in
    --) shift && command=("$@") && break ;;
    --no-daemons) daemons=0 && shift && continue ;;
    --help | -h) usage && exit 0 ;;
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
    -*) (($# > 1)) || usage_error "$1: the value is missing" ;;
    esac
    case $action:$1 in
    *:--name) set_name "$2" ;;
    up:--nodes) need_number "$1" "$2" 1 64 && nodes=$((10#$2)) ;;
    up:--cpu-nodes) need_number "$1" "$2" 0 64 && cpu_nodes=$((10#$2)) ;;
    up:--rate) rate=$2 ;;
    up:--tcp)
        [[ $2 =~ ^[a-z0-9_]{1,15}$ ]] || usage_error "--tcp: got \"$2\", must be a name like cubic"
        tcp=$2
        ;;
    up:--weights)
        [[ $2 =~ ^[0-9]{1,6},[0-9]{1,6}$ ]] || usage_error "--weights: got \"$2\", must be like 1,3"
        weights=$2
        ;;
    up:--set) set_extra "$2" ;;
    up:--build) build=$2 ;;
    run:-n) need_number "$1" "$2" 1 64 && ranks_per_node=$((10#$2)) ;;
    exec:[a-z]*) node=$1 && shift && continue ;;
    *) usage_error "$action: unknown argument \"$1\"" ;;
    esac
    shift 2
done

case $action in
up | run | exec | status | down)
    ((EUID == 0)) || fail "needs root: network namespaces are made and entered"
    for tool in ip tc setpriv; do
        command -v "$tool" >/dev/null || fail "the command $tool is missing (scripts/install-deps.sh)"
    done
    ;;
esac
case $action in
up) up ;;
run) run ;;
exec) exec_one ;;
status) status ;;
down) down ;;
--help | -h | help) usage ;;
'') usage_error 'the command is missing' ;;
*) usage_error "unknown command \"$action\"" ;;
esac
