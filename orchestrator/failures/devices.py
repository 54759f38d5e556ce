"""The names that runtimes and libraries of accelerators give their errors, for all makers. Values only.

HIP shares CUDA's texts (`hipGetErrorString`) and the ends of its names (`hipErrorNoDevice`, `HIPBLAS_STATUS_...`).
Level Zero, SYCL, OpenCL, HSA, CANN and XLA have names of their own for the same results.
"""

from __future__ import annotations

import re

_RUNTIME = r"(?:CUDA|Cuda|HIP|ROCm|XPU|NPU|MUSA|HPU|MPS)"
_FAILURE = r"(?: driver| runtime)? (?:[Ee]rror|failure)(?: \([^()\n]*\))?:? (?:\d+ )?'?"
_COUNTING = r"cudaGetDeviceCount\(\)[^\n]{0,160}\bError \d{1,3}: "
_TRITON = r"Triton Error \[\w+\]: "
_ERROR = rf"(?:{_RUNTIME}{_FAILURE}|{_COUNTING}|{_TRITON})"
"""How torch, NCCL, RCCL and Triton begin an error of the runtime, and torch an error of counting the devices."""


def _named(camel: str, upper: str) -> str:
    return rf"(?:cuda|hip)Error(?:{camel})\b|(?:CUDA|HIP)_ERROR_(?:{upper})\b"


MEMORY = (
    rf"^(?:[\w.]+: )*{_RUNTIME}(?: backend)? out of memory"
    r"|^Error out of memory at line \d"  # the macro of NVIDIA's samples, which libraries have copied
    rf"|{_RUNTIME}(?:(?: backend)? out of memory\. Tried to allocate \d|\b[\]\w ]*: out of memory"
    rf"|{_FAILURE}out of memory)|{_COUNTING}out of memory|NVML_SUCCESS == .* ASSERT FAILED at .*CachingAllocator"
    rf"|{_named('MemoryAllocation|OutOfMemory', 'OUT_OF_MEMORY')}"
    r"|OUT_OF_DEVICE_MEMORY\b|(?is:resource_?exhausted(?!.*device:cpu).*(?:out of memory|\boom|to allocate))"
)
ALLOCATION = r"\b[A-Z]+_(?:STATUS_)?(?:(?!HOST)[A-Z]+_)*?ALLOC(?:ATION)?_FAILED\b"
"""The handles and workspaces of the vendors' libraries, allocated behind PyTorch's back."""
FAULT = (
    r"(?:an illegal memory access|an illegal instruction|misaligned address) was encountered"
    rf"|{_ERROR}(?:initialization error|misaligned address|unspecified launch failure|hardware stack error"
    r"|invalid program counter|unknown error|Invalid access of peer GPU memory|the launch timed out)"
    r"|-capable device(?:s are|\(s\) is/are) busy|CUDA unknown error|"
    + _named(
        "IllegalAddress|LaunchFailure|MisalignedAddress|IllegalInstruction|HardwareStackError|InvalidPc"
        "|DevicesUnavailable",
        "ILLEGAL_ADDRESS|LAUNCH_FAILED|MISALIGNED_ADDRESS|ILLEGAL_INSTRUCTION|HARDWARE_STACK_ERROR|INVALID_PC",
    )
    + r"|\b(?:CU|HIP|ROC)[A-Z]+_(?:STATUS_)?(?:EXECUTION_FAILED|EXEC_FAILED|MAPPING_ERROR|INTERNAL_ERROR)"
    r"|Memory access fault by GPU"
)
"""Errors that bad hardware and a kernel's own bug both cause."""
UNCORRECTABLE = (
    r"(?<!\b[Nn]o )(?<!\b0 )[Uu]ncorrectable (?:ECC|NVLink) error(?!s?[\s:=]{1,4}0\b)"
    r"|[Uu]ncorrectable hardware errors? detected"
    rf"|{_named('ECCUncorrectable|ECCNotCorrectable|NvlinkUncorrectable', '(?:ECC|NVLINK)_UNCORRECTABLE')}"
)
LOST = r"GPU has fallen off the bus|GPU is lost|\w_ERROR_DEVICE_LOST|(?:GPU Reset|Node Reboot) Required"
DRIVER = (
    r"Driver/library version mismatch|unsupported display driver / cuda driver|Unable to determine the device handle"
    rf"|{_ERROR}system not yet initialized|CUDA driver initialization failed"
    rf"|{_named('SystemNotReady|SystemDriverMismatch', 'SYSTEM_(?:NOT_READY|DRIVER_MISMATCH)')}"
)
ORDINAL = rf"invalid device ordinal|Duplicate GPU detected|{_named('InvalidDevice', 'INVALID_DEVICE')}"
ASSERTION = rf"{_ERROR}device-side assert triggered|{_named('Assert', 'ASSERT')}"

NAMED = re.compile(
    r"CUDA|[Cc]uda|cuDNN|CUBLAS|CUDNN|NCCL|RCCL|NVML|HIP|ROCm|XPU|device ordinal|\b[Gg][Pp][Uu]s?\b|NVIDIA"
    r"|unspecified launch failure"
)
"""Whether a device is spoken of at all."""
