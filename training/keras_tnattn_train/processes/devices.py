"""Several devices and processes that train one run together, by `keras.distribution` on JAX.

All processes run the same command. Each computes its share of every batch. Process 0 alone writes
to the run's folder, which the others read, so it has to be on a disk that all of them see.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.options.options import DeviceOptions
from keras_tnattn_train.processes.backend import start_backend

# For each pattern of a weight's path: its axes, "model" for the one that is split among devices.
Layouts = Mapping[str, tuple[str | None, ...]]

# Keras' own variables; Keras reads the address of process 0 from the first one.
COORDINATOR = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
NUM_PROCESSES = "KERAS_DISTRIBUTION_NUM_PROCESSES"
PROCESS_ID = "KERAS_DISTRIBUTION_PROCESS_ID"


def join(options: DeviceOptions) -> None:
    """Sets the environment variables in which Keras looks for the other processes."""
    if options.coordinator is not None:
        os.environ[COORDINATOR] = options.coordinator
        os.environ[NUM_PROCESSES] = str(options.num_processes)
        os.environ[PROCESS_ID] = str(options.process_id)
    values = {name: os.environ.get(name) for name in (COORDINATOR, NUM_PROCESSES, PROCESS_ID)}
    if None in values.values() and set(values.values()) != {None}:
        received = ", ".join(f"{name}={value}" for name, value in values.items())
        raise InputError(
            "Expected all of these environment variables, or none, or --coordinator with "
            f"--num-processes and --process-id. Received: {received}"
        )

    if None not in values.values() and process_id() >= num_processes():
        raise InputError(
            f"Expected {PROCESS_ID} < {NUM_PROCESSES}. "
            f"Received: {values[PROCESS_ID]} and {values[NUM_PROCESSES]}"
        )


def num_processes() -> int:
    """Returns the number of processes that train the run."""
    return _number(NUM_PROCESSES, 1)


def process_id() -> int:
    """Returns the number of this process, counted from 0."""
    return _number(PROCESS_ID, 0)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise InputError(f"Expected {variable} to be an integer. Received: {variable}={text!r}")
    return int(text)


def check_one_process(command: str) -> None:
    """Raises `InputError` if several processes run a command that is for one."""
    if num_processes() > 1:
        raise InputError(f"Expected one process for {command}. Received: {num_processes()}")


def use_devices(
    options: DeviceOptions, batch_size: int, layouts: Callable[[int], Layouts] | None
) -> None:
    """Makes Keras train on the chosen devices, and starts the backend if it is not one device."""
    if options.devices is None and options.model_parallel == 1 and num_processes() == 1:
        return
    start_backend()
    import keras

    if keras.backend.backend() != "jax":
        raise InputError(
            "Expected KERAS_BACKEND=jax for several devices or processes. "
            f"Received: {keras.backend.backend()}. On TensorFlow, translate uses all GPUs of one "
            "machine without --devices, and several machines are not possible (keras#20585)"
        )
    devices = _jax_devices(options.devices)
    parts = options.model_parallel
    here = len(devices) // num_processes()
    if len(devices) % parts or (here % parts and parts % here):
        raise InputError(
            f"Expected model_parallel to divide {len(devices)} devices, and to divide, or be a "
            f"multiple of, the {here} of a process. Received: model_parallel={parts}"
        )
    replicas = len(devices) // parts
    if batch_size % replicas:
        raise InputError(
            f"Expected a batch_size that {replicas} {'devices' if parts == 1 else 'models'} can "
            f"share evenly. Received: batch_size={batch_size}"
        )
    distribution: Any
    if parts == 1 or layouts is None:
        distribution = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    else:
        mesh = keras.distribution.DeviceMesh((replicas, parts), ["batch", "model"], devices)
        layout_map = keras.distribution.LayoutMap(mesh)
        for pattern, axes in layouts(parts).items():
            layout_map[pattern] = axes
        distribution = keras.distribution.ModelParallel(
            layout_map=layout_map, batch_dim_name="batch", auto_shard_dataset=False
        )
    keras.distribution.set_distribution(distribution)


def on_all_gpus(batch_size: int) -> contextlib.AbstractContextManager:
    """Returns a context in which a model is built and compiled to train on all GPUs.

    On the TensorFlow backend each GPU processes its share of every batch. With other backends or a
    single GPU the context has no effect.
    """
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        gpus = len(tf.config.list_logical_devices("GPU"))
        if gpus > 1:
            if batch_size % gpus:
                raise InputError(
                    f"Expected a batch_size that {gpus} GPUs can share evenly. "
                    f"Received: batch_size={batch_size}"
                )
            return tf.distribute.MirroredStrategy().scope()
    return contextlib.nullcontext()


def _jax_devices(number: int | None) -> list[str]:
    """Returns the names of the chosen devices of all processes, process by process."""
    import jax
    import keras

    if number is not None and "JAX_NUM_CPU_DEVICES" not in os.environ:
        # Has an effect on the CPU only, and before its first use.
        jax.config.update("jax_num_cpu_devices", min(number, os.cpu_count() or 1))
    # A cluster's own launcher may have joined the processes already.
    if num_processes() > 1 and not jax.distributed.is_initialized():
        try:
            keras.distribution.initialize()
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise InputError(f"Could not join {os.environ.get(COORDINATOR)}: {reason}") from error
    local = [jax.local_devices(process_index=i) for i in range(jax.process_count())]
    available = min(map(len, local))
    if number is not None and number > available:
        cpu = jax.default_backend() == "cpu"
        hint = f". Set JAX_NUM_CPU_DEVICES={number} to divide the CPU further" if cpu else ""
        raise InputError(
            f"Expected devices of 1 to {available}, as many as there are. "
            f"Received: devices={number}{hint}"
        )
    return [f"{d.platform}:{d.id}" for devices in local for d in devices[: number or available]]


def wait_for_all(what: str) -> None:
    """Waits until every process has called this."""
    if num_processes() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(what)


def written_once(write: Callable[[], None], what: str) -> None:
    """Process 0 writes, and the others wait until it has."""
    if process_id() == 0:
        write()
    wait_for_all(what)


def share_of_batches(replicas: int) -> tuple[int, int]:
    """Returns which share of each batch this process computes, and how many shares there are.

    Processes that hold parts of the same model compute the same rows.
    """
    shares = min(replicas, num_processes())
    return process_id() * shares // num_processes(), shares


def to_numpy(variable: Any) -> Any:
    """Returns the whole value of a Keras variable; every process has to call this."""
    if num_processes() > 1:
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(variable.value, tiled=True)
    import keras

    return keras.ops.convert_to_numpy(variable)


def leave_to_process_0() -> None:
    """Ends the work of several processes, and every process except process 0.

    They part at the same time, because JAX lets none of them end long before the others.
    """
    if num_processes() > 1:
        import jax

        jax.distributed.shutdown()
        if process_id() > 0:
            sys.exit()
