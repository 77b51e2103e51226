"""What the server of local runs imports before it forks: code and digests stay as they were when a sweep began."""

import main  # noqa: F401
import utils.run.execution
import utils.run.saved_model
import utils.tables  # noqa: F401
from utils.config.registry import REGISTRIES
from utils.run.code_digest import read_project_files

for registry in REGISTRIES:
    registry.entries()
read_project_files()
