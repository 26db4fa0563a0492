"""Announces that a rank makes its process group, in which all ranks wait for the last one.

Only while torch is imported before the run is made, and no group exists: whoever makes the group
first has no run to report to. The function is replaced where callers look it up, and does what it
did; what happens around it never raises.
"""

import functools
import sys
from typing import Any, Optional

from ._sender import Sender

#: The name of ``names::start::INIT`` in the contract.
PHASE = "init"

_sender: Optional[Sender] = None


def watch(sender: Sender) -> None:
    """The sender of the latest run announces the process group from now on."""
    global _sender
    if not sender.running:
        return
    dist: Any = sys.modules.get("torch.distributed")
    original = getattr(dist, "init_process_group", None)
    if original is None or not dist.is_available() or dist.is_initialized():
        return
    _sender = sender
    if getattr(original, "_stepwatch", False):
        return

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        _announce("begin")
        try:
            made = original(*args, **kwargs)
        except BaseException:
            _announce("end", failed=True)  # the rank waits in it no more
            raise
        _announce("end")
        return made

    init_process_group._stepwatch = True  # type: ignore[attr-defined]
    for name in ("torch.distributed", "torch.distributed.distributed_c10d"):
        module = sys.modules.get(name)
        if getattr(module, "init_process_group", None) is original:
            setattr(module, "init_process_group", init_process_group)


def _announce(edge: str, failed: Optional[bool] = None) -> None:
    try:
        if _sender is not None:
            _sender.put("phase", None, None, {"name": PHASE, "phase": edge, "failed": failed})
    except Exception:
        pass
