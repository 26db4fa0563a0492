"""For Ray Train (version 2 of its API): two callbacks, each of which is enough.

    from stepwatch.ray import StepwatchCallback
    TorchTrainer(..., run_config=RunConfig(name="llama-70b", callbacks=[StepwatchCallback()]))

``StepwatchCallback`` uses Ray's public interface. It lives in the controller and reports what each
worker gave to ``ray.train.report`` as an event of that worker's rank, checkpoints when they are in
the storage, and the workers' exceptions. The exporter that hears of it is that of the controller's
node.

``StepwatchWorkerCallback`` lives in the workers and reports to the exporter of their own node: the
same, and the time that every call of ``ray.train.report`` kept the worker waiting (the part
``report`` of the next step), checkpoint uploads from their start, and a worker that dies without a
word. It uses an interface that Ray keeps for developers. Where both are given, the one in the
controller reports exceptions only.

A report whose metrics have a ``step`` (or ``global_step``) is that step; others are counted.
``val_loss``, ``eval/...`` are evaluations.
"""

import logging
import threading
import time
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from ._adapter import Around, Guard, Saving, Training, metric, of_evaluation, quiet
from ._checkpoint import Nothing
from ._run import Run, _describe

try:
    from ray.train import UserCallback
except Exception:  # not installed, or it does not import: the class still can, and its methods are the interface
    UserCallback = object
try:
    from ray.train.v2._internal.execution.callback import TrainContextCallback, WorkerCallback

    _WORKERS: Tuple[type, ...] = (WorkerCallback, TrainContextCallback)
except Exception:
    _WORKERS = (object,)

#: Ranks that the controller reports for: each takes a connection of its own.
MAX_RANKS = 64
#: Metrics of one report; more are left out.
MAX_METRICS = 128
#: Checkpoints that wait for their upload.
MAX_UPLOADS = 64
_STEPS = ("step", "global_step", "train/global_step", "training_iteration")
_NO_METRICS = frozenset(_STEPS + ("epoch_time", "timestamp", "date", "pid", "hostname", "node_ip"))


class _Reports:
    """What one rank reports, made into steps and evaluations."""

    def __init__(self, training: Training) -> None:
        self.training, self.step = training, 0

    def take(self, metrics: Mapping[str, Any]) -> None:
        given = next((metrics[name] for name in _STEPS if isinstance(metrics.get(name), int)), None)
        before, self.step = self.step, self.step + 1 if given is None else given
        found: Dict[str, Any] = {}
        sets: Dict[str, Dict[str, Any]] = {}
        for name, value in list(metrics.items())[:MAX_METRICS]:
            evaluated = of_evaluation(name)
            if name in _NO_METRICS or isinstance(value, (str, bytes, dict, list)):
                continue
            if evaluated is not None:
                sets.setdefault(evaluated[0], {})[evaluated[1]] = value
            else:
                found[metric(name)] = value
        if self.step != before and found:
            self._timed(found, self.step - before)
            self.training.step(self.step, found)
        elif found:
            self.training.add(self.step, found)
        for name, own in sets.items():
            self.training.evaluation(name, self.step, own)

    def _timed(self, found: Dict[str, Any], steps: int) -> None:
        """Many report every so many steps only."""
        last = self.training._last
        if steps > 1 and last is not None:
            found.setdefault("step_time", round((time.monotonic() - last) / steps, 6))


class StepwatchCallback(UserCallback):  # type: ignore[misc]
    """For ``RunConfig(callbacks=[...])``, in the controller. ``per_rank=False`` leaves the steps to
    ``StepwatchWorkerCallback``."""

    def __init__(self, name: Optional[str] = None, per_rank: bool = True, **about: Any) -> None:
        super().__init__()
        self._name, self._per_rank, self._about = name, per_rank, about
        self._ranks: Dict[int, _Reports] = {}
        self._reported = False

    def __getstate__(self) -> Dict[str, Any]:
        """It is made in the driver and sent to the controller."""
        return dict(self.__dict__, _ranks={})

    def _rank(self, context: Any, rank: int, world: Optional[int]) -> Optional[_Reports]:
        found = self._ranks.get(rank)
        if found is None and len(self._ranks) < MAX_RANKS:
            training = Training(None, dict(self._about, **({"name": self._name} if self._name else {})))
            training.begin(name=_name_of(context), rank=rank, world=world, local_rank=None, signals=False, **_about())
            found = self._ranks[rank] = _Reports(training)
        elif found is None and not self._reported:
            self._reported = True
            logging.getLogger("stepwatch").warning("stepwatch: the controller reports for %d ranks; the others are left out", MAX_RANKS)
        return found

    @quiet
    def after_report(self, run_context: Any, metrics: List[Dict[str, Any]], checkpoint: Any) -> None:
        if not self._per_rank:
            return
        for rank, own in enumerate(metrics):
            reports = self._rank(run_context, rank, len(metrics))
            if reports is not None:
                reports.take(own or {})
        first = self._ranks.get(0)
        if checkpoint is not None and first is not None and first.training.run is not None:
            first.training.run.checkpoint(first.step, path=getattr(checkpoint, "path", None))

    @quiet
    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, BaseException]) -> None:
        """The worker group is given up, and may be started again: the next report comes from a new
        attempt."""
        for rank, error in worker_exceptions.items():
            reports = self._rank(run_context, rank, None)
            if reports is None or reports.training.run is None:
                continue
            text = _describe(type(error), error)
            reports.training.run.event("worker_failed", text, level="error")
            reports.training.end(1, text)
            del self._ranks[rank]
        # The others are stopped with them, and did nothing wrong.
        while self._ranks:
            _, reports = self._ranks.popitem()
            reports.training.end(None, "stopped: another worker of its group failed")

    @quiet
    def close(self) -> None:
        while self._ranks:
            self._ranks.popitem()[1].training.end()


class StepwatchWorkerCallback(*_WORKERS):  # type: ignore[misc]
    """For ``RunConfig(callbacks=[...])``, in every worker."""

    def __init__(self, name: Optional[str] = None, **about: Any) -> None:
        super().__init__()
        self._name, self._about = name, about
        self._reports: Optional[_Reports] = None
        self._context: Any = None
        #: The thread that trains, and the step of each checkpoint that is not yet being uploaded.
        self._thread: Optional[int] = None
        self._steps: Dict[int, int] = {}

    def __getstate__(self) -> Dict[str, Any]:
        """It is made in the driver and sent to the workers."""
        return dict(self.__dict__, _reports=None, _context=None, _steps={})

    @quiet
    def after_init_train_context(self) -> None:
        import ray.train.v2._internal.execution.context as contexts

        context = self._context = contexts.get_train_context()
        training = Training(None, dict(self._about, **({"name": self._name} if self._name else {})))
        training.begin(
            name=_name_of(getattr(context, "train_run_context", None)),
            rank=context.get_world_rank(),
            world=context.get_world_size(),
            local_rank=context.get_local_rank(),
            signals=False,
            **_about()
        )
        self._reports = _Reports(training)
        Around(context, "report", self._on_report, lambda _: None)
        if hasattr(context, "_upload_checkpoint"):
            Saving(context, "_upload_checkpoint", self._on_upload)

    def _on_report(self, metrics: Mapping[str, Any], checkpoint: Any = None, *_: Any, **__: Any) -> None:
        reports = self._reports
        if reports is None:
            return
        reports.take(metrics or {})
        self._thread = threading.get_ident()
        if checkpoint is not None:
            while len(self._steps) >= MAX_UPLOADS:
                del self._steps[next(iter(self._steps))]
            self._steps[id(checkpoint)] = reports.step

    def _on_upload(self, checkpoint_dir_name: Any, metrics: Any = None, checkpoint: Any = None, *_: Any, **__: Any) -> Any:
        reports = self._reports
        if reports is None or reports.training.run is None or checkpoint is None:
            raise ValueError("there is nothing to upload")
        folder = getattr(getattr(self._context, "storage_context", None), "experiment_fs_path", "")
        path = "%s/%s" % (folder, checkpoint_dir_name) if folder and checkpoint_dir_name else getattr(checkpoint, "path", None)
        step = self._steps.pop(id(checkpoint), None)
        upload = reports.training.run.checkpoint(step, path=path, stage="upload")
        upload.measured = reports.training.run.rank == 0
        if threading.get_ident() != self._thread:
            return upload  # behind the training
        return _blocking(reports.training.saving(step, path, behind=reports.training.run.checkpoint(step, path=path, stage="save")), upload)

    @contextmanager
    def on_report(self) -> Iterator[None]:
        """Around a call of ``ray.train.report``: every rank waits in it for the others and for the
        storage."""
        with Guard(self._reporting):
            yield

    def _reporting(self) -> Any:
        run = self._reports.training.run if self._reports is not None else None
        return Nothing() if run is None else run.phase("report", announce=False)

    @quiet
    def before_worker_shutdown(self) -> None:
        reports, self._reports = self._reports, None
        if reports is None:
            return
        error = None
        try:
            error = self._context.execution_context.training_thread_runner.get_error()
            error = getattr(error, "_base_exc", error)
        except Exception:
            pass
        if error is None:
            reports.training.end()
        else:
            reports.training.end(1, _describe(type(error), error))


@contextmanager
def _blocking(save: Any, upload: Any) -> Iterator[Any]:
    """An upload that the step waits for."""
    with Guard(lambda: save), Guard(lambda: upload):
        yield upload


def _name_of(context: Any) -> Optional[str]:
    try:
        name = context.get_run_config().name
        return str(name) if name else None
    except Exception:
        return None


def _about() -> Dict[str, Any]:
    try:
        import ray

        return {"framework": "ray-train", "version": getattr(ray, "__version__", None)}
    except Exception:
        return {"framework": "ray-train"}
