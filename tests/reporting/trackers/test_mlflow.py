"""MLflow's database holds the numbers of the run."""

import pytest
from processes import TWO_SEEDS, folder_of, succeeded

from bnrecon.reporting.result import RunResult

pytestmark = pytest.mark.process
pytest.importorskip("mlflow")
pytest.importorskip("sqlalchemy")


def read(outputs, name, deleted=False):
    """The runs with a name, and a function for a metric's values by step."""
    from mlflow import MlflowClient
    from mlflow.entities import ViewType

    client = MlflowClient(f"sqlite:///{outputs}/trackers/mlflow.db")
    number = client.get_experiment_by_name("bnrecon").experiment_id
    view = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
    runs = client.search_runs([number], run_view_type=view)

    def history(run, metric):
        return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, metric)]

    return [run for run in runs if run.info.run_name == name], history


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("outputs")
    out, err = succeeded(*TWO_SEEDS, "tracker=mlflow", f"outputs={outputs}")
    assert "mlflow failed" not in err
    assert "mlflow ui" in err
    return folder_of(out), outputs


def test_database_has_layers_seeds_and_options(tracked):
    folder, outputs = tracked
    result = RunResult.read(folder / "result.json")
    (run,), history = read(outputs, f"runs/{folder.name}")
    seeds = [(seed.seed, pytest.approx(seed.accuracy)) for seed in result.seeds]
    assert history(run, "seed/accuracy") == seeds
    errors = [(n, pytest.approx(x.relative_error)) for n, x in enumerate(result.seeds[0].layers, 1)]
    assert history(run, "layer/relative_error/seed-0") == errors
    assert run.data.params["features.name"] == result.config["features"]["name"]
    assert run.info.status == "FINISHED"


def test_export_replaces_the_run(tracked):
    folder, outputs = tracked
    name = f"runs/{folder.name}"
    (before,), history = read(outputs, name)
    accuracies = history(before, "seed/accuracy")
    assert "rows sent" in succeeded("mlflow", str(outputs), command="export")[0]
    (after,), history = read(outputs, name)
    assert history(after, "seed/accuracy") == accuracies
    (deleted,), _ = read(outputs, name, deleted=True)
    assert deleted.info.run_id == before.info.run_id != after.info.run_id


def test_concurrent_processes_share_the_database(tmp_path):
    words = ("experiment=quickstart", "scale=smoke", "jobs=2", "tracker=mlflow")
    assert "mlflow failed" not in succeeded(*words, f"outputs={tmp_path}")[1]


def test_quotes_in_names_and_unfinished_runs(tmp_path):
    from bnrecon.reporting.trackers.adapters import _mlflow

    for _ in range(2):  # the second one resumes
        with _mlflow(tmp_path, "bnrecon", "runs/it's", {"lr(x)": 1}, False) as log:
            log(0, "seed", 0, {"seed/accuracy": 1.0})
    client_folder = tmp_path / "outputs"
    (client_folder / "trackers").mkdir(parents=True)
    (tmp_path / "mlflow.db").rename(client_folder / "trackers" / "mlflow.db")
    (run,), _ = read(client_folder, "runs/it's")
    assert (run.info.status, run.data.params) == ("KILLED", {"lr_x_": "1"})
