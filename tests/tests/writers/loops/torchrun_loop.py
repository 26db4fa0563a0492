"""Two ranks below torchrun, of which one dies at the fourth step of the first attempt. They go on behind the third, as from a checkpoint."""

import os
import sys

import torch
import torch.distributed as dist

SAVED, DIES_AT, LAST = 3, 4, 6


def main():
    # What the kernel does when a process is started within a control group.
    with open(os.path.join(os.environ["CGROUP"], "cgroup.procs"), "a") as procs:
        print(os.getpid(), file=procs)
    dist.init_process_group("gloo")
    rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1 + SAVED * restarts, LAST + 1):
        if restarts == 0 and step == DIES_AT and rank == 1:
            os._exit(1)
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} | loss {loss.item():.6f} | grad norm {norm.item():.4f} | lr 1e-02", flush=True)
    dist.barrier()
    if rank == 0:
        open("done", "w").close()
    sys.stdin.read()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
