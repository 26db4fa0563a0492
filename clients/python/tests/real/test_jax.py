"""The JAX helpers against JAX, Optax and Flax themselves, on the processor."""

import math
import os
import unittest

from peers import Real, require, until

jax, flax, optax = require("jax", "flax", "optax")

import jax.numpy as jnp  # noqa: E402
from flax.training.train_state import TrainState  # noqa: E402

import stepwatch  # noqa: E402
import stepwatch.jax  # noqa: E402

STEPS = 5


def train_state(tx):
    model = flax.linen.Dense(1)
    params = model.init(jax.random.PRNGKey(3), jnp.ones((1, 8)))
    return TrainState.create(apply_fn=model.apply, params=params, tx=tx)


@jax.jit
def train_step(state, x):
    def loss_of(params):
        return ((state.apply_fn(params, x) - 1) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss, "grad_norm": optax.global_norm(grads)}


donating_step = jax.jit(train_step, donate_argnums=0)


class Loop(Real):
    def train(self, run, tx, step=train_step, nan_at=None, **options):
        state = train_state(tx)
        losses, norms = [], []
        with stepwatch.jax.StepReporter(run, params=state.params, **options) as reporter:
            for i in range(STEPS):
                x = jax.random.normal(jax.random.PRNGKey(i), (4, 8)) * (jnp.nan if i == nan_at else 1.0)
                state, metrics = step(state, x)
                reporter.step(i, state=state, **metrics)
                losses.append(metrics["loss"])
                norms.append(metrics["grad_norm"])
            reporter.eval("c4", i, loss=metrics["loss"])
        return [float(x) for x in losses], [float(x) for x in norms]

    def test_a_flax_loop_with_an_optax_schedule(self):
        schedule = optax.exponential_decay(0.1, 1, 0.5)
        with stepwatch.jax.run("gpt") as run:
            losses, norms = self.train(run, optax.sgd(schedule), nan_at=4, schedule=schedule, tokens=64)
        self.assertTrue(math.isnan(losses[4]))
        events = self.steps(STEPS)
        self.assertEqual([e["step"] for e in events], [0, 1, 2, 3, 4])
        self.assert_losses(events, losses)
        for i, e in enumerate(events[:4]):
            self.assertAlmostEqual(e["m"]["grad_norm"], norms[i], places=5)
            self.assertAlmostEqual(e["m"]["lr"], 0.1 * 0.5**i, places=6)
            self.assertEqual(e["m"]["tokens"], 64)
        self.assertTrue(all(e["m"]["step_time"] > 0 for e in events[1:]))
        self.assertEqual((self.sink.events("eval")[0]["name"], self.sink.events("eval")[0]["step"]), ("c4", 4))
        self.assertEqual(self.bye()["code"], 0)
        hello = self.hello()
        self.assertEqual((hello["run"], hello["framework"], hello["version"]), ("gpt", "jax", jax.__version__))
        self.assertEqual((hello["rank"], hello["world"], hello["devices"], hello["model"]["n_params"]), (0, 1, 1, 9))

    def test_the_rate_in_a_state_that_is_donated(self):
        tx = optax.chain(optax.clip_by_global_norm(1.0), optax.inject_hyperparams(optax.sgd)(learning_rate=0.25))
        with stepwatch.jax.run("gpt") as run:
            losses, _ = self.train(run, tx, step=donating_step)
        events = self.steps(STEPS)
        self.assert_losses(events, losses)
        self.assertEqual([e["m"]["lr"] for e in events], [0.25] * STEPS)

    def test_it_does_not_wait_for_the_device(self):
        slow = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda _, v: v @ v * 0.001, x)[0, 0])
        matrix = jnp.ones((1000, 1000))
        slow(matrix).block_until_ready()  # compiled
        with stepwatch.jax.run("gpt") as run:
            reporter = stepwatch.jax.StepReporter(run)
            loss = slow(matrix)
            reporter.step(0, loss=loss)
            reporter.step(1, loss=1.0)
            self.assertFalse(loss.is_ready(), "the device is behind, and nobody has waited")
            run.event("marker")
            until(lambda: self.sink.events("event") or loss.is_ready())
            self.assertEqual((self.sink.steps(), loss.is_ready()), ([], False))
            reporter.flush()
            self.assert_losses(self.steps(2), [float(loss), 1.0])

    def test_what_is_no_scalar_is_left_out_and_said_so(self):
        with stepwatch.jax.run("gpt") as run, self.assertLogs("stepwatch", "WARNING") as logs:
            reporter = stepwatch.jax.StepReporter(run)
            for i in range(2):
                reporter.step(i, loss=jnp.ones(3), acc=jnp.float32(0.5))
        self.assertEqual([e["m"].get("acc") for e in self.steps(2)], [0.5, 0.5])
        self.assertEqual(len(logs.output), 1)
        self.assertIn("'loss'", logs.output[0])

    def test_processes_that_found_each_other(self):
        code = """
            import socket, sys
            import jax, stepwatch
            s = socket.socket(); s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]; s.close()
            jax.distributed.initialize("127.0.0.1:%d" % port, num_processes=1, process_id=0)
            run = stepwatch.Run("r")
            assert stepwatch._identity.of_process_group() == (0, 1), stepwatch._identity.of_process_group()
            run.close()
        """
        code, _, err = self.script(code)
        self.assertEqual(code, 0, err)

    def test_an_exception_is_the_last_word(self):
        with self.assertRaises(ValueError):
            with stepwatch.jax.run("gpt") as run, stepwatch.jax.StepReporter(run) as reporter:
                reporter.step(1, loss=jnp.float32(1.0))
                raise ValueError("bad shard 17")
        self.assertEqual((self.bye()["code"], self.bye()["text"]), (1, "ValueError: bad shard 17"))
        self.assertEqual(self.sink.steps(), [1])


if __name__ == "__main__":
    unittest.main()
