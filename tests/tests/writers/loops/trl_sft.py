"""TRL's supervised fine-tuning."""
import tiny
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

data = Dataset.from_dict({"text": [tiny.SENTENCE] * 64})
args = SFTConfig(**tiny.options(max_length=16))
trainer = SFTTrainer(tiny.model(), args, train_dataset=data, processing_class=tiny.tokenizer())
trainer.train()
tiny.truth(trainer.state.log_history)
