"""CUDA kernels of the ssd:: operators: one source that runs as CUDA and as threads on the host.

`block.cuh` is what a kernel is written in. `host` builds its host form, `compiler` its cubins,
`registry` names the kernels, ``python -m plugins.cuda`` prints what the compiler says of them.
"""
