#!/bin/bash
# Keeps jobs off a node that cannot train: `stepwatch-exporter check` as Prolog and as HealthCheckProgram of Slurm, one script for
# both. In slurm.conf:
#
#   Prolog=/etc/slurm/stepwatch-check.sh
#   HealthCheckProgram=/etc/slurm/stepwatch-check.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=IDLE,CYCLE
#
# Unhealthy: the node is drained, with the worst finding as the reason; before a job, the job is queued again. Could not tell: logged,
# and nothing else, because a check that is slow today must not empty the cluster; STEPWATCH_DRAIN_UNKNOWN=1 drains then too.
# STEPWATCH_RESUME=1 takes back a drain of this script when the node is healthy again, and no other.
#
# Settings are read from /etc/default/stepwatch-check, a file of the variables below.
set -u

# Slurm gives its programs no PATH.
export PATH="${STEPWATCH_PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"

settings="${STEPWATCH_SETTINGS:-/etc/default/stepwatch-check}"
if [ -r "$settings" ]; then
    # shellcheck source=/dev/null
    . "$settings"
fi
drain_unknown="${STEPWATCH_DRAIN_UNKNOWN:-0}"
resume="${STEPWATCH_RESUME:-0}"
config="${STEPWATCH_CONFIG:-/etc/stepwatch/exporter.yml}"
# Known-good values that all nodes of this kind share, from `stepwatch-exporter check --write-reference FILE` on one of them.
reference="${STEPWATCH_REFERENCE:-/etc/stepwatch/node.json}"
# More arguments, such as: --skip disk --timeout 5s
read -r -a more <<<"${STEPWATCH_CHECK_ARGS:-}"

node="${SLURMD_NODENAME:-$(hostname -s)}"
# What this script writes into a node's reason begins with it.
mark="stepwatch:"

args=(check --quiet)
[ -r "$config" ] && args+=(--config "$config")
[ -r "$reference" ] && args+=(--reference "$reference")

# The check keeps its own time; this is for a node on which not even a program can be started.
findings=$(timeout --signal=KILL 30 stepwatch-exporter "${args[@]}" ${more[@]+"${more[@]}"} 2>&1)
status=$?

say() {
    logger --tag stepwatch-check -- "$1" 2>/dev/null || echo "$1" >&2
}

# The worst finding stands last. Slurm cuts long reasons itself; quotes and line breaks it cannot take.
worst() {
    printf '%s\n' "$findings" | tail -n 1 | tr -s ' ' | tr -d "\"'\\\\" | cut -c 1-200
}

reason_now() {
    scontrol show node "$node" --oneliner 2>/dev/null | sed -n 's/.*Reason=\(.*\)$/\1/p'
}

drain() {
    say "drains $node: $findings"
    case "$(reason_now)" in
    '') scontrol update nodename="$node" state=drain reason="$mark $(worst)" ;;
    # Somebody, or this script, has said why already.
    *) ;;
    esac
}

case $status in
0)
    if [ "$resume" = 1 ] && [ -z "${SLURM_JOB_ID:-}" ]; then
        case "$(reason_now)" in
        "$mark"*)
            say "$node is healthy again"
            scontrol update nodename="$node" state=resume
            ;;
        esac
    fi
    exit 0
    ;;
1)
    drain
    # Before a job: it must not start here. HealthCheckProgram has said all with the drain.
    [ -n "${SLURM_JOB_ID:-}" ] && exit 1
    exit 0
    ;;
*)
    say "could not tell whether $node is healthy (exit $status): $findings"
    if [ "$drain_unknown" = 1 ]; then
        drain
        [ -n "${SLURM_JOB_ID:-}" ] && exit 1
    fi
    exit 0
    ;;
esac
