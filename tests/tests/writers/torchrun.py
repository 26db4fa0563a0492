"""What torchrun does with two workers: it gives them their rank, starts all of them anew when one fails, and counts how often."""

import os
import subprocess
import sys

WORKER = """
import os, sys, time
import stepwatch
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with stepwatch.Run() as run:
    for step in range(1 + 3 * attempt, 6 + 3 * attempt):
        run.step(step, loss=2.0)
    if attempt < int(sys.argv[1]):
        os._exit(1)
    print(run.name, flush=True)
    sys.stdin.read()
"""


def main(restarts):
    script = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "train.py")
    for attempt in range(restarts + 1):
        workers = []
        for rank in ("0", "1"):
            env = dict(
                os.environ, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="29500",
                TORCHELASTIC_RUN_ID=os.environ.get("RDZV_ID", "none"), TORCHELASTIC_RESTART_COUNT=str(attempt),
            )
            workers.append(subprocess.Popen([sys.executable, script, str(restarts)], env=env))
        codes = [worker.wait() for worker in workers]
    return max(codes)


if __name__ == "__main__":
    with open(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "train.py"), "w") as f:
        f.write(WORKER)
    sys.exit(main(int(sys.argv[1])))
