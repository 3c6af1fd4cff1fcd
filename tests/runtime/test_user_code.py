"""A user's registered code: its fingerprint, and how its errors are reported."""

import ast
import functools
import importlib
import json
import shutil
import sys

import numpy as np
import pytest
import torch

import bnrecon
from bnrecon.config import composition
from bnrecon.features.drawing import draw
from bnrecon.features.register import DISTRIBUTIONS, register_features
from bnrecon.features.shapes import LayerShape
from bnrecon.run.naming import run_folder
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.user_code import (
    PACKAGE,
    Registered,
    attribute_errors,
    import_user_modules,
)
from bnrecon.solvers.base import Answer
from bnrecon.solvers.register import SOLVERS
from bnrecon.targets.location import target_folder
from bnrecon.targets.register import BUILT_IN, FAMILIES, build
from bnrecon.targets.store import obtain_target

SMOKE = ["scale=smoke", "target.groups=[1]", "train.epochs=1"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _importable(tmp_path, monkeypatch):
    """Modules written into a test's folder can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))


def load(folder, sources, name="parts"):
    """Write modules and import one afresh; return the fingerprint of the features it registers."""
    for file, text in sources.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    packages = {
        name.partition(".")[0],
        *(file.partition("/")[0].removesuffix(".py") for file in sources),
    }
    for loaded in [module for module in sys.modules if module.partition(".")[0] in packages]:
        del sys.modules[loaded]
    for cache in folder.rglob("__pycache__"):
        shutil.rmtree(cache)
    importlib.invalidate_caches()
    importlib.import_module(name)
    return DISTRIBUTIONS["mine"].registered.fingerprint if "mine" in DISTRIBUTIONS else None


# Edits

HEAD = """
import functools
from bnrecon import register_features
{above}

def pair(shape, width, stream, factor=1.0):
    first = factor * stream.normal((width, shape.inputs), "a")
    return first, stream.normal((shape.outputs, width, *shape.kernel), "b")

"""


def mine(line, above=""):
    """A module whose features are drawn by a line of code."""
    decorated = f"@register_features('mine')\ndef mine(shape, width, stream):\n    {line}\n"
    return HEAD.format(above=above) + decorated


def partial(factor):
    """A module that registers a function with a bound value."""
    what = f"functools.partial(pair, factor={factor})"
    return {"parts.py": HEAD.format(above="") + f"register_features('mine')({what})\n"}


def test_edit_of_another_module_is_not_detected(tmp_path):
    """As docs/extending.md says; a version covers this case."""
    source = {"parts.py": mine("return pair(shape, width, stream, near.F)", "import near")}
    first = load(tmp_path, source | {"near.py": "F = 1.0"})
    assert load(tmp_path, source | {"near.py": "F = 2.0"}) == first


def test_code_outside_a_file_needs_a_version():
    source = "register_features('mine'{})(print)"
    exec(source.format(""), {"register_features": register_features})
    with pytest.raises(UserError, match=r'features mine: its code is in no file.*version="1"'):
        _ = DISTRIBUTIONS["mine"].registered.fingerprint
    exec(source.format(", version='1'"), {"register_features": register_features})
    assert DISTRIBUTIONS["mine"].registered.fingerprint


@pytest.mark.parametrize("name", ["register_features", "register_target", "register_data"])
def test_decorator_without_parentheses_is_refused(name):
    """It would register nothing, and the name would be unknown later."""
    with pytest.raises(UserError, match=f'@{name}\\("mine"\\)'):
        getattr(bnrecon, name)(lambda *arguments: None)


def test_error_of_an_import_has_the_users_line(tmp_path, monkeypatch):
    (tmp_path / "bare.py").write_text(
        "from bnrecon import register_features\n\n\n@register_features\ndef mine(): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"register_features: write a name.*bare\.py:4\)"):
        import_user_modules(["bare"])


def test_replacing_a_name_of_another_file_is_reported(tmp_path, caplog):
    lines = "import bnrecon\nbnrecon.register_features('mine')(len)\n"
    lines += "bnrecon.register_data('mine')(len)\n"
    for _ in range(2):
        load(tmp_path, {"a.py": lines}, "a")
    assert not caplog.records
    load(tmp_path, {"b.py": lines}, "b")
    what = [record.getMessage().partition(" of ")[0] for record in caplog.records]
    assert what == ["features mine", "data mine"]
    assert caplog.records[0].getMessage().endswith(f"b.py replaces that of {tmp_path / 'a.py'}")


def test_version_replaces_the_fingerprint_of_the_code(tmp_path):
    source = mine("return pair(shape, width, stream, 1.0)")
    codes = []
    for version, factor in (("1", "1.0)"), ("1", "2.0)"), ("2", "1.0)")):
        versioned = source.replace("'mine'", f"'mine', version='{version}'")
        codes.append(load(tmp_path, {"parts.py": versioned.replace("1.0)", factor)}))
    assert codes[0] == codes[1] != codes[2]
    assert load(tmp_path, {"parts.py": source}) not in codes


def test_shipped_code_has_no_fingerprint_unless_a_user_registers_it():
    shipped = [*DISTRIBUTIONS.values(), *SOLVERS.values()]
    registered = [entry.registered for entry in shipped]
    assert all(one.fingerprint is None for one in registered if not one.user_defined)
    assert not DISTRIBUTIONS["he_normal"].registered.user_defined
    register_features("mine")(DISTRIBUTIONS["he_normal"].registered.function)
    assert DISTRIBUTIONS["mine"].registered.fingerprint is not None


def test_built_in_families_are_not_a_users():
    """``Registered`` finds its module two frames up, where Python 3.11 has a comprehension's frame.

    Later versions have none. A call in a function of the module is right in all.
    """
    assert all(FAMILIES[name].fingerprint is None for name in BUILT_IN)
    modules = sorted(PACKAGE.glob("*/register.py"))
    assert len(modules) == 4
    assert not [path for path in modules if calls_outside_functions(ast.parse(path.read_bytes()))]


def calls_outside_functions(node, name="Registered"):
    """Whether a module calls a function other than in functions of its own."""
    parts = [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.FunctionDef)]
    called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == name
    return called or any(calls_outside_functions(one, name) for one in parts)


def test_installed_code_is_a_users_too(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(site))
    sources = {"mylab/__init__.py": "", "mylab/parts.py": mine("return 1 / 0")}
    assert load(site, sources, "mylab.parts") is not None
    with pytest.raises(
        UserError, match=r"features mine: ZeroDivisionError: .* \(.*mylab/parts.py:\d+\)"
    ):
        draw("mine", LayerShape(3, 4), 12, 0, 0)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("seed 3: not enough memory cells"), UserError),
        (RuntimeError("can't allocate memory: you tried 8 bytes"), RuntimeError),
        (MemoryError(), MemoryError),
    ],
)
def test_a_lack_of_memory_is_no_mistake_in_a_users_code(error, raised):
    with pytest.raises(raised), attribute_errors(Registered("features mine", len)):
        raise error


# Runs and targets


def test_edited_user_code_makes_another_run(tmp_path):
    asked, folders = composition.compose([]), []
    asked.features.name = "mine"
    for sources in (partial("2.0"), partial("3.0"), partial("2.0")):
        load(tmp_path, sources)
        folders.append(run_folder(asked))
    assert folders[0] == folders[2] != folders[1]


NET = "import functools\nimport bnrecon\nfrom torch import nn\n\n{}\n"
MAKE = """def make(shape, classes, width, depth, activation, act=nn.Tanh):
    return nn.Sequential(nn.Flatten(), act())
"""


def test_edited_target_is_trained_anew(tmp_path, digits):
    asked = composition.compose(["target=mlp"])
    asked.target.family = "net"
    text, folders = f"@bnrecon.register_target('net')\n{MAKE}", []
    for source in (text, text.replace("nn.Tanh", "nn.Identity"), text):
        load(tmp_path, {"nets.py": NET.format(source)}, "nets")
        folders.append(target_folder(asked.target_request, digits, CPU))
    assert folders[0] == folders[2] != folders[1]


def test_target_of_edited_features_is_trained_anew_and_renamed(tmp_path, digits):
    asked = composition.compose(["target=vgg18_normalization"])
    names = {(target_folder(asked.target_request, digits, CPU), run_folder(asked))}
    asked.target.features = "mine"
    for sources in (partial("2.0"), partial("3.0"), partial("2.0")):
        load(tmp_path, sources)
        names.add((target_folder(asked.target_request, digits, CPU), run_folder(asked)))
    assert len(names) == len({name for name, _ in names}) == len({name for _, name in names}) == 3


def test_replacing_a_solver_chosen_by_auto_makes_another_run():
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
        (lambda *_: 1 / 0, r"ZeroDivisionError: division by zero \(.*test_user_code.py:"),
        (lambda *_: torch.zeros(3), "it must return two tensors"),
        (lambda *_: (torch.zeros(3, 4), torch.zeros(5)), r"A is of shape \(3, 4\); for this layer"),
        (
            lambda *_: (torch.eye(12, 4).to_sparse(), torch.ones(3, 12, 1, 1)),
            "A must hold .*sparse",
        ),
        (lambda *_: (torch.rand(12, 4), torch.rand(3, 12, 1, 1)), "two draws of one layer differ"),
        (
            lambda *_: (torch.full((12, 4), torch.nan), torch.ones(3, 12, 1, 1)),
            "48 of 48 numbers of A are NaN",
        ),
        (
            lambda *_: (torch.ones(12, 4), torch.full((3, 12, 1, 1), 1e50, dtype=torch.float64)),
            "36 of 36 numbers of B are .* too large for float32",
        ),
    ],
    ids=["raises", "one tensor", "shape", "sparse", "not from the stream", "NaN", "large"],
)
def test_wrong_user_features_are_reported_with_their_name(draws, said):
    register_features("mine")(draws)
    with pytest.raises(UserError, match=f"features mine: {said}"):
        draw("mine", LayerShape(3, 4), 12, 0, 0)


@pytest.mark.parametrize("seeded", [True, False])
def test_features_that_ignore_the_seed_are_reported_once(seeded, caplog):
    @register_features("mine")
    def mine(shape, width, stream):
        torch.manual_seed(stream.seed if seeded else 0)
        return torch.randn(width, shape.inputs), torch.randn(shape.outputs, width, *shape.kernel)

    for seed in (0, 1):
        draw("mine", LayerShape(3, 4), 12, seed, 0)
    said = "features mine: two seeds draw the same weights"
    assert [record.getMessage().startswith(said) for record in caplog.records] == (
        [] if seeded else [True]
    )


def test_features_stored_for_the_seeds_in_use_are_drawn():
    stored = {0: (torch.randn(12, 4), torch.randn(3, 12, 1, 1))}
    register_features("mine")(lambda _shape, _width, stream: stored[stream.seed])
    assert torch.equal(draw("mine", LayerShape(3, 4), 12, 0, 0).weights()[0], stored[0][0])


def test_source_of_edited_features_names_their_code(tmp_path):
    model = torch.nn.Linear(4, 3).eval()
    for word in ("a", "b"):

        @register_features("mine")
        def mine(shape, width, stream, word=word):
            second = stream.normal((shape.outputs, width, *shape.kernel), "second")
            return stream.normal((width, shape.inputs), word), second

        if word == "a":
            path = bnrecon.reconstruct(model, features="mine").save(tmp_path / "source.safetensors")
    with pytest.raises(RunError, match="the code of features mine, differs"):
        bnrecon.load_source(path, model)


def test_promise_of_orthogonal_features_is_checked():
    @register_features("mine", orthogonal=True)
    def mine(shape, width, stream):
        second = stream.normal((shape.outputs, width, *shape.kernel), "b")
        return stream.normal((width, shape.inputs), "a"), second

    with pytest.raises(UserError, match=r"the model: M\^T M is not the identity.*orthogonal=True"):
        bnrecon.reconstruct(torch.nn.Linear(4, 3).eval(), features="mine")


def test_features_in_a_reused_buffer_are_copied():
    buffer = torch.empty(12 * 4)

    @register_features("mine")
    def mine(shape, width, stream):
        first = buffer.copy_(stream.normal((48,), "a")).view(width, shape.inputs)
        return first, stream.normal((shape.outputs, width, 1, 1), "b")

    drawn = [draw("mine", LayerShape(3, 4), 12, 0, layer) for layer in (0, 1)]
    assert drawn[0].first.equal(draw("mine", LayerShape(3, 4), 12, 0, 0).first)
    assert not drawn[0].first.equal(drawn[1].first)


def test_network_that_was_returned_before_is_refused():
    bodies = [torch.nn.Linear(2, 2) for _ in range(2)]
    bnrecon.register_target("mine")(
        lambda shape, classes, width: torch.nn.Sequential(bodies[width], torch.nn.Linear(2, 2))
    )
    for width in (0, 1):
        build("mine", (2, 1, 1), 2, width=width)
    with pytest.raises(UserError, match="layers of a network that it returned before"):
        build("mine", (2, 1, 1), 2, width=0)


def test_solver_may_write_into_its_system():
    def solver(system, spec):
        x = torch.linalg.pinv(system.operator.dense()) @ system.rhs
        system.rhs.zero_()
        system.weight.mul_(2)
        return x, 0

    bnrecon.register_solver("mine", memory=lambda rows, columns: 0)(solver)
    model = torch.nn.Linear(3, 2).double().eval()
    rebuilt = bnrecon.reconstruct(model, solver="mine")
    x = torch.ones(1, 3).double()
    assert rebuilt.layers[0].converged
    assert torch.allclose(rebuilt.network(x), model(x), rtol=1e-10)
    with pytest.raises(UserError, match="register yours under another name"):
        bnrecon.register_solver("auto", memory=lambda rows, columns: 0)


def register_solver(answer):
    """A solver that makes what it returns of the scales."""

    def solver(system, spec):
        return answer(torch.linalg.pinv(system.operator.dense()) @ system.rhs)

    bnrecon.register_solver("mine", memory=lambda rows, columns: 0)(solver)


@pytest.mark.parametrize("count", [np.int64(3), torch.tensor(3), 3.0])
def test_iterations_of_a_user_solver_may_be_any_number(count):
    register_solver(lambda x: Answer(x, count, at_limit=np.bool_(True)))
    (layer,) = bnrecon.reconstruct(torch.nn.Linear(3, 2).eval(), solver="mine").layers
    row = json.loads(json.dumps(layer.to_json()))
    assert (row["iterations"], row["at_limit"]) == (3, True)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda x: x, r"it returned Tensor; return \(x, iterations\)"),
        (lambda x: (x, None), "TypeError: int"),
        (lambda x: (x,), "TypeError: .*'iterations'"),
        (lambda x: (x.to_sparse(), 0), "its scales are .*, sparse"),
    ],
)
def test_wrong_answer_of_a_user_solver_is_one_line_with_its_name(answer, said):
    register_solver(answer)
    with pytest.raises(UserError, match=f"solver mine: {said}"):
        bnrecon.reconstruct(torch.nn.Linear(3, 2).eval(), solver="mine")


@pytest.mark.parametrize(
    "traits", [{"memory": lambda rows: 0}, {"memory": lambda *_: 0, "check": lambda rows: None}]
)
def test_error_in_a_user_solvers_memory_or_check_is_one_line(traits):
    bnrecon.register_solver("mine", **traits)(lambda system, spec: (system.rhs, 0))
    with pytest.raises(UserError, match=r"solver mine: TypeError: .*positional argument"):
        bnrecon.reconstruct(torch.nn.Linear(3, 2).eval(), solver="mine")


@pytest.mark.parametrize("file", ["queue.py", "sys.py", "platform/__init__.py"])
def test_module_hidden_by_one_of_python_is_refused(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    name = file.removesuffix(".py").removesuffix("/__init__")
    with pytest.raises(UserError, match=rf"imports={name}: {file} is hidden by .*; rename it"):
        import_user_modules([name])


def test_import_that_changes_torch_is_refused(tmp_path):
    (tmp_path / "doubles.py").write_text("import torch\ntorch.set_default_dtype(torch.float64)\n")
    try:
        with pytest.raises(UserError, match="imports=doubles: it changes torch's default dtype"):
            import_user_modules(["doubles"])
    finally:
        torch.set_default_dtype(torch.float32)


class Constant(torch.nn.Module):
    """A network with a constant that is drawn anew and may be a buffer."""

    def __init__(self, shape, classes, *, stored):
        super().__init__()
        self.linear = torch.nn.Linear(shape[1] * shape[2], classes)
        drawn = torch.from_numpy(np.random.default_rng().normal(size=classes)).float()
        if stored:
            self.register_buffer("constant", drawn)
        else:
            self.constant = drawn

    def forward(self, x):
        return self.linear(x.flatten(1)) + self.constant.to(x)


@pytest.mark.parametrize("stored", [True, False])
def test_target_whose_weights_do_not_determine_it_is_refused(stored, digits, tmp_path):
    @bnrecon.register_target("mine", version="1")
    def mine(shape, classes, width, depth, activation):
        return Constant(shape, classes, stored=stored)

    options = ["target=mlp", "scale=smoke", "train.epochs=1", f"outputs={tmp_path}"]
    asked = composition.compose(options)
    asked.target.family = "mine"
    if stored:
        assert obtain_target(asked.target_request, digits, CPU).about["accuracy"] > 0
    else:
        with pytest.raises(UserError, match=r"target family mine: built again .*register_buffer"):
            obtain_target(asked.target_request, digits, CPU)


def test_scales_in_a_reused_buffer_are_copied():
    buffer = torch.empty(18).double()
    register_solver(lambda x: (buffer.copy_(x), 0))
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 4)).double().eval()
    plan = bnrecon.plan_layers(model, solver="mine")
    first, second = map(bnrecon.solve_layer, plan.layers)
    assert not torch.equal(first.scale, second.scale)


def test_errors_of_user_targets_and_solvers_name_the_location(command, tmp_path):
    def broken(reason, shape, classes, width, depth, activation):
        raise KeyError(reason)

    bnrecon.register_target("mlp")(functools.partial(broken, "no such thing"))
    code, _, err = command("run", "scale=smoke", "target=mlp", f"outputs={tmp_path}")
    assert code == 2
    assert "target family mlp: KeyError: 'no such thing' (" in err
    bnrecon.register_target("mlp")(lambda *_, **__: sys.exit(0))
    code, _, err = command("run", "scale=smoke", "target=mlp", f"outputs={tmp_path}")
    assert code == 2
    assert "target family mlp: SystemExit: 0 (" in err
    assert "test_user_code.py:" in err

    @bnrecon.register_solver("lu", memory=lambda rows, columns: 0)
    def failing(system, options):
        return system.rhs[10**9], 0

    code, _, err = command("run", *SMOKE, "solver=lu", f"outputs={tmp_path}")
    assert code == 2
    assert "solver lu: IndexError" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_tied_weights_of_a_loaded_target_stay_tied(command, tmp_path, kind):
    class Tied(torch.nn.Sequential):
        def __init__(self, shape, classes, width, **_):
            super().__init__(torch.nn.Flatten(), *(torch.nn.Linear(64, 64) for _ in range(2)))
            self.append(torch.nn.Linear(64, classes))
            self[2].weight = self[1].weight

    bnrecon.register_target("mlp", version="tied")(Tied)
    words = ("scale=smoke", "target=mlp", f"outputs={tmp_path}")
    code, _, err = command("train", *words)
    assert code == 0, err
    (folder,) = (tmp_path / "targets").iterdir()
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        network = bnrecon.load_target(folder.name, tmp_path)
    finally:
        torch.set_default_dtype(before)
    assert network[1].weight is network[2].weight
    assert network[1].weight.dtype == torch.float32
