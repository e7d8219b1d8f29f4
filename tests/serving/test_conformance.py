import pytest
from serving_servers import in_thread
from serving_table import CASES, OWN, TFS, V2, fault


@pytest.fixture(scope="module")
def url(plain):
    with in_thread(plain) as (url, _):
        yield url


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answers_as_the_table_says(url, case):
    assert fault(url, case) is None


def test_the_table_is_of_use():
    assert len({case.name for case in CASES}) == len(CASES) >= 60
    assert {case.protocol for case in CASES} == {TFS, V2, OWN}
