"""A classifier trained on a data set's own images, centrally, to judge generated ones (Inception Score and FID)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsaddle.contracts import Rows, SettingError
from fedsaddle.data.dataset import DataSet
from fedsaddle.data.store import cache
from fedsaddle.engine.programs.capture import Captured
from fedsaddle.engine.programs.tracing import Untraceable
from fedsaddle.metrics.images import Moments, inception_score, judged
from fedsaddle.models import MODELS, build

SLICE = 250  # images judged at once
Track = Callable[[Sequence[Any], str], Iterable[Any]]  # with a description, such as rich.progress.track


@dataclass(frozen=True)
class Classifier:
    """A net, what it sees in the real training images, and what is known about it."""

    net: nn.Sequential
    real: Moments
    about: dict[str, Any]  # data, model, settings, shape, classes, accuracy, ...

    def judge(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Features, the input of the last layer, and class probabilities."""
        shape = tuple(images.shape[1:])
        if shape != tuple(self.about["shape"]):
            raise SettingError(f"classifier: was trained on images of shape {tuple(self.about['shape'])}, and these "
                               f"have {shape}; train one on this data with `fedsaddle classifier`")
        features = self.net[:-1](images.to(next(self.net.parameters())))
        return features, torch.softmax(self.net[-1](features), 1)

    def to(self, device: torch.device) -> Classifier:
        return Classifier(self.net.to(device), self.real, self.about)


def silent(steps: Sequence[Any], description: str) -> Iterable[Any]:
    return steps


def train_classifier(
    data: DataSet, name: str, model: str, settings: dict[str, Any], *, epochs: int, seed: int = 0,
    batch_size: int = 128, rate: float = 2e-3, device: torch.device | str = "cpu", track: Track = silent,
) -> Classifier:
    """AdamW with one cycle of the step size; no augmentation, so that it also knows what does not look right."""
    shape = tuple(data.train.inputs.shape[1:])
    net = build(MODELS[model](**settings), shape, data.classes, seed)
    if not isinstance(net, nn.Sequential) or not isinstance(net[-1], nn.Linear) or data.train.targets.dim() != 1:
        raise SettingError(f"classifier.model = {model!r}: cannot judge rows of one class each by a last linear layer; "
                           "choose resnet18, or another net for images")
    net, train = net.to(device), Rows(*(part.to(device) for part in data.train))
    optimiser = torch.optim.AdamW(net.parameters(), rate, weight_decay=1e-2, fused=torch.device(device).type == "cuda")
    steps = -(-len(train.targets) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, epochs=epochs, steps_per_epoch=steps)
    random = torch.Generator().manual_seed(seed)
    gradients = _gradients(net, train, batch_size)
    for step in track(range(epochs * steps), "training"):
        if step % steps == 0:
            batches = torch.randperm(len(train.targets), generator=random).to(device).split(batch_size)
        gradients(batches[step % steps])
        optimiser.step()
        schedule.step()
    known = {"data": name, "model": model, "settings": settings, "shape": shape, "classes": data.classes,
             "epochs": epochs, "seed": seed}
    blank = Classifier(net.eval(), Moments(0, torch.zeros(0), torch.zeros(0)), known)
    real = judged(blank.judge, track(train.inputs.split(SLICE), "features of the training images")).moments
    return Classifier(net, real, {**known, "accuracy": accuracy(blank, data.test), "score": score(blank, data.test)})


def _gradients(net: nn.Module, train: Rows, batch_size: int) -> Callable[[Tensor], Any]:
    """What leaves the gradients of the loss on some rows in the net's own tensors for them. On a GPU a whole batch is
    one launch: most of a small net's step is waiting for launches."""
    found = []
    for weight in net.parameters():
        weight.grad = torch.zeros_like(weight)
        found.append(weight.grad)

    def gradients(rows: Tensor) -> tuple[()]:
        torch._foreach_zero_(found)
        functional.cross_entropy(net(train.inputs[rows]), train.targets[rows]).backward()
        return ()

    if train.targets.device.type != "cuda" or len(train.targets) < batch_size:
        return gradients
    try:
        graph = Captured(gradients, [torch.arange(batch_size, device=train.targets.device)])
    except Untraceable:
        return gradients
    return lambda rows: graph(rows) if len(rows) == batch_size else gradients(rows)


def score(classifier: Classifier, rows: Rows) -> float:
    """The Inception Score of real images: about the most that a generator's can reach."""
    seen = judged(classifier.judge, rows.inputs.split(SLICE))
    return inception_score(seen.probabilities, min(10, seen.moments.rows))[0]


@torch.no_grad()
def accuracy(classifier: Classifier, rows: Rows) -> float:
    """The share of rows whose class it finds most likely."""
    right = [(classifier.judge(inputs)[1].argmax(1).cpu() == targets.cpu()).sum()
             for inputs, targets in zip(rows.inputs.split(SLICE), rows.targets.split(SLICE), strict=True)]
    return float(torch.stack(right).sum() / len(rows.targets))


def usual_path(data: str) -> Path:
    """Where the classifier of a data set is kept."""
    return cache() / "classifiers" / f"{data}.safetensors"


def save(classifier: Classifier, path: Path) -> None:
    tensors = {f"net.{name}": value.detach().cpu().contiguous() for name, value in classifier.net.state_dict().items()}
    tensors |= {"real.mean": classifier.real.mean, "real.covariance": classifier.real.covariance}
    about = json.dumps({**classifier.about, "rows": classifier.real.rows})
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    safetensors.torch.save_file(tensors, unfinished, {"classifier": about})
    unfinished.replace(path)


def load(path: Path) -> Classifier:
    """A classifier that `save` wrote."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["classifier"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        settings = {name: tuple(v) if isinstance(v, list) else v for name, v in about["settings"].items()}
        net = build(MODELS[about["model"]](**settings), tuple(about["shape"]), about["classes"], 0)
        net.load_state_dict({name.removeprefix("net."): v for name, v in tensors.items() if name.startswith("net.")})
    except FileNotFoundError:
        data = path.stem if path == usual_path(path.stem) else "DATA"
        raise SettingError(f"classifier {str(path)!r}: is not there; train one with `fedsaddle classifier {data}` "
                           "(with `--model lenet5` it takes minutes on a CPU), give its file in run.classifier, or set "
                           "run.image_samples to 0, and images are not judged") from None
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise SettingError(f"classifier {str(path)!r}: cannot be read ({error}); train it again with `fedsaddle "
                           "classifier DATA`") from error
    assert isinstance(net, nn.Sequential)
    return Classifier(net.eval(), Moments(about.pop("rows"), tensors["real.mean"], tensors["real.covariance"]), about)
