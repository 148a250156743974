"""ONNX in, TensorRT engine out; TensorRT and TensorRT-RTX by one injected module object."""
