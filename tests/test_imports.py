"""The floors hold: cuda_envs -> warpdrive <- trainers, no circle inside a package, nothing optional at import time."""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What a plain install may lack: imported inside the function that needs it.
EXTRAS = {
    "warpdrive": {"pycuda", "cuda", "PIL", "pettingzoo", "torchrl", "tensordict", "stable_baselines3"},
    "trainers": {"matplotlib", "onnxruntime", "tensorboard", "wandb", "optuna", "h5py"},
}
OPTIONAL = set().union(*EXTRAS.values())
# What each package may import beside itself and the standard library.
FLOORS = {
    "warpdrive": {"torch", "numpy", "gymnasium", "yaml", *EXTRAS["warpdrive"]},
    "cuda_envs": {"warpdrive", "numpy", "gymnasium"},
    "trainers": {"warpdrive", "torch", "numpy", "gymnasium", "yaml", "rich", "safetensors", *EXTRAS["trainers"]},
}
# Modules that only start a program. They stand on top of all floors, and so nothing may import them.
ENTRY_POINTS = {"warpdrive.__main__": {"trainers"}}  # `python -m warpdrive`


def modules_of(package: str) -> dict[str, Path]:
    """Dotted name -> file, for every module of `package`."""
    names = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imports_of(name: str, path: Path, at_import_time: bool, for_types: bool = False) -> set[str]:
    """Dotted names that the file imports: everywhere in it, or only those met while it is being imported itself.

    Imports for type checkers alone are left out, unless they are asked for.

    `from a import b` gives `a.b`, be b a module or a name in one.
    """
    found = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = _start_of_relative(name, path, node.level) if node.level else []
            source = ".".join(start + ([node.module] if node.module else []))
            found |= {f"{source}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
        inside = ast.iter_child_nodes(node)
        if at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if not for_types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            inside = iter(node.orelse)
        waiting += inside
    return found


def all_imports_of(package: str, **which: bool) -> set[tuple[str, str]]:
    """(module, what it imports) of every module of a package."""
    modules = modules_of(package)
    return {(name, imported) for name, path in modules.items() for imported in imports_of(name, path, **which)}


def _start_of_relative(name: str, path: Path, level: int) -> list[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    return package[: len(package) - level + 1]


@pytest.mark.parametrize("package", FLOORS)
def test_package_imports_only_what_lies_below_it_and_no_entry_point(package):
    allowed = FLOORS[package] | {package} | sys.stdlib_module_names
    assert not {
        (name, imported)
        for name, imported in all_imports_of(package, at_import_time=False, for_types=True)
        if imported.split(".")[0] not in allowed | ENTRY_POINTS.get(name, set())
        or any(imported == entry or imported.startswith(f"{entry}.") for entry in ENTRY_POINTS)
    }


@pytest.mark.parametrize("package", FLOORS)
def test_optional_packages_are_imported_lazily(package):
    eager = all_imports_of(package, at_import_time=True)
    assert not {(name, imported) for name, imported in eager if imported.split(".")[0] in OPTIONAL}


def test_pycuda_is_imported_in_one_file():
    imports = [one for package in FLOORS for one in all_imports_of(package, at_import_time=False)]
    assert len({name for name, imported in imports if imported.split(".")[0] == "pycuda"}) == 1


@pytest.mark.parametrize("package", FLOORS)
def test_modules_of_a_package_import_each_other_in_no_circle(package):
    """Nor by imports inside functions, which hide a circle until it is called."""
    modules = modules_of(package)
    graph = {
        name: {
            imported if imported in modules else imported.rpartition(".")[0]
            for imported in imports_of(name, path, at_import_time=False)
            if imported.split(".")[0] == package
        }
        for name, path in modules.items()
    }
    TopologicalSorter(graph).prepare()  # CycleError names the circle
