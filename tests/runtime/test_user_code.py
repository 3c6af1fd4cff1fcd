"""A user's registered code: its fingerprint in every process, and how its errors are reported."""

import collections
import dataclasses
import enum
import functools
import importlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import bnrecon
from bnrecon.config import composition
from bnrecon.features.drawing import draw
from bnrecon.features.register import DISTRIBUTIONS, register_features
from bnrecon.features.shapes import LayerShape
from bnrecon.run.naming import run_folder
from bnrecon.runtime.errors import UserError
from bnrecon.solvers.register import SOLVERS
from bnrecon.targets.location import target_folder
from bnrecon.targets.register import build

SMOKE = ["scale=smoke", "target.groups=[1]", "train.epochs=1"]
CPU = torch.device("cpu")


def write(folder, sources):
    for name, text in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def load(folder, sources, name="parts"):
    """Write modules and import one of them afresh; return the fingerprint of what it registers."""
    import_afresh(folder, sources, name)
    return DISTRIBUTIONS["mine"].code if "mine" in DISTRIBUTIONS else None


def import_afresh(folder, sources, name="parts"):
    write(folder, sources)
    own = {file.partition("/")[0].removesuffix(".py") for file in sources} | {
        name.partition(".")[0]
    }
    for known in [module for module in sys.modules if module.partition(".")[0] in own]:
        del sys.modules[known]
    for cache in folder.rglob("__pycache__"):
        shutil.rmtree(cache)
    importlib.invalidate_caches()
    importlib.import_module(name)


# Edits

HEAD = """
import dataclasses, functools, importlib, types
from pathlib import Path
import numpy as np, torch
from torch import nn
from bnrecon import register_features

def pair(shape, width, stream, factor=1.0):
    first = factor * stream.normal((width, shape.inputs), "a")
    return first, stream.normal((shape.outputs, width, *shape.kernel), "b")
"""

HELPER = "def scaled(values):\n    return 1.0 * values\n"

CLASS = """
@dataclasses.dataclass
class Drawn:
    factor: float
    spread = 1.0
    def __call__(self, shape, width, stream):
        return pair(shape, width, stream, self.factor * self.spread)
"""

DECORATOR = """
import functools

def twice(function):
    @functools.wraps(function)
    def wrapped(*given):
        return [2.0 * part for part in function(*given)]
    return wrapped
"""

TYPED_CLASS = """
class Drawn:
    spread = 1.0
    def __call__(self, shape, width, stream):
        return pair(shape, width, stream, self.spread)
"""


def registered(what, above=""):
    """A module that registers what an expression gives."""
    return f"{HEAD}{above}\nregister_features('mine')({what})\n"


def mine(line, above=""):
    """A module whose features are drawn by a line."""
    return (
        f"{HEAD}{above}\n@register_features('mine')\ndef mine(shape, width, stream):\n    {line}\n"
    )


def typed(source):
    """A module that runs a source which lies in no file."""
    inner = source.removeprefix(HEAD)
    return f"{HEAD}\nexec('''{inner}''', dict(register_features=register_features, pair=pair))\n"


def constant(before, after):
    used = mine("return pair(shape, width, stream, 1.0 if CHOICE else 0)", f"CHOICE = {before}")
    return {"parts.py": used}, before, after


def helper(sources):
    return sources, "1.0 * values", "3.0 * values"


A = "dataclasses.make_dataclass('A', ['x'])"
NEAR = "near = lambda x: (lambda y: 1.0 * y)(x)\n"
EDITS = {
    "an argument of a partial": (
        {"parts.py": registered("functools.partial(pair, factor=2.0)")},
        "factor=2.0",
        "factor=3.0",
    ),
    "a class that a partial is given": (
        {"parts.py": registered("functools.partial(pair, factor=nn.Tanh)")},
        "nn.Tanh",
        "nn.Identity",
    ),
    "a constant that is a class": constant("nn.Tanh", "nn.Identity"),
    "a constant that is a set": constant("{'a', 'b', 'c'}", "{'a', 'b'}"),
    "a constant that is a path": constant("Path('a')", "Path('b')"),
    "a constant that is a tensor": constant("torch.tensor([1.0])", "torch.tensor([2.0])"),
    "a constant that is an array": constant("np.array([1.0])", "np.array([2.0])"),
    "a constant that is a dataclass": constant(f"{A}(1)", f"{A}(2)"),
    "a constant that is a namespace": constant(
        "types.SimpleNamespace(x=1)", "types.SimpleNamespace(x=2)"
    ),
    "a table of functions": constant("{'f': torch.relu}", "{'f': torch.tanh}"),
    "a function of a submodule": helper(
        {
            "parts.py": mine("return pk.sub.scaled(1.0)", "import pk.sub"),
            "pk/__init__.py": "",
            "pk/sub.py": HELPER,
        }
    ),
    "an import inside a function": helper(
        {"parts.py": mine("from inside import scaled; return scaled(1.0)"), "inside.py": HELPER}
    ),
    "an import by name": helper(
        {
            "parts.py": mine("return importlib.import_module('inside').scaled(1.0)"),
            "inside.py": HELPER,
        }
    ),
    "a module that a used module imports": helper(
        {
            "parts.py": mine("return near.far.scaled(1.0)", "import near"),
            "near.py": "import far\n",
            "far.py": HELPER,
        }
    ),
    "a relative import in a package": helper(
        {
            "parts.py": "import pk.inner\n",
            "pk/__init__.py": "",
            "pk/inner/__init__.py": "from . import parts\n",
            "pk/inner/parts.py": mine("return scaled(1.0)", "from ..near import scaled"),
            "pk/near.py": HELPER,
        }
    ),
    "a package without an __init__": helper(
        {
            "parts.py": mine("import space.deep.inside as near; return near.scaled(1)"),
            "space/deep/inside.py": HELPER,
        }
    ),
    "a cached function": helper(
        {
            "parts.py": mine("return scaled(1.0)", "from near import scaled"),
            "near.py": f"import functools\n\n@functools.lru_cache\n{HELPER}",
        }
    ),
    "a decorator that wraps": (
        {"parts.py": registered("twice(pair)", "from near import twice"), "near.py": DECORATOR},
        "2.0 * part",
        "3.0 * part",
    ),
    "a default argument": (
        {
            "parts.py": f"{HEAD}\nfor s in (2.0,):\n"
            "    register_features('mine')(lambda *given, s=s: pair(*given, s))\n"
        },
        "(2.0,)",
        "(3.0,)",
    ),
    "a variable of the class of a bound method": (
        {"parts.py": registered("Drawn(1.0).__call__", CLASS)},
        "spread = 1.0",
        "spread = 2.0",
    ),
    "a variable of the object of a bound method": (
        {"parts.py": registered("Drawn(1.0).__call__", CLASS)},
        "Drawn(1.0)",
        "Drawn(2.0)",
    ),
    "a callable object that cannot be hashed": (
        {"parts.py": registered("Drawn(1.0)", CLASS)},
        "Drawn(1.0)",
        "Drawn(2.0)",
    ),
    "code that was typed in": (
        {"parts.py": typed(mine("return near(2.0)", NEAR))},
        "return near(2.0)",
        "return near(3.0)",
    ),
    "a function that typed code calls": (
        {"parts.py": typed(mine("return near(2.0)", NEAR))},
        "1.0 * y",
        "4.0 * y",
    ),
    "a class that was typed in": (
        {"parts.py": typed(registered("Drawn()", TYPED_CLASS))},
        "spread = 1.0",
        "spread = 2.0",
    ),
}


def edited(case):
    sources, before, after = EDITS[case]
    assert sum(text.count(before) for text in sources.values()) == 1
    return sources, {name: text.replace(before, after) for name, text in sources.items()}


@pytest.mark.parametrize("case", EDITS)
def test_an_edit_changes_the_fingerprint_until_it_is_undone(case, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    before, after = edited(case)
    first = load(tmp_path, before)
    assert load(tmp_path, after) != first
    assert load(tmp_path, before) == first


PROGRAM = """
import importlib, sys
from bnrecon.features.register import DISTRIBUTIONS
loaded = set(sys.modules)
for number in range(int(sys.argv[2])):
    sys.path.insert(0, f"{sys.argv[1]}/{number}")
    importlib.import_module("parts")
    print(DISTRIBUTIONS["mine"].code)
    del sys.path[0]
    for name in set(sys.modules) - loaded:
        del sys.modules[name]
"""


def test_the_same_code_is_the_same_in_every_process(tmp_path, monkeypatch):
    """With other addresses, another order of sets, and modules that come from compiled files."""
    codes = {}
    for number, case in enumerate(EDITS):
        folder = tmp_path / str(number)
        monkeypatch.syspath_prepend(str(folder))
        codes[case] = load(folder, EDITS[case][0])
    line = [sys.executable, "-c", PROGRAM, str(tmp_path), str(len(EDITS))]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert dict(zip(EDITS, done.stdout.split(), strict=True)) == codes


def test_code_that_is_edited_after_it_was_loaded_is_still_what_was_loaded(tmp_path, monkeypatch):
    """As in a long study, whose files are edited while it runs."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before, after = edited("a module that a used module imports")
    first = load(tmp_path, before)
    import_afresh(tmp_path, before)
    write(tmp_path, after)
    assert DISTRIBUTIONS["mine"].code == first


def test_a_version_replaces_the_fingerprint_of_the_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = mine("return pair(shape, width, stream, 1.0)")
    codes = [
        load(
            tmp_path,
            {
                "parts.py": source.replace("'mine'", f"'mine', version='{version}'").replace(
                    "1.0)", factor
                )
            },
        )
        for version, factor in (("1", "1.0)"), ("1", "2.0)"), ("2", "1.0)"))
    ]
    assert codes[0] == codes[1] != codes[2]
    assert load(tmp_path, {"parts.py": source}) not in codes


def test_the_code_of_bnrecon_has_no_fingerprint_and_a_users_name_for_it_has():
    shipped = [*DISTRIBUTIONS.values(), *SOLVERS.values()]
    assert all(entry.code is None for entry in shipped if entry.registered.user_defined is False)
    assert not DISTRIBUTIONS["he_normal"].registered.user_defined
    register_features("mine")(DISTRIBUTIONS["he_normal"].draw)
    first = DISTRIBUTIONS["mine"].code
    register_features("mine")(DISTRIBUTIONS["he_uniform"].draw)
    assert None is not first != DISTRIBUTIONS["mine"].code


# Values that are bound to the function


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Settings:
    factor: float
    names: list


Pair = collections.namedtuple("Pair", "x y")


def scaled_by(factor):
    return lambda values: factor * values


def class_of(value):
    class Made:
        factor = value

        def __call__(self):
            return self.factor

    return Made


def bound(value):
    register_features("mine")(functools.partial(DISTRIBUTIONS["he_normal"].draw, extra=value))
    return DISTRIBUTIONS["mine"].code


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: 1, lambda: 1.0),
        (lambda: "1", lambda: b"1"),
        (lambda: None, lambda: "None"),
        (lambda: {"a": [1, (2, 3)]}, lambda: {"a": [1, [2, 3]]}),
        (lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}),
        (lambda: {"x", "y", ("z", 1)}, lambda: {"x", "y", ("z", 2)}),
        (lambda: Path("a"), lambda: Path("b")),
        (lambda: torch.arange(3.0), lambda: torch.arange(3)),
        (lambda: torch.arange(6.0).reshape(2, 3), lambda: torch.arange(6.0).reshape(3, 2)),
        (lambda: np.arange(4)[::2], lambda: np.arange(4)[1::2]),
        (lambda: np.random.default_rng(1), lambda: np.random.default_rng(2)),
        (lambda: Settings(1.0, ["a"]), lambda: Settings(1.0, ["b"])),
        (lambda: SimpleNamespace(x=1), lambda: SimpleNamespace(x=2)),
        (lambda: Pair(1, 2), lambda: Pair(2, 1)),
        (lambda: collections.OrderedDict(a=1), lambda: collections.OrderedDict(a=2)),
        (lambda: collections.deque([1]), lambda: collections.deque([2])),
        (lambda: Colour.RED, lambda: Colour.BLUE),
        (lambda: torch.float32, lambda: torch.float64),
        (lambda: torch.device("cpu"), lambda: torch.device("cuda")),
        (lambda: torch.relu, lambda: torch.tanh),
        (lambda: np.sin, lambda: np.cos),
        (lambda: nn.Tanh, lambda: nn.Identity),
        (lambda: nn.LeakyReLU(0.1), lambda: nn.LeakyReLU(0.2)),
        (lambda: scaled_by(1.0), lambda: scaled_by(2.0)),
        (lambda: torch.no_grad()(scaled_by(1.0)), lambda: torch.no_grad()(scaled_by(2.0))),
        (lambda: functools.lru_cache(scaled_by(1.0)), lambda: functools.lru_cache(scaled_by(2.0))),
        (lambda: functools.partial(scaled_by, 1), lambda: functools.partial(scaled_by, 2)),
        (lambda: Settings(1.0, []).__eq__, lambda: Settings(2.0, []).__eq__),
        (lambda: class_of(1), lambda: class_of(2)),
        (lambda: class_of(1)(), lambda: class_of(2)()),
    ],
)
def test_bound_values_are_compared_by_their_content(one, other):
    assert bound(one()) == bound(one()) != bound(other())


def test_values_that_cannot_be_compared_need_a_version():
    itself = []
    itself.append(itself)
    for value, said in (
        (threading.Lock(), "_thread.lock"),
        (MappingProxyType({}), "mappingproxy"),
        (itself, "holds itself"),
    ):
        with pytest.raises(
            UserError, match=rf'features mine: its code holds .*{said}.*version="1"'
        ):
            bound(value)
        register_features("mine", version="1")(functools.partial(print, value))
        assert DISTRIBUTIONS["mine"].code


def test_a_function_that_calls_itself_has_a_fingerprint():
    def again(count):
        return again(count - 1) if count else 0

    assert bound(again) == bound(again)


# Installed packages


def test_code_that_is_installed_with_the_registering_module_is_user_code(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(site))
    sources = {
        "mylab/__init__.py": "",
        "mylab/near.py": HELPER,
        "strange.py": HELPER,
        "mylab/parts.py": mine(
            "return strange.scaled(near.scaled(1 / 0))", "import strange\nfrom mylab import near"
        ),
    }
    first = load(site, sources, "mylab.parts")
    assert first is not None
    assert load(site, sources | {"mylab/near.py": HELPER + "# 2"}, "mylab.parts") != first
    assert load(site, sources | {"strange.py": HELPER + "# 2"}, "mylab.parts") == first
    with pytest.raises(
        UserError, match=r"features mine: ZeroDivisionError: .* \(.*mylab/parts.py:\d+\)"
    ):
        draw("mine", LayerShape(3, 4), 12, 0, 0)


@pytest.mark.parametrize("folder", ["dist-packages", "lib/python3/site-packages"])
def test_other_installed_packages_are_not_user_code(folder, tmp_path, monkeypatch):
    for place in (tmp_path / folder, tmp_path):
        monkeypatch.syspath_prepend(str(place))
    write(tmp_path / folder, {"strange.py": "def fail():\n    return 1 / 0\n"})
    source = {"parts.py": mine("return strange.fail()", "import strange")}
    first = load(tmp_path, source)
    write(tmp_path / folder, {"strange.py": "def fail():\n    return 2 / 0\n"})
    del sys.modules["strange"]
    assert load(tmp_path, source) == first
    with pytest.raises(UserError, match=r"ZeroDivisionError: .* \(.*/parts.py:\d+\)"):
        draw("mine", LayerShape(3, 4), 12, 0, 0)
    del sys.modules["strange"]


# Runs and targets


def test_after_an_edit_of_user_code_a_run_is_another_run(command, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, {"configs/features/mine.yaml": "defaults: [schema, _self_]\nname: mine\n"})
    words = [
        "run",
        f"--config-dir={tmp_path / 'configs'}",
        *SMOKE,
        "features=mine",
        f"outputs={tmp_path / 'out'}",
    ]
    before, after = edited("an argument of a partial")
    load(tmp_path, before)
    assert not command(*words)[1].startswith("already done")
    load(tmp_path, before)
    assert command(*words)[1].startswith("already done")
    load(tmp_path, after)
    assert not command(*words)[1].startswith("already done")


NET = "import functools\nimport bnrecon\nfrom torch import nn\n\n{}\n"
MAKE = """def make(shape, classes, width, depth, activation, act=nn.Tanh):
    return nn.Sequential(nn.Flatten(), act())
"""


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (f"@bnrecon.register_target('net')\n{MAKE}", "nn.Tanh", "nn.Identity"),
        (
            f"{MAKE}\nbnrecon.register_target('net')(functools.partial(make, act=nn.GELU))",
            "nn.GELU",
            "nn.Identity",
        ),
        (
            f"ACT = nn.GELU\n\n@bnrecon.register_target('net')\n{MAKE.replace('act()', 'ACT()')}",
            "nn.GELU",
            "nn.Identity",
        ),
    ],
    ids=["function", "partial", "constant"],
)
def test_an_edited_target_is_trained_anew(text, before, after, tmp_path, monkeypatch, digits):
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = composition.compose(["target=mlp"])
    asked.target.family = "net"
    folders = []
    for source in (text, text.replace(before, after), text):
        load(tmp_path, {"nets.py": NET.format(source)}, "nets")
        folders.append(target_folder(asked.target_request, digits, CPU))
    assert folders[0] == folders[2] != folders[1]


def test_a_target_of_edited_features_is_trained_anew_and_its_run_is_another(
    tmp_path, monkeypatch, digits
):
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = composition.compose(["target=vgg18_normalization"])
    names = {(target_folder(asked.target_request, digits, CPU), run_folder(asked))}
    asked.target.features = "mine"
    for sources in (*edited("an argument of a partial"), EDITS["an argument of a partial"][0]):
        load(tmp_path, sources)
        names.add((target_folder(asked.target_request, digits, CPU), run_folder(asked)))
    assert len(names) == len({name for name, _ in names}) == len({name for _, name in names}) == 3


def test_replacing_a_solver_that_auto_chooses_makes_another_run():
    asked = composition.compose([])
    before = run_folder(asked)
    bnrecon.register_solver("mine", memory=lambda rows, columns: 0)(
        lambda system, options: (system.rhs, 0)
    )
    assert run_folder(asked) == before
    bnrecon.register_solver("lu", memory=lambda rows, columns: 0)(
        lambda system, options: (system.rhs, 0)
    )
    assert run_folder(asked) != before


# Exceptions


@pytest.mark.parametrize(
    ("draws", "said"),
    [
        (
            lambda shape, width, stream: 1 / 0,
            "features mine: ZeroDivisionError: division by zero \\(.*test_user_code.py:",
        ),
        (
            functools.partial(lambda zero, shape, width, stream: 1 / zero, 0),
            "features mine: ZeroDivisionError: division by zero \\(.*test_user_code.py:",
        ),
        (functools.partial(nn.Linear, bias=3), "features mine: TypeError: "),
        (lambda shape, width, stream: torch.zeros(3), "features mine: it must return two tensors"),
        (
            lambda shape, width, stream: (torch.zeros(3, 4), torch.zeros(5)),
            "features mine: A is of shape \\(3, 4\\); for this layer",
        ),
        (
            lambda shape, width, stream: (
                torch.full((width, 4), torch.nan),
                torch.zeros(3, width, 1, 1),
            ),
            "features mine: A must hold finite",
        ),
    ],
    ids=[
        "raises",
        "partial raises",
        "partial of a library raises",
        "one tensor",
        "shape",
        "not finite",
    ],
)
def test_what_is_wrong_with_a_users_features_is_reported_of_them(draws, said):
    register_features("mine")(draws)
    with pytest.raises(UserError, match=said):
        draw("mine", LayerShape(3, 4), 12, 0, 0)


def test_errors_of_a_users_targets_and_solvers_name_the_place(command, tmp_path):
    def broken(reason, shape, classes, width, depth, activation):
        raise KeyError(reason)

    bnrecon.register_target("mlp")(functools.partial(broken, "no such thing"))
    code, _, err = command("run", "scale=smoke", "target=mlp", f"outputs={tmp_path}")
    assert code == 2
    assert "target family mlp: KeyError: 'no such thing' (" in err
    assert "test_user_code.py:" in err

    @bnrecon.register_solver("lu", memory=lambda rows, columns: 0)
    def failing(system, options):
        return system.rhs[10**9], 0

    code, _, err = command("run", *SMOKE, "solver=lu", f"outputs={tmp_path}")
    assert code == 2
    assert "solver lu: IndexError" in err
    assert "Traceback" not in err


def test_errors_of_bnrecon_are_not_attributed_to_the_user():
    with pytest.raises(TypeError):
        build("mlp", (1, 8, 8), 10, width="a", depth=1, activation="relu")


@pytest.mark.parametrize(
    ("register", "own"),
    [
        (bnrecon.register_features, "he_normal"),
        (functools.partial(bnrecon.register_solver, memory=lambda rows, columns: 0), "lu"),
        (bnrecon.register_target, "mlp"),
    ],
)
def test_a_users_part_under_bnrecons_own_name_is_said(register, own, caplog):
    register(own)(lambda *given, **options: None)
    (message,) = caplog.messages
    assert message.endswith(f"{own} is bnrecon's own name; yours takes its place")
    register(own)(lambda *given, **options: 0)  # one's own again, as in a notebook
    register("mine")(lambda *given, **options: None)
    assert len(caplog.messages) == 1
