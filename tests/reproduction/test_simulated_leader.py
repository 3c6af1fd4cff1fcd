"""Many tasks on a simulated cluster: some fail, some are preempted, and the leader is killed."""

import simulate_leader


def test_nothing_is_lost_and_nothing_is_computed_twice(tmp_path):
    text = simulate_leader.lead(tmp_path, count=200, nodes=20, failures=0.1, preempted=0.1)
    first, second, *_, last = text.splitlines()
    assert first.startswith("interrupted: 80 tasks tried")  # the leader was killed
    assert second.startswith("failed: ")  # and then met tasks that fail
    assert last == "nothing lost, nothing computed twice"
