"""TRL's direct preference optimization."""
import tiny
from datasets import Dataset
from trl import DPOConfig, DPOTrainer

data = Dataset.from_dict({"prompt": ["the gradient"] * 64, "chosen": [" norm is fine"] * 64, "rejected": [" norm is bad"] * 64})
trainer = DPOTrainer(tiny.saved(), args=DPOConfig(**tiny.options(max_length=32)), train_dataset=data)
trainer.train()
tiny.truth(trainer.state.log_history)
