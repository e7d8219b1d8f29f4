"""Serves exported models, without Keras.

```sh
python -m keras_tnattn_serving saved_models --port 8501
```

It answers TensorFlow Serving's REST API and the Open Inference Protocol v2, which
`docs/guides/serving.md` describes; `--help` lists the options. The server needs the extra `serve`;
TensorFlow is imported for models, and signatures, that no other engine computes.

This is a package of its own, because `import keras_tnattn` brings Keras and its backend along.
"""
