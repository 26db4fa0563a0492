#!/bin/bash
# Keeps jobs off a node that cannot train: `stepwatch-exporter check` as Prolog and as
# HealthCheckProgram of Slurm, one script for both. In slurm.conf (CYCLE: not on all nodes at once):
#
#   Prolog=/etc/slurm/stepwatch-check.sh
#   PrologFlags=Alloc
#   BatchStartTimeout=60
#   SchedulerParameters=nohold_on_prolog_fail
#   HealthCheckProgram=/etc/slurm/stepwatch-check.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=IDLE,CYCLE
#
# A node is unhealthy if it was, and still is STEPWATCH_AGAIN seconds later (15; at most 20, for
# Slurm kills a health check after 60).
#
# Health check: drains the node, with the worst finding as the reason, unless this script has
# drained STEPWATCH_MAX_DRAINED nodes (8) already; then it only logs. STEPWATCH_RESUME=1 takes back
# a drain of this script when the node is healthy again, and no other.
# Before a job: fails. Slurm then drains the node itself ("Prolog error"; the next health check puts
# the finding in its place) and queues the job again, which stays held without
# nohold_on_prolog_fail. Slurm asks for no scontrol in a Prolog, so nothing is counted here: leave
# Prolog out while you try a new configuration or reference.
#
# Could not be determined, twice in a row: the node is taken for unhealthy too, because a job should
# not be the first to find out; as a health check, no more than STEPWATCH_MAX_DRAINED nodes are
# drained for it. STEPWATCH_DRAIN_UNKNOWN=0 relaxes that: it is logged, and nothing else. A driver
# that hangs is unhealthy in any case.
#
# Settings are read from /etc/default/stepwatch-check, a file of the variables above and below.
set -u

# Slurm gives its programs no PATH.
export PATH="${STEPWATCH_PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"

settings="${STEPWATCH_SETTINGS:-/etc/default/stepwatch-check}"
if [ -r "$settings" ]; then
    # shellcheck source=/dev/null
    . "$settings"
fi

number() {
    case "$1" in
    '' | *[!0-9]*) echo "$2" ;;
    *) echo "$1" ;;
    esac
}

again=$(number "${STEPWATCH_AGAIN:-}" 15)
[ "$again" -le 20 ] || again=20
max_drained=$(number "${STEPWATCH_MAX_DRAINED:-}" 8)
drain_unknown="${STEPWATCH_DRAIN_UNKNOWN:-1}"
resume="${STEPWATCH_RESUME:-0}"
config="${STEPWATCH_CONFIG:-/etc/stepwatch/exporter.yml}"
# Known-good values that all nodes of this kind share, from
# `stepwatch-exporter check --write-reference FILE` on one of them.
reference="${STEPWATCH_REFERENCE:-/etc/stepwatch/node.json}"
# There while the last Prolog of this node failed by this script: what Slurm calls "Prolog error"
# may be another one's.
failed="${STEPWATCH_FAILED:-/run/stepwatch-check.failed}"
# More arguments, such as: --skip disk --timeout 5s
read -r -a more <<<"${STEPWATCH_CHECK_ARGS:-}"
# Where the GPUs are not kept up (nvidia-persistenced), the driver starts them first: that is slow
# and no fault.
[[ " ${more[*]-} " == *" --timeout"* ]] || more+=(--timeout 8s)

node="${SLURMD_NODENAME:-$(hostname -s)}"
# What this script writes into a node's reason begins with it.
mark="stepwatch:"

args=(check --quiet)
[ -r "$config" ] && args+=(--config "$config")
[ -r "$reference" ] && args+=(--reference "$reference")

# Two looks, the pause between them and three calls of Slurm are over before Slurm's timeout.
look() {
    # The check keeps its own time; this is for a node on which not even a program can be started.
    findings=$(timeout --signal=KILL 12 stepwatch-exporter "${args[@]}" "${more[@]}" 2>&1)
    status=$?
    verdict=unknown
    case $status in
    0) verdict=healthy ;;
    1) verdict=unhealthy ;;
    # Any other says nothing about the node: a wrong configuration, no such program.
    2 | 137) [ "$drain_unknown" = 1 ] && verdict=unhealthy ;;
    esac
}

slurm() {
    timeout --signal=KILL 5 scontrol "$@" 2>/dev/null
}

say() {
    logger --tag stepwatch-check -- "$1" 2>/dev/null || echo "$1" >&2
}

# The worst finding stands last. Slurm cuts long reasons itself; quotes and line breaks it cannot
# take.
reason() {
    printf '%s %s\n' "$mark" "$(printf '%s\n' "$findings" | tail -n 1 | tr -s ' ' | tr -d "\"'\\\\" | cut -c 1-200)"
}

# The state of this node in Slurm. A reason may be left of old, and somebody may have written one
# without a drain: the state counts.
ask() {
    local line
    line=$(slurm show node "$node" --oneliner)
    state='' why=''
    case "$line" in *" State="*) state="${line#* State=}" state="${state%% *}" ;; esac
    case "$line" in *" Reason="*) why="${line#* Reason=}" ;; esac
}

# Not by stepwatch-epilog.sh: this check sees nothing of a node that is slow under load.
drained_by_us() {
    [[ $why == "$mark"* && $why != "$mark under load:"* ]]
}

failed_by_us() {
    [ -e "$failed" ] && [[ $why == "Prolog error"* ]]
}

drain() {
    local nodes count
    ask
    case "$state" in
    '')
        say "the state of $node is unknown in Slurm, which is not drained"
        return
        ;;
    *DRAIN*)
        # A reason is there already, from somebody or from this script.
        if failed_by_us; then slurm update nodename="$node" reason="$(reason)"; fi
        return
        ;;
    esac
    if ! nodes=$(slurm show node --oneliner); then
        say "the number of drained nodes is unknown in Slurm: $node is not"
        return
    fi
    count=$(grep -c " State=[^ ]*DRAIN.* Reason=$mark" <<<"$nodes")
    if [ "$count" -ge "$max_drained" ]; then
        say "does not drain $node: $count nodes are drained by this check (STEPWATCH_MAX_DRAINED=$max_drained)"
        return
    fi
    say "drains $node${why:+, whose reason was: $why}"
    slurm update nodename="$node" state=drain reason="$(reason)" || say "Slurm did not drain $node"
}

look
if [ "$verdict" = unhealthy ]; then
    say "$node looks unhealthy, and is looked at again in $again s: $findings"
    sleep "$again"
    look
fi
case $verdict in
unhealthy) say "$node is unhealthy: $findings" ;;
unknown) say "could not determine whether $node is healthy (exit $status): $findings" ;;
esac

if [ -n "${SLURM_JOB_ID:-}" ]; then
    if [ "$verdict" = unhealthy ]; then
        : >"$failed"
        reason
        exit 1
    fi
    rm -f "$failed"
elif [ "$verdict" = unhealthy ]; then
    drain
elif [ "$verdict" = healthy ] && [ "$resume" = 1 ]; then
    ask
    if [[ $state == *DRAIN* ]] && { drained_by_us || failed_by_us; }; then
        say "$node is healthy again"
        slurm update nodename="$node" state=resume && rm -f "$failed"
    fi
fi
exit 0
