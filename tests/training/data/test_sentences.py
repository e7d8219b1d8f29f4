import gzip
import io

import pytest

from keras_tnattn_train.data.sentences import Row, from_file, from_strings
from keras_tnattn_train.options.errors import InputError


def rows(path, column=None):
    with from_file(str(path), column) as result:
        return list(result)


def test_strings():
    result = list(from_strings(["a b", " ", "c"]))
    assert result == [Row(1, "a b"), Row(2, None, "empty"), Row(3, "c")]


def test_lines(tmp_path):
    path = tmp_path / "text.txt"
    content = "\ufeffum\r\n\ndois\u2028tr\u00eas\n".encode() + b"\xff\n" + b"quatro"
    path.write_bytes(content)
    expected = [
        Row(1, "um"),
        Row(2, None, "empty"),
        Row(3, "dois\u2028tr\u00eas"),
        Row(4, None, "not UTF-8"),
        Row(5, "quatro"),
    ]
    assert rows(path) == expected
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(content))
    assert rows(packed) == expected
    packed.write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(InputError, match=r"readable text file.*text\.txt\.gz, which is damaged"):
        rows(packed)


def test_a_column_of_a_table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(
        b'id,text,note\n1,"two\nlines, ""quoted""",x\n2,\xff,x\n3,c\n4,,x\n\n5,d,\xff\n,,\n'
    )
    assert rows(path) == [
        Row(2, 'two\nlines, "quoted"'),
        Row(3, None, "not UTF-8"),
        Row(4, None, "2 fields instead of 3, beginning with '3'"),
        Row(5, None, "empty"),
        Row(7, "d"),
        Row(8, None, "empty"),
    ]
    assert [row.text for row in rows(path, "id")] == ["1", "2", None, "4", "5", None]
    with pytest.raises(InputError, match=r"column 'body'.*columns=\['id', 'text', 'note'\]"):
        rows(path, "body")


def test_tabs_and_other_headers(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text('source\ttarget\n"a\tb\n')
    assert rows(path) == [Row(2, '"a')]
    path.write_text("review\na\n")
    assert rows(path) == [Row(2, "a")]
    path.write_text("one\ttwo\na\rc\tb\n", newline="")
    with pytest.raises(InputError, match="--column"):
        rows(path)


def test_the_standard_input(monkeypatch):
    table = b'x,y,a;b\n1,"2; 3\n4",5\n'
    for content, column, expected in ((b"a\nb\n", None, ["a", "b"]), (table, "x", ["1"])):
        stdin = io.TextIOWrapper(io.BytesIO(content))
        monkeypatch.setattr("sys.stdin", stdin)
        assert [row.text for row in rows("-", column)] == expected


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"none\.txt, which does not exist"):
        rows(tmp_path / "none.txt")
    (tmp_path / "text.txt").write_text("a\n")
    with pytest.raises(InputError, match="column='text'"):
        rows(tmp_path / "text.txt", "text")


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters_are_those_of_the_training(tmp_path, delimiter):
    path = tmp_path / "table.csv"
    lines = "text;label;in %, of all", '"a; b";x;1', "c;y;2"
    path.write_text("\n".join(lines).replace(";", delimiter))
    assert rows(path) == [Row(2, f"a{delimiter} b"), Row(3, "c")]
    assert [row.text for row in rows(path, "label")] == ["x", "y"]


def test_a_text_of_characters_that_nobody_sees_is_empty():
    assert [row.problem for row in from_strings(["a\u200b", "\u200b \ufeff"])] == [None, "empty"]
