import io

from keras_tnattn_train.runs.counter import Counter


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(file, total, count=1000):
    counter = Counter("rows", file)
    for done in range(1, count + 1):
        counter.show(done, total)
    counter.close()
    return file.getvalue()


def test_few_lines_where_stderr_is_no_terminal():
    lines = shown(io.StringIO(), 1000).splitlines()
    assert len(lines) <= 11
    assert lines[0].startswith("1 of 1,000 rows, ")
    assert lines[-1].startswith("1,000 of 1,000 rows, ")
    doubled = shown(io.StringIO(), None).splitlines()
    assert [line.partition(" ")[0] for line in doubled[:4]] == ["1", "2", "4", "8"]
    assert len(doubled) == 10


def test_one_line_on_a_terminal():
    text = shown(Terminal(), 1000)
    assert text.count("\n") == 1
    assert text.startswith("\r1 of 1,000 rows, 0 s\r2 of")
