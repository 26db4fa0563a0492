"""The Keras callback against Keras itself, on the processor, on the backend that ``KERAS_BACKEND``
names (JAX by default)."""

import math
import os
import unittest

os.environ.setdefault("KERAS_BACKEND", "jax")

from peers import Real, require, until  # noqa: E402

keras = require("keras", os.environ["KERAS_BACKEND"])[0]

import numpy as np  # noqa: E402

import stepwatch  # noqa: E402
from stepwatch.keras import Mean, StepwatchCallback  # noqa: E402

BATCHES = 6


def data(count=BATCHES, nan_at=None, last=4):
    rng = np.random.default_rng(7)
    x = rng.normal(size=((count - 1) * 4 + last, 8)).astype("float32")
    if nan_at is not None:
        x[nan_at * 4] = np.nan
    return x, np.ones((len(x), 1), "float32")


def model(rate=0.05):
    keras.utils.set_random_seed(3)
    m = keras.Sequential([keras.layers.Dense(1)])
    m.build((None, 8))
    m.compile(optimizer=keras.optimizers.SGD(rate), loss="mse", metrics=["mae"])
    return m


def losses_of(x, y, rates):
    """What plain gradient descent gives, batch by batch: the truth, worked out beside Keras."""
    m = model()
    w, b = (np.array(v) for v in m.get_weights())
    losses = []
    for i, rate in enumerate(rates):
        xb, yb = x[i * 4 : i * 4 + 4], y[i * 4 : i * 4 + 4]
        error = xb @ w + b - yb
        losses.append(float((error**2).mean()))
        w, b = w - rate * 2 * xb.T @ error / len(xb), b - rate * 2 * error.mean(axis=0)
    return losses


class Fit(Real):
    def fit(self, callback=None, rate=0.05, x=None, y=None, m=None, **options):
        if x is None:
            x, y = data()
        m = m or model(rate)
        options.setdefault("callbacks", [callback or StepwatchCallback(name="k", tokens_per_step=64)])
        m.fit(x, y, batch_size=4, shuffle=False, verbose=0, **options)
        return m

    def test_every_step_with_its_own_loss(self):
        x, y = data()
        self.fit(x=x, y=y)
        events = self.steps(BATCHES)
        self.assertEqual([e["step"] for e in events], [1, 2, 3, 4, 5, 6])
        self.assert_losses(events, losses_of(x, y, [0.05] * 6), places=4)
        for e in events:
            self.assertAlmostEqual(e["m"]["lr"], 0.05, places=6)
            self.assertEqual(e["m"]["tokens"], 64)
            self.assertIn("mae", e["m"])
            self.assertGreater(e["m"].get("step_time", 1), 0)
        self.assertEqual(self.bye()["code"], 0)
        hello = self.hello()
        self.assertEqual((hello["run"], hello["framework"], hello["version"]), ("k", "keras", keras.__version__))
        self.assertEqual((hello["model"]["n_params"], hello["dtype"], hello["backend"]), (9, "float32", keras.backend.backend()))

    def test_a_schedule(self):
        x, y = data()
        schedule = keras.optimizers.schedules.ExponentialDecay(0.08, 1, 0.5)
        self.fit(rate=schedule, x=x, y=y, epochs=1)
        events = self.steps(BATCHES)
        rates = [0.08 * 0.5**i for i in range(6)]
        for e, rate in zip(events, rates):
            self.assertAlmostEqual(e["m"]["lr"], rate, places=6)
        self.assert_losses(events, losses_of(x, y, rates), places=4)

    def test_epochs_go_on_counting_and_nan_is_nan(self):
        x, y = data(nan_at=4)
        self.fit(x=x, y=y, epochs=2)
        events = self.steps(2 * BATCHES)
        self.assertEqual([e["step"] for e in events], list(range(1, 13)))
        self.assertEqual([math.isnan(float(e["m"]["loss"])) for e in events], [False] * 4 + [True] * 8)

    def test_evaluations_and_checkpoints(self):
        x, y = data()
        path = os.path.join(self.folder, "k{epoch}.weights.h5")
        save = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
        m = self.fit(x=x, y=y, epochs=2, validation_data=data(2), callbacks=[StepwatchCallback(), save])
        self.steps(2 * BATCHES)
        self.bye()
        evaluations = self.sink.events("eval")
        self.assertEqual([(e["name"], e["step"]) for e in evaluations], [("val", 6), ("val", 12)])
        for e, loss, mae in zip(evaluations, m.history.history["val_loss"], m.history.history["val_mae"]):
            self.assertAlmostEqual(e["m"]["loss"], loss, places=5)
            self.assertAlmostEqual(e["m"]["mae"], mae, places=5)
        self.assertEqual([(e["name"], e["phase"]) for e in self.sink.events("phase")], [("eval", "begin"), ("eval", "end")] * 2)
        saves = self.sink.events("ckpt")
        self.assertEqual(sorted((e["step"], e["phase"]) for e in saves), [(6, "end"), (6, "start"), (12, "end"), (12, "start")])
        self.assert_sizes()
        self.assertNotIn("save_weights", vars(m), "the model is left as it was")

    def test_a_run_of_the_users_and_fit_twice(self):
        with stepwatch.Run("mine") as run:
            m = self.fit(StepwatchCallback(run))
            self.fit(StepwatchCallback(run), m=m)
        events = self.steps(2 * BATCHES)
        self.assertEqual([e["step"] for e in events], list(range(1, 13)))
        self.bye()
        self.assertEqual({e["run"] for e in self.sink.events()}, {"mine"})

    def test_several_batches_at_once(self):
        x, y = data(7)
        m = keras.Sequential([keras.layers.Dense(1)])
        m.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", steps_per_execution=3)
        self.fit(x=x, y=y, m=m)
        self.assertEqual([e["step"] for e in self.steps(3)], [3, 6, 7])

    def test_it_does_not_make_keras_wait(self):
        from keras.src import backend

        callbacks = keras.callbacks.CallbackList([StepwatchCallback()], model=model())
        self.assertEqual(callbacks._async_train, backend.IS_THREAD_SAFE)

    def test_an_exception_is_the_last_word(self):
        code = """
            import os, sys
            sys.path.insert(0, %r)
            import test_keras as t
            os.environ["STEPWATCH_SOCKET"] = sys.argv[1]
            class Fail(t.keras.callbacks.Callback):
                def on_train_batch_end(self, batch, logs=None):
                    if batch == 2:
                        raise ValueError("bad shard 17")
            class Case(t.Fit):
                def runTest(self): pass
            Case().fit(callbacks=[t.StepwatchCallback(), Fail()])
        """
        code, _, err = self.script(code % os.path.dirname(os.path.abspath(__file__)), self.path)
        self.assertEqual(code, 1, err)
        bye = self.bye()
        self.assertEqual((bye["code"], bye["text"]), (1, "ValueError: bad shard 17"))
        self.assertEqual(self.sink.steps()[:2], [1, 2])


class OutOfOrder(Real):
    def test_the_ends_of_batches_in_any_order(self):
        callback = StepwatchCallback()
        callback.set_model(model())
        callback.on_train_begin()
        callback.on_epoch_begin(0)
        losses = [3.0, 1.0, 5.0, 2.0]
        for batch in range(4):
            callback.on_train_batch_begin(batch)
        for batch in (1, 0, 3, 2):
            callback.on_train_batch_end(batch, {"loss": sum(losses[: batch + 1]) / (batch + 1)})
        callback.on_train_end()
        events = self.steps(4)
        self.assertEqual([e["step"] for e in events], [1, 2, 3, 4])
        self.assert_losses(events, losses)
        self.assertEqual([e["step"] for e in events if "step_time" in e["m"]], [1, 3])

    def test_means(self):
        mean, losses = Mean(), [3.0, 1.0, 5.0, 2.0]
        found = []
        for n in (1, 2, 4):
            found.append(mean.advance(sum(losses[:n]) / n, n))
            mean.batches = n
        self.assertEqual(found, [3.0, 1.0, 3.5])


if __name__ == "__main__":
    unittest.main()
