"""The example in CONTRIBUTING.md is a part that can be computed."""

import re

from fake_study import study_of
from repository import ROOT

from bnrecon.reproduction.commands import run_study
from bnrecon.reproduction.request import read

PAGE = ROOT / "CONTRIBUTING.md"


def test_example_of_a_new_experiment_runs(tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (text,) = re.findall(r"```markdown\n(.*?)```", page, re.DOTALL)
    (tmp_path / "oversampling.md").write_text(text, encoding="utf-8")
    module = {"__file__": str(tmp_path / "oversampling.py")}
    exec(compile(code, str(PAGE), "exec"), module)
    request = read("paper", ["scale=smoke", f"outputs={tmp_path}"])
    text = run_study(study_of(oversampling=module["PART"]), request).text
    assert "Relative error by oversampling. Scale smoke; 1 of 1 tasks finished" in text
    assert "| 1.5            | " in text
    assert "**Confirmed**: largest relative error" in text
