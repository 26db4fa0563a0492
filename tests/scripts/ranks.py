"""One training process of the end-to-end test: this rank's part of three runs, at 20 steps a
second, through the real client.

A line `fault STEP` on standard input says at which step things go wrong:
  run-up   the gradient norm rises for four steps and the loss jumps (the numbers of BLOOM-176B,
           2022-04-12, iteration 31214 on)
  benign   one step has a large gradient norm, and nothing comes of it
  nan      one loss is NaN
A line `stop` ends the process in good order.
"""

import math
import sys
import threading
import time

import stepwatch

STEPS_PER_SECOND = 20
RUN_UP_GRAD_NORM = [0.947, 2.390, 15.886, 145.119, 960.351, 353.201, 379.330, 650.246]
RUN_UP_LOSS = [2.220424, 2.595213, 2.241558, 2.345279, 5.098124, 3.492029, 3.213059, 2.804948]
BENIGN_GRAD_NORM = 4.0


def noise(step, salt):
    """The same at every rank: what a framework logs is already reduced over all ranks."""
    x = math.sin(step * 12.9898 + salt * 78.233) * 43758.5453
    return x - math.floor(x) - 0.5


def main():
    orders = {}
    threading.Thread(target=listen, args=(orders,), daemon=True).start()
    runs = {name: stepwatch.Run(name) for name in ("run-up", "benign", "nan")}
    started, step = time.monotonic(), 0
    while "stop" not in orders:
        step += 1
        since = step - orders.get("fault", 1 << 60)
        loss = 2.2 + 0.3 * math.exp(-step / 400) + 0.02 * noise(step, 0)
        grad_norm = 0.24 * math.exp(0.2 * noise(step, 1))
        for name, run in runs.items():
            values = {"loss": loss, "grad_norm": grad_norm, "lr": 5.3e-5, "tokens": 4194304}
            if name == "run-up" and 0 <= since < len(RUN_UP_LOSS):
                values.update(loss=RUN_UP_LOSS[since], grad_norm=RUN_UP_GRAD_NORM[since])
            if name == "benign" and since == 0:
                values.update(grad_norm=BENIGN_GRAD_NORM)
            if name == "nan" and since == 0:
                values.update(loss=float("nan"))
            run.step(step, **values)
        time.sleep(max(0.0, started + step / STEPS_PER_SECOND - time.monotonic()))
    for run in runs.values():
        run.close()


def listen(orders):
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        orders[word] = int(number or 0)


if __name__ == "__main__":
    main()
