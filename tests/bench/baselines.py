#!/usr/bin/env python3
"""What other detectors say of the same recordings, in the lines of JSON that `stepwatch-alerter backtest` prints.

usage: baselines.py OUT DIR NAME [--glob PATTERN] [--only DETECTOR...]

Writes OUT/DETECTOR/NAME.jsonl for the CSV files of DIR. Each detector sees one signal at a time, in order, and says of every sample whether it is anomalous. None of them knows pages and tickets,
so all get the same mapping, which is kinder to them than a page for every anomaly:

* an anomalous sample opens an incident of the signal (a ticket), which ends 20 samples after the last anomalous one;
* the incident is a page from the third anomalous sample among five on, as `for:` or "3 of 5" would have it; a detector of changes
  (Page-Hinkley, ADWIN), which speaks once a change, pages at once;
* an anomaly is an upward one where the detector distinguishes the direction (a loss that falls is no alarm), and a value that is not finite is seen by the static rules alone: the others cannot take one in and leave it out.

Parameters are those that a project publishes or defaults to where it does; the others are chosen here and stand beside each detector: the static thresholds, the weight of the EMA, the band without a margin, the times of fitting, and the
size of the forest, cut for speed, with its threshold. None was searched for on the data.
"""
import argparse
import bisect
import collections
import contextlib
import csv
import json
import math
import sys
from pathlib import Path

import numpy as np
import rrcf
from river import drift
from statsmodels.tsa.holtwinters import Holt

SIGNALS = {"loss": "loss_spike", "grad_norm": "grad_spike", "step_time_seconds": "throughput_drop"}
WARM_UP = 50
ENDS_AFTER = 20
PAGE_OF, PAGE_AT = 5, 3
NONFINITE = "nonfinite"


class Static:
    """Rules as people write them for Prometheus: the loss 10 % above its mean of 200 samples, the gradient norm above 10, a step 20 % above the
    median of 200, each three times in a row; a value that is not finite at once."""

    SPAN = 200

    def __init__(self, signal):
        self.signal, self.past, self.sorted, self.sum, self.row = signal, collections.deque(), [], 0.0, 0

    def __call__(self, x):
        if not math.isfinite(x):
            return NONFINITE
        n, high = len(self.past), False
        if self.signal == "grad_norm":
            high = x > 10.0
        elif n >= WARM_UP:
            high = x > (1.1 * self.sum / n if self.signal == "loss" else 1.2 * self.sorted[n // 2])
        self.past.append(x)
        self.sum += x
        bisect.insort(self.sorted, x)
        if n == self.SPAN:
            old = self.past.popleft()
            self.sum -= old
            del self.sorted[bisect.bisect_left(self.sorted, old)]
        self.row = self.row + 1 if high else 0
        return self.row >= 3


class Ema3Sigma:
    """Exponential mean and variance (alpha 0.02), three sigmas above."""

    def __init__(self, signal):
        self.n, self.mean, self.var = 0, 0.0, 0.0

    def __call__(self, x):
        self.n += 1
        if self.n == 1:
            self.mean = x
            return False
        d = x - self.mean
        high = self.n > WARM_UP and d > 3.0 * math.sqrt(self.var)
        self.mean += 0.02 * d
        self.var = 0.98 * (self.var + 0.02 * d * d)
        return high


class ZClip:
    """The rule of ZClip (arXiv 2504.02507): alpha 0.97, z 2.5, 25 samples of warm-up, statistics updated with the clipped value. Made for gradient norms."""

    def __init__(self, signal):
        self.first, self.mean, self.var = [], None, None

    def __call__(self, x):
        if self.mean is None:
            self.first.append(x)
            if len(self.first) == 25:
                self.mean, self.var = float(np.mean(self.first)), float(np.var(self.first))
            return False
        sigma = math.sqrt(self.var) + 1e-12
        z = (x - self.mean) / sigma
        clipped = self.mean + 2.5 * sigma / (z / 2.5) if z > 2.5 else x
        self.var = 0.97 * self.var + 0.03 * (clipped - self.mean) ** 2
        self.mean = 0.97 * self.mean + 0.03 * clipped
        return z > 2.5


class Hour:
    """Mean and deviation of the last 60 samples: an hour of Prometheus at a sample a minute."""

    SPAN = 60

    def __init__(self):
        self.past, self.shift, self.sum, self.squares = collections.deque(), None, 0.0, 0.0

    def add(self, x):
        # Sums about the first value: small differences of large numbers lose their digits.
        self.shift = x if self.shift is None else self.shift
        d = x - self.shift
        self.past.append(d)
        self.sum += d
        self.squares += d * d
        if len(self.past) > self.SPAN:
            old = self.past.popleft()
            self.sum -= old
            self.squares -= old * old

    def mean(self):
        return self.shift + self.sum / len(self.past)

    def deviation(self):
        n = len(self.past)
        return math.sqrt(max(0.0, self.squares / n - (self.sum / n) ** 2))

    def warm(self):
        return len(self.past) >= WARM_UP


class GrafanaAdaptive:
    """The adaptive band of grafana/promql-anomaly-detection, an hour taken as 60 samples: the mean of an hour, plus two of the mean over 26 hours of
    the hour's deviation where that deviates by more than half its mean, and at least half the level as a margin."""

    def __init__(self, signal):
        self.hour, self.deviations, self.sum = Hour(), collections.deque(), 0.0

    def __call__(self, x):
        high = False
        if self.hour.warm():
            mean = self.hour.mean()
            usual = self.sum / len(self.deviations) if self.deviations else 0.0
            high = x > mean + max(2.0 * usual, 0.5 * abs(mean))
        self.hour.add(x)
        deviation = self.hour.deviation()
        if deviation > 0.5 * abs(self.hour.mean()):
            self.deviations.append(deviation)
            self.sum += deviation
            if len(self.deviations) > 26 * Hour.SPAN:
                self.sum -= self.deviations.popleft()
        return high


class GrafanaBand:
    """The same project's band without the margin and the filter, as users tighten it: the mean of an hour, and two of its deviations smoothed over 26 hours."""

    def __init__(self, signal):
        self.hour, self.smooth = Hour(), None

    def __call__(self, x):
        high = self.hour.warm() and x > self.hour.mean() + 2.0 * self.smooth
        self.hour.add(x)
        deviation = self.hour.deviation()
        self.smooth = deviation if not self.hour.warm() else self.smooth + (deviation - self.smooth) / (26 * Hour.SPAN)
        return high


class HoltWinters:
    """Exponential smoothing with a damped trend, fitted by statsmodels on the first 200 samples and on the last 200 again every 2,000; three sigmas of the one-step errors."""

    SPAN, EVERY = 200, 2000

    def __init__(self, signal):
        self.past, self.n, self.fit = collections.deque(maxlen=self.SPAN), 0, None

    def refit(self):
        fit = Holt(np.array(self.past), damped_trend=True, initialization_method="estimated").fit()
        p = fit.params
        self.fit = p["smoothing_level"], p["smoothing_trend"], p["damping_trend"]
        self.level, self.trend = float(fit.level[-1]), float(fit.trend[-1])
        self.sigma = float(np.std(fit.resid)) + 1e-12

    def __call__(self, x):
        self.n += 1
        high = False
        if self.fit:
            alpha, beta, phi = self.fit
            expected = self.level + phi * self.trend
            high = x > expected + 3.0 * self.sigma
            level = alpha * x + (1 - alpha) * expected
            self.trend = beta * (level - self.level) + (1 - beta) * phi * self.trend
            self.level = level
        self.past.append(x)
        if self.n == self.SPAN or self.n % self.EVERY == 0:
            self.refit()
        return high


class Rrcf:
    """Robust random cut forest (rrcf), 10 trees of 128 shingles of 4 samples (a hundred times slower than the rest as it is); anomalous above the largest score of the last 1,000 samples by half, which is
    how its users set what has no calibrated threshold."""

    TREES, SIZE, SHINGLE = 10, 128, 4

    def __init__(self, signal):
        np.random.seed(1)
        self.forest = [rrcf.RCTree() for _ in range(self.TREES)]
        self.window, self.scores, self.n = collections.deque(maxlen=self.SHINGLE), collections.deque(maxlen=1000), 0

    def __call__(self, x):
        self.window.append(x)
        if len(self.window) < self.SHINGLE:
            return False
        point, score = np.array(self.window), 0.0
        for tree in self.forest:
            if len(tree.leaves) >= self.SIZE:
                tree.forget_point(self.n - self.SIZE)
            tree.insert_point(point, index=self.n)
            score += tree.codisp(self.n) / self.TREES
        self.n += 1
        high = len(self.scores) >= self.SIZE and score > 1.5 * max(self.scores) and x > np.median(point[:-1])
        self.scores.append(score)
        return high


class PageHinkley:
    """river's Page-Hinkley test with its defaults, upward, on the logarithm of the value relative to the first samples' spread."""

    AT_ONCE = True

    def __init__(self, signal):
        self.first, self.scale, self.test = [], None, drift.PageHinkley(mode="up")

    def __call__(self, x):
        if self.scale is None:
            self.first.append(x)
            if len(self.first) == WARM_UP:
                self.scale = float(np.median(self.first)), float(np.std(self.first)) + 1e-12
            return False
        self.test.update((x - self.scale[0]) / self.scale[1])
        return self.test.drift_detected


class Adwin:
    """river's ADWIN with its defaults; a change counts if the mean went up."""

    AT_ONCE = True

    def __init__(self, signal):
        self.test = drift.ADWIN()

    def __call__(self, x):
        before = self.test.estimation
        self.test.update(x)
        return self.test.drift_detected and self.test.estimation > before


DETECTORS = {
    "static rules": Static,
    "EMA 3 sigma": Ema3Sigma,
    "ZClip rule": ZClip,
    "Grafana adaptive": GrafanaAdaptive,
    "Grafana band": GrafanaBand,
    "Holt-Winters": HoltWinters,
    "RRCF": Rrcf,
    "Page-Hinkley": PageHinkley,
    "ADWIN": Adwin,
}


def incidents(detector, signal, samples, file):
    """Runs a detector over one signal; yields its incidents."""
    detect, recent, open_, last = detector(signal), collections.deque(maxlen=PAGE_OF), None, 0
    for row, (step, x) in enumerate(samples):
        if not math.isfinite(x) and detector is not Static:
            continue
        said = detect(x)
        if open_ and row - last > ENDS_AFTER:
            yield {**open_, "end_step": step}
            open_ = None
            recent.clear()
        recent.append(bool(said))
        if not said:
            continue
        last = row
        page = sum(recent) >= PAGE_AT or said == NONFINITE or getattr(detector, "AT_ONCE", False)
        if open_ is None:
            kind = NONFINITE if said == NONFINITE else SIGNALS[signal]
            open_ = {"file": file, "kind": kind, "severity": "ticket", "signal": signal, "start_step": step, "opened_step": step,
                     "detected_step": step, "end_step": None}
        if page and open_["severity"] == "ticket":
            open_.update(severity="page", detected_step=step)
    if open_:
        yield open_


def read(path):
    """The signals of a recording, as (step, value)."""
    with open(path, newline="") as f:
        rows = list(csv.DictReader(f))
    for signal in SIGNALS:
        samples = [(int(float(r["step"])), float(r[signal])) for r in rows if r.get(signal)]
        if samples:
            yield signal, samples


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("out", type=Path)
    args.add_argument("dir", type=Path, help="holds the recordings")
    args.add_argument("name", help="of the files that are written")
    args.add_argument("--glob", default="*.csv", help="recordings that are read")
    args.add_argument("--only", nargs="+", choices=DETECTORS, default=list(DETECTORS), metavar="DETECTOR")
    args = args.parse_args()
    files = sorted(args.dir.glob(args.glob))
    with contextlib.ExitStack() as stack:
        outs = {}
        for title in args.only:
            (args.out / title).mkdir(parents=True, exist_ok=True)
            outs[title] = stack.enter_context(open(args.out / title / f"{args.name}.jsonl", "w"))
        for n, file in enumerate(files, 1):
            signals = list(read(file))
            for title, out in outs.items():
                for signal, samples in signals:
                    for incident in incidents(DETECTORS[title], signal, samples, str(file)):
                        print(json.dumps(incident), file=out)
                print(json.dumps({"summary": {"file": str(file)}}), file=out)
            print(f"{n} of {len(files)}: {file.name}", file=sys.stderr)


if __name__ == "__main__":
    import warnings

    # A fit that did not converge is a fit all the same, as it would be in production.
    warnings.simplefilter("ignore")
    main()
