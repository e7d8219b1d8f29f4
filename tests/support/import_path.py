"""The `PYTHONPATH` with which a process imports this checkout."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMPORT_PATH = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "training"))
