"""`bnrecon run` and `train`: a mistake is one line, and nothing is begun or left behind."""

import sys
from pathlib import Path

import pytest

from bnrecon.config import composition

MISTAKES = [
    ("=3", "'=3': an option has no name"),
    ("hydra=3", "must be a string"),
    ("--resolve", "--cfg"),
    ("--cfg", "expected one argument"),
    ("--config-name=nope", "--config-name=nope: there is no nope.yaml; give the folder"),
    ("--config-dir", "expected one argument"),
    ("train.seed=4294967296", "at least 0 and below 4,294,967,296"),
    ("seeds=[9223372036854775808]", "from 0 to 2^63 - 1"),
    ("data.workers=1000000000", "data.workers=1000000000: "),
    ("target.groups=[1000]", "at most 256 convolutions"),
    ("target=mlp target.depth=1000000000", "at most 256"),
    ("train.epochs=1000000000000", "at most 1,000,000"),
    ("target.name=a/b", "none of them /"),
    ("hydra.sweep.dir= -m", "give a path"),
    ("features=he_normal,id_cond", "with -m"),
    ("data.root=${nothing}", "nothing"),
    ("imports=[nothing/such]", "importable from here"),
    ("outputs=null", "must have a value"),
    ("width=4", "did you mean features.width or target.width?"),
    ("seeds=0,1,2", "write a list as seeds=[0,1,2]; several values are a sweep, with -m"),
    ("features.oversampling=1,5", ", a number as 1.5; several values are a sweep, with -m"),
    ("target.widht=3", "did you mean 'target.width'"),
    ("+target.extra=3", "target.extra is not an option"),
    ("tarzet.width=3", "did you mean 'target'"),
    ("target=vg18", "did you mean 'vgg18'"),
    ("target.width=wide", "target.width=wide: must be a whole number"),
    ("solver.tolerance=small", "must be a number"),
    ("target.width=-2", "target.width=-2: must be above 0"),
    ("train.momentum=1", "must be at least 0 and below 1"),
    ("seeds=3", "must be a list"),
    ("seeds=[1,1]", "give one or more different seeds"),
    ("seeds=[0", "could not read"),
    ("target.groups=[]", "give the number of convolutions"),
    ("device=gpu", "did you mean 'cpu'"),
    ("features.width=200 features.excess=2", "features.width=200: give"),
    ("data=folder", "data=folder needs data.root"),
    ("target=vgg_schema", "target.name has no value"),
    ("vgg18", "write name=value without spaces"),
    ("--target=vgg18", "without dashes, as in target=vgg18"),
    ("data=cifar10 data.root=~/no/such/folder", "no such folder"),
    ("data=digits data.root=mine", "data.root=mine: digits has no files; "),
    ("train.nesterov=true train.momentum=0", "train.nesterov=true: needs a momentum above 0"),
    ("features.name=mine", "sparse_id_cond; yours: import its module (imports=[MODULE])"),
    ("target.condition=0.5", "must be at least 1"),
    ("hydra/launcher=joblib2 -m", "sweeps run by jobs= or cluster="),
    ("target.density=0.5 target.condition=2", "at most one"),
]


@pytest.mark.parametrize(("words", "line"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_mistake_is_one_line_and_nothing_is_begun(refused, words, line):
    refused("run", *words.split(), line=line)


PLANNED = [
    ("features.width=3", "below the minimum width n - c2 + 1 = 97"),
    ("features=id_cond features.excess=5", "id_cond has 108"),
    ("solver=lu features.oversampling=1.5", "needs a square system"),
    ("solver=closed_form", "whose M is orthogonal"),
    ("target=vgg18_normalization data=digits target.width=4 target.density=0.5", "frozen"),
]


@pytest.mark.parametrize(("words", "line"), PLANNED, ids=[words for words, _ in PLANNED])
def test_mistake_found_by_planning_is_one_line(refused, tmp_path, words, line):
    refused("run", *words.split(), f"outputs={tmp_path}", line=line)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("target=mlp target.width=1000000", "training mlp of this width takes"),
        (
            "target=resnet18 data=digits target.width=1000000",
            "training resnet18 of this width",
        ),
        ("target=vgg18_normalization data=digits target.width=1000000", "smaller width"),
    ],
)
def test_untrainable_target_is_refused_before_it_is_built(refused, words, line):
    for command in ("run", "train"):
        refused(command, *words.split(), line=line)


@pytest.mark.parametrize(
    ("outputs", "line"),
    [
        ("file", "file is a file"),
        ("file/below", "file is a file"),
        ("a" * 300, "File name too long"),
        ("''", "outputs='': give a path"),
        ("a\0b", "give a path"),
        ("a\udcffb", "not UTF-8"),
        ("link", "link: this link leads nowhere"),
    ],
    ids=["file", "below", "long", "empty", "nul", "bytes", "link"],
)
@pytest.mark.parametrize(
    "words", ["run", "run -m features=he_normal,id_cond", "train", "study random_features"]
)
def test_impossible_outputs_folder_is_refused(refused, words, outputs, line):
    Path("file").write_text("")
    Path("link").symlink_to("nowhere")
    refused(*words.split(), "scale=smoke", f"outputs={outputs}", line=line)


FOLDERS = ["größe", "a=b", "it's", 'say "so"', "x[1]", "a,b", "a#b", "{a}", "end\\", "it's\\'"]


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_may_have_any_characters(name):
    for prefix in ("", "++"):
        composed = composition.compose(
            [f"{prefix}data.root={name}", f"{prefix}outputs={name}", f"{prefix}targets={name}"]
        )
        assert (composed.data.root, composed.outputs, composed.targets) == (name, name, name)


def test_quotes_null_and_home_folder_are_understood(monkeypatch):
    monkeypatch.setenv("HOME", "/home/it's")
    composed = composition.compose(["data.root=null", "outputs='a b'", "targets=~/x"])
    assert (composed.data.root, composed.outputs, composed.targets) == (None, "a b", "/home/it's/x")
    assert composition.as_overrides(["data.root=ä,b", "features=he_normal,18"], sweep=True) == [
        "data.root='ä','b'",
        "features=he_normal,'18'",
    ]


def test_run_and_table_work_in_a_folder_of_odd_characters(succeed):
    name = "größe, it's [1]=#"
    out, err = succeed("run", "scale=smoke", "target.groups=[1]", f"outputs={name}")
    folder = Path(out.splitlines()[-1])
    assert folder.parent == Path(name) / "runs"
    for words in (name, f"outputs={name}"):
        out, _ = succeed("tables", words)
        assert folder.name.rpartition("-")[2] in out
    assert [path.name for path in Path.cwd().iterdir()] == [name]


YAMLS = {
    "syntax": (
        b"defaults: [custom_schema, _self_]\nname: [a\nfamily: x\n",
        "syntax.yaml: line 3, column 7: expected ',' or ']'",
    ),
    "twice": (b"name: a\nname: b\n", "twice.yaml: line 2, column 1: found duplicate key"),
    "bytes": ("name: größe\n".encode("latin-1"), "a yaml file is not UTF-8: 'utf-8' codec"),
    "lost": (
        b"defaults: [nothing_such, _self_]\n",
        "target/lost.yaml names target/nothing_such in its defaults",
    ),
    "circle": (b"defaults: [circle]\n", "the defaults of yaml files form a circle"),
}


@pytest.mark.parametrize("name", YAMLS)
def test_unreadable_user_yaml_is_one_line(refused, name):
    content, line = YAMLS[name]
    Path("own/target").mkdir(parents=True)
    Path(f"own/target/{name}.yaml").write_bytes(content)
    refused("run", "--config-dir=own", f"target={name}", line=line)


def test_missing_config_folder_is_refused(refused):
    Path("own/target/mine.yaml").mkdir(parents=True)
    refused("run", "--config-dir=own", "target=mine", line="target=mine: ")
    refused("run", "--config-dir=nowhere", line="no such folder")
    refused("run", "--config-dir=own/target/mine.yaml/x", line="no such folder")


def test_main_yaml_without_defaults_is_one_line(refused):
    Path("own").mkdir()
    Path("own/mine.yaml").write_text("seeds: [0]\n")
    line = "a yaml file for --config-name begins with defaults: [run, _self_]"
    refused("run", "--config-dir=own", "--config-name=mine", line=line)


def test_new_option_of_a_user_target_says_how_to_add_it(refused):
    Path("own/target").mkdir(parents=True)
    Path("own/target/mine.yaml").write_text("defaults: [custom_schema, _self_]\nname: mine\n")
    words = ("--config-dir=own", "target=mine", "target.options.depth=2")
    refused("run", *words, line="write +target.options.depth=VALUE")


def test_user_yaml_works_before_and_after_its_folder(succeed):
    Path("own/features").mkdir(parents=True)
    Path("own/features/mine.yaml").write_text("defaults: [schema, _self_]\nname: orthogonal\n")
    for words in (
        ["--config-dir=own", "features=mine"],
        ["features=mine", "--config-dir", "own"],
        ["features=mine", "-cd", "own", "scale=smoke"],
    ):
        out, _ = succeed("run", *words, "--cfg", "job")
        assert "name: orthogonal" in out


MODULES = {
    "raise SystemExit('enough')": "SystemExit: enough",
    "raise BaseException('base')": "BaseException: base",
    "x = [1\ny = 2": "SyntaxError: '[' was never closed",
    "raise ValueError('first\\nsecond')": "ValueError: first second",
}


@pytest.mark.parametrize("source", MODULES)
def test_error_of_a_users_module_is_reported_with_its_line(refused, monkeypatch, source):
    name = f"users_{list(MODULES).index(source)}"
    Path(f"{name}.py").write_text(f"\n{source}\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    line = refused("run", f"imports=[{name}]", line=MODULES[source])
    assert f"{name}.py:2)" in line
    sys.modules.pop(name, None)


PARTS = """
import torch, bnrecon

@bnrecon.register_data("stripes")
def stripes(spec):
    images = torch.arange(64, dtype=torch.uint8).reshape(4, 1, 4, 4) * {factor}
    return (images, torch.arange(4) % 2), (images, torch.arange(4) % 2)

@bnrecon.register_features("uniform")
def uniform(shape, width, stream):
    raise ValueError("drawn")

@bnrecon.register_target("line")
def line(shape, classes, width):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, classes))
"""


def test_registered_names_need_no_yaml_and_runs_depend_on_pixels(
    succeed, command, refused, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["data=stripes", "target=line", "scale=smoke", "train.epochs=1", "seeds=[0]"]
    words += ["data.crop_padding=1", "train.batch_size=2", f"outputs={tmp_path / 'out'}"]
    for name, factor in (("parts_one", 1), ("parts_two", 2)):
        Path(f"{name}.py").write_text(PARTS.format(factor=factor))
        succeed("run", f"imports=[{name}]", *words, "solver=closed_form", "features=id_cond")
        sys.modules.pop(name)
    runs = [path.name for path in (tmp_path / "out/runs").iterdir()]
    assert len(runs) == 2
    assert all(run.startswith("stripes-line-id_cond-") for run in runs)
    code, _, err = command("run", "imports=[parts_one]", *words, "features=uniform")
    assert (code, "features uniform: ValueError: drawn" in err) == (2, True)
    refused("run", "imports=[parts_one]", "data=stripe", line="did you mean 'stripes'")
    refused("run", "data=nothing", line="data=nothing: ")
