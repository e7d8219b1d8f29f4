"""Traces recurrent layers as one operation each, or as loops that every runtime knows.

The operation is TensorFlow's `CudnnRNNV3`, whose parameters here are the kernel, the recurrent
kernel and the biases in the order of ONNX, one after another. It is only converted, never run. A
mask moves the steps that count to the front, because those behind them change none before.

LiteRT's only operation, `UNIDIRECTIONAL_SEQUENCE_LSTM`, is no faster than a loop: for sequences of
64 steps on x86 it takes 0.9 to 1.4 times as long for one row, and 1.2 to 2.1 times for 32, with
integers as with floats; where only the last output counts, up to 9 times. The loops of Keras
collect outputs in lists, whose entries have one fixed size there; those made here have any number
of rows, and multiply with integers.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.storage.integer_kernels import LoopKernels
from keras_small.storage.low_rank_cells import LowRankKernels
from keras_small.storage.stand_ins import stored_matrices
from keras_small.survey.graph_names import flat_layers
from keras_tnattn.typing import Tensor

# The gates of Keras in the order of ONNX.
_GATES = {keras.layers.LSTMCell: (0, 3, 1, 2), keras.layers.GRUCell: (0, 1, 2)}


def fused_loops(
    model: keras.Model, with_products: bool = True
) -> contextlib.AbstractContextManager[None]:
    """Lets recurrent layers be traced as one operation each, where it computes the same.

    These are LSTMs, and GRUs that reset after the product, with the usual activations; without
    `with_products` only those whose kernels are no products of integers.
    """
    layers = [layer for layer in flat_layers(model) if _gates_of(layer)]
    if not with_products:
        low_rank = [x for x in layers if isinstance(x.cell, LowRankKernels)]
        products = {x for x in low_rank if stored_matrices(x.cell)}
        layers = [x for x in layers if x not in products]
    return _with_loops({layer: _fuse(layer, layer.inner_loop) for layer in layers})


def loops_without_lists(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Lets recurrent layers be traced as loops that carry their outputs as one tensor.

    All sizes follow from those of the inputs before the first call, or steps take longer.
    """
    layers = [layer for layer in flat_layers(model) if isinstance(layer, keras.layers.RNN)]
    layers = [layer for layer in layers if not (layer.stateful or layer.unroll)]
    return _with_loops({layer: _without_lists(layer) for layer in layers})


@contextlib.contextmanager
def _with_loops(loops: Mapping[keras.layers.RNN, Callable[..., Any]]) -> Iterator[None]:
    """Gives layers other loops for a while, whose first states, if a call has none, have one row.

    A loop adds them to the rows that it has, or lets an operation begin with zeros.
    """
    try:
        for layer, loop in loops.items():
            layer.inner_loop = loop
            states = layer.get_initial_state
            layer.get_initial_state = lambda batch_size=None, states=states: states(1)
        yield
    finally:
        for layer in loops:
            del layer.inner_loop, layer.get_initial_state


def _without_lists(layer: keras.layers.RNN) -> Callable[..., Any]:
    import tensorflow as tf

    map_structure = keras.tree.map_structure

    def inner_loop(sequences: Tensor, initial_state: Any, mask: Any, training: bool = False) -> Any:
        masks = [] if mask is None else keras.tree.flatten(mask)
        if layer.go_backwards:
            sequences, *masks = (tf.reverse(x, [1]) for x in (sequences, *masks))
        ones = (1,) * (len(sequences.shape) - 2)
        one_each = (slice(None), slice(None), *(slice(n) for n in ones))
        zeros = tf.zeros_like(sequences[one_each])  # (B, T, 1, ...)
        states = map_structure(lambda x: x + zeros[:, 0], initial_state)
        shape = layer.compute_output_shape(sequences.shape)
        sizes = (shape[0] if layer.return_state else shape)[-len(ones) :]
        output = zeros[:, 0] + tf.zeros(sizes)
        outputs = [zeros + tf.zeros(sizes)] if layer.return_sequences else []

        def step(time: Tensor, output: Tensor, outputs: list[Tensor], states: Any) -> Any:
            new, new_states = layer.cell(tf.gather(sequences, time, axis=1), states)
            new_states = keras.tree.pack_sequence_as(states, keras.tree.flatten(new_states))
            if masks:
                counts = tf.reshape(tf.gather(masks[0], time, axis=1), (-1, *ones))
                new = tf.where(counts, new, 0.0 if layer.zero_output_for_mask else output)
                new_states = map_structure(lambda *x: tf.where(counts, *x), new_states, states)
            start = (0, time, *(0 for _ in ones))
            update = tf.expand_dims(new, 1)
            outputs = [ops.slice_update(x, start, update) for x in outputs]
            return time + 1, new, outputs, new_states

        length = tf.shape(sequences)[1]
        _, output, outputs, states = tf.while_loop(
            lambda time, *_: time < length, step, (0, output, outputs, states)
        )
        return output, outputs[0] if outputs else output, states

    return inner_loop


def _gates_of(layer: keras.layers.Layer) -> tuple[int, ...]:
    """Returns the order of the gates of a recurrent layer that is one operation, or nothing."""
    if type(layer) not in (keras.layers.RNN, keras.layers.LSTM, keras.layers.GRU):
        return ()
    cell = layer.cell
    for kind, gates in _GATES.items():
        if isinstance(cell, kind) and type(cell).call in (kind.call, LoopKernels.call):
            usual = (
                cell.activation is keras.activations.tanh
                and cell.recurrent_activation is keras.activations.sigmoid
                and getattr(cell, "reset_after", True)
            )
            is_held = not layer.stateful and layer.compute_dtype != "float64"
            return gates if usual and is_held else ()
    return ()


def _fuse(layer: keras.layers.RNN, loop: Callable[..., Any]) -> Callable[..., Any]:
    def inner_loop(sequences: Tensor, initial_state: Any, mask: Any, training: bool = False) -> Any:
        states = keras.tree.flatten(initial_state)
        masks = keras.tree.flatten(mask)
        mask = masks[0] if masks else None
        if mask is not None and layer.return_state:
            zeros = ops.zeros_like(sequences[:, 0, :1])
            states = [ops.cast(state, zeros.dtype) + zeros for state in states]
            return loop(sequences, states, mask, training)
        if layer.go_backwards:
            sequences = ops.flip(sequences, axis=1)
            mask = None if mask is None else ops.flip(mask, axis=1)
        if mask is None:
            outputs, new = _run(layer, sequences, states)
            return outputs[:, -1], outputs, new
        count = ops.cumsum(ops.cast(mask, "int32"), axis=1)
        steps = ops.arange(ops.shape(mask)[1], dtype="int32")
        order = ops.argsort(ops.where(mask, steps, steps + ops.shape(mask)[1]), axis=1)
        outputs, new = _run(layer, _steps(sequences, order), states)
        # A step that does not count repeats the last output, or 0 before the first.
        repeated = _steps(outputs, ops.maximum(count - 1, 0))
        is_output = mask if layer.zero_output_for_mask else count > 0
        outputs = ops.where(ops.expand_dims(is_output, 2), repeated, 0.0)
        return outputs[:, -1], outputs, new

    return inner_loop


def _steps(sequences: Tensor, order: Tensor) -> Tensor:
    """Returns the steps of sequences `(B, T, I)` in an order `(B, T)`."""
    batch, length = ops.shape(sequences)[:2]
    rows = order + length * ops.expand_dims(ops.arange(batch, dtype="int32"), 1)
    # As rows of a matrix, of which runtimes have a fast lookup.
    return ops.take(ops.reshape(sequences, (-1, sequences.shape[-1])), rows, axis=0)


def _run(layer: keras.layers.RNN, sequences: Tensor, states: list[Tensor]) -> tuple[Tensor, Any]:
    """Returns the outputs of all steps, and the last states."""
    import tensorflow as tf

    cell = layer.cell
    gates = _gates_of(layer)
    parts = []
    for kernel in (cell.kernel, cell.recurrent_kernel):
        pieces = ops.split(ops.transpose(ops.cast(kernel, "float32")), len(gates), axis=0)
        parts += [ops.reshape(pieces[n], (-1,)) for n in gates]
    # A GRU has a second bias, inside the product that it resets.
    shape = (1 if len(gates) == 4 else 2, len(gates), cell.units)
    bias = ops.reshape(cell.bias, shape) if cell.use_bias else ops.zeros(shape)
    parts.append(ops.reshape(ops.take(bias, np.array(gates), axis=1), (-1,)))
    first = [ops.expand_dims(ops.cast(x, "float32"), 0) for x in states]
    # Zeros are left out of the file; other states may be of one row, that all rows share.
    values = [tf.get_static_value(x) for x in states]
    if any(value is None or value.any() for value in values):
        first = [x + ops.zeros_like(sequences[None, :, 0, :1]) for x in first]
    outputs, *new = tf.raw_ops.CudnnRNNV3(
        input=ops.transpose(sequences, (1, 0, 2)),
        input_h=first[0],
        input_c=first[-1],
        params=ops.concatenate(parts),
        sequence_lengths=tf.zeros(tf.shape(sequences)[:1], "int32"),
        rnn_mode="lstm" if len(gates) == 4 else "gru",
        is_training=False,
    )[:3]
    # To TensorFlow the last states have the rows of the first ones, which may be a single one.
    zeros = ops.zeros_like(outputs[0, :, :1])
    return ops.transpose(outputs, (1, 0, 2)), [x[0] + zeros for x in new[: len(states)]]
