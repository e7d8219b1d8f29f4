"""The command line of `training/train.py`, built from the commands of the tasks."""

from collections.abc import Sequence

import cyclopts

from training.classify.command import COMMAND as CLASSIFY
from training.classify.compare import COMMAND as COMPARE
from training.command_line import function_of, new_app, run
from training.images.command import COMMAND as IMAGES
from training.rules.command import COMMAND as RULES
from training.translate.command import COMMAND as TRANSLATE

COMMANDS = (CLASSIFY, COMPARE, RULES, IMAGES, TRANSLATE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        arguments: The words of the command line. Default: `sys.argv[1:]`.

    Returns:
<<<<<<< HEAD
        The exit status: 0, 2 for invalid input, or 130 if interrupted.
=======
        The exit status, as `training.errors.exit_status` returns it.
>>>>>>> 163e502 (Declare the options of predict.py, evaluate.py and explain.py as those of the tasks)
    """
    return run(train_app(), arguments)


<<<<<<< HEAD
def _run(arguments: Sequence[str] | None) -> None:
    try:
        chosen = _app()(arguments, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        raise InputError(f"{str(error).rstrip('.')}. See --help") from error
    if chosen is not None:  # None after --help
        command, options = chosen
        command.start(options)


def _app() -> cyclopts.App:
    app = cyclopts.App(
        name="python training/train.py",
        help="Trains models of keras_tnattn.",
        version_flags=(),
        help_format="plaintext",
        default_parameter=cyclopts.Parameter(negative=(), allow_repeating=True),
        result_action="return_value",
    )
=======
def train_app() -> cyclopts.App:
    """Returns the program with all commands."""
    app = new_app("python training/train.py", "Trains models of keras_tnattn.")
>>>>>>> 163e502 (Declare the options of predict.py, evaluate.py and explain.py as those of the tasks)
    for command in COMMANDS:
        app.command(
            function_of(command.options, command.start),
            name=command.name,
            help=f"{command.summary}.\n\n{command.description}",
            help_epilogue=command.examples,
        )
    return app
<<<<<<< HEAD


def _function(command: Command) -> Callable[..., tuple[Command, dict[str, Any]]]:
    """Returns a function with one keyword argument per option, for cyclopts.

    Cyclopts calls it with only the options that the user typed; the function returns them.
    """

    def call(**options: Any) -> tuple[Command, dict[str, Any]]:
        return command, options

    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=_type(field),
        )
        for name, field in command.options.items()
    ]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _type(field: FieldInfo) -> Any:
    """Returns the type of an option, annotated with its presentation in `--help`."""
    kind: Any = field.annotation
    if choices(field):
        one: Any = Literal[choices(field)]  # type: ignore[valid-type]
        kind = tuple[one, ...] if isinstance(field.default, tuple) else one
    allowed = interval(field) and f" [{interval(field)}]"
    parameter = cyclopts.Parameter(
        group=_GROUPS[extras(field)["group"]],
        help=f"{field.description}{allowed}",
        metavar=extras(field)["metavar"],
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
=======
>>>>>>> 163e502 (Declare the options of predict.py, evaluate.py and explain.py as those of the tasks)
