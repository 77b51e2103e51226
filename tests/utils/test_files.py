"""Locks on folders."""

import os
import signal

from utils.files import OwnedLock


def test_forked_process_does_not_have_the_lock_of_its_parent(tmp_path):
    lock = OwnedLock(tmp_path)
    there, is_there = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(is_there, b"x")
        signal.pause()
        os._exit(0)
    try:
        os.read(there, 1)
        assert OwnedLock.is_held(tmp_path)
        lock.release()
        OwnedLock(tmp_path).release()  # while the child lives
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
