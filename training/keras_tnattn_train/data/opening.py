"""Opens text files in whatever packing and encoding their first bytes name."""

import bz2
import contextlib
import gzip
import io
import lzma
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from keras_tnattn_train.options.errors import InputError
from keras_tnattn_train.system.files import reason

STDIN = "-"
# Suffixes of packed files, and the bytes with which these begin.
PACKINGS = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ\x00", ".bz2": b"BZh", ".zip": b"PK\x03\x04"}
_OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
# What is no text, by its first bytes.
_OTHER_KINDS = {
    b"(\xb5/\xfd": "is packed with Zstandard; unpack it first",
    b"7z\xbc\xaf": "is packed with 7-Zip; unpack it first",
    b"PAR1": "is a Parquet file; name it .parquet",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook; save its sheet as CSV UTF-8",
    b"%PDF": "is a PDF file",
    b"\x89HDF": "is an HDF5 file",
    b"SQLite": "is a database",
}
_BYTE_ORDER_MARKS = {
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_DAMAGE_ERRORS = (EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile)
_PEEK = 4096


def suffix_of(path: str | Path) -> str:
    """Returns the suffix that names the format, in lower case, without that of a packing."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    while suffixes and suffixes[-1] in PACKINGS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@contextlib.contextmanager
def open_lines(path: str | Path, kind: str, newline: str = "\n") -> Iterator[Iterator[str]]:
    """Opens a text file, and yields an iterator over its lines, unpacked and decoded.

    The first bytes tell whether it is packed and how it is encoded; without a byte order mark it is
    UTF-8. Bytes that are not UTF-8 become surrogates, so that only their own rows are bad.
    """
    with contextlib.ExitStack() as stack:
        with reading_errors(path, kind):
            file: Any = sys.stdin.buffer
            if str(path) != STDIN:
                file = stack.enter_context(Path(path).open("rb"))
            file = _unpack(_peekable(file), str(path), stack)
            encoding = _encoding(path, kind, file)
        errors = "surrogateescape" if encoding == "utf-8-sig" else "strict"
        text = io.TextIOWrapper(file, encoding, errors, newline)
        try:
            yield _lines(text, path, kind)
        finally:
            with contextlib.suppress(ValueError):  # closed already
                text.detach()  # the stack closes the file


def _lines(text: TextIO, path: str | Path, kind: str) -> Iterator[str]:
    with reading_errors(path, kind):
        # `yield from text` would close the text when the reader stops early.
        yield from iter(text.readline, "")


@contextlib.contextmanager
def reading_errors(path: str | Path, kind: str) -> Iterator[None]:
    """Reports errors of reading as an `InputError`."""
    try:
        yield
    except (OSError, UnicodeDecodeError, *_DAMAGE_ERRORS) as error:
        if isinstance(error, FileNotFoundError):
            problem = ", which does not exist"
        elif isinstance(error, UnicodeDecodeError):
            problem = f", which is not {error.encoding.upper()}, as its first bytes say"
        elif isinstance(error, OSError):
            problem = f": {reason(error)}"
        else:
            problem = f", which is damaged ({error})"
        raise InputError(f"Expected a readable {kind}. Received: {path}{problem}") from error


def _peekable(file: BinaryIO) -> Any:
    return file if hasattr(file, "peek") else io.BufferedReader(file)  # type: ignore[arg-type]


def _unpack(file: Any, path: str, stack: contextlib.ExitStack) -> Any:
    """Returns the content of a file that may be packed, once or several times."""
    suffix = Path(path).suffix.lower()
    while True:
        first = file.peek(_PEEK)[:_PEEK]
        packing = next((name for name, magic in PACKINGS.items() if first.startswith(magic)), None)
        if packing is None and suffix in _OPENERS and first:
            packing = suffix  # whose reader says what is wrong
        suffix = ""
        if packing is None:
            return file
        if packing == ".zip":
            file = stack.enter_context(_only_member(file, path))
        else:
            file = stack.enter_context(_OPENERS[packing](file))
        file = _peekable(file)


def _only_member(file: BinaryIO, path: str) -> Any:
    """Opens the file in a ZIP archive that holds one."""
    archive = zipfile.ZipFile(file if file.seekable() else io.BytesIO(file.read()))
    names = archive.namelist()
    if "xl/workbook.xml" in names or "content.xml" in names:
        raise InputError(
            f"Expected a text file. Received: {path}, which is a workbook; save its sheet as CSV "
            "UTF-8"
        )
    members = [
        name for name in names if not name.endswith("/") and not name.startswith("__MACOSX/")
    ]
    if len(members) != 1:
        raise InputError(
            f"Expected a ZIP archive of one file. Received: {path} with {len(members)}: "
            f"{', '.join(members[:5])}. Unpack it"
        )
    return archive.open(members[0])


def _encoding(path: str | Path, kind: str, file: Any) -> str:
    first = file.peek(_PEEK)[:_PEEK]
    for magic, what in _OTHER_KINDS.items():
        if first.startswith(magic):
            raise InputError(f"Expected a {kind}. Received: {path}, which {what}")
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if first.startswith(mark):
            return encoding
    if first[257:262] == b"ustar":
        raise InputError(f"Expected a {kind}. Received: {path}, which is an archive; unpack it")
    zeros = first.count(0)
    if zeros > len(first) // 4:
        order = "be" if first[::2].count(0) > first[1::2].count(0) else "le"
        raise InputError(
            f"Expected a {kind} in UTF-8, or in UTF-16 with a byte order mark. Received: {path}, "
            f"whose bytes are mostly zeros. If it is UTF-16, convert it with iconv -f utf-16{order}"
            " -t utf-8"
        )
    return "utf-8-sig"
