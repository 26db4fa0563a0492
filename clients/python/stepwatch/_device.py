"""A tensor on its way from a device to the host: copied to pinned memory behind the work that
computes it, and never waited for."""

import sys
from typing import Any

from ._wire import on_host


class DeviceValue:
    """A number that is here, or on its way from a device."""

    __slots__ = ("_value", "_event", "_deferred")

    def __init__(self, value: Any, event: Any = None, deferred: bool = False) -> None:
        self._value, self._event, self._deferred = value, event, deferred

    @classmethod
    def of(cls, value: Any) -> "DeviceValue":
        device = getattr(value, "device", None)
        if device is None:
            return cls(value)
        value = value.detach() if hasattr(value, "detach") else value
        if on_host(device):
            return cls(cls._plain(value))  # nothing to wait for, and later the loop may have written over it
        return cls._start_copy(value, str(getattr(device, "type", device)))

    @classmethod
    def _start_copy(cls, value: Any, kind: str) -> "DeviceValue":
        torch: Any = sys.modules.get("torch")
        try:
            there = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            there.copy_(value, non_blocking=True)
            event = getattr(torch, kind).Event()
            event.record()
            return cls(there, event)
        except Exception:
            # A device without pinned copies: read one step later, when the value has been computed
            # anyway.
            return cls(value.clone(), deferred=True)

    def landed(self, newest: bool) -> bool:
        return not (self._deferred and newest) and (self._event is None or bool(self._event.query()))

    def read(self) -> Any:
        if self._event is not None:
            self._event.synchronize()
        return self._plain(self._value) if self._event is not None or self._deferred else self._value

    @staticmethod
    def _plain(value: Any) -> Any:
        return value.item()


class DeviceVector(DeviceValue):
    """As many numbers as there are, read as a list."""

    __slots__ = ()

    @staticmethod
    def _plain(value: Any) -> Any:
        return value.tolist()
