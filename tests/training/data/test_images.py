import numpy as np
import pytest
from PIL import Image

from keras_tnattn_train.data.images import load_images, read_picture
from keras_tnattn_train.options.errors import InputError


def picture(path, shade, size=(4, 3), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade).save(path)
    return path


@pytest.fixture
def folders(tmp_path):
    for i in range(10):
        picture(tmp_path / "light" / f"{i}.png", 200 + i)
        picture(tmp_path / "dark" / f"{i}.PNG", 10 + i)
    (tmp_path / "dark" / "notes.md").write_text("no picture")
    (tmp_path / "readme.txt").write_text("beside the classes")
    return tmp_path


def test_a_folder_for_each_class(folders):
    data = load_images(str(folders))
    assert data.class_names == ("dark", "light")
    assert data.images.shape == (16, 3, 4)  # height before width
    assert (np.bincount(data.labels).tolist(), np.bincount(data.test_labels).tolist()) == (
        [8, 8],
        [2, 2],
    )
    for images, labels in ((data.images, data.labels), (data.test_images, data.test_labels)):
        assert ((images[:, 0, 0] > 0.5) == labels).all()
    assert data.images.max() <= 209 / 255
    assert data.notes == ("1 file that is not a picture left out",)
    other = load_images(str(folders), seed=1, test_fraction=0.5)
    assert len(other.test_labels) == 10
    assert load_images(str(folders)).fingerprint() == data.fingerprint() != other.fingerprint()


def test_folders_without_pictures_are_named(folders):
    (folders / "empty").mkdir()
    picture(folders / "dark\u200b" / "20.png", 0)
    data = load_images(str(folders))
    assert data.class_names == ("dark", "light")
    assert data.notes[1:] == (
        "warning: folder without pictures, which make no class: 'empty'",
        "1 label with invisible characters (U+200B), which are left out",
    )


def test_a_table_of_paths_and_labels(folders):
    table = folders / "t.csv"
    rows = [f"{'light' if i % 2 else 'dark'}/{i}.{'png' if i % 2 else 'PNG'}" for i in range(10)]
    lines = [f"{path}, {path[0]} " for path in rows]
    table.write_text("\n".join(["path,label", *lines]) + "\n")
    data = load_images(str(table))
    assert data.class_names == ("d", "l")
    assert ((data.images[:, 0, 0] > 0.5) == data.labels).all()
    table.write_text("\n".join(["path,label", *lines, "none.png,d", "readme.txt,d", "x", ",d"]))
    with pytest.raises(InputError) as error:
        load_images(str(table))
    parts = ("4 bad rows", "row 14: 1 field", "row 15: an empty path", "row 12", "not a picture")
    assert all(part in str(error.value) for part in parts), error.value
    table.write_text("file,label\na,b\n")
    with pytest.raises(InputError, match="the columns path and label"):
        load_images(str(table))


def test_sizes(folders):
    picture(folders / "dark" / "wide.png", 0, (8, 3))
    with pytest.raises(InputError, match=r"2 sizes: 3 by 4 \(.*0\.PNG\), 3 by 8 .*--image-size"):
        load_images(str(folders))
    assert load_images(str(folders), image_size=5).images.shape[1:] == (5, 5)


def test_one_class(tmp_path):
    picture(tmp_path / "a" / "1.png", 0)
    with pytest.raises(InputError, match=r"two classes or more.*1 pictures in the classes \['a'\]"):
        load_images(str(tmp_path))
    with pytest.raises(InputError, match=r"digits, mnist, fashion_mnist"):
        load_images("minst")


def test_colors_become_grays(tmp_path):
    path = picture(tmp_path / "a.png", (255, 0, 0), mode="RGB")
    np.testing.assert_allclose(read_picture(path), np.full((3, 4), 76 / 255), atol=1e-6)
    assert read_picture(path, (6, 2)).shape == (6, 2)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match=r"truncated|not a picture|broken"):
        read_picture(path)


def test_deep_and_transparent_pictures(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.array([[0, 20_000, 65_535]], "uint16")).save(path)
    np.testing.assert_allclose(read_picture(path), [[0, 78 / 255, 1]], atol=1e-6)
    Image.fromarray(np.array([[[0, 255], [0, 0]]], "uint8"), "LA").save(path)
    assert read_picture(path).tolist() == [[0, 1]]  # what is transparent is white
    Image.fromarray(np.ones((2, 2), "float32")).save(tmp_path / "a.tiff")
    with pytest.raises(ValueError, match="of 32 bits"):
        read_picture(tmp_path / "a.tiff")


def test_pictures_of_cameras_stand_upright(tmp_path):
    """Cameras store how they were held: 6 is a quarter of a turn to the right."""
    image = Image.new("L", (4, 2))
    image.putpixel((0, 0), 255)  # the top left
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.png", exif=exif)
    upright = read_picture(tmp_path / "a.png")
    assert upright.shape == (4, 2)
    assert np.argwhere(upright == 1).tolist() == [[0, 1]]  # the top right


def test_smaller_pictures_are_averages(tmp_path):
    columns = np.tile(np.array([0, 255], "uint8"), (16, 8))
    Image.fromarray(columns).save(tmp_path / "a.png")
    np.testing.assert_allclose(read_picture(tmp_path / "a.png", (4, 4))[:, 1:-1], 0.5, atol=0.05)


@pytest.mark.parametrize(("name", "classes"), [("mnist", 3), ("fashion_mnist", 3), ("mnist", 12)])
def test_other_numbers_of_classes(tmp_path, name, classes):
    labels = np.arange(classes)
    images = np.zeros((classes, 4, 4), "uint8")
    path = tmp_path / f"{name}.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images[:1], y_test=labels[:1])
    assert load_images(name, str(tmp_path)).class_names == tuple(map(str, range(classes)))
    np.savez(path, x_train=images, y_train=labels - 0.5, x_test=images[:1], y_test=labels[:1])
    with pytest.raises(InputError, match="integers as labels"):
        load_images(name, str(tmp_path))
