"""The engines of a bundle on its devices, loaded and probed, with nothing over them yet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias

from engines.bundle import Bundle
from engines.compat import TENSORRT_BACKENDS, require
from engines.manifest import DRAFT, TARGET, EngineManifest
from runtime.backends.api import DeviceSession
from runtime.backends.blocking import BlockingSession
from runtime.backends.onnxruntime import OrtSession
from runtime.backends.onnxruntime_cuda import OrtCudaSession
from runtime.backends.tensorrt.session import TensorRtSession
from runtime.device.cuda import CudaDevice, CudaStream, CudaStreamOptions
from runtime.device.host import HostDevice
from runtime.devices import DeviceName, DevicePair
from runtime.loading.hardware import Hardware
from runtime.loading.probing import on_stream, remembered_probe
from runtime.loading.warming import round_calls
from runtime.memo import Memo
from runtime.placement import Placement
from runtime.workers.probe import Invariance

Tell: TypeAlias = Callable[[str], None]
"""Told what the user may want to know, a line at a time."""
GpuSession: TypeAlias = OrtCudaSession | TensorRtSession


class GpuEngines:
    """The target on its GPU, and the draft, where there is one, on its device. Close it.

    Streams are named after the engines. A draft is ``draft_session`` on a GPU and
    ``draft_host_session`` on the CPU, where its stream is one of the target's GPU all the same,
    since it reads what the target's stream writes.
    """

    def __init__(
        self,
        bundle: Bundle,
        placement: Placement,
        *,
        num_draft: int,
        num_slots: int,
        memo: Memo,
        hardware: Hardware,
        tell: Tell,
    ) -> None:
        self.bundle = bundle
        self.placement = placement
        self._num_slots = num_slots
        self._hardware = hardware
        self._tell = tell
        self._opened: dict[DeviceName, CudaDevice] = {}
        self._streams: list[CudaStream] = []
        self._sessions: list[DeviceSession] = []
        self.draft_session: DeviceSession | None = None
        self.draft_host_session: OrtSession | None = None
        try:
            self._open(num_draft, memo)
        except BaseException:
            self.close()
            raise

    def _open(self, num_draft: int, memo: Memo) -> None:
        devices = self.placement.devices
        self.target_device = self._device(devices.target)
        self.target_stream = self._stream(self.target_device, TARGET)
        target = self._load(TARGET, self.bundle.target, self.target_device, self.target_stream)
        self.target_session: DeviceSession = target
        self.invariance = self._probe(num_draft, memo)
        if self.placement.mode == "ar":
            return
        draft = self.bundle.draft
        assert draft is not None
        name = devices.draft if devices.draft.is_gpu else devices.target
        self.draft_device = self._device(name)
        self.draft_stream = self._stream(self.draft_device, DRAFT)
        if devices.draft.is_gpu:
            self.draft_session = self._load(DRAFT, draft, self.draft_device, self.draft_stream)
        else:
            self.draft_host_session = self._load_on_cpu(draft)

    def warm_up(self, num_draft: int, num_branches: int) -> None:
        """Run what rounds run, of compiled engines; caches are empty afterwards. Before any text.

        ONNX Runtime has nothing to compile.
        """
        sides = [(TARGET, self.target_session, self.target_stream)]
        if self.draft_session is not None:
            sides.append((DRAFT, self.draft_session, self.draft_stream))
        for role, session, stream in sides:
            if not isinstance(session, TensorRtSession):
                continue
            calls = round_calls(
                role,
                self.placement.mode,
                num_draft=num_draft,
                num_branches=num_branches,
                num_slots=self._num_slots,
                min_tokens=self.invariance.min_tokens,
            )
            self._tell(
                f"warming up the {role} engine: first runs of {len(calls)} calls "
                "(TensorRT-RTX compiles kernels for each, once on a machine)"
            )
            on_stream(stream, partial(session.warm_up, calls), f"warm up {role}")

    def reopen_target_stream(self) -> CudaStream:
        """The target's stream anew, after the first was closed."""
        return self._stream(self.target_device, TARGET)

    def close(self, before_engines: Callable[[], None] = lambda: None) -> None:
        """Free streams, engines, caches and devices, all of them whatever fails; idempotent.

        ``before_engines`` is called when nothing runs any more, and the engines are still there.
        Raises what failed: of several, the last, with those before it as its context.
        """
        with ExitStack() as last_first:
            for device in self._opened.values():
                last_first.callback(device.close)
            for session in self._sessions:
                last_first.callback(session.close)
            if self.draft_host_session is not None:
                last_first.callback(self.draft_host_session.close)
            last_first.callback(before_engines)
            for stream in self._streams:  # first: queued work would meet freed memory
                last_first.callback(stream.close)

    def _device(self, name: DeviceName) -> CudaDevice:
        if name not in self._opened:
            assert name.ordinal is not None
            self._opened[name] = CudaDevice(
                name.ordinal,
                streams=stream_options(self.placement.devices),
                core=self._hardware.core(),
            )
        return self._opened[name]

    def _stream(self, device: CudaDevice, role: str) -> CudaStream:
        cores = self.placement.draft_cores if role == DRAFT else ()
        stream = device.create_stream(role, cores=cores or None)
        self._streams.append(stream)
        return stream

    def _load(
        self, role: str, manifest: EngineManifest, device: CudaDevice, stream: CudaStream
    ) -> DeviceSession:
        session = self._session(role, manifest, device, stream)
        self._sessions.append(session)
        session.load()
        return session

    def _session(
        self, role: str, manifest: EngineManifest, device: CudaDevice, stream: CudaStream
    ) -> GpuSession:
        folder = self.bundle.path / role
        backend = manifest.backend
        if backend not in TENSORRT_BACKENDS:
            return OrtCudaSession(
                folder,
                manifest,
                device,
                stream,
                num_slots=self._num_slots,
                module=self._hardware.onnxruntime,
            )
        vendor = self._hardware.vendor(backend)
        require(
            self.bundle,
            backend=backend,
            builder=vendor.builder,
            capability=device.capability,
            on_gpu=True,
        )
        return TensorRtSession(
            folder,
            manifest,
            device,
            stream,
            vendor=vendor,
            num_slots=self._num_slots,
            launcher=self._hardware.launcher,
            note=self._tell,
        )

    def _load_on_cpu(self, manifest: EngineManifest) -> OrtSession:
        session = OrtSession(
            self.bundle.path / DRAFT,
            manifest,
            HostDevice(),
            num_threads=max(1, len(self.placement.draft_cores)),
            num_slots=self._num_slots,
        )
        # On the thread that will run it: pool threads inherit its cores.
        self.draft_stream.call(session.load)
        return session

    def _probe(self, num_draft: int, memo: Memo) -> Invariance:
        device = self.target_device
        session = BlockingSession(self.target_session, device, num_slots=self._num_slots)
        return remembered_probe(
            self.target_stream,
            session,
            memo,
            build_key=self.bundle.manifest.build_key,
            executor=f"{self._executor()} on {device.gpu_name}",
            num_tokens=num_draft + 1,
            num_slots=self._num_slots,
            is_strict=False,
        )

    def _executor(self) -> str:
        session = self.target_session
        if isinstance(session, OrtCudaSession):
            return f"onnxruntime-gpu {session.version}"
        return self._hardware.vendor(self.bundle.manifest.backend).builder


def stream_options(devices: DevicePair) -> dict[str, CudaStreamOptions]:
    """How the engines' streams share a GPU: parts of its own for each, or the target's work first.

    With a GPU each there is nothing to share.
    """
    share = devices.draft_sm_share
    if share is not None:
        return {
            TARGET: CudaStreamOptions(sm_share=1 - share),
            DRAFT: CudaStreamOptions(sm_share=share),
        }
    return {TARGET: CudaStreamOptions(is_urgent=True)} if devices.is_shared else {}
