"""The reader of tables, against Python's own strict reader and against what a user would expect."""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import zipfile

import pytest

from keras_tnattn_train.data.tables import BadRows, open_table
from keras_tnattn_train.data.texts import load_texts
from keras_tnattn_train.options.errors import InputError


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, **options):
    """Returns columns, good rows, bad rows `(number, problem)` and notes."""
    good, bad = [], []
    with open_table(path, **options) as table:
        for row in table:
            if row.problem is None:
                good.append(list(row.fields))
            else:
                bad.append((row.number, row.problem.partition(",")[0]))
        return table.columns, good, bad, list(table.notes())


UNCLOSED = "a quotation mark is opened that the file never closes"
UNDELIMITED = "a closing quotation mark is not followed by a delimiter"
LATE = "a quotation mark is opened that a later row closes"
UNOPENED = "a quotation mark is closed that none opens"
ROWS = [f"text {i},{'ab'[i % 2]}" for i in range(20)]


class TestStrayQuotationMarks:
    def table(self, tmp_path, changed):
        rows = [changed.get(i, row) for i, row in enumerate(ROWS)]
        return read(write(tmp_path / "t.csv", "\n".join(["text,label", *rows]) + "\n"))

    @pytest.mark.parametrize(
        ("changed", "problems"),
        [
            ({4: '"text 4,a'}, {6: UNCLOSED}),
            ({4: '"text 4,a', 7: 'text 7,b"'}, {6: LATE, 9: UNOPENED}),
            ({4: '"he said\nthis is "fun" he said\nbye",b'}, {6: UNDELIMITED, 8: UNOPENED}),
        ],
    )
    def test_a_row_with_one_is_bad_and_no_other(self, changed, problems, tmp_path):
        _, good, bad, _ = self.table(tmp_path, changed)
        assert problems.items() <= dict(bad).items()
        assert [",".join(row) for row in good] == [
            row for i, row in enumerate(ROWS) if i not in changed
        ]

    def test_one_that_meets_a_quoted_field(self, tmp_path):
        _, good, bad, _ = self.table(tmp_path, {4: '"text 4,a', 9: '"text, 9",b'})
        assert bad == [(6, UNDELIMITED)]
        assert [row[0] for row in good] == [
            "text, 9" if i == 9 else f"text {i}" for i in range(20) if i != 4
        ]

    def test_two_that_enclose_rows_are_warned_about(self, tmp_path):
        _, good, bad, notes = self.table(tmp_path, {4: '"text 4,a', 7: 'text 7",b'})
        assert (len(good), bad) == (17, [])
        assert good[4] == ["text 4,a\ntext 5,b\ntext 6,a\ntext 7", "b"]
        assert notes[0].startswith(
            "warning: 1 row with a quoted field whose lines look like whole rows (row 6)"
        )

    def test_marks_within_a_field_are_a_part_of_it(self, tmp_path):
        _, good, bad, _ = self.table(tmp_path, {4: '12" disc,a', 5: 'a "b" c,b'})
        assert (good[4], good[5], bad) == (['12" disc', "a"], ['a "b" c', "b"], [])

    def test_the_header(self, tmp_path):
        with pytest.raises(InputError, match=r"header line.*never closes"):
            read(write(tmp_path / "t.csv", '"text,label\na,b\n'))


def test_marks_that_backslashes_escape(tmp_path):
    content = (
        'text,label\n"He said \\"hi\\", ok",a\n"ends\\"",b\n"b ""q""",a\n"c\\\\",b\n'
        '"two\n\\"lines\\"",a\nC:\\dir\\,b\n"C:\\x\\",a\n'
    )
    _, good, bad, notes = read(write(tmp_path / "t.csv", content))
    texts = ['He said "hi", ok', 'ends"', 'b "q"', "c\\\\", 'two\n"lines"', "C:\\dir\\", "C:\\x\\"]
    assert [row[0] for row in good] == texts
    assert [row[1] for row in good] == list("abababa")
    assert bad == []
    assert notes == ["3 rows read with quotation marks that backslashes escape"]


class TestBeforeTheHeader:
    @pytest.mark.parametrize(
        ("content", "columns", "rows"),
        [
            ("\n \ntext,label\na,b\n", ["text", "label"], [["a", "b"]]),
            ("sep=;\ntext;label\na,1;b\n", ["text", "label"], [["a,1", "b"]]),
            ('"sep=|"\r\ntext|a,b\r\nx|y\r\n', ["text", "a,b"], [["x", "y"]]),
            ("# by me, 2024\n#more\ntext,label\na,b\n", ["text", "label"], [["a", "b"]]),
            ("#id,text\n1,a\n", ["#id", "text"], [["1", "a"]]),
            (" text , label\n a , b\n", ["text", "label"], [[" a ", " b"]]),
            ("\ufefftext;label\na;b\n", ["text", "label"], [["a", "b"]]),
        ],
    )
    def test_csv(self, tmp_path, content, columns, rows):
        assert read(write(tmp_path / "t.csv", content))[:3] == (columns, rows, [])

    def test_numbers_and_lines_of_rows(self, tmp_path):
        path = write(tmp_path / "t.csv", '\n# x\na,b\n\n"1\n2",3\n4,5\n,\n6\n')
        with open_table(path) as table:
            rows = [(str(row), row.problem is None) for row in table]
            notes = list(table.notes())
        names = ["row 3 (line 5)", "row 4 (line 7)", "row 6 (line 9)"]
        assert rows == list(zip(names, [True, True, False], strict=True))
        assert notes == ["1 comment line (#) left out", "1 row of empty fields left out"]
        one_column = write(tmp_path / "one.csv", 'a\nx\n\n""\ny\n')
        assert read(one_column)[1:] == ([["x"], ["y"]], [], ["1 row of empty fields left out"])

    def test_later_comments(self, tmp_path):
        path = write(tmp_path / "t.csv", "# a\ntext,label\nx,y\n# b, c\n#tag,y\n#t,a,g\n")
        _, good, bad, notes = read(path)
        assert good == [["x", "y"], ["#tag", "y"]]
        assert [number for number, _ in bad] == [5]
        assert notes == ["2 comment lines (#) left out"]
        path = write(tmp_path / "t.csv", "text,label\nx,y\n# tag,y\n# a comment\n")
        assert read(path)[1] == [["x", "y"], ["# tag", "y"]]


class TestColumns:
    def test_two_of_one_name(self, tmp_path):
        path = write(tmp_path / "t.csv", "text,label, text\na,b,c\n")
        with pytest.raises(InputError, match=r"columns 1 and 3 are both called 'text'\. Rename"):
            read(path)
        assert read(write(path, "a,,b,\n1,2,3,4\n"))[1] == [["1", "2", "3", "4"]]

    def test_places(self, tmp_path):
        with open_table(write(tmp_path / "t.csv", "Text,LABEL,label,a,A\n")) as table:
            assert [table.place(n) for n in ("text", "label", "Label", "a", "b")] == [
                *(0, 2, None, 3, None)
            ]

    def test_the_header_once_more(self, tmp_path):
        with open_table(write(tmp_path / "t.csv", "a,b\n1,2\na,b\n")) as table:
            assert [table.repeats_header(row) for row in table] == [False, True]


class TestFiles:
    CONTENT = "text,label\n\u00e9t\u00e9,b\n"
    EXPECTED = (["text", "label"], [["\u00e9t\u00e9", "b"]], [], [])

    def zipped(self, **members):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return file.getvalue()

    @pytest.mark.parametrize("name", ["T.CSV", "t.csv.gz", "T.Csv.GZ", "t.csv.zip"])
    @pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, None])
    def test_the_first_bytes_tell_the_packing(self, tmp_path, name, pack):
        content = self.CONTENT.encode()
        packed = pack(content) if pack else self.zipped(t=content, **{"__MACOSX/t": ""})
        assert read(write(tmp_path / name, packed)) == self.EXPECTED

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
    def test_a_byte_order_mark_tells_the_encoding(self, tmp_path, encoding):
        assert read(write(tmp_path / "t.csv", self.CONTENT.encode(encoding))) == self.EXPECTED

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("text,label\na,b\n".encode("utf-16-le"), "iconv -f utf-16le"),
            ("text,label\na,b\n".encode("utf-16-be"), "iconv -f utf-16be"),
            ("text,label\na,b\n".encode("utf-16") + b"\x00", "is not UTF-16"),
            (b"PAR1xx", "Parquet"),
            (b"\xd0\xcf\x11\xe0\xa1", "Excel workbook"),
            (b"\x00" * 257 + b"ustar", "archive"),
            (gzip.compress(b"a,b\n" * 99, mtime=0)[:-9], "damaged"),
            (b"", "which is empty"),
            (b"\n \n", "which is empty"),
        ],
    )
    def test_what_is_no_table(self, tmp_path, content, message):
        with pytest.raises(InputError, match=message):
            read(write(tmp_path / "t.csv", content))

    def test_archives(self, tmp_path):
        for members, message in (
            ({"a.csv": "", "b.csv": ""}, r"with 2: a\.csv, b\.csv"),
            ({"xl/workbook.xml": ""}, "a workbook"),
        ):
            with pytest.raises(InputError, match=message):
                read(write(tmp_path / "t.zip.csv", self.zipped(**members)))

    def test_the_name(self, tmp_path):
        for name in ("t.txt", "t", "t.gz"):
            with pytest.raises(InputError, match=r"named \.csv, \.tsv, \.jsonl"):
                read(write(tmp_path / name, self.CONTENT))

    def test_an_error_of_the_reader_of_the_rows_stays_as_it_is(self, tmp_path):
        path = write(tmp_path / "t.csv", self.CONTENT)
        with pytest.raises(BrokenPipeError), open_table(path):
            raise BrokenPipeError


class TestTsv:
    def test_no_quoting(self, tmp_path):
        path = write(tmp_path / "t.TSV", 'a\tb\r\n"x\ty\r\n"p"\t"q"\n\t\nz\n')
        _, good, bad, notes = read(path)
        assert good == [['"x', "y"], ['"p"', '"q"']]
        assert [number for number, _ in bad] == [5]
        assert notes[0] == "1 row of empty fields left out"
        assert notes[1].startswith("warning: 1 row with fields within quotation marks")

    def test_quoted_columns(self, tmp_path):
        path = write(tmp_path / "t.tsv", 'a\tb\tc\n"x\ty"\t1\t2\n')
        assert read(path, quoted_columns={"a", "c"})[1] == [["x\ty", "1", "2"]]
        assert read(path, quoted_columns={"a", "d"})[2] == [(2, "4 fields instead of 3")]


class TestBadRows:
    def test_the_first_ten_and_their_number(self):
        bad = BadRows("t.csv", False)
        for i in range(12):
            bad.add(f"row {i}", "bad")
        with pytest.raises(InputError) as error:
            bad.notes()
        assert "t.csv with 12 bad rows: row 0: bad; row 1: bad" in str(error.value)
        more = "row 9: bad; and 2 more. Correct them, or leave them out with --skip-bad-rows"
        assert more in str(error.value)

    def test_skipped(self):
        bad = BadRows("t.csv", True)
        assert bad.notes() == ()
        bad.add("row 2", "bad")
        assert bad.notes() == ("1 bad row left out: row 2: bad",)


def random_table(rng):
    """Returns header, rows, text and delimiter of a random table that Python's writer quotes."""
    columns = rng.randint(1, 4)
    letters = 'ab,;"\n\r\t\\# \u00e9'
    rows = [
        ["".join(rng.choices(letters, k=rng.randint(0, 6))) for _ in range(columns)]
        for _ in range(rng.randint(1, 8))
    ]
    header = [f"c{i}" for i in range(columns)]
    file = io.StringIO(newline="")
    quoting = rng.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC])
    delimiter = rng.choice(",;\t|") if columns > 1 else ","
    end = rng.choice(["\n", "\r\n"])
    csv.writer(file, quoting=quoting, delimiter=delimiter, lineterminator=end).writerows(
        [header, *rows]
    )
    return header, rows, file.getvalue(), delimiter


def strict_rows(text, delimiter):
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))


def check_tables(path, seeds):
    for seed in seeds:
        rng = random.Random(seed)
        header, rows, text, delimiter = random_table(rng)
        if text.startswith("#") or any(row[0].startswith("#") for row in rows):
            continue  # comments are looked at above
        columns, good, bad, notes = read(write(path, text))
        if any("backslash" in note for note in notes):
            continue  # lines like rows whose marks may be escaped: either reading is possible
        strict = strict_rows(text, delimiter)
        if any(len(row) not in (0, len(header)) for row in strict):
            continue  # Python 3.11 does not quote carriage returns
        expected = [row for row in strict[1:] if any(row)]
        assert (columns, good, bad) == (header, expected, []), seed
        # One character more or less: what a strict reader refuses is not read without a word.
        place = rng.randrange(len(",".join(header)) + 1, len(text)) if len(text) > 9 else 0
        broken = text[:place] + rng.choice(['"', "", ",", "\n"]) + text[place + rng.randint(0, 1) :]
        try:
            strict = [row for row in strict_rows(broken, delimiter) if any(row)]
        except csv.Error:
            strict = None
        try:
            _, good, bad, notes = read(write(path, broken))
        except InputError:  # the header
            continue
        if strict is not None and all(len(row) == len(strict[0]) for row in strict):
            told = bad or any("backslash" in note or "comment" in note for note in notes)
            assert told or good == strict[1:], seed
        else:
            assert bad or notes, seed


def test_random_tables(tmp_path):
    check_tables(tmp_path / "t.csv", range(300))


@pytest.mark.slow
def test_many_random_tables(tmp_path):
    check_tables(tmp_path / "t.csv", range(1000, 30_000))


class TestValues:
    """JSON lines and Parquet: values instead of text."""

    OBJECTS = (
        {"text": 'two\nlines, "quoted"', "label": 3, "score": 0.5},
        {"text": None, "label": True, "score": [1, {"é": None}]},
        {"label": "x", "text": "no score", "more": 1},
    )
    CELLS = (
        ['two\nlines, "quoted"', "3", "0.5"],
        ["", "True", '[1, {"é": null}]'],
        ["no score", "x", ""],
    )

    @pytest.mark.parametrize("suffix", [".jsonl", ".NDJSON", ".json", ".jsonl.gz"])
    def test_json_lines(self, tmp_path, suffix):
        lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in self.OBJECTS)
        content = f"\ufeff{lines}\n".encode()
        content = gzip.compress(content) if suffix.endswith(".gz") else content
        columns, good, bad, notes = read(write(tmp_path / f"a{suffix}", content))
        assert columns == ["text", "label", "score", "more"]
        assert good == [[*cells, "1" if cells[1] == "x" else ""] for cells in self.CELLS]
        assert (bad, notes) == ([], [])

    def test_bad_lines_are_bad_rows(self, tmp_path):
        content = (
            '{"text": "a", "label": 1}\n{"text": "b", \n[1]\n"c"\n{"text": "\\ud800", "label": 1}'
        )
        path = write(tmp_path / "a.jsonl", content)
        _, good, bad, _ = read(path)
        assert good == [["a", "1"], ["\ud800", "1"]]
        assert [number for number, _ in bad] == [2, 3, 4]
        assert bad[0][1] == "no JSON object"
        assert bad[1][1] == "not an object"
        with pytest.raises(
            InputError, match=r"4 bad rows: row 2: no JSON obj.*row 5: half of a char.*ud800"
        ):
            load_texts(str(path))

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("", "which is empty"),
            ('[{"a": 1}]', "line 1 is not an object.*jq"),
            ("a,b\nc,d", "no JSON"),
        ],
    )
    def test_files_of_other_forms_are_refused(self, tmp_path, content, problem):
        with pytest.raises(InputError, match=f"JSON object in each line.*{problem}"):
            read(write(tmp_path / "a.json", content))

    def test_parquet(self, tmp_path):
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        columns = {
            "text": ["a", None, "ü\n"],
            "label": pyarrow.array(["x", "y", "x"]).dictionary_encode(),
            "count": [1, None, 3],
            "raw": [b"b", b"\xff", b""],
            "list": [[1], [], None],
        }
        path = tmp_path / "a.parquet"
        parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
        names, good, bad, _ = read(path)
        assert names == list(columns)
        assert good[0] == ["a", "x", "1", "b", "[1]"]
        assert good[1] == ["", "y", "", "\udcff", "[]"]
        assert good[2] == ["ü\n", "x", "3", "", ""]
        assert bad == []
        data = load_texts(str(path))
        assert list(data.texts) == ["a", "ü\n"]
        assert data.notes[0] == "1 row without text left out"
        whole = path.read_bytes()
        damaged = [
            whole[: len(whole) // 2],
            b"text,label\n",
            b"",
            whole[:9] + bytes(99) + whole[108:],
        ]
        for content in damaged:
            with pytest.raises(InputError, match=r"readable Parquet file.*(damaged|corrupt)"):
                read(write(path, content))
        with pytest.raises(InputError, match="which does not exist"):
            read(tmp_path / "none.parquet")
        with pytest.raises(InputError, match=r"name it \.parquet"):
            read(write(tmp_path / "a.csv", whole))
