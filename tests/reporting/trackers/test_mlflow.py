"""What MLflow's database holds is what the run found."""

import pytest
from processes import TWO_SEEDS, finish, folder_of, start

from bnrecon.reporting.result import RunResult

pytestmark = pytest.mark.process
pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")


def runs_of(outputs):
    """The runs that are not deleted, by name, and a function for a metric's values by step."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{outputs}/trackers/mlflow.db")
    experiment = client.get_experiment_by_name("bnrecon")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}

    def history(run, name):
        return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]

    return runs, history


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("outputs")
    code, out, err = finish(start(*TWO_SEEDS, "tracker=mlflow", f"outputs={outputs}"))
    assert code == 0, err
    assert "mlflow failed" not in err
    assert "mlflow ui" in err
    return folder_of(out), outputs


def test_the_database_has_layers_and_seeds_and_the_options(tracked):
    folder, outputs = tracked
    result = RunResult.read(folder / "result.json")
    runs, history = runs_of(outputs)
    run = runs[f"runs/{folder.name}"]
    seeds = [(seed.seed, pytest.approx(seed.accuracy)) for seed in result.seeds]
    assert history(run, "seed/accuracy") == seeds
    errors = [(n, pytest.approx(x.relative_error)) for n, x in enumerate(result.seeds[0].layers, 1)]
    assert history(run, "layer/relative_error/seed-0") == errors
    assert run.data.params["features.name"] == result.config["features"]["name"]
    assert run.info.status == "FINISHED"
    assert not (outputs / "trackers" / "mlruns").exists()


def test_exporting_it_afterwards_replaces_the_run(tracked):
    folder, outputs = tracked
    runs, history = runs_of(outputs)
    before = history(runs[f"runs/{folder.name}"], "seed/accuracy")
    code, out, err = finish(start("mlflow", str(outputs), command="export"))
    assert code == 0, err
    assert "rows sent" in out
    runs_after, history = runs_of(outputs)
    assert set(runs_after) >= set(runs)
    assert history(runs_after[f"runs/{folder.name}"], "seed/accuracy") == before
