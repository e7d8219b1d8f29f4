"""An HTTP server for exported models, with a page to try them on.

```sh
python -m keras_tnattn.serving saved_models --port 8501
```

It speaks TensorFlow Serving's REST form and the Open Inference Protocol v2; `docs/serving.md`
describes both and every option. Needs the extra `serve`.
"""

from keras_tnattn.serving.app import create_app
from keras_tnattn.serving.settings import Settings

__all__ = ["Settings", "create_app"]
