"""An HTTP server for exported models, with a page to try them on.

```sh
python -m keras_tnattn.serving saved_models --port 8501
```

It answers TensorFlow Serving's REST API and the Open Inference Protocol v2, which
`docs/serving.md` describes; `--help` lists the options. Needs the extra `serve`.
"""

from keras_tnattn.serving.app import create_app
from keras_tnattn.serving.settings import Settings

__all__ = ["Settings", "create_app"]
