"""What a command imports, and which packages import which others."""

import ast
from graphlib import CycleError, TopologicalSorter

import pytest
from forked import ROOT, Command, forked, refusal

HEAVY = {"triton", "torchvision", "wandb", "pandas", "sklearn", "safetensors", "PIL", "tqdm", "ray"}
OPTIONAL = ("triton", "torchvision", "wandb", "pandas")
KERNELS = "backbone.adab2n.c_passes"
QUICK = {"help": ["--help"], "list": ["--list"], "error": ["--model", "nope", "--dataset", "seq-digits"]}
RUN = ["--model", "er_ace", "--dataset", "seq-digits", "--num_filters", "2", "--batch_size", "60", "--debug_mode"]

# As if they were not installed: torch, too, asks for triton when it is imported, and takes no for an answer.
BAR = f"""
from importlib.machinery import PathFinder

class Bar(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {OPTIONAL!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bar
"""


def run_of(norm, results, *more):
    return [*RUN, "--norm", norm, "--non_verbose", "--num_threads", "1", "--results_path", str(results), *more]


# --- what commands import ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """How commands ended, by name, on a machine that has none of the optional packages."""
    folder = tmp_path_factory.mktemp("imports")
    cifar = ["--dataset", "seq-cifar10", "--base_path", str(folder)]
    commands = QUICK | {norm: run_of(norm, folder / "results") for norm in ("bn", "adab2n")}
    commands["cifar"] = run_of("bn", folder / "results", *cifar)
    words = [Command(words) for words in commands.values()]
    return dict(zip(commands, forked(folder / "out", words, before=BAR), strict=True))


def test_quick_commands_import_nothing_heavy(ended):
    assert "--kappa" in ended["help"].stdout
    assert "seq-cifar100" in ended["list"].stdout
    assert "unknown model 'nope'" in refusal(ended["error"])
    for name in QUICK:
        modules = ended[name].modules
        if name != "error":  # an unknown model is reported before other packages are imported
            assert {"datasets.seq_digits", "datasets.seq_cifar10", "models.er", "backbone.torchvision"} <= set(modules)
        assert not HEAVY & {module.partition(".")[0] for module in modules}


def test_kernels_are_imported_by_the_norms_that_use_them(ended):
    assert (ended["bn"].code, ended["adab2n"].code) == (0, 0)
    assert [KERNELS in ended[norm].modules for norm in ("bn", "adab2n")] == [False, True]


def test_run_without_the_optional_packages_has_the_same_results(ended, run_main):
    run = ended["adab2n"]
    assert not set(OPTIONAL) & {module.partition(".")[0] for module in run.modules}
    assert run.record["results"] == run_main(*RUN, "--norm", "adab2n").record["results"]
    assert "No module named 'torchvision'" in ended["cifar"].stderr  # so that barring is known to work


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


@pytest.mark.parametrize("package", ["backbone", "datasets", "models"])
def test_parts_declare_options_and_do_not_resolve_them(package):
    assert wrong_imports(package, INTERNAL) == []
    assert wrong_imports("utils.run", ("models",)) != []  # so that wrong imports are known to be noticed
