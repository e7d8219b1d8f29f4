"""Processes that are started together, and end together."""

import time
from pathlib import Path

import pytest
from import_path import run_python

from keras_tnattn_train.processes.launching import main

ROOT = Path(__file__).parents[3]
NUMBER = "import os; n = int(os.environ['KERAS_DISTRIBUTION_PROCESS_ID'])\n"


def launch(tmp_path, code, processes=3):
    script = tmp_path / "script.py"
    script.write_text(NUMBER + code)
    launcher = ("-m", "keras_tnattn_train", "launch", "-n", str(processes))
    begin = time.monotonic()
    done = run_python(*launcher, "--", script, "--epochs", "3", status=None, cwd=ROOT, timeout=60)
    return done, time.monotonic() - begin


def test_each_is_told_its_number_and_one_is_heard(tmp_path):
    names = ("JOB_ADDRESSES", "NUM_PROCESSES")
    code = (
        "import pathlib, sys\n"
        f"seen = [os.environ['KERAS_DISTRIBUTION_' + name] for name in {names}]\n"
        "words = ' '.join([*seen, *sys.argv[1:]])\n"
        "pathlib.Path(__file__).with_name(f'{n}.txt').write_text(words)\n"
        "print('output', n); print('error', n, file=sys.stderr)\n"
    )
    done, _ = launch(tmp_path, code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "output 0\n", "error 0\n")
    (texts,) = {(tmp_path / f"{n}.txt").read_text() for n in range(3)}
    assert texts.startswith("127.0.0.1:")
    assert texts.endswith(" 3 --epochs 3")


def test_one_that_is_killed_ends_the_others(tmp_path):
    code = (
        "import time\n"
        "if n == 1: print('its last words', flush=True); os.kill(os.getpid(), 9)\n"
        "time.sleep(50)"
    )
    done, seconds = launch(tmp_path, code)
    assert done.returncode == 2
    assert "process 1 failed:\nits last words\n" in done.stderr
    assert "Process 1 was killed by SIGKILL" in done.stderr
    assert "--resume" in done.stderr
    assert seconds < 30


def test_one_that_does_not_end_when_asked_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("keras_tnattn_train.processes.launching.GRACE", 0.5)
    script = tmp_path / "script.py"
    code = (
        "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "started = pathlib.Path(__file__).with_name('started')\n"
        "if n == 0: started.touch(); time.sleep(50)\n"
        "while not started.exists(): time.sleep(0.1)\n"
        "os.kill(os.getpid(), 9)"
    )
    script.write_text(NUMBER + code)
    begin = time.monotonic()
    assert main(["-n", "2", "--", str(script)]) == 2
    assert time.monotonic() - begin < 30


def test_a_cause_that_makes_process_0_fail_too_is_shown(tmp_path):
    code = (
        "import pathlib, sys, time\n"
        "failed = pathlib.Path(__file__).with_name('failed')\n"
        "if n == 2: failed.touch(); sys.exit('a reason')\n"
        "while not failed.exists(): time.sleep(0.1)\n"
        "time.sleep(1)\nsys.exit('lost 2')"
    )
    done, _ = launch(tmp_path, code)
    assert done.returncode == 1
    assert "process 2 failed:\na reason\n" in done.stderr
    assert "lost 2\n" in done.stderr


def test_invalid_input_is_reported_once(tmp_path):
    done, _ = launch(tmp_path, "import sys\nprint('a reason', file=sys.stderr)\nsys.exit(2)")
    assert (done.returncode, done.stderr) == (2, "a reason\n")


@pytest.mark.parametrize("arguments", [["-n", "2"], ["-n", "0", "--", "script.py"], ["-n"]])
def test_what_is_refused(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")
