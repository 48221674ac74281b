"""Wait for the device between calls: what then vanishes lay between kernels, what stays lies inside one."""

from __future__ import annotations

from typing import Any

from driftgate.calls import VM, Call


class Sync:
    """A device sync after every VM call; with ``kernels``, before and after every cache kernel as well."""

    def __init__(self, device: Any, kernels: bool) -> None:
        self.device = device
        self.kernels = kernels

    def before(self, call: Call) -> None:
        if self.kernels and not call.name.startswith(VM):
            self.device.sync()

    def after(self, call: Call) -> None:
        if self.kernels or call.name.startswith(VM):
            self.device.sync()
