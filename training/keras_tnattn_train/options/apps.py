"""Builds command lines from declared options, with cyclopts."""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, get_args

import cyclopts
from pydantic.fields import FieldInfo

from keras_tnattn_train.options.errors import InputError, exit_status
from keras_tnattn_train.options.options import (
    EITHER,
    GROUPS,
    IN_PLACE,
    SomeOptions,
    choices,
    extras,
    interval,
)

HELP_ALL = "--help-all"
_GROUPS = {name: cyclopts.Group(name, sort_key=i) for i, name in enumerate(GROUPS)}


def new_app(words: str, text: str, examples: str = "") -> cyclopts.App:
    """Returns a program, which the user calls with these words, to add commands to."""
    app = cyclopts.App(
        name=words,
        help=text,
        help_epilogue=examples,
        version_flags=(),
        help_format="plaintext",
        default_parameter=cyclopts.Parameter(negative=(), allow_repeating=True),
        result_action="return_value",
    )
    app["--help"].show = False  # it would be the only one of a list of commands
    return app


def function_of(
    options: Mapping[str, FieldInfo],
    start: Callable[[dict[str, Any]], None],
    shown: Collection[str] = (),
) -> Callable[..., Callable[[], None]]:
    """Returns a function with one parameter per option, for cyclopts.

    Cyclopts calls it with only the options that the user typed; it returns a call of `start` with
    them.
    """
    parameters = [
        _parameter(name, field, name in shown if shown else None) for name, field in options.items()
    ]
    signature = inspect.Signature(sorted(parameters, key=lambda each: each.kind))

    def call(*arguments: Any, **values: Any) -> Callable[[], None]:
        return functools.partial(start, dict(signature.bind(*arguments, **values).arguments))

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def run(app: cyclopts.App, arguments: Sequence[str] | None) -> int:
    """Runs what the command line asks for, by default `sys.argv[1:]`; returns its `exit_status`."""

    words = sys.argv[1:] if arguments is None else arguments

    def start() -> None:
        try:
            tokens = ["--help" if word == HELP_ALL else word for word in words]
            command = app(tokens, exit_on_error=False, print_error=False)
        except cyclopts.UnusedCliTokensError as error:
            unused = " ".join(error.unused_tokens or ())
            raise InputError(
                f"Expected options, --NAME VALUE. Received: {unused}. See --help"
            ) from error
        except cyclopts.CycloptsError as error:
            raise InputError(f"{_sentences(str(error), app)} See --help") from error
        if command is not None:  # None after --help
            command()

    return exit_status(start)


def _sentences(text: str, app: cyclopts.App) -> str:
    """Returns a message of cyclopts as sentences, with all commands if it lists the first ones."""
    text, commands, _ = text.partition(" Available commands:")
    text = text.rstrip(".")
    if commands:
        names = (name for name in app if not name.startswith("-"))
        return f"{text if text.endswith('?') else f'{text}.'} Expected one of {', '.join(names)}."
    return text if text.endswith("?") else f"{text}."


def epilogue(words: str, examples: str, first: Collection[str]) -> str:
    """Returns examples below the words that show all options, if `--help` has only the first."""
    more = f"all options: {words} {HELP_ALL}\n\n" if first else ""
    return more + examples


@dataclasses.dataclass(frozen=True)
class Program(Generic[SomeOptions]):
    """A program without sub-commands; call it with its arguments to run it.

    Attributes:
        name: What the user types after `keras-tnattn`.
        first: The options that `--help` shows; `--help-all` shows the others, too. Default: all.
    """

    name: str
    text: str
    examples: str
    options: type[SomeOptions]
    start: Callable[[SomeOptions], None]
    first: tuple[str, ...] = ()

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Runs the program, by default with `sys.argv[1:]`; returns its `exit_status`."""
        typed = sys.argv[1:] if arguments is None else arguments
        first = () if HELP_ALL in typed else self.first
        words = f"keras-tnattn {self.name}"
        app = new_app(words, self.text, epilogue(words, self.examples, first))
        start = function_of(
            self.options.model_fields, lambda values: self.start(self.options(**values)), first
        )
        app.default(start)
        return run(app, arguments)


def _parameter(name: str, field: FieldInfo, is_first: bool | None) -> inspect.Parameter:
    default = inspect.Parameter.empty if field.is_required() else _default(field)
    if isinstance(default, tuple) and extras(field)["given"] == IN_PLACE:
        # Any number of them, of this type each.
        annotation = _type(get_args(field.annotation)[0], field, is_first)
        return inspect.Parameter(name, inspect.Parameter.VAR_POSITIONAL, annotation=annotation)
    kind: Any = inspect.Parameter.KEYWORD_ONLY
    if extras(field)["given"] == IN_PLACE:
        kind = inspect.Parameter.POSITIONAL_ONLY
    elif extras(field)["given"] == EITHER:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(
        name, kind, default=default, annotation=_type(field.annotation, field, is_first)
    )


def _type(kind: Any, field: FieldInfo, is_first: bool | None) -> Any:
    """Returns the type of an option, annotated with its presentation in `--help`."""
    if choices(field):
        one: Any = Literal[choices(field)]  # type: ignore[valid-type]
        kind = tuple[one, ...] if isinstance(field.default, tuple) else one
    allowed = f" [{interval(field)}]" if is_first is None and interval(field) else ""
    brief = extras(field).get("brief") if is_first else None
    parameter = cyclopts.Parameter(
        group=_GROUPS[extras(field)["group"]],
        help=brief or f"{field.description}{allowed}",
        metavar=extras(field)["metavar"],
        show=is_first is not False,
        show_default=_shown_default,
        consume_multiple=True,
        converter=_integers if kind in (int, int | None, tuple[int, ...]) else None,
    )
    # Cyclopts checks the default against the type, too.
    return Annotated[kind | None if _default(field) is None else kind, parameter]


def _default(field: FieldInfo) -> Any:
    """Returns the default of an option; `None` if it depends on other options."""
    return None if field.default_factory else field.default


def _shown_default(value: Any) -> str | None:
    """Formats a default for `--help`; `None` for flags and defaults that the help text explains."""
    if value is None or value is False or value == ():
        return None
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _integers(kind: Any, tokens: Sequence[cyclopts.Token]) -> int | tuple[int, ...]:
    """Parses integers; cyclopts itself would round 3.5."""
    try:
        values = tuple(int(token.value) for token in tokens)
    except ValueError as error:
        words = " ".join(token.value for token in tokens)
        raise ValueError(f"expected an integer, received {words!r}") from error
    return values if kind == tuple[int, ...] else values[-1]
