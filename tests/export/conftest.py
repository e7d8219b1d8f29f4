import keras

if keras.backend.backend() != "tensorflow":  # which alone exports texts and writes these files
    collect_ignore_glob = [
        *("test_explaining.py", "test_export_translator.py", "test_litert_kernels.py"),
        *("test_packing.py", "test_portable*.py", "test_recurrent.py", "test_texts_of_data.py"),
        "test_web.py",
    ]
