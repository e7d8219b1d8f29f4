"""How an option is declared: once, with its default, help text, choices and range.

The options of a command are the fields of a frozen pydantic model. Pydantic checks values and
writes and reads a run's JSON; `training/cli.py` makes the command line of the same fields with
cyclopts. A default that depends on other options is computed by pydantic before the object exists
(`default_factory`), so that no object rewrites itself.

Cyclopts was chosen over tyro, jsonargparse and pydantic-settings because it hands over only what
the user typed (a resumed run must know), takes groups and examples for `--help` and lists such as
`--seeds 0 1 2`, and imports in less than 0.1 s.
"""

import abc
import ast
import importlib.util
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic
from pydantic.fields import FieldInfo

from training.errors import InputError

RUN, DATA, MODEL, TRAINING, OUTPUT = GROUPS = ("run", "data", "model", "training", "output")
# The options that may be given to a run again, finished or not.
EXPORTING = ("export", "saved_models", "export_beam")
# A file name holds at most 255 bytes, and runs add prefixes to theirs.
LONGEST_NAME = 200

SomeOptions = TypeVar("SomeOptions", bound="Options")


def option(
    default: Any,
    group: str,
    text: str,
    *,
    choices: tuple[str, ...] | None = None,
    compute: Callable[[dict[str, Any]], Any] | None = None,
    metavar: str | None = None,
    **constraints: Any,
) -> Any:
    """Declares an option, a field of an `Options` class; the annotation gives its type.

    Args:
        default: The default value; of no effect beside `compute`.
        group: The heading under which `--help` shows the option, one of `GROUPS`.
        text: What `--help` says about it. Range, choices and default are added.
        choices: The allowed values. Default: any.
        compute: Computes the default from the values of the options declared before this one.
        metavar: What `--help` shows in place of the value. Default: the type.
        **constraints: The range as pydantic's `Field` takes it: `ge`, `gt`, `le`, `lt`.
    """
    settled = {"default": default} if compute is None else {"default_factory": compute}
    extra: Any = {"group": group, "choices": choices, "metavar": metavar}
    return pydantic.Field(**settled, description=text, json_schema_extra=extra, **constraints)


class Options(pydantic.BaseModel):
    """Checked, immutable options.

    Raises:
        InputError: If a value has the wrong type, is out of its range or not among its choices,
            an option is unknown, or some do not fit together.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True
    )

    @pydantic.field_validator("*")
    @classmethod
    def _check_choices(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        name = str(info.field_name)
        field = cls.model_fields[name]
        values = value if isinstance(value, tuple) else (value,)
        if choices(field) and not set(values) <= {None, *choices(field)}:
            raise InputError(
                f"Expected {name} to be {described(field)}. Received: {name}={value!r}"
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
        """Raises `ValueError` if options do not fit together; a class with such options has one."""

    def changed(self: SomeOptions, **values: Any) -> SomeOptions:
        """Returns new options, with some values changed and all checked again."""
        return type(self)(**{**dict(self), **values})


def extras(field: FieldInfo) -> Mapping[str, Any]:
    """Returns what `option` declares beyond pydantic's own: group, choices and metavar."""
    return field.json_schema_extra  # type: ignore[return-value]


def choices(field: FieldInfo) -> tuple[str, ...]:
    """Returns the allowed values of an option, none if any value is."""
    return extras(field)["choices"] or ()


def interval(field: FieldInfo) -> str:
    """Writes the range of an option, such as `from 1 to 256` or `>= 0 and < 1`, or nothing."""
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


def described(field: FieldInfo) -> str:
    """Says in words which values an option takes."""
    if choices(field):
        return f"one of {', '.join(choices(field))}"
    # The first type of a union is the option's: `int | None`.
    first = str(field.annotation).removeprefix("<class '").partition(" ")[0].removesuffix("'>")
    kinds = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a string"}
    kind = kinds.get(first, "a list of integers")
    return f"{kind} {interval(field)}".rstrip()


def _sentence(kind: type[Options], error: pydantic.ValidationError) -> str:
    """Tells the first thing that pydantic found wrong, in our words."""
    # A default that cannot be computed is a consequence of another error.
    details = [d for d in error.errors() if d["type"] != "default_factory_not_called"]
    name, value = str(details[0]["loc"][0]), details[0]["input"]
    if name not in kind.model_fields:
        return f"Unknown option {name!r} of {kind.__name__}. Received: {name}={value!r}"
    return f"Expected {name} to be {described(kind.model_fields[name])}. Received: {name}={value!r}"


class RunConfig(Options, abc.ABC):
    """The options of every command that trains a run.

    A task's class adds its own, and declares `epochs`, `batch_size` and `learning_rate` with its
    defaults and, last of all, `name`: a default can depend on the options declared before it, and
    pydantic puts the fields of a base class first.

    Raises:
        InputError: If a value is out of its range, whatever the data.
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
        le=2**32 - 1,
    )

    tensorboard: bool = option(
        False, OUTPUT, "write logs for TensorBoard to tensorboard/ in the run's folder"
    )
    export: bool = option(False, OUTPUT, "export the trained model for serving")
    saved_models: str = option(
        "saved_models", OUTPUT, "where to export: DIR/NAME/VERSION/", metavar="DIR"
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

    @property
    def export_folder(self) -> Path:
        """The folder of the exported model's versions."""
        return Path(self.saved_models, self.name)

    @property
    def export_options(self) -> dict[str, Any]:
        """What makes one exported model differ from another of the same run."""
        return {"folder": str(self.export_folder)}

    def refuse(self, reason: str, *names: str) -> None:
        """Raises `InputError` if one of the named options differs from its default."""
        for name in names:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                raise InputError(f"Expected no {name} with {reason}. Received: {name}={value}")


def epochs_option(
    default: int,
    text: str = "passes over the training part",
    compute: Callable[[dict[str, Any]], int] | None = None,
) -> Any:
    """Declares the number of epochs."""
    return option(default, TRAINING, text, compute=compute, ge=1, le=100_000)


def batch_size_option(default: int, rows: str = "rows") -> Any:
    """Declares the size of a batch of `rows`."""
    return option(default, TRAINING, f"{rows} per step", ge=1, le=1_048_576)


def early_stopping_option(text: str) -> Any:
    """Declares the patience of early stopping."""
    return option(None, TRAINING, text, metavar="PATIENCE", ge=1, le=100_000)


def steps_per_execution_option() -> Any:
    """Declares Keras' `steps_per_execution`."""
    text = "batches per compiled call (Keras' steps_per_execution)"
    return option(1, TRAINING, text, ge=1, le=100_000)


def jit_compile_option(auto: str) -> Any:
    """Declares whether XLA compiles the steps; `auto` says what the default does."""
    text = f"compile with XLA; auto: {auto}"
    return option("auto", TRAINING, text, choices=("auto", "on", "off"))


def name_option(compute: Callable[[dict[str, Any]], str], default: str) -> Any:
    """Declares the name of a run.

    Args:
        compute: Computes the default from the other options.
        default: What `--help` says the default is.
    """
    text = f"name of the run and of the exported model (default: {default})"
    return option(None, OUTPUT, text, compute=compute)


def registered_attentions() -> dict[str, str]:
    """Returns the names in the library's registry of attentions, and what they stand for.

    The source of `keras_tnattn/models/attentions.py` is read and not imported: that would load
    Keras and its backend, for which `--help` and an invalid option should not wait.
    """
    spec = importlib.util.find_spec("keras_tnattn")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    source = Path(folders[0], "models", "attentions.py").read_text(encoding="utf-8")
    (registry,) = (
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ATTENTIONS"
    )
    if not isinstance(registry, ast.Dict):
        raise TypeError(f"Expected ATTENTIONS to be a dictionary. Received: {registry}")
    return {
        ast.literal_eval(name): ast.literal_eval(entry.args[0])
        for name, entry in zip(registry.keys, registry.values, strict=True)
        if name is not None and isinstance(entry, ast.Call)
    }


def at_least(low: int, **values: float | None) -> None:
    """Raises `InputError` if a value that is given is not finite or below `low`."""
    for name, value in values.items():
        if value is not None and not low <= value < math.inf:
            raise InputError(f"Expected {name} >= {low}. Received: {name}={value}")


def to_json(options: Options) -> str:
    """Writes options as `from_json` reads them."""
    return options.model_dump_json(indent=2) + "\n"


def from_json(kind: type[SomeOptions], text: str) -> SomeOptions:
    """Reads options of the given class.

    Raises:
        InputError: If the text is no JSON object, or a field of it is unknown or not as declared.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"Expected the options of a run as JSON. Received: {error}") from error
    if not isinstance(values, dict):
        raise InputError(
            f"Expected the options of a run as a JSON object. Received: {str(values)[:40]}"
        )
    return kind(**values)
