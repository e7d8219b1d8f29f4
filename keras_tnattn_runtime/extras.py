"""The extras of the distribution, by the modules that they bring."""

import importlib.util

_MODULES = {
    "tensorflow": ("tensorflow",),
    "jax": ("jax",),
    "torch": ("torch",),
    "text": ("tensorflow_text", "tensorflow_datasets", "importlib_resources"),
    "hub": ("keras_hub",),
    "train": (
        *("babel", "cyclopts", "filelock", "matplotlib", "powerlaw", "pydantic", "sacrebleu"),
        *("sklearn", "scipy"),
    ),
    "parquet": ("pyarrow",),
    "onnx": ("onnx", "onnxruntime", "onnxscript", "tf2onnx"),
    "openvino": ("openvino",),
    "litert": ("ai_edge_litert", "flatbuffers"),
    "checkpoints": ("safetensors",),
    "coded": ("constriction",),
    "pieces": ("tokenizers",),
    "tensorboard": ("tensorboard",),
    "serve": (
        *("fastapi", "starlette", "anyio", "uvicorn", "httptools", "orjson", "uvloop"),
        "prometheus_client",
    ),
}
BACKENDS = ("tensorflow", "jax", "torch")
EXTRAS = {module: extra for extra, modules in _MODULES.items() for module in modules}


def installation(module: str) -> str:
    """Returns the command that installs a module with its extra.

    The package is on no index, so it is installed from a checkout.

    Args:
        module: A key of `EXTRAS`.

    Example:
        >>> from keras_tnattn_runtime.extras import installation
        >>> installation("onnxruntime")
        "Install the extra onnx in a checkout: pip install '.[onnx]'"
    """
    extra = EXTRAS[module]
    return f"Install the extra {extra} in a checkout: pip install '.[{extra}]'"


def has_onnx() -> bool:
    """Returns whether ONNX files can be written and run."""
    return all(map(importlib.util.find_spec, ("onnx", "onnxruntime")))


def missing_backend(module: str) -> str:
    """Returns a sentence about a backend that is chosen and not installed, with the ways out."""
    text = f"{module} is not installed. {installation(module)}"
    installed = [name for name in BACKENDS if name != module and importlib.util.find_spec(name)]
    return f"{text}, or set KERAS_BACKEND={installed[0]}, which is installed" if installed else text
