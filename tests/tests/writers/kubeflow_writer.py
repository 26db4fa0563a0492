"""Drives the callback that Transformers registers by itself under Kubeflow, with the states a Trainer would give it.

`begin TOTAL`, `log STEP LOSS`, `step STEP` and `end` on standard input call it as the Trainer does. The callback sends one report in
five seconds at most; waiting for that here would prove nothing, so the clock of its limit is set back.
"""
import sys
from types import SimpleNamespace

from transformers.integrations.integration_utils import KubeflowCallback


def main():
    callback = KubeflowCallback()
    state = SimpleNamespace(is_world_process_zero=True, max_steps=0, global_step=0, epoch=0.0)
    for line in sys.stdin:
        what, *numbers = line.split()
        callback._last_update_time = float("-inf")
        if what == "begin":
            state.max_steps = int(numbers[0])
            callback.on_train_begin(None, state, None)
        elif what == "end":
            callback.on_log(None, state, None, logs={"train_loss": 9.0, "train_runtime": 12.5})
            callback.on_train_end(None, state, None)
        else:
            state.global_step = int(numbers[0])
            state.epoch = state.global_step / state.max_steps
            if what == "log":
                logs = {"loss": float(numbers[1]), "grad_norm": 0.5, "learning_rate": 1e-4, "epoch": state.epoch}
                callback.on_log(None, state, None, logs=logs)
            callback.on_step_end(None, state, None)
        print("ok", flush=True)


main()
