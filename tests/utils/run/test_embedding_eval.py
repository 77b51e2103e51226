"""`--embedding_eval` against values computed by hand and by brute force; per-class accuracy and confusion likewise."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tests.helpers import assert_close, build_run, make_spec, make_stream, run_config
from utils.run.embedding_eval import _accuracy, class_means, nearness
from utils.run.metrics import per_class
from utils.run.training import Training

SPEC = make_spec(n_tasks=3, n_classes=6, train_sizes=(30,) * 3, test_sizes=(20,) * 3)


def trained(model: str = "er", norm: str = "bn", spec=SPEC, **changes):
    """(network, method, stream, results)."""
    config, stream = run_config(model, norm, **changes), make_stream(spec)
    if model == "joint":
        stream = stream.as_single_task()
    net, method = build_run(config, stream)
    results = Training(config, stream, method).run()["results"]
    return net.eval(), method, stream, results


# --- by hand ------------------------------------------------------------------------------------------------------

STORED = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, -5.0]]), torch.tensor([0, 0, 1])


def test_nearest_mean():
    """Squared distances to (0.5, 0.5) and (0, -1): 0.09 and 3.41; 1.5 and 0.59; 1.04 and 1.13. Were the first mean
    brought to length 1 as well, the last point would be nearer to the second."""
    points = torch.tensor([[3.0, 3.0], [1.0, -1.0], [9.0, -4.36]])
    scores = nearness(points, class_means(*STORED, n_classes=3))
    assert scores[:, :2].argmax(1).tolist() == [0, 1, 0]
    assert_close(1 - scores[:, :2], [[0.0858, 3.4142], [1.5, 0.5858], [1.0361, 1.1280]], atol=1e-3)
    assert (scores[:, 2] == -torch.inf).all()


def test_accuracy_is_the_mean_over_tasks_and_a_class_without_a_mean_is_never_right():
    """The first task's classes have no mean at all: the best of them is none."""
    inf = torch.inf
    scored = [
        torch.tensor([[-inf, -inf, 3.0, 1.0]]),
        torch.tensor([[-inf, -inf, 3.0, 1.0], [-inf, -inf, 1.0, 2.0], [-inf, -inf, 5.0, 2.0]]),
    ]
    tests = [(torch.zeros(1, 2), torch.tensor([0])), (torch.zeros(3, 2), torch.tensor([2, 3, 3]))]
    accuracy = _accuracy(scored, tests, make_spec())
    assert accuracy == {"class_il": pytest.approx(100 / 3), "task_il": pytest.approx(100 / 3)}
    scored[0][:, :2] = torch.tensor([2.0, 1.0])
    accuracy = _accuracy(scored, tests, make_spec())
    assert accuracy == {"class_il": pytest.approx(100 / 3), "task_il": pytest.approx(50 + 100 / 3)}


def test_accuracy_of_every_class():
    assert per_class([[3, 1, 0], [0, 0, 2], [0, 0, 0]]) == [75.0, 0.0, None]


# --- by brute force -----------------------------------------------------------------------------------------------


def embeddings(net, method, batches) -> tuple[np.ndarray, np.ndarray]:
    """One image after the other."""
    pairs = [
        (net.output(method.augment.normalize(image[None])).embedding[0].detach().numpy(), label)
        for batch in batches
        for image, label in zip(batch.images, batch.labels_host, strict=True)
    ]
    return np.stack([embedding for embedding, _ in pairs]), np.array([label for _, label in pairs])


def by_tasks(stream, right) -> dict[str, float]:
    """Mean over tasks; `right(task, settings' classes)` gives the share."""
    tasks = range(stream.spec.n_tasks)
    return {
        "class_il": 100 * np.mean([right(task, range(stream.spec.n_classes)) for task in tasks]),
        "task_il": 100 * np.mean([right(task, stream.spec.classes_of(task)) for task in tasks]),
    }


def test_probes_of_a_run():
    net, method, stream, results = trained(dtype="float64", buffer_size=40, final_probes=True)
    tests = [embeddings(net, method, stream.test(task, 50)) for task in range(3)]
    stored, labels = embeddings(net, method, [method.buffer.all_samples()])
    stored = stored / np.linalg.norm(stored, axis=1, keepdims=True)
    means = {label: stored[labels == label].mean(0) for label in np.unique(labels)}

    def near(task, classes):
        right = []
        for embedding, label in zip(*tests[task], strict=True):
            unit = embedding / np.linalg.norm(embedding)
            distances = {c: np.linalg.norm(unit - mean) for c, mean in means.items() if c in classes}
            right.append(min(distances, key=distances.get) == label)
        return np.mean(right)

    for setting, expected in by_tasks(stream, near).items():
        assert results[setting]["metrics"]["ncm"] == pytest.approx(expected), setting

    parts = [embeddings(net, method, stream.in_order(task, 50)) for task in range(3)]
    inputs, targets = (np.concatenate(both) for both in zip(*parts, strict=True))
    mean, std = inputs.mean(0), inputs.std(0)
    std[std == 0] = 1
    fit = LogisticRegression(C=1.0, max_iter=1000).fit((inputs - mean) / std, targets)

    def fitted(task, classes):
        scores = fit.decision_function((tests[task][0] - mean) / std)[:, classes.start : classes.stop]
        return np.mean(scores.argmax(1) + classes.start == tests[task][1])

    for setting, expected in by_tasks(stream, fitted).items():
        assert results[setting]["metrics"]["linear_probe"] == pytest.approx(expected), setting


@pytest.mark.parametrize("model", ["sgd", "joint"])
def test_a_method_without_a_buffer_has_no_nearest_means(model):
    metrics = trained(model, final_probes=True)[3]["task_il"]["metrics"]
    assert metrics["ncm"] is None
    assert metrics["linear_probe"] > 0


@pytest.mark.parametrize("which", ["buffer", "batch"])
def test_probes_see_the_network_as_it_is_evaluated(which):
    running = trained(final_probes=True)[3]["class_il"]["metrics"]
    other = trained(final_probes=True, eval_statistics=which)[3]["class_il"]["metrics"]
    assert (other["ncm"], other["linear_probe"]) != (running["ncm"], running["linear_probe"])


# --- the confusion of classes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["er", "joint"])
def test_confusion_of_the_final_network(model):
    _, method, stream, results = trained(model)
    expected = np.zeros((6, 6), dtype=int)
    for task in range(3):
        for batch in stream.test(task, 1):
            expected[batch.labels_host[0], method.predict(method.augment.normalize(batch.images)).argmax()] += 1
    class_il = results["class_il"]
    assert class_il["confusion"] == expected.tolist()
    assert all(type(count) is int for row in class_il["confusion"] for count in row)
    assert class_il["per_class"] == [100 * expected[c, c] / expected[c].sum() for c in range(6)]
    assert "confusion" not in results["task_il"]
