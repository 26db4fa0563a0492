"""A character language model that is small enough for a demonstration and real in every other
respect.

Embeddings of the last characters, hidden layers with leaky ReLU, a softmax over the next character;
the gradients come from backpropagation, the update is SGD with momentum. Two implementations of the
same model: NumPy, and plain Python (smaller) for a machine that has nothing else. No unit that
saturates or dies and no gradient clipping, on purpose: a learning rate that is too high then does
to it what it does to a large one, gradients that feed on themselves until nothing is finite any
more.
"""

import json
import math
import os
import random
from typing import Any, List, Sequence, Tuple

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]

#: Abraham Lincoln, the Gettysburg Address (1863); the Declaration of Independence (1776); William
#: Shakespeare, sonnets 18, 29, 116 (1609). In the public domain.
TEXT = """\
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, and dedicated to the
proposition that all men are created equal. Now we are engaged in a great civil war, testing whether that nation, or any nation so
conceived and so dedicated, can long endure. We are met on a great battle-field of that war. We have come to dedicate a portion of
that field, as a final resting place for those who here gave their lives that that nation might live. It is altogether fitting and
proper that we should do this. But, in a larger sense, we can not dedicate -- we can not consecrate -- we can not hallow -- this
ground. The brave men, living and dead, who struggled here, have consecrated it, far above our poor power to add or detract. The
world will little note, nor long remember what we say here, but it can never forget what they did here. It is for us the living,
rather, to be dedicated here to the unfinished work which they who fought here have thus far so nobly advanced. It is rather for us
to be here dedicated to the great task remaining before us -- that from these honored dead we take increased devotion to that cause
for which they gave the last full measure of devotion -- that we here highly resolve that these dead shall not have died in vain --
that this nation, under God, shall have a new birth of freedom -- and that government of the people, by the people, for the people,
shall not perish from the earth.
When in the Course of human events, it becomes necessary for one people to dissolve the political bands which have connected them
with another, and to assume among the powers of the earth, the separate and equal station to which the Laws of Nature and of Nature's
God entitle them, a decent respect to the opinions of mankind requires that they should declare the causes which impel them to the
separation. We hold these truths to be self-evident, that all men are created equal, that they are endowed by their Creator with
certain unalienable Rights, that among these are Life, Liberty and the pursuit of Happiness. That to secure these rights, Governments
are instituted among Men, deriving their just powers from the consent of the governed.
Shall I compare thee to a summer's day? Thou art more lovely and more temperate: Rough winds do shake the darling buds of May, And
summer's lease hath all too short a date; Sometime too hot the eye of heaven shines, And often is his gold complexion dimm'd; And
every fair from fair sometime declines, By chance or nature's changing course untrimm'd; But thy eternal summer shall not fade, Nor
lose possession of that fair thou ow'st; Nor shall death brag thou wander'st in his shade, When in eternal lines to time thou
grow'st: So long as men can breathe or eyes can see, So long lives this, and this gives life to thee.
When, in disgrace with fortune and men's eyes, I all alone beweep my outcast state, And trouble deaf heaven with my bootless cries,
And look upon myself and curse my fate, Wishing me like to one more rich in hope, Featured like him, like him with friends possess'd,
Desiring this man's art and that man's scope, With what I most enjoy contented least; Yet in these thoughts myself almost despising,
Haply I think on thee, and then my state, Like to the lark at break of day arising From sullen earth, sings hymns at heaven's gate;
For thy sweet love remember'd such wealth brings That then I scorn to change my state with kings.
Let me not to the marriage of true minds Admit impediments. Love is not love Which alters when it alteration finds, Or bends with the
remover to remove: O no! it is an ever-fixed mark That looks on tempests and is never shaken; It is the star to every wandering bark,
Whose worth's unknown, although his height be taken. Love's not Time's fool, though rosy lips and cheeks Within his bending sickle's
compass come: Love alters not with his brief hours and weeks, But bears it out even to the edge of doom. If this be error and upon me
proved, I never writ, nor no man ever loved.
"""

#: Of every ten characters the last is held out for the evaluation.
HELD_OUT = 10

#: Slope of the hidden units below zero.
LEAK = 0.1

Batch = Tuple[List[List[int]], List[int]]


class Corpus:
    """The text as numbers, and batches of it."""

    def __init__(self, context: int, seed: int) -> None:
        text = " ".join(TEXT.lower().split())
        self.alphabet = sorted(set(text))
        self.codes = [self.alphabet.index(c) for c in text]
        self.context = context
        self._random = random.Random(seed)
        places = range(context, len(self.codes))
        self._train = [i for i in places if (i // context) % HELD_OUT]
        self._held_out = [i for i in places if not (i // context) % HELD_OUT]

    def _at(self, places: Sequence[int]) -> Batch:
        return [self.codes[i - self.context : i] for i in places], [self.codes[i] for i in places]

    def batch(self, size: int) -> Batch:
        return self._at([self._random.choice(self._train) for _ in range(size)])

    def held_out(self, size: int) -> Batch:
        return self._at(self._held_out[:size])

    def garbage(self, size: int) -> Batch:
        """A bad shard: one line of nonsense over and over, so that all gradients point the same way
        instead of cancelling out."""
        rare = min(range(len(self.alphabet)), key=self.codes.count)
        return [[rare] * self.context] * size, [rare] * size


class NumpyModel:
    """The model with two hidden layers, in 32-bit floats."""

    name = "numpy"
    context, embed, hidden, batch = 12, 16, 128, 96
    lr = 0.02

    def __init__(self, vocab: int, seed: int) -> None:
        normal = numpy.random.default_rng(seed).standard_normal
        sizes = [self.context * self.embed, self.hidden, self.hidden, vocab]
        self.params = [normal((vocab, self.embed)) * 0.5]
        for rows, columns in zip(sizes, sizes[1:]):
            self.params += [normal((rows, columns)) * math.sqrt(2.0 / rows), numpy.zeros(columns)]
        self.params[-2] *= 0.1
        self.params = [p.astype(numpy.float32) for p in self.params]
        self._velocity = [numpy.zeros_like(p) for p in self.params]
        self.n_params = sum(p.size for p in self.params)

    def gradients(self, batch: Batch, backward: bool = True) -> Tuple[float, List[Any]]:
        inputs, targets = numpy.array(batch[0]), numpy.array(batch[1])
        n, e = len(targets), self.params[0]
        w, b = self.params[1::2], self.params[2::2]
        with numpy.errstate(all="ignore"):
            active = [e[inputs].reshape(n, -1)]
            for layer in (0, 1):
                active.append(_leaky(active[-1] @ w[layer] + b[layer]))
            logits = active[2] @ w[2] + b[2]
            logits -= logits.max(axis=1, keepdims=True)
            p = numpy.exp(logits)
            total = p.sum(axis=1, keepdims=True)
            loss = float((numpy.log(total[:, 0]) - logits[numpy.arange(n), targets]).mean())
            if not backward:
                return loss, []
            p /= total
            p[numpy.arange(n), targets] -= 1
            delta, grads = p / n, []
            for layer in (2, 1, 0):
                grads = [active[layer].T @ delta, delta.sum(axis=0)] + grads
                delta = delta @ w[layer].T
                if layer:
                    delta = numpy.where(active[layer] > 0, delta, delta * numpy.float32(LEAK))
            of_e = numpy.zeros_like(e)
            numpy.add.at(of_e, inputs.reshape(-1), delta.reshape(-1, self.embed))
        return loss, [of_e] + grads

    def norm(self, grads: List[Any]) -> float:
        with numpy.errstate(all="ignore"):
            return math.sqrt(sum(float((g.astype(numpy.float64) ** 2).sum()) for g in grads))

    def update(self, grads: List[Any], lr: float, momentum: float) -> None:
        with numpy.errstate(all="ignore"):
            for p, v, g in zip(self.params, self._velocity, grads):
                v *= numpy.float32(momentum)
                v += g
                p -= numpy.float32(lr) * v

    def save(self, path: str) -> str:
        numpy.savez(path + ".part.npz", *self.params, *self._velocity)
        os.replace(path + ".part.npz", path + ".npz")
        return path + ".npz"

    def load(self, path: str) -> None:
        with numpy.load(path) as saved:
            arrays = [saved[name] for name in saved.files]
        self.params, self._velocity = arrays[: len(self.params)], arrays[len(self.params) :]


class PureModel:
    """The same with one hidden layer, in lists of 64-bit floats."""

    name = "pure Python"
    context, embed, hidden, batch = 5, 6, 24, 32
    lr = 0.1

    def __init__(self, vocab: int, seed: int) -> None:
        normal = random.Random(seed).gauss
        wide = self.context * self.embed

        def matrix(rows: int, columns: int, scale: float) -> List[List[float]]:
            return [[normal(0, 1) * scale for _ in range(columns)] for _ in range(rows)]

        # One row a unit: a forward pass is then a product of rows.
        self.params = [
            matrix(vocab, self.embed, 0.5),
            matrix(self.hidden, wide, math.sqrt(2.0 / wide)),
            [[0.0] * self.hidden],
            matrix(vocab, self.hidden, 0.1 * math.sqrt(2.0 / self.hidden)),
            [[0.0] * vocab],
        ]
        self._velocity = [_zeros(p) for p in self.params]
        self.n_params = sum(len(row) for p in self.params for row in p)

    def gradients(self, batch: Batch, backward: bool = True) -> Tuple[float, List[Any]]:
        grads = [_zeros(p) for p in self.params]
        e, w1, (b1,), w2, (b2,) = self.params
        loss, n = 0.0, len(batch[1])
        for context, target in zip(*batch):
            x = [value for c in context for value in e[c]]
            before = [_dot(row, x) + b for row, b in zip(w1, b1)]
            h = [value if value > 0 else LEAK * value for value in before]
            logits = [_dot(row, h) + b for row, b in zip(w2, b2)]
            top = max(logits)
            p = [_exp(value - top) for value in logits]
            total = sum(p)
            loss += (math.log(total) if total > 0 else math.nan) - (logits[target] - top)
            if backward:
                delta = [value / total / n for value in p]
                delta[target] -= 1.0 / n
                self._backward(grads, context, x, before, h, delta)
        return loss / n, grads

    def _backward(self, grads: List[Any], context: List[int], x: Any, before: Any, h: Any, delta: List[float]) -> None:
        of_e, of_w1, (of_b1,), of_w2, (of_b2,) = grads
        w1, w2 = self.params[1], self.params[3]
        of_h = [0.0] * len(h)
        for k, d in enumerate(delta):
            of_b2[k] += d
            of_w2[k] = [g + d * value for g, value in zip(of_w2[k], h)]
            of_h = [g + d * value for g, value in zip(of_h, w2[k])]
        of_x = [0.0] * len(x)
        for j, d in enumerate(of_h):
            d = d if before[j] > 0 else LEAK * d
            of_b1[j] += d
            of_w1[j] = [g + d * value for g, value in zip(of_w1[j], x)]
            of_x = [g + d * value for g, value in zip(of_x, w1[j])]
        for place, c in enumerate(context):
            part = of_x[place * self.embed : (place + 1) * self.embed]
            of_e[c] = [g + value for g, value in zip(of_e[c], part)]

    def norm(self, grads: List[Any]) -> float:
        return math.sqrt(sum(g * g for matrix in grads for row in matrix for g in row))

    def update(self, grads: List[Any], lr: float, momentum: float) -> None:
        for p, v, g in zip(self.params, self._velocity, grads):
            for i, row in enumerate(g):
                v[i] = [momentum * old + new for old, new in zip(v[i], row)]
                p[i] = [value - lr * speed for value, speed in zip(p[i], v[i])]

    def save(self, path: str) -> str:
        with open(path + ".part", "w") as f:
            json.dump({"params": self.params, "velocity": self._velocity}, f)
        os.replace(path + ".part", path + ".json")
        return path + ".json"

    def load(self, path: str) -> None:
        with open(path) as f:
            saved = json.load(f)
        self.params, self._velocity = saved["params"], saved["velocity"]


def _leaky(x: Any) -> Any:
    return numpy.where(x > 0, x, x * numpy.float32(LEAK))


def _zeros(matrix: List[List[float]]) -> List[List[float]]:
    return [[0.0] * len(row) for row in matrix]


def _dot(a: List[float], b: List[float]) -> float:
    return sum(x * y for x, y in zip(a, b))


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf if x == x else math.nan
