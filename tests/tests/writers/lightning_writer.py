"""Trains a model of one weight with Lightning and its CSVLogger, which rewrites its file when validation adds columns."""
import sys
import warnings

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))

    def training_step(self, batch, index):
        loss = (self.weight * batch).square().mean()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", (self.weight * batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


def main():
    warnings.simplefilter("ignore")
    data = DataLoader(torch.ones(20, 1), batch_size=2)
    logger = CSVLogger(sys.argv[1], name="", version="run", flush_logs_every_n_steps=5)
    trainer = pl.Trainer(
        max_epochs=3, logger=logger, log_every_n_steps=5, callbacks=[LearningRateMonitor("step")], accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, default_root_dir=sys.argv[1],
    )
    for _ in sys.stdin:
        trainer.fit(Model(), data, data)
        print("ok", flush=True)


main()
