"""Our plugin layers for the plain command line of polygraphy.

Where ssd-trt is installed, polygraphy calls `argument_groups` at every start (entry point
``polygraphy.run.plugins``; all its commands load it), and its commands take our models as they
are. Without the plugin layers TensorRT would build the operators' functions instead:

    polygraphy inspect model model.onnx
    polygraphy run model.onnx --onnxrt
    POLYGRAPHY_USE_TENSORRT_RTX=1 polygraphy convert model.onnx -o model.plan --convert-to trt \\
        --strongly-typed --compute-capabilities 8.9 12.0 \\
        --trt-min-shapes ... --trt-opt-shapes ... --trt-max-shapes ...
    POLYGRAPHY_USE_TENSORRT_RTX=1 polygraphy run model.plan --model-type engine --trt

The last one needs the GPU that the plan was compiled for. There the layers run by their numpy
reference on the host: right, and slow.

Nothing on the command line itself does it: ``--plugins`` loads C libraries, and the scripts for
the network and its configuration run after the parser has chosen plugins or functions.
"""

from __future__ import annotations

from engines.errors import MissingDependencyError
from export.check.launcher import ReferenceLauncher
from export.tensorrt import vendor
from plugins import tensorrt as plugins


def argument_groups() -> list[object]:
    """Register our layers with the TensorRT that polygraphy uses, if it is installed.

    Returns no command line options. polygraphy prints an exception as a warning and goes on.
    """
    from polygraphy import config

    try:
        found = vendor.load("tensorrt-rtx" if config.USE_TENSORRT_RTX else "tensorrt")
    except MissingDependencyError:
        return []
    plugins.register(found.module, ReferenceLauncher())
    return []
