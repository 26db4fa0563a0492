#!/usr/bin/env python3
"""Asks Google's ml-goodput-measurement where the time of a run went, for the test of the run
ledger.

    python3 -m venv venv && venv/bin/pip install ml-goodput-measurement==0.2.3
    venv/bin/python tests/scripts/goodput_oracle.py alerter/detect/tests/data/goodput

The directory holds logs, `NAME.jsonl`. This writes the answers to all of them beside them, to
`mgm.json`: seconds by the names of the package. `--compose` first writes the logs anew, from the
lives of trainers below. No account and no network are needed: the package reads from a logger that
lives in this process.

A record of a log is {"at": SECONDS, "what": WORD, ...}. The words, in pairs of `_start` and `_end`:
`job` (with its `job`, and ended well), `init`, `prep`, `data`, `load` (with the `step` of the
checkpoint), `step`, `save` (with their `step`) and `eval`. `died` is the end of an attempt that has
no `job_end`. The package has no record of a death.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import logging
import os
import sys
import tempfile

PACKAGE, VERSION = "ml-goodput-measurement", "0.2.3"
#: The second 0 of every log.
BEGAN = 1_700_000_000
#: Seconds of a usual step, and by how much steps differ.
STEP, SPREAD = 10.0, 0.02
#: Seconds of the first step of an attempt: it compiles.
FIRST = 25.0


class Life:
    """What a trainer does, one thing after another."""

    def __init__(self):
        self.records, self.now, self.next = [], 0.0, 1

    def note(self, what, **more):
        self.records.append({"at": round(self.now, 3), "what": what, **more})

    def wait(self, seconds):
        self.now += seconds

    def span(self, what, seconds, **more):
        self.note(f"{what}_start", **more)
        self.wait(seconds)
        self.note(f"{what}_end", **more)

    def start(self, job, step=1, load=None):
        """Begins an attempt, and makes its first step."""
        self.note("job_start", job=job)
        self.wait(4)
        self.span("init", 30)
        if load:
            self.span("load", load, step=step - 1)
        self.span("prep", 20)
        self.span("data", 8)
        self.next = step
        self.step(FIRST - STEP)

    def begin_step(self):
        self.note("step_start", step=self.next)

    def step(self, more=0.0):
        self.begin_step()
        # Each step differs from the ones around it, and on average none does.
        self.wait(STEP + SPREAD * (self.next * 7 % 5 - 2) + more)
        self.note("step_end", step=self.next)
        self.next += 1

    def steps(self, last):
        while self.next <= last:
            self.step()

    def save(self, seconds=25):
        self.span("save", seconds, step=self.next - 1)

    def evaluate(self, seconds=120):
        self.span("eval", seconds)

    def dies(self, after):
        self.wait(after)
        self.note("died")

    def end(self, after=6):
        self.wait(after)
        self.note("job_end")


def begin_to_end(a):
    a.start("77")
    a.steps(60)
    a.end()


def saves_and_evaluations(a):
    a.start("77")
    for last in range(20, 101, 20):
        a.steps(last)
        a.save()
        if last % 40 == 0:
            # Within the step that follows: what lies across the edge of a step the package drops.
            a.begin_step()
            a.evaluate()
            a.wait(STEP)
            a.note("step_end", step=a.next)
            a.next += 1
    a.end()


def stall(a):
    a.start("77")
    a.steps(40)
    a.step(300)
    a.steps(60)
    a.end()


def crash(a):
    a.start("77")
    a.steps(40)
    a.save()
    a.steps(57)
    a.begin_step()
    a.dies(6)
    a.wait(80)
    a.start("77", step=41, load=40)
    a.steps(80)
    a.end()


def hang_until_killed(a):
    a.start("77")
    a.steps(40)
    a.save()
    a.steps(47)
    a.begin_step()
    a.dies(900)
    a.wait(80)
    a.start("77", step=41, load=40)
    a.steps(80)
    a.end()


def resume_without_overlap(a):
    a.start("77")
    a.steps(40)
    a.save()
    a.dies(1)
    a.wait(200)
    a.start("77", step=41, load=40)
    a.steps(80)
    a.end()


def next_job(a):
    a.start("77")
    a.steps(40)
    a.save()
    a.steps(43)
    a.begin_step()
    a.dies(2)
    a.wait(3600)
    a.start("78", step=41, load=40)
    a.steps(80)
    a.end()


def everything(a):
    a.start("77")
    a.steps(30)
    a.save()
    a.begin_step()
    a.evaluate()
    a.wait(STEP)
    a.note("step_end", step=a.next)
    a.next += 1
    a.steps(40)
    a.step(300)
    a.steps(60)
    a.save()
    a.steps(77)
    a.begin_step()
    a.dies(6)
    a.wait(80)
    # It makes steps again, saves, and dies with nothing lost.
    a.start("77", step=61, load=40)
    a.steps(100)
    a.save()
    a.dies(1)
    a.wait(200)
    a.start("77", step=101, load=40)
    a.steps(120)
    a.save()
    a.steps(124)
    # It hangs, and the job is over.
    a.begin_step()
    a.dies(900)
    a.wait(3600)
    a.start("78", step=121, load=40)
    a.steps(160)
    a.save()
    a.end()


LIVES = [begin_to_end, saves_and_evaluations, stall, crash, hang_until_killed, resume_without_overlap, next_job, everything]


class Log:
    """The part of a cloud logger that the package uses."""

    def __init__(self):
        self.entries = []

    def write_cloud_logging_entry(self, entry):
        self.entries.append(entry)

    def read_cloud_logging_entries(self, start_time=None, end_time=None, last_entry_info=None):
        return self.entries, (datetime.datetime.now(datetime.timezone.utc), str(len(self.entries)))

    def flush(self):
        pass


def tell(recorder, log, records):
    """Records what the package knows of, as a trainer does that reports to it."""
    record = {
        "job_start": recorder.record_job_start_time,
        "job_end": recorder.record_job_end_time,
        "init_start": recorder.record_tpu_init_start_time,
        "init_end": recorder.record_tpu_init_end_time,
        "prep_start": recorder.record_training_preparation_start_time,
        "prep_end": recorder.record_training_preparation_end_time,
        "data_start": recorder.record_data_loading_start_time,
        "data_end": recorder.record_data_loading_end_time,
    }
    began = {}
    for r in records:
        what, at = r["what"], datetime.datetime.fromtimestamp(BEGAN + r["at"], datetime.timezone.utc)
        if what in record:
            record[what](at)
        elif what == "step_start":
            recorder.record_step_start_time(r["step"], at)
        elif what == "eval_start":
            recorder.record_custom_badput_event_start_time(at, "eval")
        elif what == "eval_end":
            recorder.record_custom_badput_event_end_time(at, "eval")
        elif what in ("save_start", "load_start"):
            began[what.removesuffix("_start")] = r["at"]
        elif what in ("save_end", "load_end"):
            log.write_cloud_logging_entry(checkpoint(what.removesuffix("_end"), r, began))
        elif what not in ("step_end", "died"):
            sys.exit(f"no record is called {what}")


def checkpoint(what, r, began):
    """What the checkpoint manager of Orbax writes to the same log, as far as the package reads
    it."""
    seconds = r["at"] - began[what]
    entry = {"step": r["step"], "directory": "gs://bucket/run", "job_name": "run"}
    if what == "save":
        took = {"checkpoint_manager_blocking_duration_secs": seconds, "checkpointer_blocking_duration_secs": seconds}
        return {**entry, **took, "event_type": "save", "wait_for_prev_duration_secs": 0.0, "get_old_steps_duration_secs": 0.0}
    took = {"checkpoint_manager_duration_secs": seconds, "checkpointer_duration_secs": seconds}
    return {**entry, **took, "event_type": "restore"}


def measure(records):
    from ml_goodput_measurement.src import goodput

    log = Log()
    tell(goodput.GoodputRecorder("run", "log", True, log), log, records)
    with tempfile.TemporaryDirectory() as cache, contextlib.redirect_stdout(sys.stderr):
        calculator = goodput.GoodputCalculator("run", "log", log, cache_dir=cache)
        # The details are zeros before this was called.
        calculator.get_job_goodput(include_badput_breakdown=True)
        details = calculator.get_job_goodput_details()
    answer = {"TOTAL": details["total_elapsed_time"], "GOODPUT": sum(details["goodput_time"].values())}
    for kind, seconds in details["badput_time"].items():
        answer[kind.name] = sum(seconds.values()) if isinstance(seconds, dict) else seconds
    return {name: round(float(seconds), 3) for name, seconds in answer.items()} | {"DISRUPTIONS": details["disruption_count"]}


def compose(directory):
    for live in LIVES:
        life = Life()
        live(life)
        with open(os.path.join(directory, f"{live.__name__}.jsonl"), "w") as out:
            out.writelines(json.dumps(record) + "\n" for record in life.records)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--compose", action="store_true", help="write the logs anew")
    args = parser.parse_args()
    if (found := importlib.metadata.version(PACKAGE)) != VERSION:
        sys.exit(f"the answers are those of {PACKAGE} {VERSION}, and this is {found}")
    logging.disable()
    if args.compose:
        compose(args.directory)
    answers = {}
    for name in sorted(os.listdir(args.directory)):
        stem, kind = os.path.splitext(name)
        if kind == ".jsonl":
            with open(os.path.join(args.directory, name)) as lines:
                answers[stem] = measure([json.loads(line) for line in lines])
    with open(os.path.join(args.directory, "mgm.json"), "w") as out:
        out.write(json.dumps({"package": PACKAGE, "version": VERSION, "answers": answers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
