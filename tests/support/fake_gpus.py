"""Stands in for NVIDIA's management library: GPUs whose figures a test sets, of which some may not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

ONE_GPU: dict[str, Any] = {
    "util": (93, 41),
    "used": 40_000_000_000,
    "temperature": 64,
    "clocks": (1980, 3201),
    "instant_mw": 529_400,
    "average_mw": 500_100,
    "energy_mj": 1_234_567,
    "throttle": 4,
    "ecc": 0,
}


class NVMLError(Exception):
    """Stands in for the library's own."""

    def __init__(self, value: int) -> None:
        super().__init__("GPU is lost" if value == 15 else f"error {value}")
        self.value = value


class FakeGpus:
    """So many GPUs. ``calls`` counts what was asked; ``stuck`` makes a call of that name never return."""

    NVMLError = NVMLError
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def __init__(self, count: int = 2) -> None:
        self.gpus = [dict(ONE_GPU) for _ in range(count)]
        self.calls: dict[str, int] = {}
        self.errors: dict[tuple[str, int], int] = {}
        self.stuck = ""
        self.never = threading.Event()

    def fail(self, name: str, gpu: int, value: int | None) -> None:
        """From now on this question about this GPU ends in an error; None for no longer."""
        if value is None:
            self.errors.pop((name, gpu), None)
        else:
            self.errors[name, gpu] = value

    def nvmlInit(self) -> None:  # noqa: N802
        self._called("nvmlInit", -1)

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index >= len(self.gpus):
            raise NVMLError(2)
        return self._called("nvmlDeviceGetHandleByIndex", index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return self.nvmlDeviceGetHandleByIndex(int(uuid.removeprefix("GPU-")))

    def nvmlDeviceGetFieldValues(self, gpu: int, fields: list[int]) -> list[Any]:  # noqa: N802
        self._called("nvmlDeviceGetFieldValues", gpu)
        names = {185: "average_mw", 186: "instant_mw"}
        return [_field(self.gpus[gpu].get(names[number])) for number in fields]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The questions about one GPU."""
        answers: dict[str, Callable[[dict[str, Any], tuple[int, ...]], Any]] = {
            "nvmlDeviceGetUtilizationRates": lambda g, _: SimpleNamespace(gpu=g["util"][0], memory=g["util"][1]),
            "nvmlDeviceGetMemoryInfo": lambda g, _: SimpleNamespace(used=g["used"], total=150_754_820_096),
            "nvmlDeviceGetTemperature": lambda g, _: g["temperature"],
            "nvmlDeviceGetClockInfo": lambda g, kinds: g["clocks"][kinds[0] - 1],
            "nvmlDeviceGetMaxClockInfo": lambda _, kinds: 2000 if kinds[0] == 1 else 3300,
            "nvmlDeviceGetPowerUsage": lambda g, _: g["average_mw"] or 123_000,
            "nvmlDeviceGetTotalEnergyConsumption": lambda g, _: g["energy_mj"],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda g, _: g["throttle"],
            "nvmlDeviceGetTotalEccErrors": lambda g, _: g["ecc"],
            "nvmlDeviceGetName": lambda _g, _: b"NVIDIA H200",
            "nvmlDeviceGetEnforcedPowerLimit": lambda _g, _: 700_000,
        }
        if name == "nvmlDeviceGetUUID":
            return lambda gpu: f"GPU-{self._called(name, gpu)}"
        if name not in answers:
            raise AttributeError(name)
        return lambda gpu, *more: answers[name](self.gpus[self._called(name, gpu)], more)

    def _called(self, name: str, gpu: int) -> int:
        self.calls[name] = self.calls.get(name, 0) + 1
        if name == self.stuck:
            self.never.wait()
        if (value := self.errors.get((name, gpu))) is not None:
            raise NVMLError(value)
        return gpu


def _field(milliwatts: int | None) -> Any:
    """As the library gives a field: with a result, a type, and the value in the place for that type."""
    value = SimpleNamespace(dVal=0.0, uiVal=milliwatts)
    return SimpleNamespace(nvmlReturn=0 if milliwatts is not None else 3, valueType=1, value=value)
