"""Our operators as ONNX Runtime takes them on a CPU: a library that is compiled where it runs.

    abi.h       the part of ONNX Runtime's C interface that operators need
    library.cc  the operators, and how they are registered
    library.py  compiles the library, once a machine, and says why there is none

Nothing depends on it: without it ONNX Runtime runs what a node's function says. The library has no
Python in it.
"""
