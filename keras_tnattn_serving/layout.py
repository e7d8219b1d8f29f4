"""Where the files of an exported version are that TensorFlow does not know."""

from pathlib import Path

MODEL_CARD = "assets.extra/model_card.json"
ENGINES = "assets.extra/engines"
SIGNATURES = "assets.extra/signatures.json"


def portable_folder(folder: Path) -> Path | None:
    """Returns where the files for NumPy and a runtime are, in a folder or its newest version."""
    versions = sorted(folder.glob("[0-9]*"), key=lambda path: (len(path.name), path.name))
    places = [folder, *(path for version in versions[-1:] for path in version.glob(f"{ENGINES}/*"))]
    return next((path for path in places if (path / "text.json").is_file()), None)
