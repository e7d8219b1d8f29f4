"""Keras' layers with kernels that are stored as integers of 2 to 8 bits in groups.

Each class is a subclass of the layer that it stands for. Its `build` makes packed integers where
the layer makes a kernel, and the attribute `kernel` restores the floats whenever it is read: by the
layer's own `call`, which stays as it is, or by other code. Inputs are not rounded.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_small.storage import integer_groups
from keras_small.storage.stand_ins import StoredMatrix, stand_in
from keras_tnattn.checks import check_int
from keras_tnattn.typing import Shape, Tensor, Tensors

PARTS = integer_groups.IntegerGroups._fields


class Kernel:
    """An attribute that restores a kernel from the parts that a layer stores."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, layer: Any, owner: type | None = None) -> Any:
        if layer is None:
            return self
        if self.name not in vars(layer).get("_kernel_shapes", {}):
            raise AttributeError(f"You must build the layer before accessing `{self.name}`.")
        if isinstance(layer, LoopKernels):
            kernels = vars(layer).get(_of_thread("_kernels_of_loop"), {})
            if self.name in kernels:
                return kernels[self.name]
        return layer.restored_kernel(self.name)

    def __set__(self, layer: Any, value: Any) -> None:
        """Ignores the kernel that `build` assigns, because `add_weight` made its parts."""


def note_shape(layer: keras.layers.Layer, name: str, shape: Shape) -> None:
    """Notes the shape of a kernel that a layer stores in parts."""
    # Not by `setattr`, which would wrap the dict.
    shapes = {**vars(layer).get("_kernel_shapes", {}), name: tuple(shape)}
    layer.__dict__["_kernel_shapes"] = shapes


def _of_thread(name: str) -> str:
    """Returns the name of an attribute that each thread has for itself."""
    return f"{name}_{threading.get_ident()}"


class LoopKernels(keras.layers.Layer):
    """A cell with restored kernels, which a `keras.layers.RNN` calls in a loop over the steps.

    It asks a cell for its dropout masks before the loop and lets it forget them afterwards. So that
    the kernels are not restored in each step, they come and go with the masks.
    """

    def get_dropout_mask(self, step_input: Tensor) -> Tensors:
        if not vars(self).get(_of_thread("_in_step")):
            # Not by `setattr`, which would track the dict.
            self.__dict__.pop(_of_thread("_kernels_of_loop"), None)
            kernels = {name: getattr(self, name) for name in ("kernel", "recurrent_kernel")}
            self.__dict__[_of_thread("_kernels_of_loop")] = kernels
        return super().get_dropout_mask(step_input)  # type: ignore[misc]

    def reset_dropout_mask(self) -> None:
        self.__dict__.pop(_of_thread("_kernels_of_loop"), None)
        super().reset_dropout_mask()  # type: ignore[misc]

    def call(self, *args: Any, **kwargs: Any) -> Tensors:
        self.__dict__[_of_thread("_in_step")] = True
        try:
            return super().call(*args, **kwargs)
        finally:
            del self.__dict__[_of_thread("_in_step")]


class IntegerKernels(keras.layers.Layer):
    """The first base of each layer whose kernels are integers.

    Args:
        *args: Arguments of the layer.
        bits: 2, 3, 4, 6 or 8, the bits of a weight.
        group_size: Weights along the inputs of a unit that share a scale. Defaults to 32.
        **kwargs: Arguments of the layer.

    Attributes:
        kernel_names: The names of the kernels that are stored as integers.
    """

    kernel_names: Any = ("kernel",)

    def __init__(self, *args: Any, bits: int, group_size: int = 32, **kwargs: Any) -> None:
        integer_groups.check_group_bits(bits)
        super().__init__(*args, **kwargs)
        self.bits = bits
        self.group_size = check_int("group_size", group_size)

    def __dir__(self) -> list[str]:
        # Keras reads all that `dir` names when it saves or loads; a kernel would be restored.
        return [name for name in super().__dir__() if name not in self.kernel_names]

    def add_weight(self, shape: Any = None, *args: Any, name: Any = None, **kwargs: Any) -> Any:
        """Makes the integers of a kernel, all 0, or any other weight as Keras does."""
        if name not in self.kernel_names:
            return super().add_weight(shape, *args, name=name, **kwargs)
        note_shape(self, name, shape)
        matrix = self._matrix_shape(name)
        axis = self.group_axis(name)
        packed = integer_groups.packed_shapes(matrix, self.bits, self.group_size, axis)
        for part in PARTS:
            weight = super().add_weight(
                packed[part],
                np.zeros,  # without a program of JAX for each shape
                dtype="float32" if part == "largest" else "uint8",
                trainable=False,
                autocast=False,
                name=f"{name}_{part}",
            )
            setattr(self, f"{name}_{part}", weight)
        return None

    def _rows(self, name: str) -> tuple[int, ...]:
        """Returns the axes of a kernel along which its groups run: those of the inputs."""
        return tuple(range(len(self._kernel_shapes[name]) - 1))

    def _axes(self, name: str) -> tuple[list[int], list[int]]:
        """Returns the axes of the rows and of the columns of a kernel as a matrix."""
        rows = list(self._rows(name))
        rank = len(self._kernel_shapes[name])
        return rows, [axis for axis in range(rank) if axis not in rows]

    def group_axis(self, name: str) -> int:
        """Returns the axis of a kernel as a matrix along which its groups run."""
        return 0

    def _matrix_shape(self, name: str) -> tuple[int, int]:
        shape = self._kernel_shapes[name]
        rows, columns = ([shape[i] for i in axes] for axes in self._axes(name))
        return math.prod(rows), math.prod(columns)

    def as_matrix(self, name: str, kernel: np.ndarray) -> np.ndarray:
        """Returns a kernel, or an array of its shape, as a matrix with groups along one axis."""
        rows, columns = self._axes(name)
        return np.transpose(kernel, rows + columns).reshape(self._matrix_shape(name))

    def restored_kernel(self, name: str) -> Tensor:
        """Returns a kernel as floats in the compute dtype."""
        kernel = stand_in(self, name)
        if kernel is None:
            kernel = self._as_kernel(name, self._dequantized(name, self._parts(name)))
        kernel = ops.cast(kernel, self.compute_dtype)
        if getattr(self, "lora_enabled", False):
            change = ops.matmul(self.lora_kernel_a, self.lora_kernel_b)
            change = ops.cast(change, self.compute_dtype) * (self.lora_alpha / self.lora_rank)
            kernel = kernel + change
        return kernel

    def stored_matrices(self) -> dict[str, StoredMatrix]:
        """Returns the kernels as they are stored, for which tensors can stand."""
        matrices = {}
        for name in self.kernel_names:
            rows, columns = self._axes(name)
            axis = self.group_axis(name)
            arrays = integer_groups.numbers_of_groups(
                self._parts(name), self._matrix_shape(name)[axis], self.bits, axis
            )
            matrices[name] = StoredMatrix(
                *arrays,
                self.bits,
                self.group_size,
                axis,
                self._kernel_shapes[name],
                (*rows, *columns),
            )
        return matrices

    def _as_kernel(self, name: str, matrix: Tensor) -> Tensor:
        shape = self._kernel_shapes[name]
        rows, columns = self._axes(name)
        order = rows + columns
        kernel = ops.reshape(matrix, [shape[i] for i in order])
        if order == sorted(order):
            return kernel
        return ops.transpose(kernel, [order.index(i) for i in range(len(order))])

    def _dequantized(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        axis = self.group_axis(name)
        size = self._matrix_shape(name)[axis]
        return integer_groups.dequantize_groups(parts, size, self.bits, self.group_size, axis)

    def _parts(self, name: str) -> list[keras.Variable]:
        return [getattr(self, f"{name}_{part}") for part in PARTS]

    def assign_kernel(
        self,
        name: str,
        kernel: np.ndarray,
        moment: np.ndarray | None = None,
        step: float | None = None,
        symmetric: bool = False,
    ) -> None:
        """Quantizes a kernel.

        Args:
            name: One of `kernel_names`.
            kernel: Float array of the shape of the kernel.
            moment: Second moment of the inputs of the kernel as a matrix, of a convolution of their
                patches; see `integer_groups.quantize_groups`.
            step: See `integer_groups.quantize_groups`.
            symmetric: As for `integer_groups.quantize_groups`.
        """
        groups = integer_groups.quantize_groups(
            self.as_matrix(name, kernel),
            self.bits,
            self.group_size,
            self.group_axis(name),
            moment,
            step,
            symmetric,
        )
        for weight, part in zip(self._parts(name), groups, strict=True):
            weight.assign(part)

    def rounded_kernel(self, name: str, kernel: Tensor) -> Tensor:
        """Rounds floats to the integers, scales and zeros of a kernel, as if that were smooth.

        The gradient by `kernel` is that of the result (the straight-through estimator).
        """
        approximation = self._as_kernel(name, self._numbers_of(name, kernel)[1])
        kernel = ops.cast(kernel, "float32")
        return kernel + ops.stop_gradient(approximation - kernel)

    def assign_rounded(self, name: str, kernel: Tensor) -> None:
        """Sets the integers to those of a kernel that was trained; scales and zeros stay."""
        numbers = ops.convert_to_numpy(self._numbers_of(name, kernel)[0]).astype("uint8")
        axis = self.group_axis(name)
        packed = integer_groups.pack(numbers if axis == 0 else numbers.T, self.bits)
        getattr(self, f"{name}_integers").assign(packed if axis == 0 else packed.T)

    def _numbers_of(self, name: str, kernel: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = self._axes(name)
        matrix = ops.reshape(ops.transpose(kernel, rows + columns), self._matrix_shape(name))
        return integer_groups.round_to_groups(
            matrix, self._parts(name), self.bits, self.group_size, self.group_axis(name)
        )

    @classmethod
    def empty(cls, layer: keras.layers.Layer, bits: int, group_size: int = 32) -> "IntegerKernels":
        """Returns a built layer of the options of a built layer, with kernels of zeros."""
        new = cls.from_config({**layer.get_config(), "bits": bits, "group_size": group_size})
        build_config = layer.get_build_config()
        if build_config:
            new.build_from_config(build_config)
        if not new.built:
            new.build(None)  # an embedding
        return new

    @classmethod
    def from_layer(
        cls,
        layer: keras.layers.Layer,
        bits: int,
        group_size: int = 32,
        moments: Mapping[str, np.ndarray] | None = None,
        step: float | None = None,
        symmetric: bool = False,
    ) -> "IntegerKernels":
        """Quantizes a built layer; `moments` are those of `assign_kernel` by name."""
        new = cls.empty(layer, bits, group_size)
        kernels = {name: getattr(layer, name) for name in new.kernel_names}
        for name, kernel in kernels.items():
            moment = (moments or {}).get(name)
            floats = np.asarray(ops.convert_to_numpy(kernel), "float32")
            new.assign_kernel(name, floats, moment, step, symmetric)
        ids = {id(kernel) for kernel in kernels.values()}
        packed = {id(weight) for weight in new.packed_weights}
        old_weights = [weight for weight in layer.weights if id(weight) not in ids]
        new_weights = [weight for weight in new.weights if id(weight) not in packed]
        for new_weight, weight in zip(new_weights, old_weights, strict=True):
            # A copy: variables of JAX that share an array lose it when one of them is trained.
            new_weight.assign(np.array(ops.convert_to_numpy(weight)))
        return new

    @property
    def packed_weights(self) -> list[keras.Variable]:
        """The variables that store the kernels."""
        return [part for name in self.kernel_names for part in self._parts(name)]

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: Any = "he_uniform",
        b_initializer: Any = "zeros",
    ) -> None:
        """Adds `alpha / r A B` to the kernel, with trainable `A` and `B`, as Keras' layers do."""
        if self.kernel_names != ("kernel",) or not hasattr(self, "lora_rank"):
            raise NotImplementedError(f"{type(self).__name__} has no LoRA")
        enabled = bool(getattr(self, "lora_enabled", False))
        if not self.built or enabled:
            raise ValueError(
                "Expected a built layer without LoRA. "
                f"Received: built={self.built}, lora_enabled={enabled}"
            )
        shape = self._kernel_shapes["kernel"]
        self._tracker.unlock()  # as Keras' own layers do; there is no other way to add weights
        self.lora_kernel_a = self.add_weight(
            (*shape[:-1], rank), a_initializer, dtype="float32", name="lora_kernel_a"
        )
        self.lora_kernel_b = self.add_weight(
            (rank, shape[-1]), b_initializer, dtype="float32", name="lora_kernel_b"
        )
        self._tracker.lock()
        self.lora_enabled = True
        self.lora_rank = rank
        self.lora_alpha = rank if lora_alpha is None else lora_alpha

    def quantize(self, mode: str | None = None, **kwargs: Any) -> None:
        raise NotImplementedError(f"{self.name} is stored as {self.bits}-bit integers already")

    def save_own_variables(self, store: Any) -> None:
        keras.layers.Layer.save_own_variables(self, store)

    def load_own_variables(self, store: Any) -> None:
        keras.layers.Layer.load_own_variables(self, store)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "bits": self.bits, "group_size": self.group_size}
