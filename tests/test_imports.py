"""What a command imports, and which packages import which others."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from forked import ROOT, Command, forked, refusal

HEAVY = {"triton", "torchvision", "wandb", "pandas", "sklearn", "safetensors", "PIL", "tqdm", "ray"}
OPTIONAL = ("triton", "torchvision", "wandb", "pandas")
KERNELS = ["backbone.adab2n.c_passes"]
QUICK = {"help": ["--help"], "list": ["--list"], "error": ["--model", "nope", "--dataset", "seq-digits"]}
RUN = ["--dataset", "seq-digits", "--num_filters", "2", "--batch_size", "60", "--debug_mode", "--non_verbose"]

# As if they were not installed: torch, too, asks for triton when it is imported, and takes no for an answer.
BAR = f"""
from importlib.machinery import PathFinder

class Bar(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {OPTIONAL!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bar
"""


def run_of(model, norm, results, *more):
    return [*RUN, "--model", model, "--norm", norm, "--device", "cpu", "--results_path", str(results), *more]


# --- what commands import -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """How the quick commands and two runs ended, by name."""
    folder = tmp_path_factory.mktemp("imports")
    commands = QUICK | {norm: run_of("er_ace", norm, folder / "results") for norm in ("bn", "adab2n")}
    ended = forked(folder / "out", [Command(words) for words in commands.values()], before="")
    return dict(zip(commands, ended, strict=True))


@pytest.fixture(scope="module")
def ended_without(tmp_path_factory):
    """The same on a machine that has none of the optional packages."""
    folder = tmp_path_factory.mktemp("barred")
    control = {"cifar": run_of("er", "bn", folder / "results", "--dataset", "seq-cifar10", "--base_path", str(folder))}
    commands = QUICK | {"run": run_of("er_ace", "adab2n", folder / "results")} | control
    words = [Command(words) for words in commands.values()]
    return dict(zip(commands, forked(folder / "out", words, before=BAR), strict=True))


def check_quick(ended):
    assert [ended[name].code for name in QUICK] == [0, 0, 2]
    assert "--kappa" in ended["help"].stdout
    assert "seq-cifar100" in ended["list"].stdout
    assert "unknown model 'nope'" in refusal(ended["error"])
    assert ended["help"].stderr == ended["list"].stderr == ""


@pytest.mark.parametrize("name", QUICK)
def test_quick_commands_import_nothing_heavy_and_read_no_data(ended, name):
    check_quick(ended)
    assert {"datasets.seq_digits", "datasets.seq_cifar10", "models.er", "backbone.torchvision"} <= set(
        ended[name].modules
    )
    assert not HEAVY & {module.partition(".")[0] for module in ended[name].modules}
    assert ended[name].reads == []


def test_reading_is_noticed_and_a_run_does_read(ended):
    assert [Path(path).name for path in ended["bn"].reads] == ["digits.csv.gz"]


def test_kernels_are_imported_by_the_norms_that_use_them(ended):
    assert (ended["bn"].code, ended["adab2n"].code) == (0, 0)
    assert not set(KERNELS) & set(ended["bn"].modules)
    assert KERNELS[0] in ended["adab2n"].modules


def test_commands_do_without_the_optional_packages(ended_without):
    check_quick(ended_without)
    run = ended_without["run"]
    assert run.code == 0, run.stderr
    assert run.record["status"] == "finished"
    assert run.record["config"]["norm"] == "adab2n"
    assert run.record["steps"] == 15
    for each in ended_without.values():
        assert not set(OPTIONAL) & {module.partition(".")[0] for module in each.modules}
    assert "No module named 'torchvision'" in ended_without["cifar"].stderr  # so that barring is known to work


def test_run_without_the_optional_packages_has_the_same_results(ended, ended_without):
    assert ended_without["run"].record["results"] == ended["adab2n"].record["results"]


# --- who imports whom -----------------------------------------------------------------------------------------

FORBIDDEN = {  # by package: what it must not import
    "utils": ("models", "datasets", "backbone", "scripts", "utils.run", "utils.studies"),  # the files at its top
    "utils.config": ("models", "datasets", "backbone", "scripts", "utils.run", "utils.studies", "utils.data"),
    "utils.data": ("models", "datasets", "backbone", "scripts", "utils.run", "utils.studies"),
    "backbone": ("models", "datasets", "scripts", "utils.run", "utils.studies"),
    "datasets": ("models", "backbone", "scripts", "utils.run", "utils.studies"),
    "models": ("datasets", "backbone", "scripts", "utils.run", "utils.studies"),
    "utils.run": ("scripts", "utils.studies", "utils.figures"),
    "utils.studies": ("scripts",),
    "utils.figures": ("scripts",),
}
ALLOWED = {"utils/results.py": "utils.run"}  # reads what runs have left
INTERNAL = ("utils.config.resolve", "utils.config.parser", "utils.config.loop_options", "utils.config.plugins")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("backbone", "datasets", "models", "scripts", "utils")
    for path in (ROOT / package).rglob("*.py")
}


def imports_of(path, *, at_module_level=False):
    """Return the names that a file imports, except for types alone."""
    package = path.parent.relative_to(ROOT).parts
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not ast.unparse(node).startswith("if TYPE_CHECKING:")]
    if at_module_level:
        tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names += [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names += [word.value for word in node.args[:1] if isinstance(word, ast.Constant)]
    return names


def module_of(name):
    """Return the module of the project that an imported name is or is in, or an empty text."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def cycles(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_import_cycle():
    graph = {
        name: {module_of(other) for other in imports_of(path, at_module_level=True)} - {name, ""}
        for name, path in MODULES.items()
    }
    assert len(graph) > 100
    assert "utils.config.options" in graph["utils.config.resolve"]
    assert "scripts.reproduce" in graph
    assert cycles(graph) == []
    assert cycles(graph | {"utils.errors": {"utils.config.resolve"}}) != []


def wrong_imports(package, forbidden):
    """Return the imports of forbidden packages, as "path imports name"."""
    folder = ROOT / package.replace(".", "/")
    paths = sorted(folder.glob("*.py") if package == "utils" else folder.rglob("*.py"))
    assert len(paths) >= 3
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in paths
        for name in imports_of(path)
        if any(f"{name}.".startswith(f"{other}.") for other in forbidden)
        and not f"{name}.".startswith(f"{ALLOWED.get(str(path.relative_to(ROOT)))}.")
    ]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_packages_import_only_what_they_may(package):
    assert wrong_imports(package, FORBIDDEN[package]) == []


def test_wrong_imports_would_be_noticed():
    lines = "\n".join(wrong_imports("utils.run", ("models", "backbone")))
    assert "utils/run/build.py imports backbone" in lines
    assert "utils/run/training.py imports models" in lines


@pytest.mark.parametrize("package", ["backbone", "datasets", "models"])
def test_parts_declare_options_and_do_not_resolve_them(package):
    lines = wrong_imports(package, INTERNAL)
    assert [line for line in lines if not line.startswith("backbone/norms/__init__.py")] == []
