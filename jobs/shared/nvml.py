"""NVIDIA's management library: the one place that loads it, names its GPUs, and reads them figure by figure.

It may be absent, and so may the driver; a GPU that is dying can block any question, so ask in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

POWER_AVERAGE_FIELD = 185
POWER_INSTANT_FIELD = 186
_VALUE_NAMES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Where a field's value stands, by its type."""

_NEVER = frozenset({"NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_INVALID_ARGUMENT"})
"""Errors after which it is of no use to ask again."""

_XID_LIMIT = 16

Figures = dict[str, float | int]


class Unavailable(Exception):
    """The library is not installed, or the driver does not answer; in their words."""


@contextmanager
def session() -> Iterator[Any]:
    """The module pynvml, ready to be asked until the block is left.

    Raises:
        Unavailable: There is no library, or it raised one of its errors in the block.
    """
    try:
        import pynvml  # here: a node without the library has runs too
    except ImportError as exc:
        raise Unavailable(str(exc)) from exc
    try:
        with started(pynvml):
            yield pynvml
    except pynvml.NVMLError as exc:
        raise Unavailable(str(exc)) from exc


@contextmanager
def started(nvml: Any) -> Iterator[None]:
    """Starts the library for a block. It counts: others of this process may have started it too.

    Raises:
        nvml.NVMLError: The driver does not answer at all.
    """
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def listed(visible: str) -> list[str]:
    """The entries of a CUDA_VISIBLE_DEVICES."""
    return [name.strip() for name in visible.split(",") if name.strip()]


def gpu_names(nvml: Any, visible: Sequence[str]) -> list[str]:
    """What to call the GPUs that may be used: as CUDA_VISIBLE_DEVICES does, or all of the node by number."""
    return list(visible) or [str(index) for index in range(nvml.nvmlDeviceGetCount())]


def gpu_handle(nvml: Any, name: str) -> Any:
    """The library's handle of the GPU that CUDA_VISIBLE_DEVICES names so.

    Raises:
        nvml.NVMLError: It knows no such GPU, or that one does not answer.
    """
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


def driver_version() -> str:
    """NVIDIA's driver of this node; "" where none answers."""
    try:
        with session() as nvml:
            return text(nvml.nvmlSystemGetDriverVersion())
    except Unavailable:
        return ""


class GpuMeter:
    """One GPU. What it does not support is asked for once; what fails for a moment is left out of one sample.

    Args:
        nvml: the module pynvml, or what stands in for it.
        handle: its handle of the GPU.
        number: the GPU's number on its node, as the ranks count them.
    """

    def __init__(self, nvml: Any, handle: Any, number: int) -> None:
        self.number = number
        self.handle = handle
        self._nvml = nvml
        self._never = _never(nvml)
        self._readers = list(_READERS)

    def read(self) -> Figures:
        """What the GPU shows now, by the names of ``GPU_FIGURES``; empty if it does not answer."""
        figures: Figures = {}
        for reader in tuple(self._readers):
            figures |= self._ask(reader)
        return figures

    def device(self) -> dict[str, Any]:
        """What does not change: name, memory, limits."""
        given: dict[str, Any] = {"gpu": self.number}
        for reader in _FACTS:
            given |= self._ask(reader)
        return given

    def _ask(self, reader: _Reader) -> dict[str, Any]:
        try:
            return dict(reader(self._nvml, self.handle))
        except self._nvml.NVMLError as exc:
            never = getattr(exc, "value", None) in self._never
        except AttributeError:  # a library that is older than the question
            never = True
        if never and reader in self._readers:
            self._readers.remove(reader)
        return {}


class XidWatch:
    """What the driver says of GPUs that went wrong, as it happens. Silent where it does not tell.

    Args:
        nvml: the module pynvml, or what stands in for it.
        meters: the GPUs.
    """

    def __init__(self, nvml: Any, meters: list[GpuMeter]) -> None:
        self._nvml, self._set = nvml, None
        self._numbers: dict[str, int] = {}
        try:
            events = nvml.nvmlEventSetCreate()
            for meter in meters:
                nvml.nvmlDeviceRegisterEvents(meter.handle, nvml.nvmlEventTypeXidCriticalError, events)
                self._numbers[text(nvml.nvmlDeviceGetUUID(meter.handle))] = meter.number
            self._set = events
        except (nvml.NVMLError, AttributeError):
            return

    def read(self) -> Iterator[tuple[int | None, int]]:
        """GPU and number of each Xid since the last time; waits for none. None for a GPU that cannot tell its name."""
        for _ in range(_XID_LIMIT if self._set is not None else 0):
            try:
                found = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except (self._nvml.NVMLError, AttributeError):  # none is left
                return
            yield self._number(found.device), int(found.eventData)

    def _number(self, device: Any) -> int | None:
        try:
            return self._numbers.get(text(self._nvml.nvmlDeviceGetUUID(device)))
        except self._nvml.NVMLError:  # it has fallen off the bus, which is just what the Xid says
            return None


def memory_bytes(nvml: Any, handle: Any) -> tuple[int, int]:
    """What is in use, and all."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.used), int(memory.total)


def _never(nvml: Any) -> frozenset[int]:
    return frozenset(getattr(nvml, name) for name in _NEVER)


def _power(nvml: Any, handle: Any) -> Figures:
    """Momentary power and its mean over a second; a driver that knows only one figure gives it as the momentary one."""
    named = zip(("power_w", "power_avg_w"), _power_fields(nvml, handle), strict=False)
    found = {name: round(_value(value) / 1e3, 1) for name, value in named if value.nvmlReturn == 0}
    return found or {"power_w": round(nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, 1)}


def _power_fields(nvml: Any, handle: Any) -> Sequence[Any]:
    """Nothing where the driver or the library is older than the question."""
    try:
        fields: Sequence[Any] = nvml.nvmlDeviceGetFieldValues(handle, [POWER_INSTANT_FIELD, POWER_AVERAGE_FIELD])
    except AttributeError:
        return ()
    except nvml.NVMLError as exc:
        if getattr(exc, "value", None) not in _never(nvml):
            raise
        return ()
    return fields


def _value(field: Any) -> float:
    return float(getattr(field.value, _VALUE_NAMES[field.valueType]))


def _utilisation(nvml: Any, handle: Any) -> Figures:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"util_pct": int(rates.gpu), "mem_util_pct": int(rates.memory)}


def _clocks(nvml: Any, ask: Callable[[int], Any], suffix: str) -> Figures:
    kinds = {"sm_clock": nvml.NVML_CLOCK_SM, "mem_clock": nvml.NVML_CLOCK_MEM}
    return {f"{name}{suffix}": int(ask(kind)) for name, kind in kinds.items()}


def ecc_errors(nvml: Any, handle: Any) -> int:
    """Memory errors since the driver was loaded that could not be corrected."""
    kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    return int(nvml.nvmlDeviceGetTotalEccErrors(handle, *kind))


def text(value: str | bytes) -> str:
    """What the library says; older ones say bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_Reader = Callable[[Any, Any], Mapping[str, Any]]

_READERS: tuple[_Reader, ...] = (
    lambda nvml, gpu: {"energy_j": round(nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3, 3)},
    _power,
    _utilisation,
    lambda nvml, gpu: {"mem_used_gb": round(memory_bytes(nvml, gpu)[0] / 1e9, 3)},
    lambda nvml, gpu: {"temperature_c": int(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))},
    lambda nvml, gpu: _clocks(nvml, partial(nvml.nvmlDeviceGetClockInfo, gpu), "_mhz"),
    # the reasons why its clocks are held down, as bits, under their old name, which all drivers know
    lambda nvml, gpu: {"throttle": int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu))},
    lambda nvml, gpu: {"ecc_errors": ecc_errors(nvml, gpu)},
)
"""What is sampled: each asks the library for figures that go together."""

_FACTS: tuple[_Reader, ...] = (
    lambda nvml, gpu: {"name": text(nvml.nvmlDeviceGetName(gpu))},
    lambda nvml, gpu: {"uuid": text(nvml.nvmlDeviceGetUUID(gpu))},
    lambda nvml, gpu: {"mem_total_gb": round(memory_bytes(nvml, gpu)[1] / 1e9, 3)},
    lambda nvml, gpu: {"power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3},
    lambda nvml, gpu: _clocks(nvml, partial(nvml.nvmlDeviceGetMaxClockInfo, gpu), "_max_mhz"),
)
"""What does not change."""
