"""A training loop that saves with ``torch.distributed.checkpoint`` while it goes on, and uploads.

A line is ``save STEP``, ``fail STEP`` or ``load STEP``; it makes the steps up to it first. A
``save`` writes, and copies the checkpoint to what stands for a bucket.
"""

import os
import shutil
import sys
import warnings

warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402

import stepwatch  # noqa: E402
from stepwatch.torch import CheckpointReporter, StepReporter  # noqa: E402

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train():
    loss = (model(torch.randn(8, 64)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def saved(state, path):
    """Waits for what an asynchronous save returns: one future, or the later one of two."""
    future = dcp.async_save(state, checkpoint_id=path)
    getattr(future, "upload_completion", future).result()


def main(folder):
    step = 0
    with stepwatch.Run("dcp", world=1, rank=0) as run, StepReporter(run, optimizer=optimizer) as reporter, CheckpointReporter(run):
        for line in sys.stdin:
            what, to = line.split()
            name = "step-" + to
            path = os.path.join(folder, name)
            state = {"model": model.state_dict()}
            if what == "load":
                dcp.load(state, checkpoint_id=path)
                print("ok", flush=True)
                continue
            while step < int(to):
                step += 1
                reporter.step(step, loss=train())
            if what == "fail":
                open(path, "w").close()  # a file where the folder should be
                try:
                    saved(state, path)
                except dcp.CheckpointException:
                    print("ok", flush=True)
                continue
            saved(state, path)
            with run.checkpoint(step, path=path, stage="upload"):
                shutil.copytree(path, os.path.join(folder, "bucket", name))
            print("ok", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
