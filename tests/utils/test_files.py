"""Files and locks on folders."""

import json
import os
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from utils.errors import RunLocked
from utils.files import folder_lock, is_locked, write_json


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.recursive(
        st.text('[]{}",\\ \n1') | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.none(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[] "\n'), inner, max_size=3),
    )
)
def test_what_is_written_is_what_is_read(tmp_path_factory, value):
    path = tmp_path_factory.getbasetemp() / "any.json"
    write_json(path, value)
    assert json.loads(path.read_text()) == value


def test_a_row_of_numbers_is_a_line(tmp_path):
    write_json(tmp_path / "a.json", {"matrix": [[1, 2.5], [None, -3e-9]]})
    assert (tmp_path / "a.json").read_text() == '{\n "matrix": [\n  [1, 2.5],\n  [null, -3e-09]\n ]\n}\n'


def test_lock_names_its_owner_and_is_free_afterwards(tmp_path):
    assert not is_locked(tmp_path)
    with folder_lock(tmp_path):
        assert is_locked(tmp_path)
        with pytest.raises(RunLocked, match=f"process {os.getpid()} on "), folder_lock(tmp_path):
            pass
    assert not is_locked(tmp_path)
    with folder_lock(tmp_path):
        pass


def test_forked_process_does_not_have_the_lock_of_its_parent(tmp_path):
    there, is_there = os.pipe()
    with folder_lock(tmp_path):
        child = os.fork()
        if child == 0:
            os.write(is_there, b"x")
            signal.pause()
            os._exit(0)
        os.read(there, 1)
        assert is_locked(tmp_path)
    try:
        assert not is_locked(tmp_path)  # while the child lives
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
