"""TRL's group relative policy optimization, with a reward that is a function."""
import tiny
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

calls = 0


def distinct_words(completions, **_):
    # One that breaks does so at the last step: with a broken model the trainer could generate
    # nothing and would end. Not by NaN, which it takes for no reward. It keeps the loss finite,
    # too: only the reward shows it.
    global calls
    calls += 1
    broken = tiny.BROKEN and calls == tiny.STEPS
    return [float("inf") if broken else float(len(set(text.split()))) for text in completions]


data = Dataset.from_dict({"prompt": ["the gradient norm of"] * 64})
args = GRPOConfig(**tiny.options(learning_rate=1e-3, num_generations=4, max_completion_length=8, beta=0.04))
trainer = GRPOTrainer(tiny.saved(), distinct_words, args=args, train_dataset=data)
trainer.train()
tiny.truth(trainer.state.log_history)
