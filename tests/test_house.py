"""The house as CONTRIBUTING.md has it: what is in it, what a room imports, where things go."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
import support
from support.commands import output
from support.models import SMALL, VARIANTS

import tiedgpt
from tiedgpt import Config, cli
from tiedgpt.errors import COUNT
from tiedgpt.explore import panels
from tiedgpt.generation import Sampling

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tiedgpt"
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE = re.search(r"## The house\n(.*?)\n## ", CONTRIBUTING, re.S)[1]
# The rooms of each floor, the lowest floor first, such as [["errors.py"], ["gpt2"]]
FLOORS = []
for row in re.findall(r"^\| (\[.*?) \|", TABLE, re.M):
    links = re.findall(r"\(\.\./tiedgpt/([\w.]+)/?\)", row)
    FLOORS.append(links)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
MODULES = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")}
FOLDERS = {folder for module in MODULES for folder in module.parents} - {Path()}


def room_of(module: Path) -> str:
    """The folder or the file at the top of the package in which a module is."""
    return module.parts[0]


def statements(block: ast.AST) -> Iterator[ast.AST]:
    """All statements in a module, also those inside others. ast.walk goes into expressions too."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        for statement in getattr(block, part, []):
            yield statement
            yield from statements(statement)


@cache
def imported_modules(module: Path) -> list[Path]:
    """The modules of the package that a module imports, also inside functions and for types."""
    imported = []
    for node in statements(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        if node.level == 0:
            assert (node.module or "").split(".")[0] != "tiedgpt", f"{module}: a relative import"
            continue
        folder = module.parent
        for _ in range(node.level - 1):
            folder = folder.parent
        target = folder.joinpath(*(node.module or "").split("."))
        for path in chain([target], (target / alias.name for alias in node.names)):
            if path in FOLDERS:
                imported.append(path)
            elif path != Path() and path.with_suffix(".py") in MODULES:
                imported.append(path.with_suffix(".py"))
    return imported


def test_each_room_is_in_the_table_once():
    rooms = {room_of(module) for module in MODULES}  # an installed package has folders of data too
    listed = list(chain(*FLOORS))
    assert sorted(listed) == sorted(rooms)


def test_a_module_imports_from_its_own_room_and_the_floors_below():
    wrong = []
    for module in MODULES:
        own = room_of(module)
        for imported in imported_modules(module):
            room = room_of(imported)
            if room != own and FLOOR_OF[room] >= FLOOR_OF[own]:
                wrong.append(f"{module} imports {imported}")
    assert wrong == []


def test_the_imports_are_found():
    """So that the test above does not pass because it sees none."""
    assert Path("gpt2/ops.py") in imported_modules(Path("gpt2/model.py"))
    assert sum(len(imported_modules(module)) for module in MODULES) > 300


def test_type_checkers_find_each_public_name_where_it_is_imported_from():
    """`from .module import name as name` is for them alone."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    found = {}
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {alias.asname: node.module for alias in node.names}
    assert found == tiedgpt._MODULES
    assert sorted(tiedgpt.__all__) == sorted(found)


# Where things go


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_a_command_has_a_page_its_arguments_and_run_in_its_module(command):
    """The module is the command's own, or has the command's name in two functions."""
    module = import_module(f"tiedgpt.cli.{cli.COMMANDS[command]}")
    is_shared = list(cli.COMMANDS.values()).count(cli.COMMANDS[command]) > 1
    page = getattr(module, f"run_{command}") if is_shared else module
    assert "examples:\n" in page.__doc__
    found = cli.find_command(command)
    assert inspect.cleandoc(found.page) == inspect.cleandoc(page.__doc__)
    assert f"tiedgpt {command}" in found.page.partition("\nexamples:\n")[2]
    assert found.add_arguments.__module__ == found.run.__module__ == module.__name__


# Fields of Config that no activation of a model depends on, but for its size
SIZES = {"vocab_size", "n_ctx", "n_embd", "n_layer", "n_head", "n_inner"}
OF_TRAINING = {"initializer_range", "embd_pdrop", "resid_pdrop", "attn_pdrop"}
OF_TEXTS = {"bos_token_id", "eos_token_id"}


def test_a_detail_of_the_model_is_a_field_of_config_with_a_variant():
    """So that the tests of gradients, attribution and compare take it."""
    names = {each.name for each in fields(Config)} - SIZES - OF_TRAINING - OF_TEXTS - {"others"}
    assert set(VARIANTS) == names, "a model with this detail belongs into tests/support/models.py"
    for name, config in VARIANTS.items():
        assert getattr(config, name) != getattr(SMALL, name)


@dataclass(frozen=True)
class WithOneMoreSetting(Sampling):
    """What Sampling is with a new field."""

    made_up_window: int | None = field(
        default=None,
        metadata={"accepted": COUNT, "changes_greedy": False, "help": "made up", "metavar": "N"},
    )


def test_a_setting_of_sampling_is_a_field_and_everything_else_follows(run, monkeypatch):
    """The flag, its page, its range, the note that it has no effect, the control of the page."""
    for user in ("tiedgpt.cli.generate", "tiedgpt.explore.panels"):
        monkeypatch.setattr(f"{user}.Sampling", WithOneMoreSetting)
    assert "--made-up-window N" in output(run, "generate", "-h")
    command = ("generate", "-m", "shakespeare-tied", "-n", "1", "--greedy", "a")
    code, _, err = run(*command, "--made-up-window", "3")
    assert code == 0
    assert "no effect of --made-up-window" in err
    code, _, err = run(*command, "--made-up-window", "0.5")
    assert code == 2
    assert "--made-up-window" in err
    names = [control["name"] for control in panels.sampling_controls()]
    assert "made_up_window" in names


# The house of the tests

TESTS = ROOT / "tests"


def test_no_test_file_imports_another():
    """What several need is in tests/support/ or in a conftest.py."""
    files = sorted(TESTS.rglob("*.py"))
    assert len(files) > 100
    for file in files:
        text = file.read_text(encoding="utf-8")
        found = re.search(r"^ *(from|import) +([\w.]*\.)?(test_|conftest)\w*", text, re.M)
        assert found is None, f"{file}: {found[0]}"


def test_each_module_of_support_is_in_its_list():
    listed = re.findall(r"^(\w+)  +\w", support.__doc__, re.M)
    modules = {path.stem for path in (TESTS / "support").glob("*.py")} - {"__init__"}
    assert sorted(listed) == sorted(modules)


OTHER_GPT2S = ["other_gpt2", "wrong_gpt2s", "public_ports", "exercise_solutions", "torch_gpt2s"]


@pytest.mark.parametrize("module", OTHER_GPT2S)
def test_the_gpt2_of_the_tests_imports_nothing_of_what_it_checks(module):
    """Of tests/support/, too, it imports nothing that does."""
    tree = ast.parse((TESTS / "support" / f"{module}.py").read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {alias.name for alias in node.names}
            imported |= set((getattr(node, "module", None) or "").split("."))
    assert imported & {"numpy", "other_gpt2"}
    assert "tiedgpt" not in {name.split(".")[0] for name in imported}
    of_support = {path.stem for path in (TESTS / "support").iterdir()}
    assert imported & of_support <= set(OTHER_GPT2S)
