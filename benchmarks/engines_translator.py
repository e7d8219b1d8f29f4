"""Times translations by our engines and by CTranslate2: `python benchmarks/engines_translator.py`.

The translator is the SDPA model of the preset `sdpa`, untrained, with vocabularies of 8,000;
sentences have 20 pieces and translations 30 (no end is likely). Its weights are written for
CTranslate2 as a `TransformerSpec`, in float32 and in int8, and for ONNX Runtime and LiteRT as the
files of portable folders, also compressed to integers of 8 bits. TensorFlow
searches with `BeamSearch`. Every engine may use one thread, TensorFlow as many as it likes; times
are those of the processor, the medians of several calls, per sentence. Agreement is the share of
pieces that are those of the Keras model in TensorFlow.

Needs the extras onnx, litert and text, and the package ctranslate2.
"""

import side_by_side  # noqa: F401  starts the backend

# isort: split
import argparse
import tempfile
import time
from pathlib import Path

import ctranslate2
import keras
import numpy as np
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation, LayerNormSpec, LinearSpec

from keras_small import compress
from keras_tnattn.models import PRESETS, translator
from keras_tnattn.search.beam_search import BeamSearch
from keras_tnattn.text.reserved import END, RESERVED_PIECES, START
from keras_tnattn.text.word_pieces import WordPieceTokenizer
from keras_tnattn_runtime import reader
from keras_tnattn_runtime.layout import file_sizes
from keras_tnattn_train.exports import Portable, Translator, export

VOCABULARY, LENGTH, EXTRA = 8000, 20, 10
PIECES = [*RESERVED_PIECES, *(f"piece{n}" for n in range(VOCABULARY - len(RESERVED_PIECES)))]
SENTENCES, BEAMS = (1, 32), (1, 4)


def array(weight):
    return np.asarray(keras.ops.convert_to_numpy(weight), "float32")


def set_linear(spec: LinearSpec, kernels, biases) -> None:
    """Sets a linear map to several maps side by side; ours have kernels `(I, ...)`."""
    rows = [array(kernel).reshape(np.shape(kernel)[0], -1).T for kernel in kernels]
    spec.weight = np.ascontiguousarray(np.concatenate(rows))
    spec.bias = np.concatenate([array(bias).reshape(-1) for bias in biases])


def set_norm(spec: LayerNormSpec, layer) -> None:
    spec.gamma, spec.beta = array(layer.gamma), array(layer.beta)


def set_attention(spec, attention, norm, own: bool) -> None:
    """Sets an attention to the sequence itself, or to the memory, and the norm that follows."""
    maps = [attention._query_dense, attention._key_dense, attention._value_dense]
    for linear, group in zip(spec.linear, [maps] if own else [maps[:1], maps[1:]], strict=False):
        set_linear(linear, [x.kernel for x in group], [x.bias for x in group])
    out = attention._output_dense
    kernel = array(out.kernel)
    set_linear(spec.linear[-1], [kernel.reshape(-1, kernel.shape[-1])], [out.bias])
    set_norm(spec.layer_norm, norm)


def set_feedforward(spec, layer) -> None:
    set_linear(spec.linear_0, [layer.hidden.kernel], [layer.hidden.bias])
    set_linear(spec.linear_1, [layer.projection.kernel], [layer.projection.bias])
    set_norm(spec.layer_norm, layer.norms[-1])


def position_vectors(positions, count, dim):
    return array(positions(np.zeros((1, count, dim), "float32")))[0]


def write_ctranslate2(model, folder: Path, quantization: str | None) -> Path:
    """Writes an SDPA translator for CTranslate2."""
    heads = model.encoders[0].attention._num_heads
    spec = TransformerSpec.from_config(
        len(model.encoders), heads, pre_norm=False, activation=Activation.RELU
    )
    dim = model.source_embedding.output_dim
    for side, half in (("source", spec.encoder), ("target", spec.decoder)):
        tables = half.embeddings if isinstance(half.embeddings, list) else [half.embeddings]
        tables[0].weight = array(getattr(model, f"{side}_embedding").embeddings)
        positions = getattr(model, f"{side}_positions")
        half.position_encodings.encodings = position_vectors(positions, 512, dim)
        half.scale_embeddings = positions.scale
    for part, encoder in zip(spec.encoder.layer, model.encoders, strict=True):
        set_attention(part.self_attention, encoder.attention, encoder.norms[0], own=True)
        set_feedforward(part.ffn, encoder)
    for part, decoder in zip(spec.decoder.layer, model.decoders, strict=True):
        set_attention(part.self_attention, decoder.self_attention, decoder.norms[0], own=True)
        set_attention(part.attention, decoder.cross_attention, decoder.norms[1], own=False)
        set_feedforward(part.ffn, decoder)
    set_linear(spec.decoder.projection, [model.logits.kernel], [model.logits.bias])
    spec.config.layer_norm_epsilon = model.encoders[0].epsilon
    spec.config.decoder_start_token = spec.config.bos_token = PIECES[START]
    spec.config.eos_token, spec.config.unk_token = PIECES[END], PIECES[1]
    spec.register_source_vocabulary(PIECES)
    spec.register_target_vocabulary(PIECES)
    spec.validate()
    spec.optimize(quantization)
    folder.mkdir()
    spec.save(str(folder))
    return folder


def ctranslate2_search(folder: Path, kind: str):
    """Returns a function of ids `(B, S)` and the size of a beam, to ids of the best."""
    engine = ctranslate2.Translator(
        str(folder), compute_type=kind, inter_threads=1, intra_threads=1
    )
    ids = {piece: n for n, piece in enumerate(PIECES)}

    def search(source, beams):
        tokens = [[PIECES[n] for n in row] for row in source]
        results = engine.translate_batch(
            tokens, beam_size=beams, length_penalty=0, max_decoding_length=LENGTH + EXTRA
        )
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    return search


def our_search(folder: Path):
    engine = reader.load(folder, threads=1)
    return lambda source, beams: engine.search(source, beams)[0][:, 0, 1:].tolist()


def keras_search(model):
    searches = {
        beams: BeamSearch(model, beams, START, END, EXTRA, length_penalty=0.0) for beams in BEAMS
    }

    def search(source, beams):
        return keras.ops.convert_to_numpy(searches[beams](source).ids)[:, 0, 1:].tolist()

    return search


def engines(model, scratch: Path, small: bool):
    """Yields the name, the bytes on disk and the search of each engine."""
    yield "TensorFlow", None, keras_search(model)
    for kind in ("float32", "int8"):
        folder = write_ctranslate2(model, scratch / kind, None if kind == "float32" else kind)
        yield f"CTranslate2 {kind}", folder, ctranslate2_search(folder, kind)
    models = {"": model}
    if small:
        data = {name: sources(64) for name in ("source", "target")}
        models[", ours 8 bits"] = compress(model, 3.9, data=data, bits=8, verbose=0).model
    tokenizer = WordPieceTokenizer(PIECES)
    for name, each in models.items():
        for engine in ("onnxruntime", "litert"):
            task = Translator(each, tokenizer, tokenizer, extra_tokens=EXTRA, length_penalty=0.0)
            folder = export(task, scratch / f"{engine}{len(name)}", Portable(engine))
            yield f"{engine}{name}", folder, our_search(folder)


def sources(count: int):
    """Returns ids `(count, LENGTH)` of sentences, with their starts and ends."""
    ids = np.random.default_rng(0).integers(4, VOCABULARY, (count, LENGTH)).astype("int32")
    ids[:, 0], ids[:, -1] = START, END
    return ids


def seconds_of(call, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--small", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    model = translator(VOCABULARY, VOCABULARY, **PRESETS["sdpa"])
    columns = [f"beam {beams}, {count} sentences" for beams in BEAMS for count in SENTENCES]
    print(f"ms of processor time per sentence\n\n| engine | MB | {' | '.join(columns)} | same |")
    print("| --- |" + " ---: |" * (len(columns) + 2))
    expected = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, folder, search in engines(model, Path(scratch), options.small):
            cells, same = [], []
            for beams in BEAMS:
                for count in SENTENCES:
                    ids = sources(count)
                    found = [row[: LENGTH + EXTRA] for row in search(ids, beams)]  # warms up
                    wanted = expected.setdefault((beams, count), found)
                    pairs = [zip(a, b, strict=False) for a, b in zip(found, wanted, strict=True)]
                    same += [a == b for pair in pairs for a, b in pair]
                    seconds = seconds_of(lambda s=search, i=ids, b=beams: s(i, b), options.repeats)
                    cells.append(f"{1000 * seconds / count:.1f}")
            size = sum(file_sizes(folder).values()) if folder else 4 * model.count_params()
            share = f"{100 * np.mean(same):.1f} %"
            print(f"| {name} | {size / 1e6:.0f} | {' | '.join(cells)} | {share} |", flush=True)


if __name__ == "__main__":
    main()
