"""Report every step of a training run to Stepwatch: a microsecond a step, never a block, never an
exception.

    import stepwatch

    with stepwatch.Run("llama-70b", model={"n_params": 70e9, "seq_len": 4096}) as run:
        for step, batch in enumerate(loader):
            ...
            run.step(step, loss=loss, grad_norm=norm, lr=lr, tokens=tokens)

Standard library only. The folder works when it is copied beside a training script, too.
"""

from ._checkpoint import Checkpoint
from ._run import Phase, Run
from ._version import __version__

__all__ = ["Checkpoint", "Phase", "Run", "__version__"]
