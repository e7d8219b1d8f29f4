# The server of exported models, which ONNX Runtime computes:
#
#     docker build -t keras-tnattn-server .
#     docker run -p 8501:8501 -v "$PWD/saved_models:/models:ro" keras-tnattn-server
#
# Translators and other models that need TensorFlow: --build-arg EXTRAS=serve,tensorflow,text
FROM python:3.11-slim

ARG EXTRAS=serve
ARG RUNTIMES=onnxruntime

COPY pyproject.toml setup.cfg README.md LICENSE /source/
COPY keras_tnattn /source/keras_tnattn
COPY keras_small /source/keras_small
COPY keras_tnattn_runtime /source/keras_tnattn_runtime
COPY keras_tnattn_serving /source/keras_tnattn_serving
COPY training/keras_tnattn_train /source/training/keras_tnattn_train
RUN pip install --no-cache-dir "/source[$EXTRAS]" $RUNTIMES \
    && rm -r /source \
    && useradd --system server

USER server
EXPOSE 8501
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/v2/health/ready')"]
ENTRYPOINT ["python", "-m", "keras_tnattn_serving", "/models", "--host", "0.0.0.0", "--port", "8501"]
