"""Orbax: every stage of what a ``CheckpointManager`` or a ``Checkpointer`` saves and restores.

An ``AsyncCheckpointer`` copies while the step waits, and writes in a thread of its own. Its primary
host, which is the first process unless its options name another, commits the checkpoint, which
makes it whole, and tells a callback so; the others know that their part is written when somebody
has waited for it, which the manager does in a thread. Where there is no primary host, each process
commits a checkpoint of its own.
"""

import functools
import logging
import sys
import time
from types import TracebackType
from typing import Any, Callable, List, Optional, Tuple, Type

from ._adapter import Behind, Saving, Tap, plain_path, quiet, step_in
from ._checkpoint import Named
from ._run import Run

log = logging.getLogger("stepwatch")


class CheckpointReporter:
    """Reports what ``checkpointer`` (an Orbax ``CheckpointManager``, ``AsyncCheckpointer`` or
    ``Checkpointer``) does, until ``remove`` is called. It does what it did, and returns and raises
    what it returned and raised.

    A save is of the step that was last reported, or of the one after it where the manager or the
    name of the directory says so; what is restored, and what a run saves that has reported no step,
    is of the manager's step, or of the number in the name.
    """

    def __init__(self, run: Run, checkpointer: Any) -> None:
        self._run, self.checkpointer = run, checkpointer
        self._taps: List[Tap] = []
        self._step: Optional[Named] = None
        self._inner: Any = None
        self._began: Optional[float] = None
        #: The save that lasts as long as the manager's call, the last one that began, and the one
        #: that the thread writes.
        self._managed: Optional[Behind] = None
        self._saving: Optional[Behind] = None
        self._writing: Optional[Behind] = None
        self._commits = False
        try:
            self._tap(checkpointer)
        except Exception as e:
            log.warning("stepwatch: the stages of checkpoints are not reported: %s", e)

    def _tap(self, checkpointer: Any) -> None:
        inner = getattr(checkpointer, "_checkpointer", None)
        if inner is not None:  # a manager: it saves by this one
            self._taps.append(Saving(checkpointer, "save", self._manager_saves))
            checkpointer = inner
        self._inner = checkpointer
        asynchronous = hasattr(checkpointer, "wait_until_finished") and hasattr(checkpointer, "check_for_errors")
        self._taps.append(Saving(checkpointer, "save", self._save if asynchronous else self._save_at_once))
        self._taps.append(Saving(checkpointer, "restore", self._restore))
        if asynchronous:
            for name, waits in (("wait_until_finished", True), ("check_for_errors", False)):
                self._taps.append(Saving(checkpointer, name, functools.partial(_Waited, self, waits)))
            self._commits = hasattr(checkpointer, "_make_on_commit_callback")
            if self._commits:
                self._taps.append(_Commits(checkpointer, self))

    def remove(self) -> None:
        """Leaves everything as it was."""
        while self._taps:
            self._taps.pop().remove()

    def __enter__(self) -> "CheckpointReporter":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        quiet(self.remove)()

    def _manager_saves(self, step: Any = None, *_: Any, **__: Any) -> Any:
        """It decides first whether there is anything to save."""
        return _Managed(self, step)

    def _save(self, directory: Any = None, *_: Any, **__: Any) -> Any:
        path = plain_path(directory)
        step = self._step if self._step is not None else step_in(path)
        behind = Behind(self._run, step, path, self._leads(), began=self._began)
        return _Saved(self, behind)

    def _save_at_once(self, directory: Any = None, *_: Any, **__: Any) -> Any:
        path = plain_path(directory)
        step = self._step if self._step is not None else step_in(path)
        return self._run.checkpoint(step, path=path) if self._leads() else self._run.phase("ckpt")

    def _leads(self) -> bool:
        """Whether this process commits what it saves."""
        try:
            primary = self._inner._primary_host
            return primary is None or bool(primary == sys.modules["jax"].process_index())
        except Exception:
            return self._run.rank == 0

    def _restore(self, directory: Any = None, *_: Any, **__: Any) -> Any:
        path = plain_path(directory)
        return self._run.checkpoint(step_in(path), path=path, stage="load")

    def begun(self, saving: Behind) -> None:
        self._saving = saving
        saving.__enter__()
        if self._began is not None:
            self._managed = saving

    def returned(self, saving: Behind, error: Tuple[Any, ...]) -> None:
        """A call is over; what the manager does besides keeps the step waiting, too."""
        if not self._commits:
            self._writing = saving
        if self._managed is not saving:
            saving.__exit__(*error)

    def writes(self) -> Optional[Behind]:
        """The one before is written, and the thread for this one is about to start."""
        self._writing = self._saving
        return self._writing

    def ended(self, error: Optional[BaseException], waited: bool) -> None:
        """Somebody has waited for the thread that writes, or met its exception."""
        writing = self._writing
        if writing is None or writing.over:
            return
        if error is not None:
            writing.failed(error)
        elif waited and self._commits and self._leads():
            writing.failed("it was given up before it was committed")
        elif waited:
            writing.done()


class _Managed:
    """One call of a manager's ``save``."""

    def __init__(self, reporter: CheckpointReporter, step: Any) -> None:
        self._reporter, self._step = reporter, step

    def __enter__(self) -> None:
        step, self._reporter._began = self._step, time.monotonic()
        self._reporter._step = Named(step) if isinstance(step, int) else None

    @quiet
    def __exit__(self, *error: Any) -> None:
        saving, self._reporter._managed = self._reporter._managed, None
        self._reporter._step = self._reporter._began = None
        if saving is not None:
            saving.__exit__(*error)


class _Saved:
    """One call of a checkpointer's ``save``, which first waits for the one before."""

    def __init__(self, reporter: CheckpointReporter, behind: Behind) -> None:
        self._reporter, self._behind = reporter, behind

    def __enter__(self) -> None:
        self._reporter.begun(self._behind)

    @quiet
    def __exit__(self, *error: Any) -> None:
        self._reporter.returned(self._behind, error)


class _Waited:
    """Somebody waits for the thread that writes, and meets its exception if there is one."""

    def __init__(self, reporter: CheckpointReporter, waits: bool) -> None:
        self._reporter, self._waits = reporter, waits

    def __enter__(self) -> None:
        return None

    @quiet
    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        self._reporter.ended(error, self._waits)


class _Commits(Tap):
    """Around what makes the function that commits a checkpoint, on the first process."""

    def __init__(self, owner: Any, reporter: CheckpointReporter) -> None:
        super().__init__(owner, "_make_on_commit_callback", lambda *_, **__: None)
        self._reporter = reporter

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        commit = super().__call__(*args, **kwargs)
        try:
            writing = self._reporter.writes()
            return commit if writing is None else _then(commit, quiet(writing.done))
        except Exception:
            return commit


def _then(commit: Callable[..., Any], committed: Callable[[], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = commit(*args, **kwargs)
        committed()
        return result

    return call
