"""The command line: `python -m keras_tnattn_serving SAVED_MODELS`."""

import argparse
import contextlib
import dataclasses
import ipaddress
import logging
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from keras_tnattn_runtime.extras import installation
from keras_tnattn_runtime.layout import MODEL_CARD
from keras_tnattn_serving.workers import listen, run_workers

if TYPE_CHECKING:  # their libraries may be missing
    from keras_tnattn_serving.inference import Inference
    from keras_tnattn_serving.server import Server
    from keras_tnattn_serving.settings import Settings

# The settings that `--help` shows; `--help-all` shows the others, too.
_FIRST = ("max_batch", "threads", "workers", "served_versions", "max_length")
HELP_ALL = "--help-all"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves a folder of exported models until it receives SIGINT or SIGTERM."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    # By default as many as there are cores: as many models that never return would stop all others.
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", "32")
    try:
        from keras_tnattn_serving.engines import check_installed
        from keras_tnattn_serving.settings import Settings
    except ImportError as error:
        print(f"error: {error}. {installation('fastapi')}", file=sys.stderr)
        return 2
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(Settings, shows_all=HELP_ALL in words)
    options = parser.parse_args(["--help" if word == HELP_ALL else word for word in words])
    values = {field.name: getattr(options, field.name) for field in _limits(Settings)}
    try:
        settings = Settings(
            **values,
            access_log=options.access_log == "json",
            log_texts=options.log_texts,
            allowed_hosts=tuple(options.allowed_hosts or _default_hosts(options.host)),
            allowed_origins=tuple(options.allowed_origins),
            engine=options.engine,
        )
        check_installed(settings.engine)
    except (ImportError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not Path(options.saved_models).is_dir():
        print(
            f"error: Expected a folder of exported models. Received: {options.saved_models}. "
            "Export one with keras-tnattn classify ... --export",
            file=sys.stderr,
        )
        return 2
    try:
        if settings.workers > 1:  # else another server that shares the port would be no error
            listen(options.host, options.port).close()
        listening = listen(options.host, options.port, shares=settings.workers > 1)
    except (OSError, OverflowError) as error:
        print(f"error: Could not listen on {options.host}:{options.port}: {error}", file=sys.stderr)
        return 2
    _do_not_wait_for_stderr()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    with listening:
        if settings.workers == 1:
            _serve(options.saved_models, settings, listening)
            return 0
        host, port = listening.getsockname()[:2]

        def serve(first: bool) -> None:
            with listen(host, port, shares=True) as own:
                _serve(options.saved_models, settings, own, announces=first)

        run_workers(settings.workers, serve)
    return 0


def _default_hosts(host: str) -> tuple[str, ...]:
    """Any name where others may reach the server, else those of no web site.

    A web site can let its own name lead to this machine, and then ask whatever listens on it.
    """
    with contextlib.suppress(ValueError):
        if not ipaddress.ip_address(host).is_loopback:
            return ("*",)
        return ("local",)
    return ("local",) if host == "localhost" else ("*",)


def _do_not_wait_for_stderr() -> None:
    """Drops what is written to stderr while its pipe is full, by TensorFlow's threads, too."""
    with contextlib.suppress(OSError):  # there is no stderr
        mode = os.fstat(2).st_mode
        if stat.S_ISFIFO(mode):
            # Opened again, because the other processes that write to it should wait.
            pipe = os.open("/proc/self/fd/2", os.O_WRONLY | os.O_NONBLOCK)
            os.dup2(pipe, 2)
            os.close(pipe)
        elif stat.S_ISSOCK(mode):
            os.set_blocking(2, False)
        logging.raiseExceptions = False  # logging would tell on stderr that stderr is full


def _limits(settings: type) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(settings) if field.metadata]


def _parser(settings: type, shows_all: bool) -> argparse.ArgumentParser:
    from keras_tnattn_serving.settings import ENGINES

    console = Path(sys.argv[0]).stem == "keras-tnattn"
    prog = "keras-tnattn serve" if console else "python -m keras_tnattn_serving"
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} [OPTIONS] SAVED_MODELS",
        epilog=None if shows_all else f"all options: {prog} {HELP_ALL}",
        description="Serves exported models through TensorFlow Serving's REST API and the Open "
        "Inference Protocol v2, with a page at / to try them on.",
    )
    parser.add_argument(
        "saved_models", metavar="SAVED_MODELS", help="folder with NAME/VERSION/ for each model"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=8501, help="port; 0 chooses a free one (default: %(default)s)"
    )
    for field in _limits(settings):
        text = f"{field.metadata['help']} (default: %(default)s)"
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=field.type,
            default=field.default,
            metavar="N",
            help=text if shows_all or field.name in _FIRST else argparse.SUPPRESS,
        )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="what computes classifiers; auto: the fastest that a version was exported and "
        "verified with, and that is installed (default: %(default)s)",
    )
    parser.add_argument(
        "--allowed-hosts",
        nargs="+",
        metavar="NAME",
        help="the names in the header Host that are answered: * stands for any, local for IP "
        "addresses and names without a dot (default: local with a --host of this machine, else *)",
    )
    parser.add_argument(
        "--allowed-origins",
        nargs="+",
        default=(),
        metavar="ORIGIN",
        help="the web pages on other hosts whose scripts may ask (CORS): such as "
        "https://example.org; * stands for any (default: none)",
    )
    parser.add_argument(
        "--access-log",
        choices=("none", "json"),
        default="none",
        help="json: write a line for each request (default: %(default)s)",
    )
    parser.add_argument(
        "--log-texts", action="store_true", help="include the bodies of requests in the access log"
    )
    return parser


def _serve(
    saved_models: str, settings: "Settings", listening: socket.socket, announces: bool = True
) -> None:
    from keras_tnattn_serving.app import create_app
    from keras_tnattn_serving.server import Server

    app = create_app(saved_models, settings)
    address = _address(*listening.getsockname()[:2])
    server = Server(app, settings, listening)
    if announces:
        # A daemon: the reader of stdout may be slow.
        arguments = server, app.inference, address
        threading.Thread(target=_announce, args=arguments, daemon=True).start()
    server.serve_until_stopped()


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(server: "Server", inference: "Inference", address: str) -> None:
    while not (server.started and inference.repository.scanned):
        time.sleep(0.05)
    models = inference.repository
    names, loading = [name for name in models.names() if models.available(name)], models.loading()
    more = f"; {', '.join(loading)} still loading" if loading else ""
    print(f"{address} serves {', '.join(names) or 'no model yet'}{more}", flush=True)
    if not names and not loading:
        print(f"warning: {_hint(inference.repository.root)}", file=sys.stderr)


def _hint(root: Path) -> str:
    """Returns what may be wrong with a folder in which no model was found."""
    files = ("saved_model.pb", MODEL_CARD)
    if any((path / file).exists() for path in root.glob("[0-9]*") for file in files):
        return f"{root} is the folder of one model; give the one that it is in, {root.parent}"
    if (root / "model.keras").exists():
        return (
            f"{root} is the folder of a run; export it with keras-tnattn TASK --run-dir "
            f"{root} --resume --export, and give the folder of the exports, saved_models"
        )
    return (
        f"expected exported models, NAME/VERSION/ as --export writes them, in {root}; found none "
        "that loads"
    )


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs `main` and exits.

    It waits neither for a batch that outlasts `--stop-s` or a version that is loading, nor for the
    reader of a full pipe.
    """
    os._exit(main(arguments))


if __name__ == "__main__":
    run()
