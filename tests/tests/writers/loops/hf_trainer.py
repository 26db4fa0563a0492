"""Transformers' Trainer, as its documentation shows it."""
import tiny
import torch
from transformers import Trainer, TrainingArguments


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        x = (torch.arange(12) + i) % 16
        return {"input_ids": x, "labels": x}


trainer = Trainer(tiny.model(), TrainingArguments(**tiny.options()), train_dataset=Data())
trainer.train()
tiny.truth(trainer.state.log_history)
