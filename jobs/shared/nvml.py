"""Load NVIDIA's management library, name its GPUs, and read their figures. No other module loads it.

It may be absent, and so may the driver; a dying GPU can block any call, so call it in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

POWER_AVERAGE_FIELD = 185
POWER_INSTANT_FIELD = 186
_VALUE_NAMES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # names of a field's value, by its type
T = TypeVar("T")
Figures = dict[str, float | int]


class Unavailable(Exception):
    """The library is not installed, or the driver does not answer; with their message."""


@contextmanager
def session() -> Iterator[Any]:
    """Yield the module pynvml, started. Raises Unavailable: it is missing, or raised an error in the block."""
    try:
        import pynvml  # here: a node without the library has runs too
    except ImportError as exc:
        raise Unavailable(str(exc)) from exc
    try:
        pynvml.nvmlInit()  # which counts: other code of this process may have started it too
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as exc:
        raise Unavailable(str(exc)) from exc


def listed(visible: str) -> list[str]:
    """Return the entries of a CUDA_VISIBLE_DEVICES."""
    return [name.strip() for name in visible.split(",") if name.strip()]


def gpu_names(nvml: Any, visible: Sequence[str]) -> list[str]:
    """Return the names of the usable GPUs: of CUDA_VISIBLE_DEVICES, or all of the node by number."""
    return list(visible) or [str(index) for index in range(nvml.nvmlDeviceGetCount())]


def each_gpu(nvml: Any, names: Sequence[str], read: Callable[[int, str, Any], T]) -> tuple[list[T], list[str]]:
    """Return the result of a function of number, name and handle for each GPU that answers, and others' errors."""
    results, troubles = list[T](), list[str]()
    for number, name in enumerate(names):
        try:
            by_index, by_uuid = nvml.nvmlDeviceGetHandleByIndex, nvml.nvmlDeviceGetHandleByUUID
            results.append(read(number, name, by_index(int(name)) if name.isdigit() else by_uuid(name)))
        except nvml.NVMLError as exc:
            troubles.append(f"GPU {name}: {exc}")
    return results, troubles


def driver_version() -> str:
    """Return the version of this node's driver; "" if none answers."""
    try:
        with session() as nvml:
            return text(nvml.nvmlSystemGetDriverVersion())
    except Unavailable:
        return ""


class GpuMeter:
    """One GPU. A figure that it does not support, or that fails for a moment, lacks in a sample."""

    def __init__(self, nvml: Any, handle: Any, number: int) -> None:
        self.number = number
        self._nvml, self._handle = nvml, handle

    def read(self) -> Figures:
        """Return the present figures, by the names of ``GPU_FIGURES``; empty if the GPU does not answer."""
        return self._ask(_READERS)

    def device(self) -> dict[str, Any]:
        """Return the constant facts: name, memory, limits."""
        return {"gpu": self.number, **self._ask(_FACTS)}

    def _ask(self, readers: Sequence[_Reader]) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for reader in readers:
            with suppress(self._nvml.NVMLError):
                figures |= reader(self._nvml, self._handle)
        return figures


def memory_bytes(nvml: Any, handle: Any) -> tuple[int, int]:
    """Return the memory in use, and all memory."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(memory.used), int(memory.total)


def _power(nvml: Any, handle: Any) -> Figures:
    fields = nvml.nvmlDeviceGetFieldValues(handle, [POWER_INSTANT_FIELD, POWER_AVERAGE_FIELD])
    pairs = zip(("power_w", "power_avg_w"), fields, strict=False)
    known = {name: field for name, field in pairs if not field.nvmlReturn}
    values = {name: getattr(field.value, _VALUE_NAMES[field.valueType]) for name, field in known.items()}
    figures = {name: round(float(value) / 1e3, 1) for name, value in values.items()}
    return figures or {"power_w": round(nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, 1)}


def _utilisation(nvml: Any, handle: Any) -> Figures:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"util_pct": int(rates.gpu), "mem_util_pct": int(rates.memory)}


def _clocks(nvml: Any, ask: Callable[[int], Any], suffix: str) -> Figures:
    kinds = {"sm_clock": nvml.NVML_CLOCK_SM, "mem_clock": nvml.NVML_CLOCK_MEM}
    return {f"{name}{suffix}": int(ask(kind)) for name, kind in kinds.items()}


def _ecc_errors(nvml: Any, handle: Any) -> Figures:
    """Return the uncorrected memory errors since the driver was loaded."""
    kind = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    return {"ecc_errors": int(nvml.nvmlDeviceGetTotalEccErrors(handle, *kind))}


def text(value: str | bytes) -> str:
    """Return a text of the library; older versions return bytes."""
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
    _ecc_errors,
)
"""The sampled figures: each function reads figures that go together."""

_FACTS: tuple[_Reader, ...] = (
    lambda nvml, gpu: {"name": text(nvml.nvmlDeviceGetName(gpu))},
    lambda nvml, gpu: {"uuid": text(nvml.nvmlDeviceGetUUID(gpu))},
    lambda nvml, gpu: {"mem_total_gb": round(memory_bytes(nvml, gpu)[1] / 1e9, 3)},
    lambda nvml, gpu: {"power_limit_w": nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3},
    lambda nvml, gpu: _clocks(nvml, partial(nvml.nvmlDeviceGetMaxClockInfo, gpu), "_max_mhz"),
)
"""The constant facts."""
