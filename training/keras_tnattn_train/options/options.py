"""Declares options: default, help text, choices and range of each in one place.

The options of a command are the fields of a frozen pydantic model. Pydantic checks values and
reads and writes a run's JSON; `apps.py` creates the command line from the same fields with
cyclopts. Pydantic computes a default that depends on other options before it creates the object
(`default_factory`), so that objects never change.

Cyclopts was chosen because it passes on only the options that the user typed (which a resumed run
needs to know), supports groups, examples in `--help` and lists such as `--seeds 0 1 2`, and is
imported in less than 0.1 s.
"""

import abc
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import pydantic
from pydantic.fields import FieldInfo

from keras_tnattn_train.options.errors import InputError

# The last one has what studies and few others ask for.
GROUPS = (
    "arguments",
    "run",
    "data",
    "model",
    "training",
    "devices",
    "search",
    "output",
    "experiments",
)
ARGUMENTS, RUN, DATA, MODEL, TRAINING, DEVICES, SEARCH, OUTPUT, EXPERIMENTS = GROUPS
# How the value of an option is given on the command line.
BY_NAME = "by name"
IN_PLACE = "in place"
EITHER = "either"
# The options that may change when a run is resumed, finished or not.
EXPORTING = ("export", "saved_models", "export_beam")
LARGEST_SEED = 2**32 - 1
# A file name holds at most 255 bytes, and runs add prefixes to theirs.
LONGEST_NAME = 200

SomeOptions = TypeVar("SomeOptions", bound="Options")


def option(
    default: Any,
    group: str,
    text: str,
    *,
    choices: tuple[str | int, ...] | None = None,
    metavar: str | None = None,
    given: str = BY_NAME,
    brief: str | None = None,
    **constraints: Any,
) -> Any:
    """Declares an option, a field of an `Options` class; the annotation gives its type.

    Args:
        default: The default value, or a function that computes it from the values of the options
            declared before this one.
        group: The heading under which `--help` shows the option, one of `GROUPS`.
        text: The help text. `--help` adds range, choices and default.
        choices: The allowed values. Default: all.
        metavar: What `--help` shows in place of the value. Default: the type.
        given: `BY_NAME`; `IN_PLACE`, without its name; or `EITHER`.
        brief: The help text in the `--help` of a command that shows only some of its options.
            Default: `text`.
        **constraints: The range as pydantic's `Field` takes it: `ge`, `gt`, `le`, `lt`.
    """
    settled = {"default_factory" if callable(default) else "default": default}
    extra: Any = {
        "group": group,
        "choices": choices,
        "metavar": metavar,
        "given": given,
        "brief": brief,
    }
    return pydantic.Field(**settled, description=text, json_schema_extra=extra, **constraints)


def argument(text: str, *, repeated: bool = False) -> Any:
    """Declares a positional argument; these are the first fields of an `Options` class.

    A `repeated` one takes any number of values, zero included; the field is a tuple.
    """
    return option(() if repeated else ..., ARGUMENTS, text, given=IN_PLACE)


class Options(pydantic.BaseModel):
    """Checked, immutable options.

    Raises:
        InputError: If a value has the wrong type, is out of its range or not among its choices, if
            an option is unknown, or if options contradict each other.
    """

    # The command of these options, which a run's config.json names.
    command: ClassVar[str | None] = None

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True
    )

    @pydantic.field_validator("*")
    @classmethod
    def _check_choices(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        name = str(info.field_name)
        field = cls.model_fields[name]
        values = value if isinstance(value, tuple) else (value,)
        # A list that is empty by default means all or none.
        unclear = (not values and field.default != ()) or len(set(values)) < len(values)
        if unclear and extras(field)["given"] != IN_PLACE:
            raise InputError(
                f"Expected one or more different {name}. Received: "
                f"{name}={' '.join(map(str, values))}"
            )
        if choices(field) and not set(values) <= {None, *choices(field)}:
            raise InputError(
                f"Expected {name} to be {accepted_values(field)}. Received: {name}={value!r}"
            )
        return value

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _report(cls, values: Any, check: pydantic.ModelWrapValidatorHandler) -> Any:
        try:
            options = check(values)
            options.check_together()
            return options
        except pydantic.ValidationError as error:
            raise InputError(_sentence(cls, error)) from error
        except ValueError as error:
            raise InputError(str(error)) from error

    def check_together(self) -> None:
        """Raises `ValueError` if options contradict each other; overridden by subclasses."""

    def replace(self: SomeOptions, **values: Any) -> SomeOptions:
        """Returns a copy with some values changed; all values are checked again."""
        return type(self)(**{**dict(self), **values})


def extras(field: FieldInfo) -> Mapping[str, Any]:
    """Returns what a declaration stores besides pydantic's own data: group, choices and so on."""
    return field.json_schema_extra  # type: ignore[return-value]


def choices(field: FieldInfo) -> tuple[str | int, ...]:
    """Returns the allowed values of an option; an empty tuple if all values are allowed."""
    return extras(field)["choices"] or ()


def interval(field: FieldInfo) -> str:
    """Describes the range of an option, such as `from 1 to 256` or `>= 0 and < 1`, if any."""
    bounds = {
        name: getattr(item, name)
        for item in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if getattr(item, name, None) is not None
    }
    if {"ge", "le"} <= set(bounds):
        return f"from {bounds['ge']} to {bounds['le']}"
    symbols = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    return " and ".join(f"{symbols[name]} {bound}" for name, bound in bounds.items())


def accepted_values(field: FieldInfo) -> str:
    """Describes the values that an option accepts."""
    if choices(field):
        return f"one of {', '.join(map(str, choices(field)))}"
    # Of a union such as `int | None`, use the first type.
    first = str(field.annotation).removeprefix("<class '").partition(" ")[0].removesuffix("'>")
    kinds = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a string"}
    items = "strings" if "str" in first else "numbers" if "float" in first else "integers"
    kind = kinds.get(first, f"a list of {items}")
    return f"{kind} {interval(field)}".rstrip()


def _sentence(kind: type[Options], error: pydantic.ValidationError) -> str:
    """Describes the first error that pydantic found."""
    # If a default cannot be computed, another error is the cause.
    details = [d for d in error.errors() if d["type"] != "default_factory_not_called"]
    name = str(details[0]["loc"][0])
    value = details[0]["input"]
    if name not in kind.model_fields:
        return f"Unknown option {name!r} of {kind.__name__}. Received: {name}={value!r}"
    expected = accepted_values(kind.model_fields[name])
    return f"Expected {name} to be {expected}. Received: {name}={value!r}"


def _check_seeds(seeds: tuple[int, ...]) -> tuple[int, ...]:
    # That there are any, and different ones, is checked for every list.
    if not all(0 <= seed <= LARGEST_SEED for seed in seeds):
        raise InputError(
            f"Expected seeds from 0 to {LARGEST_SEED}. Received: seeds={' '.join(map(str, seeds))}"
        )
    return seeds


# The type of an option that takes several seeds.
Seeds = Annotated[tuple[int, ...], pydantic.AfterValidator(_check_seeds)]


class RunConfig(Options, abc.ABC):
    """The options of every command that trains a run.

    A task's class adds its own options. It also declares `epochs`, `batch_size` and
    `learning_rate`, because their defaults depend on the task, and `name` as the last option,
    because a default can only depend on options declared earlier, and pydantic puts the fields of a
    base class first.
    """

    if TYPE_CHECKING:
        epochs: int
        batch_size: int
        learning_rate: float
        name: str

    seed: int = option(
        0,
        TRAINING,
        "seed of the data or their split, the weights and the order of the batches",
        ge=0,
        le=LARGEST_SEED,
    )

    @pydantic.field_validator("name", check_fields=False)
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise InputError(
                f"Expected a name of letters, digits, '.', '_' and '-'. Received: name={name!r}"
            )
        if len(name.encode()) > LONGEST_NAME:
            raise InputError(
                f"Expected a name of at most {LONGEST_NAME} bytes. Received: {len(name.encode())} "
                f"bytes, name={name[:40]!r}... Give a shorter --name"
            )
        return name

    def refuse(self, reason: str, *names: str) -> None:
        """Raises `InputError` if one of the named options differs from its default."""
        for name in names:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise InputError(f"Expected no {name} with {reason}. Received: {name}={value}")


class FitConfig(RunConfig):
    """The options of every command that trains with `keras_tnattn_train.runs.training.fit`."""

    tensorboard: bool = option(
        False, OUTPUT, "write logs for TensorBoard to tensorboard/ in the run's folder"
    )


class ExportConfig(FitConfig):
    """The options of every command that can also export what it trained."""

    export: bool = option(False, OUTPUT, "export the trained model for serving")
    saved_models: str = option(
        "saved_models", OUTPUT, "where to export: DIR/NAME/VERSION/", metavar="DIR"
    )

    @property
    def export_folder(self) -> Path:
        """The folder with the versions of the exported model."""
        return Path(self.saved_models, self.name)

    @property
    def export_options(self) -> dict[str, Any]:
        """The options that decide what an export contains and where it is written."""
        return {"folder": str(self.export_folder)}


class DeviceOptions(Options):
    """The devices and processes that train a run together; they are not part of its config."""

    devices: int | None = option(
        None,
        DEVICES,
        "devices of this machine that share each batch, on JAX; without a GPU, that many parts of "
        "the CPU (default: one, or all if several processes train or the model is split over "
        "several devices)",
        ge=1,
        le=65_536,
    )
    model_parallel: int = option(
        1,
        DEVICES,
        "devices among which the weights of embeddings, feed-forward networks and residual units "
        "are split; a divisor of the number of devices and of these layers' sizes",
        ge=1,
        le=65_536,
    )
    coordinator: str | None = option(
        None,
        DEVICES,
        "address of process 0, if several processes train together, each of which runs this "
        "command with its own --process-id (default: Keras' KERAS_DISTRIBUTION_JOB_ADDRESSES)",
        metavar="HOST:PORT",
    )
    num_processes: int | None = option(
        None,
        DEVICES,
        "number of processes (default: KERAS_DISTRIBUTION_NUM_PROCESSES)",
        ge=1,
        le=65_536,
    )
    process_id: int | None = option(
        None,
        DEVICES,
        "number of this process; process 0 alone writes the run folder "
        "(default: KERAS_DISTRIBUTION_PROCESS_ID)",
        ge=0,
        le=65_535,
    )

    def check_together(self) -> None:
        names = ("coordinator", "num_processes", "process_id")
        values = {name: getattr(self, name) for name in names}
        received = ", ".join(f"{name}={value}" for name, value in values.items())
        if None in values.values() and set(values.values()) != {None}:
            raise ValueError(f"Expected {', '.join(names)} together. Received: {received}")
        if self.coordinator is not None and not re.fullmatch(r".+:\d+", self.coordinator):
            raise ValueError(f"Expected HOST:PORT. Received: coordinator={self.coordinator!r}")
        if (self.process_id or 0) >= (self.num_processes or 1):
            raise ValueError(f"Expected process_id < num_processes. Received: {received}")


def skip_bad_rows_option() -> Any:
    """Declares whether bad rows of tables and files are left out instead of refused."""
    return option(
        False,
        DATA,
        "leave out rows that cannot be read or lack a label or a sentence, and count them "
        "(default: refuse them, with their numbers)",
    )


def epochs_option(
    default: int | Callable[[dict[str, Any]], int], text: str = "passes over the training part"
) -> Any:
    """Declares the number of epochs."""
    return option(default, TRAINING, text, ge=1, le=100_000)


def batch_size_option(default: int, rows: str = "rows") -> Any:
    """Declares the batch size; `rows` names what a batch consists of."""
    return option(default, TRAINING, f"{rows} per step", ge=1, le=1_048_576)


def early_stopping_option(text: str) -> Any:
    """Declares the patience of early stopping."""
    return option(None, TRAINING, text, metavar="PATIENCE", ge=1, le=100_000)


def name_option(compute: Callable[[dict[str, Any]], str], default: str) -> Any:
    """Declares the name of a run."""
    text = f"name of the run (default: {default})"
    return option(compute, OUTPUT, text)
