#!/bin/bash
# Tests a node under load between jobs: `stepwatch-exporter check --active` as Epilog of Slurm. In
# slurm.conf:
#
#   Epilog=/etc/slurm/stepwatch-epilog.sh
#   PrologEpilogTimeout=420
#
# The node is COMPLETING until this script ends, so that no job begins on it meanwhile. Where jobs
# share nodes, Slurm is asked first whether another one is on the node, and the check stops its
# tools when it sees one. It runs at most once in STEPWATCH_TEST_EVERY seconds (a day), for at most
# STEPWATCH_TEST_BUDGET seconds (120); keep PrologEpilogTimeout five minutes above that. The epilogs
# of a large job begin at once: those that are due wait for up to STEPWATCH_TEST_SPREAD seconds (30)
# before they ask Slurm, so that it can answer them.
#
# A test that failed twice in a row, or that got wrong data, drains the node, with the worst finding
# as the reason, unless STEPWATCH_MAX_DRAINED nodes (8) are drained by this script and
# stepwatch-check.sh already; then it only logs, as it does with all else: what is below its
# reference by less than three times the tolerance, what could not be determined, and tools that are
# not installed. The checks without load are for stepwatch-check.sh. Try it first by hand on nodes
# that you know, and set the references only then (check.active.reference in exporter.yml).
#
# Directories are not tested, because those of many nodes are on one file system, which the epilogs
# of a large job would load at once. STEPWATCH_TEST_DISK=1 tests those of check.active.disk: only
# for disks of the node itself.
#
# Settings are read from /etc/default/stepwatch-epilog, a file of the variables above and below.
set -u

# Slurm gives its programs no PATH.
export PATH="${STEPWATCH_PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"

settings="${STEPWATCH_SETTINGS:-/etc/default/stepwatch-epilog}"
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

every=$(number "${STEPWATCH_TEST_EVERY:-}" 86400)
budget=$(number "${STEPWATCH_TEST_BUDGET:-}" 120)
spread=$(number "${STEPWATCH_TEST_SPREAD:-}" 30)
config="${STEPWATCH_CONFIG:-/etc/stepwatch/exporter.yml}"
max_drained=$(number "${STEPWATCH_MAX_DRAINED:-}" 8)
# The time of the last test.
stamp="${STEPWATCH_TEST_STAMP:-/run/stepwatch-epilog.stamp}"
# More arguments, such as: --skip fio --only nccl,nvbandwidth
read -r -a more <<<"${STEPWATCH_TEST_ARGS:-}"
node="${SLURMD_NODENAME:-$(hostname -s)}"
# What the recipes write into a node's reason begins with the first; stepwatch-check.sh takes back
# no drain whose reason begins with the second.
mark="stepwatch:"
mark_load="$mark under load:"

say() {
    logger --tag stepwatch-epilog -- "$1" 2>/dev/null || echo "$1" >&2
}

# Waits for up to $1 seconds.
pause() {
    sleep $((RANDOM % ($1 + 1)))
}

slurm() {
    timeout --signal=KILL 5 scontrol "$@" 2>/dev/null
}

# The number of nodes that the recipes have drained.
drained() {
    local nodes
    nodes=$(slurm show node --oneliner) || return
    grep -c " State=[^ ]*DRAIN.* Reason=$mark" <<<"$nodes"
    return 0
}

drain() {
    local line count reason _
    pause "$spread"
    line=$(slurm show node "$node" --oneliner)
    case "$line" in
    *" State="*DRAIN*)
        # A reason is there already.
        return
        ;;
    *" State="*) ;;
    *)
        say "the state of $node is unknown in Slurm, which is not drained"
        return
        ;;
    esac
    if ! count=$(drained); then
        say "the number of drained nodes is unknown in Slurm: $node is not"
        return
    fi
    if [ "$count" -ge "$max_drained" ]; then
        say "does not drain $node: $count are drained (STEPWATCH_MAX_DRAINED=$max_drained)"
        return
    fi
    # The worst finding stands last. Slurm cannot take quotes.
    reason="$mark_load $(tail -n 1 <<<"$findings" | tr -s ' ' | tr -d "\"'\\\\" | cut -c 1-200)"
    # The epilogs of one job end at once, and each of them may have counted before the others
    # drained. A call that got no answer in time may have drained the node too.
    if slurm update nodename="$node" state=drain reason="$reason" &&
        count=$(drained) && [ "$count" -le "$max_drained" ]; then
        say "drained $node"
        return
    fi
    # Where all nodes do this, Slurm is slow.
    for _ in 1 2 3 4 5; do
        line=$(slurm show node "$node" --oneliner)
        case "$line" in
        *" Reason=$mark_load"*) ;;
        *" State="*DRAIN*)
            say "did not drain $node, which others have drained meanwhile"
            return
            ;;
        esac
        if slurm update nodename="$node" state=undrain; then
            say "takes back the drain of $node: too many (STEPWATCH_MAX_DRAINED=$max_drained), or no answer"
            return
        fi
        pause $((spread < 5 ? spread : 5))
    done
    say "could not take back the drain of $node: scontrol update nodename=$node state=undrain"
}

now=$(date +%s)
last=$(number "$(cat "$stamp" 2>/dev/null)" 0)
if [ "$last" -le "$now" ] && [ $((now - last)) -lt "$every" ]; then
    exit 0
fi

pause "$spread"

# Jobs on this node, also those that begin (CF) or end (CG). This one is ending.
query=(squeue --noheader --nodelist="$node" --states="R,CG,CF,S" --format=%A)
if ! jobs=$(timeout --signal=KILL 10 "${query[@]}" 2>/dev/null); then
    say "$node was not tested: Slurm does not say which jobs are on it"
    exit 0
fi
if others=$(grep -vx -e "${SLURM_JOB_ID:-none}" -e '' <<<"$jobs"); then
    say "$node was not tested: another job is on it: $(tr '\n' ' ' <<<"$others" | cut -c 1-100)"
    exit 0
fi

args=(check --active --tests-only --quiet --timeout 8s --budget "${budget}s")
[ "${STEPWATCH_TEST_DISK:-0}" = 1 ] || args+=(--skip fio)
[ -r "$config" ] && args+=(--config "$config")

# It is written first: a test that takes the node or this script down is not repeated after the
# next job.
echo "$now" >"$stamp"
# The check ends its tools when it is told to, says what it found, and they end with it.
limit=(timeout --preserve-status --signal=TERM --kill-after=20 $((budget + 90)))
findings=$("${limit[@]}" stepwatch-exporter "${args[@]}" "${more[@]}" 2>&1)
status=$?
case $status in
0 | 1 | 2 | 137 | 143) ;;
# Nothing was put under load.
*) echo "$last" >"$stamp" ;;
esac
case $status in
0)
    if [ -z "$findings" ]; then
        say "$node is as fast as it should be"
    else
        say "$node was tested, and this was found: $findings"
    fi
    ;;
1)
    say "$node is unhealthy under load: $findings"
    drain
    ;;
2) say "$node could not be tested in full: $findings" ;;
# The next epilog tries again.
3) say "$node was not tested: $findings" ;;
*) say "the test of $node failed (exit $status): $findings" ;;
esac
exit 0
