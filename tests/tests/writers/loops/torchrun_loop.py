"""Two ranks below torchrun, of which one dies behind the third step of the first attempt. They go on behind the first, as from a checkpoint."""

import os
import sys
import time

import torch

SAVED, DIES_AT, LAST = 1, 3, 6


def main():
    # What the kernel does when a process is started within a control group.
    with open(os.path.join(os.environ["CGROUP"], "cgroup.procs"), "a") as procs:
        print(os.getpid(), file=procs)
    rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    # Without a process group: that of the second attempt may meet addresses of the first in the store.
    if rank == 1:
        while restarts == 0 and not os.path.exists("dies"):
            time.sleep(0.05)
        if restarts == 0:
            os._exit(1)
        sys.stdin.read()
        return
    torch.manual_seed(0)
    weight = torch.randn(4, requires_grad=True)
    for step in range(1 + SAVED * restarts, LAST + 1):
        loss = (weight * torch.ones(2, 4)).square().mean()
        (grad,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight -= 0.1 * grad
        print(f"step {step} | loss {loss.item():.6f} | grad norm {grad.norm().item():.4f} | lr 1e-01", flush=True)
        if restarts == 0 and step == DIES_AT:
            open("dies", "w").close()
            sys.stdin.read()  # until torchrun ends it, as its peer died
    open("done", "w").close()
    sys.stdin.read()


if __name__ == "__main__":
    main()
