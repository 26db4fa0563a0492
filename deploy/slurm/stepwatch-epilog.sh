#!/bin/bash
# Tests a node under load between jobs: `stepwatch-exporter check --active` as Epilog of Slurm. In
# slurm.conf:
#
#   Epilog=/etc/slurm/stepwatch-epilog.sh
#   PrologEpilogTimeout=300
#
# The node is COMPLETING until this script ends, so that no job begins meanwhile. Where jobs share
# nodes, the check sees the other job and leaves it alone. It runs at most once in
# STEPWATCH_TEST_EVERY seconds (a day), for at most STEPWATCH_TEST_BUDGET seconds (120); keep
# PrologEpilogTimeout well above that.
#
# Unhealthy: the script fails, and Slurm drains the node ("Epilog error"). What could not be
# determined, and tools that are not installed, are logged only. Try it first by hand on nodes that
# you know, and set the references only then (check.active.reference in exporter.yml).
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
config="${STEPWATCH_CONFIG:-/etc/stepwatch/exporter.yml}"
# The time of the last test.
stamp="${STEPWATCH_TEST_STAMP:-/run/stepwatch-epilog.stamp}"
# More arguments, such as: --skip fio --only nccl,nvbandwidth
read -r -a more <<<"${STEPWATCH_TEST_ARGS:-}"
node="${SLURMD_NODENAME:-$(hostname -s)}"

say() {
    logger --tag stepwatch-epilog -- "$1" 2>/dev/null || echo "$1" >&2
}

now=$(date +%s)
last=$(number "$(cat "$stamp" 2>/dev/null)" 0)
if [ "$last" -le "$now" ] && [ $((now - last)) -lt "$every" ]; then
    exit 0
fi

args=(check --active --quiet --timeout 8s --budget "${budget}s")
[ -r "$config" ] && args+=(--config "$config")

# The check ends its tools when it is told to; after SIGKILL nobody would.
findings=$(timeout --signal=TERM --kill-after=20 $((budget + 90)) stepwatch-exporter "${args[@]}" "${more[@]}" 2>&1)
status=$?
case $status in
0)
    echo "$now" >"$stamp"
    [ -z "$findings" ] || say "$node is as fast as it should be: $findings"
    ;;
1)
    echo "$now" >"$stamp"
    say "$node is unhealthy under load: $findings"
    # The worst finding stands last.
    printf 'stepwatch: %s\n' "$(tail -n 1 <<<"$findings" | tr -s ' ' | cut -c 1-200)"
    exit 1
    ;;
2)
    # A job of others, or a tool that failed: the next epilog tries again.
    say "$node could not be tested in full: $findings"
    ;;
*) say "the test of $node failed (exit $status): $findings" ;;
esac
exit 0
