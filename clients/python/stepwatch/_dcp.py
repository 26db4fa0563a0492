"""``torch.distributed.checkpoint``: every stage of what is saved and loaded with it.

A save may go on behind the training. Its future is done on the first rank of its group when the
metadata is written, which is last and makes the checkpoint whole; on the others when their own part
is.
"""

import functools
import importlib
import logging
import sys
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from ._adapter import Behind, Guard, plain_path, quiet, step_in
from ._run import Run

log = logging.getLogger("stepwatch")

_MODULE = "torch.distributed.checkpoint"


class CheckpointReporter:
    """Reports what ``save``, ``async_save`` and ``load`` of ``torch.distributed.checkpoint`` do,
    until ``remove`` is called. They do what they did, and return and raise what they returned and
    raised.

    Make it before anything imports these functions by name. A save is of the step that was last
    reported, or of the one after it where the checkpoint's name has its number; what is loaded, and
    what a run saves that has reported no step, is of the number in the name. ``step`` may be a
    function that knows better from the path.
    """

    def __init__(self, run: Run, step: Optional[Callable[[Any], Optional[int]]] = None) -> None:
        self._run, self._step = run, step or step_in
        self._replaced: List[Tuple[Any, str, Any, Any]] = []
        self._removed = False
        try:
            module = importlib.import_module(_MODULE)
            for name, around in (("save", self._save), ("async_save", self._async_save), ("load", self._load)):
                inner = getattr(module, name, None)
                if inner is not None:
                    ours = self._around(inner, around)
                    setattr(module, name, ours)
                    self._replaced.append((module, name, inner, ours))
        except Exception as e:
            log.warning("stepwatch: the stages of checkpoints are not reported: %s", e)

    def remove(self) -> None:
        """Leaves the functions as they were; what is being written is still reported."""
        self._removed = True  # what was put over ours still calls it
        while self._replaced:
            module, name, inner, ours = self._replaced.pop()
            if getattr(module, name, None) is ours:
                setattr(module, name, inner)

    def __enter__(self) -> "CheckpointReporter":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        quiet(self.remove)()

    def _around(self, inner: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def call(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs) if self._removed else around(inner, args, kwargs)

        return call

    def _save(self, inner: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        with Guard(lambda: self._saving(kwargs)) as saving:
            return _told(saving, inner, args, kwargs)

    def _saving(self, kwargs: Dict[str, Any]) -> Any:
        path = _path(kwargs, "storage_writer")
        return self._run.checkpoint(self._step(path), path=path) if self._leads(kwargs) else self._run.phase("ckpt")

    def _async_save(self, inner: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        with Guard(lambda: self._behind(kwargs)) as saving:
            result = inner(*args, **kwargs)
        if isinstance(saving, Behind):
            quiet(_follow)(saving, result)
        return result

    def _behind(self, kwargs: Dict[str, Any]) -> Any:
        path = _path(kwargs, "storage_writer")
        return Behind(self._run, self._step(path), path, self._leads(kwargs))

    def _load(self, inner: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        with Guard(lambda: self._loading(kwargs)) as loading:
            return _told(loading, inner, args, kwargs)

    def _loading(self, kwargs: Dict[str, Any]) -> Any:
        path = _path(kwargs, "storage_reader")
        return self._run.checkpoint(self._step(path), path=path, stage="load")

    def _leads(self, kwargs: Dict[str, Any]) -> bool:
        """Whether this rank writes the metadata. Ranks that save each by itself make one checkpoint
        all the same."""
        group = kwargs.get("process_group")
        if group is None or kwargs.get("no_dist"):
            return self._run.rank == 0
        return bool(sys.modules["torch.distributed"].get_rank(group) == 0)


def _told(checkpoint: Any, inner: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    try:
        return inner(*args, **kwargs)
    except Exception as e:
        if hasattr(checkpoint, "fail"):
            quiet(checkpoint.fail)(_why(e))
        raise


def _why(error: BaseException) -> Any:
    """What a rank met: the exception that collects what all of them met begins with tracebacks."""
    try:
        rank, (first, _) = next(iter(error.failures.items()))  # type: ignore[attr-defined]
        return "rank %s: %s: %s" % (rank, type(first).__name__, first)
    except Exception:
        return error


def _path(kwargs: Dict[str, Any], storage: str) -> Any:
    """Where it goes: by name, or by what writes or reads it."""
    path = kwargs.get("checkpoint_id")
    if path is None:
        path = getattr(kwargs.get(storage), "path", None)
    return None if path is None else plain_path(path) if hasattr(path, "__fspath__") else str(path)


def _follow(saving: Behind, result: Any) -> None:
    """``result`` is a future, or since PyTorch 2.9 has one for the copy and one for the rest."""
    future = getattr(result, "upload_completion", result)

    def done(future: Any) -> None:
        if future.cancelled():
            saving.failed("it was cancelled")
        elif future.exception() is not None:
            saving.failed(_why(future.exception()))
        else:
            saving.done()

    future.add_done_callback(quiet(done))
