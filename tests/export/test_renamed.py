"""The old names of the exports work, and warn."""

import pytest

pytest.importorskip("tensorflow")

from keras_tnattn import export
from keras_tnattn.export import class_names_file, export_signatures
from keras_tnattn.renaming import renamed_arguments


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Classifier", "LoadedClassifier"),
        ("Translator", "LoadedTranslator"),
        ("export", "export_classifier"),
    ],
)
def test_an_old_name_of_the_package(old, new):
    with pytest.warns(DeprecationWarning, match=f"export.{old} is now called {new}") as caught:
        assert getattr(export, old) is getattr(export, new)
    assert caught[0].filename == __file__
    assert old not in export.__all__


def test_class_names_became_extra_files(tmp_path):
    @renamed_arguments(class_names=("extra_files", class_names_file))
    def received(extra_files):
        return extra_files

    expected = {"assets.extra/class_names.json": '["x", "y"]'}
    with pytest.warns(DeprecationWarning, match="class_names .* is now called extra_files"):
        assert received(class_names=["x", "y"]) == expected
    assert received(extra_files=expected) == expected
    with (
        pytest.warns(DeprecationWarning, match="class_names of export_signatures"),
        pytest.raises(ValueError, match="version=0"),
    ):
        export_signatures({}, [], tmp_path, version=0, class_names=["x"])
