import keras

if keras.backend.backend() != "tensorflow":  # which alone writes LiteRT files and these loops
    collect_ignore_glob = ["test_litert_kernels.py", "test_recurrent.py"]
