"""Writes a transaction log with wandb, offline: nothing leaves the machine.

Lines on standard input: `steps FIRST END` logs rows, `alert` raises one, `exit CODE` ends the run, as does the end of input.
"""
import sys

import wandb

CONFIG = {"num_hidden_layers": 32, "hidden_size": 4096, "api_key": "secret", "bf16": True, "padding": "x" * 100_000}


def main():
    settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True, silent=True)
    run = wandb.init(project="p", name="from-wandb", dir=sys.argv[1], mode="offline", config=CONFIG, settings=settings)
    code = 0
    for line in sys.stdin:
        what, *numbers = line.split()
        if what == "steps":
            first, end = map(int, numbers)
            for step in range(first, end):
                loss = float("nan") if step == 7 else float("inf") if step == 8 else 10.0 / step
                # The client writes blocks of 32 KiB: the note makes a row fill one.
                row = {"train/loss": loss, "lr": 1e-4, "perf": {"mfu": 0.41}, "note": "x" * 20_000}
                run.log({**row, "train/global_step": step * 10})
        elif what == "alert":
            run.alert(title="Low accuracy", text="0.1 is below 0.5", level=wandb.AlertLevel.WARN)
        elif what == "exit":
            code = int(numbers[0])
            run.finish(exit_code=code)
        print("ok", flush=True)


main()
