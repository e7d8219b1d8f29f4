import subprocess
import sys


def test_imports_without_tensorflow_text():
    code = "import sys; sys.modules['tensorflow_text'] = None; import keras_tnattn"
    subprocess.run([sys.executable, "-c", code], check=True)
