#!/bin/bash
#SBATCH --job-name=stepwatch-pairs
#SBATCH --exclusive
#SBATCH --ntasks-per-node=1
# Measures every pair of the nodes of this job on every rail with ib_write_bw, and judges the
# results:
#
#   sbatch -N 8 stepwatch-pairs.sh            # on nodes that no other job uses
#   less stepwatch-pairs-JOB.jsonl            # one measurement a line
#
# The pairs of a round run at once, and no node is in two of them. A round takes some seconds for
# each rail; there is one fewer than nodes.
#
# STEPWATCH_RAILS names the adapters (mlx5_0 mlx5_1 ...); by default those of the first node whose
# first port is an active one of InfiniBand or RoCE, and as fast as most of these: a port of the
# storage or of management is no rail. All nodes have to call them the same.
# STEPWATCH_IB_ARGS has more arguments of ib_write_bw, such as: -x 3 --use_cuda=0
set -u

results="${STEPWATCH_PAIRS:-stepwatch-pairs-${SLURM_JOB_ID:-$$}.jsonl}"
seconds="${STEPWATCH_PAIR_SECONDS:-60}"
read -r -a more <<<"${STEPWATCH_IB_ARGS:-}"
# Each rail has a port of its own above this one: a server that is left over measures no other rail.
first_port=18600

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "${#nodes[@]}" -lt 2 ]; then
    echo "two nodes are needed" >&2
    exit 64
fi

# Runs a command on one node of the job, in a subshell, which becomes srun: it gets the signals.
on() {
    local node=$1
    shift
    exec srun --overlap --exact --nodes=1 --ntasks=1 --nodelist="$node" "$@" </dev/null
}

# shellcheck disable=SC2016 # It is expanded on the node.
find_rails='cd /sys/class/infiniband || exit
for device in *; do
    grep -q "^4:" "$device/ports/1/state" 2>/dev/null || continue
    grep -qE "InfiniBand|Ethernet" "$device/ports/1/link_layer" || continue
    echo "$(cut -d " " -f 1 "$device/ports/1/rate" 2>/dev/null) $device"
done'
# The devices of the most common rate, of several the highest.
of_common_rate() {
    awk 'NF == 2 { count[$1]++; rate[NR] = $1; name[NR] = $2 }
        END {
            for (r in count) {
                if (count[r] > count[best] || (count[r] == count[best] && r + 0 > best + 0)) best = r
            }
            for (i = 1; i <= NR; i++) if (i in name && rate[i] == best) print name[i]
        }'
}
read -r -a rails <<<"${STEPWATCH_RAILS:-$(on "${nodes[0]}" bash -c "$find_rails" | of_common_rate | tr '\n' ' ')}"
if [ "${#rails[@]}" -eq 0 ]; then
    echo "no rail was found: set STEPWATCH_RAILS" >&2
    exit 64
fi

# Measures one pair on one rail, and appends the result. The server begins first; its client tries
# until it listens.
measure() {
    local a=$1 b=$2 rail=$3 port=$4 said value try
    local args=(ib_write_bw -d "$rail" -p "$port" -s 1048576 -n 10000 -F --report_gbits)
    args+=(--output=bandwidth "${more[@]}")
    on "$b" timeout "$seconds" "${args[@]}" >/dev/null 2>&1 &
    local server=$!
    for try in 1 2 3 4 5; do
        said=$(on "$a" timeout "$seconds" "${args[@]}" "$b" 2>&1) && break
        sleep "$try"
    done
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    # Gb/s with a point as the last word; anything else is no measurement.
    value=$(awk 'NF { last = $NF } END { if (last ~ /^[0-9]+(\.[0-9]+)?$/ && last > 0) printf "%.0f", last * 125000000 }' <<<"$said")
    if [ -n "$value" ]; then
        printf '{"test":"ib_write_bw","a":"%s","b":"%s","rail":"%s","bytes_per_second":%s}\n' "$a" "$b" "$rail" "$value"
    else
        said=$(tail -n 1 <<<"$said" | tr -cd '[:alnum:] .,:_()/-' | cut -c 1-200)
        printf '{"test":"ib_write_bw","a":"%s","b":"%s","rail":"%s","error":"%s"}\n' "$a" "$b" "$rail" "${said:-no result}"
    fi >>"$results"
}

: >"$results"
plan=$(stepwatch-alerter fabric pairs "${nodes[@]}") || exit 64
mapfile -t rounds < <(cut -d ' ' -f 1 <<<"$plan" | sort -nu)
for round in "${rounds[@]}"; do
    for i in "${!rails[@]}"; do
        jobs=()
        while read -r of a b; do
            [ "$of" = "$round" ] || continue
            measure "$a" "$b" "${rails[i]}" $((first_port + i)) &
            jobs+=($!)
        done <<<"$plan"
        wait "${jobs[@]}"
    done
done
stepwatch-alerter fabric report --nodes "${#nodes[@]}" "$results"
