import keras

if keras.backend.backend() != "tensorflow":  # which alone exports texts
    collect_ignore_glob = [
        "test_explaining.py",
        "test_export_translator.py",
    ]
