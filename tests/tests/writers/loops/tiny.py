"""What the training scripts beside this share: a language model, a tokenizer and texts that need no download.

Nothing of it knows Stepwatch.
"""
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

#: Where everything is written, and whether the learning rate is one that no model survives.
FOLDER = sys.argv[1]
BROKEN = "broken" in sys.argv[2:]
LR = 1e30 if BROKEN else 1e-3
STEPS = 6
SENTENCE = "the gradient norm of this run is fine"


def model():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    sizes = dict(n_layer=1, n_head=2, n_embd=16, vocab_size=16, n_positions=64)
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, pad_token_id=0, **sizes))


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(("<pad> <unk> " + SENTENCE + " bad").split())}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<pad>", eos_token="<pad>", padding_side="left")


def saved():
    """The model and its tokenizer in a folder, as one that was downloaded is: some trainers load a second copy of it."""
    folder = os.path.join(os.path.dirname(FOLDER), "model")
    model().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def options(**more):
    """Arguments of every Trainer here: on the processor, a log each step, to the console."""
    known = dict(
        output_dir=os.path.join(FOLDER, "out"), max_steps=STEPS, logging_steps=1, learning_rate=LR, use_cpu=True, bf16=False,
        report_to="none", per_device_train_batch_size=4, save_steps=3, seed=3,
    )
    return dict(known, **more)


def truth(history):
    """What the trainer knows of its steps, for the test alone: a file that is not looked at."""
    rows = [entry for entry in history if "loss" in entry]
    with open(os.path.join(os.path.dirname(FOLDER), "truth.json"), "w") as f:
        json.dump(rows, f)
