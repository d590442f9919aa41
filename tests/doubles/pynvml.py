"""A double of nvidia-ml-py 13 (module `pynvml`): the calls that torch.cuda makes, for one GPU.

As in the package, every call but `nvmlInit` fails before it, structures have plain fields, and the
utilisation is an integer in per cent of a sample period. `samples` is what the device reports, the
last value again and again; `not_supported` is what a MIG instance does.
"""

from types import SimpleNamespace

USED_BYTES = 3 * 2**30

samples: list[int] = []
not_supported = False
_initialized = 0


class NVMLError(Exception):
    """Base of the errors; the package makes a class for each code of the library."""


class NVMLError_Uninitialized(NVMLError):  # noqa: N801, N818  (the name in the package)
    """Any call before `nvmlInit`."""


class NVMLError_DriverNotLoaded(NVMLError):  # noqa: N801, N818
    """No driver; torch catches it by name."""


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818
    """The device does not report this value."""


class NVMLError_InvalidArgument(NVMLError):  # noqa: N801, N818
    """No such device."""


def nvmlInit() -> None:  # noqa: N802
    global _initialized
    _initialized += 1


def nvmlDeviceGetHandleByIndex(index: int) -> SimpleNamespace:  # noqa: N802
    if not _initialized:
        raise NVMLError_Uninitialized("Uninitialized")
    if index != 0:
        raise NVMLError_InvalidArgument("Invalid Argument")
    return SimpleNamespace(index=index)


def nvmlDeviceGetUtilizationRates(handle: SimpleNamespace) -> SimpleNamespace:  # noqa: N802
    if not_supported:
        raise NVMLError_NotSupported("Not Supported")
    value = samples.pop(0) if len(samples) > 1 else samples[0]
    return SimpleNamespace(gpu=value, memory=value // 2)


def nvmlDeviceGetMemoryInfo(handle: SimpleNamespace) -> SimpleNamespace:  # noqa: N802
    return SimpleNamespace(total=141 * 10**9, free=141 * 10**9 - USED_BYTES, used=USED_BYTES)
