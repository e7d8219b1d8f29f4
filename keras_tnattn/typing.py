"""Types that the signatures of this package share.

`Tensor` is `Any`: the tensors of TensorFlow, JAX and PyTorch, NumPy arrays and `keras.KerasTensor`
have no type in common.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras

Tensor: TypeAlias = Any
# Nested tuples, lists and dicts of tensors.
Tensors: TypeAlias = Any
# Ints, and None for a size that is not known.
Shape: TypeAlias = Sequence[Any]
DType: TypeAlias = str | keras.DTypePolicy

Activation: TypeAlias = str | Callable[[Tensor], Tensor]
Initializer: TypeAlias = str | keras.initializers.Initializer
Regularizer: TypeAlias = str | keras.regularizers.Regularizer
Constraint: TypeAlias = str | keras.constraints.Constraint
