"""Serves a classifier with LitServe for `serving.py`; its arguments are MODEL and PORT.

This is a separate file because LitServe's processes have to import the class.
"""

import sys

import litserve
from serving import MAX_BATCH, WAIT_MS, load_model


class Model(litserve.LitAPI):
    """The classifier behind LitServe."""

    path = ""

    def setup(self, device):
        """Loads the model in the worker process."""
        self.classify = load_model(self.path)

    def decode_request(self, request):
        """Returns the text of a request."""
        return request["text"]

    def predict(self, texts):
        """Computes a batch."""
        return self.classify(texts)

    def unbatch(self, output):
        """Gives each request its answer."""
        return output

    def encode_response(self, output):
        """Returns the label and the probabilities."""
        return output


if __name__ == "__main__":
    model = Model(max_batch_size=MAX_BATCH, batch_timeout=WAIT_MS / 1000)
    model.path = sys.argv[1]
    server = litserve.LitServer(model, accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="error"
    )
