"""Lightning, with the loggers that are named on the command line: `csv`, `tensorboard`."""
import os
import sys

import lightning.pytorch as pl
import tiny
import torch
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.utils.data import DataLoader


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))

    def training_step(self, batch, index):
        loss = (self.weight * batch).square().mean()
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def on_before_optimizer_step(self, optimizer):
        self.log("grad_norm", self.weight.grad.norm())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=tiny.LR if tiny.BROKEN else 0.1)


class Remember(Callback):
    """For the test alone."""

    rows = []

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        numbers = trainer.callback_metrics
        self.rows.append({
            "step": trainer.global_step - 1, "loss": float(numbers["train_loss"]), "grad_norm": float(numbers["grad_norm"]),
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
        })


loggers = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}
chosen = [make(tiny.FOLDER, name="logs") for name, make in loggers.items() if name in sys.argv]
trainer = pl.Trainer(
    max_steps=tiny.STEPS, logger=chosen, log_every_n_steps=1, callbacks=[LearningRateMonitor("step"), Remember()], accelerator="cpu",
    enable_checkpointing=False, default_root_dir=os.path.join(tiny.FOLDER, "root"),
)
trainer.fit(Model(), DataLoader(torch.ones(200, 1), batch_size=2))
tiny.truth(Remember.rows)
