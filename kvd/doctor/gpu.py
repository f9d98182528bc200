"""GPUs, their driver, and the packages that reach them; imports none of those itself."""

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

from kvd.doctor.findings import Finding, note, ok, warn
from kvd.doctor.plan import Scene
from kvd.units import human

_NVML = "libnvidia-ml.so.1"
_NAME_BYTES = 96
_IMPORT_SECONDS = 120
# Each with the names it is installed under, and what asks it for a device.
_PACKAGES = {
    "torch": (("torch",), "torch.cuda.is_available()"),
    "cupy": (
        ("cupy-cuda12x", "cupy-cuda13x", "cupy"), "cupy.cuda.runtime.getDeviceCount() > 0",
    ),
    "kvikio": (("kvikio-cu12", "kvikio-cu13", "kvikio"), "True"),
}  # fmt: skip


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_uint64), ("free", ctypes.c_uint64), ("used", ctypes.c_uint64))


def driver(scene: Scene, load: Callable[[str], Any] = ctypes.CDLL) -> Iterator[Finding]:
    """Say which driver and devices there are, as the kernel and the driver's library tell."""
    if not scene.host.has("proc/driver/nvidia/version"):
        yield ok("gpu.driver", "no NVIDIA driver: KV stays in host memory and on disk")
        return
    line = scene.host.text("proc/driver/nvidia/version").partition("\n")[0]
    yield ok("gpu.driver", line.partition(":")[2].strip() or line)
    known = _known_to_kernel(scene)
    try:
        devices = _devices(load(_NVML))
    except OSError as error:
        fix = "mount the driver's libraries (NVIDIA container toolkit), or ldconfig"
        yield warn("gpu.devices", f"{_NVML}: {error}; the kernel has {known}", "it", fix)
        return
    if not devices:
        said = f"the driver's library answers with no device; the kernel has {known}"
        yield warn("gpu.devices", said, "a device", "nvidia-smi says what is wrong")
        return
    yield ok("gpu.devices", "; ".join(devices))


def _known_to_kernel(scene: Scene) -> str:
    root = "proc/driver/nvidia/gpus"
    if not scene.host.has(root):
        return "none"
    models = []
    for name in scene.host.names(root):
        for line in scene.host.text(f"{root}/{name}/information").splitlines():
            if line.startswith("Model:"):
                models.append(line.partition(":")[2].strip())
    return ", ".join(models) or "none"


def _devices(library: Any) -> list[str]:
    """Return name and memory of each device, empty when the library does not answer."""
    if library.nvmlInit_v2():
        return []
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        return [_device(library, index) for index in range(count.value)]
    finally:
        library.nvmlShutdown()


def _device(library: Any, index: int) -> str:
    handle = ctypes.c_void_p()
    name, memory = ctypes.create_string_buffer(_NAME_BYTES), _Memory()
    if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
        return f"{index}: does not answer"
    library.nvmlDeviceGetName(handle, name, _NAME_BYTES)
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return f"{index}: {name.value.decode(errors='replace')}, {human(memory.total, down=True)}"


def storage(scene: Scene) -> Iterator[Finding]:
    """Say whether drives can be read straight into a GPU."""
    if not scene.host.has("proc/driver/nvidia/version"):
        return
    for name in ("proc/driver/nvidia-fs/version", "sys/module/nvidia_fs/version"):
        if scene.host.has(name):
            yield ok("gpu.storage", f"nvidia-fs {scene.host.text(name).strip()}")
            return
    said = "no nvidia-fs: reads from disk go through host memory"
    yield note("gpu.storage", said, "nothing today: kvd reads into host memory in any case")


def packages(scene: Scene, versions: Callable[[str], str] = metadata.version) -> Iterator[Finding]:
    """Say which packages that reach a GPU are installed, without importing them."""
    has_gpu = scene.host.has("proc/driver/nvidia/version")
    for package, (names, _) in _PACKAGES.items():
        found = _first_version(names, versions)
        if found:
            yield ok(f"gpu.{package}", found)
        elif package == "cupy" and has_gpu:
            wanted = "it in engines: without, copies from slabs to the GPU use a bounce buffer"
            yield warn("gpu.cupy", "cupy is not installed", wanted, "pip install 'kvd[gpu]'")
        else:
            yield note(f"gpu.{package}", f"{package} is not installed")


def _first_version(names: tuple[str, ...], versions: Callable[[str], str]) -> str:
    for name in names:
        try:
            return f"{name} {versions(name)}"
        except metadata.PackageNotFoundError:
            continue
    return ""


def imports(scene: Scene, run: Callable[..., Any] = subprocess.run) -> Iterator[Finding]:
    """Import each package that is installed, in a process of its own, and ask it for a device."""
    for package, (names, question) in _PACKAGES.items():
        if not _first_version(names, metadata.version):
            continue
        code = f"import json, {package}; print(json.dumps(bool({question})))"
        check = f"gpu.{package}_import"
        fix = f"{sys.executable} -c 'import {package}' says more"
        try:
            done = run(
                [sys.executable, "-c", code], capture_output=True, text=True,
                timeout=_IMPORT_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            yield warn(check, f"{package} is not imported in {_IMPORT_SECONDS} s", "it", fix)
            continue
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            yield warn(check, f"{package} does not import: {last}", "it", fix)
            continue
        sees = json.loads(done.stdout.strip().splitlines()[-1])
        yield ok(check, f"{package} imports and {'sees a' if sees else 'sees no'} device")
