"""Which share of the bytes of common architectures `compress` reaches, and why not the rest.

Builds small models with random weights, backbones of keras-hub and one for each kind of Keras
layer, and compresses them to integers of 8 bits. For each it compares the error in the report with
a measured one, and saves and loads the small model. Each model is in a process of its own:

    python benchmarks/compression_coverage.py [NAME ...] [--seconds 90] [--output TABLE.md]
"""

import argparse
import inspect
import multiprocessing
import queue
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import keras_hub
import numpy as np

from keras_small import compress

LENGTH = 8
# Arguments that a backbone has no default for, or too large a one, by name.
SMALL: dict[str, Any] = {
    "vocabulary_size": 200,
    "vocab_size": 200,
    "num_layers": 2,
    "num_layers_enc": 1,
    "num_layers_dec": 1,
    "num_heads": 2,
    "num_attention_heads": 2,
    "num_query_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "hidden_dim": 32,
    "embedding_dim": 32,
    "intermediate_dim": 64,
    "mlp_dim": 64,
    "max_sequence_length": 32,
    "num_experts": 2,
    "top_k": 1,
    "patch_size": 8,
    "image_size": 16,
    "image_shape": (32, 32, 3),
}
# Those that need no more arguments.
_BACKBONES = (
    "Albert",
    "Bart",
    "Bert",
    "Bloom",
    "DebertaV3",
    "DistilBert",
    "Electra",
    "ESM2",
    "FNet",
    "GPT2",
    "GPTNeoX",
    "Falcon",
    "Gemma",
    "GptOss",
    "Llama",
    "Llama3",
    "Mistral",
    "OPT",
    "Phi3",
    "Qwen",
    "Qwen3",
    "Roberta",
    "RoformerV2",
    "SmolLM3",
    "T5",
    "XLMRoberta",
    "XLNet",
    "DINOV2",
    "DINOV3",
    "DeiT",
    "ViT",
    "EdRec",
)
HUB: dict[str, dict[str, Any]] = {
    **{name: {} for name in _BACKBONES},
    "Falcon": {"num_attention_heads": 2},
    "RoformerV2": {"head_size": 16},
    "Gemma3": {"vision_encoder": None},
    "Mixtral": {},
    "QwenMoe": {"moe_intermediate_dim": 32, "shared_expert_intermediate_dim": 32},
    "SmolLM3": {
        "num_attention_heads": 2,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_layer_enabled_list": [True, True],
        "layer_types": ["full_attention", "full_attention"],
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-6,
        "max_position_embeddings": 32,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
    },
    "Whisper": {"max_encoder_sequence_length": 16, "max_decoder_sequence_length": 16},
    "DenseNet": {"stackwise_num_repeats": [2, 2], "growth_rate": 16},
    "EfficientNet": {
        "stackwise_width_coefficients": [1.0, 1.0],
        "stackwise_depth_coefficients": [1.0, 1.0],
        "stackwise_kernel_sizes": [3, 3],
        "stackwise_num_repeats": [1, 1],
        "stackwise_input_filters": [16, 16],
        "stackwise_output_filters": [16, 24],
        "stackwise_expansion_ratios": [4, 4],
        "stackwise_squeeze_and_excite_ratios": [0.25, 0.25],
        "stackwise_strides": [1, 2],
        "stackwise_block_types": ["v1", "v1"],
        "stackwise_force_input_filters": [0, 0],
        "stackwise_nores_option": [False, False],
        "input_shape": (32, 32, 3),
    },
    "MiT": {
        "layerwise_depths": [1, 1],
        "layerwise_num_heads": [1, 2],
        "layerwise_sr_ratios": [4, 2],
        "max_drop_path_rate": 0.1,
        "layerwise_patch_sizes": [7, 3],
        "layerwise_strides": [4, 2],
        "hidden_dims": [16, 32],
    },
    "MobileNet": {
        "stackwise_expansion": [[16, 32], [48]],
        "stackwise_num_blocks": [2, 1],
        "stackwise_num_filters": [[16, 16], [24]],
        "stackwise_kernel_size": [[3, 3], [5]],
        "stackwise_num_strides": [[2, 1], [2]],
        "stackwise_se_ratio": [[None, None], [0.25]],
        "stackwise_activation": [["relu", "relu"], ["hard_swish"]],
        "stackwise_padding": [[1, 1], [2]],
        "output_num_filters": 64,
        "depthwise_filters": 16,
        "depthwise_stride": 1,
        "depthwise_residual": False,
        "last_layer_filter": 32,
        "input_num_filters": 16,
        "input_activation": "hard_swish",
        "output_activation": "hard_swish",
    },
    "ResNet": {
        "input_conv_filters": [64],
        "input_conv_kernel_sizes": [3],
        "stackwise_num_filters": [64, 64],
        "stackwise_num_blocks": [2, 2],
        "stackwise_num_strides": [1, 2],
        "block_type": "basic_block",
    },
    "SegFormer": {"projection_filters": 16},
    "SwinTransformer": {
        "embed_dim": 16,
        "depths": [2, 2],
        "num_heads": [2, 2],
        "window_size": 4,
        "patch_size": 2,
    },
    "VGG": {"stackwise_num_repeats": [1, 1], "stackwise_num_filters": [16, 32]},
    "Xception": {
        "stackwise_conv_filters": [[16, 32], [32, 32]],
        "stackwise_pooling": [False, True],
    },
    "CLIP": {"projection_dim": 16},
    "SigLIP": {"projection_dim": 16},
    "SAM": {},
    "ViTDet": {"hidden_size": 32, "global_attention_layer_indices": [1], "window_size": 2},
}
KERAS: dict[str, tuple[Callable[[], keras.layers.Layer], tuple[int, ...] | None]] = {
    "Dense": (lambda: keras.layers.Dense(64), (64,)),
    "EinsumDense": (lambda: keras.layers.EinsumDense("abc,cde->abde", (None, 4, 16)), (8, 64)),
    "Embedding": (lambda: keras.layers.Embedding(200, 32), None),
    "Conv1D": (lambda: keras.layers.Conv1D(32, 3), (16, 32)),
    "Conv2D": (lambda: keras.layers.Conv2D(32, 3), (8, 8, 32)),
    "Conv2D, 2 groups": (lambda: keras.layers.Conv2D(32, 3, groups=2), (8, 8, 32)),
    "Conv3D": (lambda: keras.layers.Conv3D(32, 3), (4, 4, 4, 16)),
    "Conv1DTranspose": (lambda: keras.layers.Conv1DTranspose(32, 3), (8, 32)),
    "Conv2DTranspose": (lambda: keras.layers.Conv2DTranspose(32, 3), (4, 4, 32)),
    "Conv3DTranspose": (lambda: keras.layers.Conv3DTranspose(32, 3), (4, 4, 4, 16)),
    "DepthwiseConv1D": (lambda: keras.layers.DepthwiseConv1D(5), (16, 64)),
    "DepthwiseConv2D": (lambda: keras.layers.DepthwiseConv2D(5), (8, 8, 64)),
    "SeparableConv1D": (lambda: keras.layers.SeparableConv1D(32, 3), (16, 32)),
    "SeparableConv2D": (lambda: keras.layers.SeparableConv2D(32, 3), (8, 8, 32)),
    "SimpleRNN": (lambda: keras.layers.SimpleRNN(32), (8, 32)),
    "LSTM": (lambda: keras.layers.LSTM(32), (8, 32)),
    "GRU": (lambda: keras.layers.GRU(32), (8, 32)),
    "Bidirectional": (lambda: keras.layers.Bidirectional(keras.layers.LSTM(32)), (8, 32)),
    "RNN of LSTM cells": (
        lambda: keras.layers.RNN([keras.layers.LSTMCell(32), keras.layers.LSTMCell(32)]),
        (8, 32),
    ),
    "TimeDistributed": (lambda: keras.layers.TimeDistributed(keras.layers.Dense(32)), (8, 32)),
    "ConvLSTM1D": (lambda: keras.layers.ConvLSTM1D(16, 3), (4, 16, 16)),
    "ConvLSTM2D": (lambda: keras.layers.ConvLSTM2D(16, 3), (4, 8, 8, 16)),
    "MultiHeadAttention": (lambda: keras.layers.MultiHeadAttention(2, 32), (8, 64)),
    "GroupQueryAttention": (lambda: keras.layers.GroupQueryAttention(32, 4, 2), (8, 64)),
    "ReversibleEmbedding": (lambda: keras.layers.ReversibleEmbedding(200, 32), None),
    "ReversibleEmbedding, untied": (
        lambda: keras.layers.ReversibleEmbedding(200, 32, tie_weights=False),
        None,
    ),
    "SpectralNormalization": (
        lambda: keras.layers.SpectralNormalization(keras.layers.Dense(32)),
        (64,),
    ),
}


def hub_model(name: str) -> keras.Model:
    """Returns a small backbone of keras-hub."""
    models = keras_hub.models
    extra = dict(HUB[name])
    if name in ("CLIP", "SigLIP"):
        extra["vision_encoder"] = _small(getattr(models, f"{name}VisionEncoder"))
        extra["text_encoder"] = _small(
            getattr(models, f"{name}TextEncoder"), max_sequence_length=LENGTH
        )
    if name == "SegFormer":
        extra["image_encoder"] = hub_model("MiT")
    if name == "SAM":
        extra["image_encoder"] = hub_model("ViTDet")
        extra["prompt_encoder"] = keras_hub.layers.SAMPromptEncoder(
            hidden_size=256, image_embedding_size=(4, 4), input_image_size=(32, 32),
            mask_in_channels=16,
        )  # fmt: skip
        extra["mask_decoder"] = keras_hub.layers.SAMMaskDecoder(
            num_layers=1, hidden_size=256, intermediate_dim=64, num_heads=2, embedding_dim=256,
            num_multimask_outputs=3, iou_head_depth=2, iou_head_hidden_dim=32,
        )  # fmt: skip
    return _small(getattr(models, f"{name}Backbone"), **extra)


def _small(cls: type, **extra: Any) -> keras.Model:
    known = inspect.signature(cls.__init__).parameters
    small = {name: value for name, value in SMALL.items() if name in known}
    return cls(**small | extra)


def layer_model(name: str) -> keras.Model:
    """Returns a model of one Keras layer."""
    make, shape = KERAS[name]
    inputs = keras.Input((LENGTH,), dtype="int32") if shape is None else keras.Input(shape)
    layer = make()
    if "Attention" in name:
        return keras.Model(inputs, layer(inputs, inputs))
    outputs = layer(inputs)
    if "Reversible" in name:
        outputs = layer(outputs, reverse=True)
    return keras.Model(inputs, outputs)


def inputs_for(model: keras.Model) -> Any:
    """Returns random inputs, ids where the model takes integers."""
    rng = np.random.default_rng(0)

    def values(spec: Any) -> np.ndarray:
        shape = (8, *(size or LENGTH for size in spec.shape[1:]))
        if spec.dtype == "bool" or ("mask" in spec.name and "masks" not in spec.name):
            return np.ones(shape, spec.dtype)
        if keras.backend.is_float_dtype(spec.dtype):
            return rng.normal(size=shape).astype(spec.dtype)
        most = 2 if any(word in spec.name for word in ("segment", "label")) else 100
        return rng.integers(0, most, shape).astype(spec.dtype)

    return keras.tree.map_structure(values, model.input)


def _outputs(model: keras.Model, inputs: Any) -> np.ndarray:
    outputs = keras.tree.flatten(model.predict(inputs, verbose=0))
    return np.concatenate([np.asarray(x, "float64").ravel() for x in outputs])


def checked(name: str) -> dict[str, Any]:
    """Compresses one model, and returns what was reached and what its report says."""
    keras.utils.set_random_seed(0)
    model = layer_model(name) if name in KERAS else hub_model(name)
    inputs = inputs_for(model)
    start = time.perf_counter()
    result = compress(model, bits=8, data=inputs, verbose=0)
    seconds = time.perf_counter() - start
    report = result.report
    expected, actual = _outputs(model, inputs), _outputs(result.model, inputs)
    error = float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
    faults = []
    if abs(error - report.error) > 0.02 * error + 1e-6:
        faults.append(f"the report's error is {report.error:.5f}, the measured one {error:.5f}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "small.keras")
        result.model.save(path)
        loaded = _outputs(keras.saving.load_model(path, compile=False), inputs)
    if not np.allclose(loaded, actual, rtol=1e-4, atol=1e-5 * np.abs(actual).max()):
        faults.append("the loaded model has other outputs")
    reached = sum(row.bytes_before for row in report.layers if row.format != "kept")
    reasons: dict[str, int] = {}
    for row in report.layers:
        if row.format == "kept":
            path = row.path if row.reason == "not supported" else row.kind
            text = f"{path}: {row.reason or 'no smaller candidate'}"
            reasons[text] = reasons.get(text, 0) + row.bytes_before
    return {
        "bytes": report.bytes_before,
        "reached": reached / report.bytes_before,
        "ratio": report.ratio,
        "error": error,
        "seconds": seconds,
        "faults": faults,
        "reasons": {k: v / report.bytes_before for k, v in reasons.items()},
    }


def _child(name: str, results: Any) -> None:
    try:
        results.put(checked(name))
    except Exception as error:  # whatever a model or its compression raises
        results.put({"failure": f"{type(error).__name__}: {str(error)[:300]}"})


def in_process(name: str, seconds: int) -> dict[str, Any]:
    """Returns what `checked` returns, in another process and with a time limit.

    It is a fork, which need not import everything again; this process never runs an operation.
    """
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_child, args=(name, results))
    child.start()
    try:
        return results.get(timeout=seconds)
    except queue.Empty:
        return {"failure": f"not ready after {seconds} seconds"}
    finally:
        child.kill()
        child.join()


def row_of(name: str, result: dict[str, Any]) -> str:
    """Returns a row of the table."""
    if "failure" in result:
        return f"| {name} | | | | {result['failure'].replace('|', '/').replace(chr(10), ' ')} |"
    reasons = sorted(result["reasons"].items(), key=lambda item: -item[1])
    texts = [f"{share:.1%} {text}" for text, share in reasons if share >= 0.001][:3]
    texts = [f"**{fault}**" for fault in result["faults"]] + texts
    return (
        f"| {name} | {result['reached']:.1%} | {result['ratio']:.2f} | {result['error']:.4f} | "
        f"{'; '.join(texts) or '-'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=int, default=90, help="the limit of each model")
    parser.add_argument("--output", type=Path, help="a Markdown file for the table")
    arguments = parser.parse_args()
    header = "| model | bytes reached | times smaller | error | stays as it is |"
    lines = [header, "| --- | --- | --- | --- | --- |"]
    for name in arguments.names or [*KERAS, *HUB]:
        lines.append(row_of(name, in_process(name, arguments.seconds)))
        print(lines[-1], flush=True)
        if arguments.output:
            arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
