"""What the server of a worker imports before it forks: all that a run needs, and the digests of the files as they are.

An edit after that changes neither: the runs of a sweep have the code that it was started with, and say so.
"""

import main  # noqa: F401
import utils.run.execution
import utils.run.saved_model
import utils.tables  # noqa: F401
from utils.config.registry import REGISTRIES
from utils.run.code_digest import read_project_files

for registry in REGISTRIES:
    registry.entries()
read_project_files()
