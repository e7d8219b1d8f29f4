"""The extras of the distribution, by the modules that they bring."""

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
EXTRAS = {module: extra for extra, modules in _MODULES.items() for module in modules}


def installation(module: str) -> str:
    """Returns the command that installs a module with its extra.

    The package is on no index, so it is installed from a checkout.

    Args:
        module: A key of `EXTRAS`.

    Example:
        >>> from keras_tnattn_runtime.extras import installation
        >>> installation("onnxruntime")
        "Install it in a checkout: pip install '.[onnx]'"
    """
    return f"Install it in a checkout: pip install '.[{EXTRAS[module]}]'"
