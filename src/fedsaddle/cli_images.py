"""Commands about images: train the classifier that judges them, and judge those of a finished run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
import torch
import typer
from rich.console import Console
from rich.progress import track

from fedsaddle.assemble import deal, device_of, pose
from fedsaddle.config import Run, named, read, settle
from fedsaddle.config.files import with_assignments
from fedsaddle.contracts import Point, SettingError
from fedsaddle.data.sources import SOURCES
from fedsaddle.engine import classifier as classifiers
from fedsaddle.engine.classifier import SLICE
from fedsaddle.metrics.images import SAMPLES, image_measures, judged
from fedsaddle.models import MODELS
from fedsaddle.report.tables import number
from fedsaddle.runs import threads

out, err = Console(), Console(stderr=True)
Out = Annotated[Path | None, typer.Option("--out", help="file; in the cache, where runs look for it, if not given")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto")]


def classifier(
    data: Annotated[str, typer.Argument(help="a data set of `fedsaddle list data`")],
    model: Annotated[str, typer.Option(help="a net of `fedsaddle list models`")] = "resnet18",
    epochs: Annotated[int, typer.Option(min=1, help="passes over the training images")] = 5,
    device: Device = "auto",
    cores: Annotated[int, typer.Option("--threads", min=1, help="threads inside one operation")] = 1,
    seed: Annotated[int, typer.Option(help="of first weights and order")] = 0,
    set_: Annotated[list[str] | None, typer.Option("--set", help="data.key=value or model.key=value")] = None,
    target: Out = None,
) -> None:
    """Train the classifier by which runs on this data measure the Inception Score and FID of their images."""
    tables = with_assignments({"data": {"name": data}, "model": {"name": model}}, set_ or ())
    source, net = named(SOURCES, tables["data"], "data"), named(MODELS, tables["model"], "model")
    made = SOURCES[source.name](**source.settings)
    if not hasattr(made, "load") or net.name not in MODELS:
        raise SettingError(f"classifier {data!r}: needs a data set with images of classes and a model of `fedsaddle "
                           "list models`; choose another")
    path = target or classifiers.usual_path(source.name)
    with threads(cores):
        found = classifiers.train_classifier(made.load(seed), source.name, net.name, net.settings, epochs=epochs,
                                             seed=seed, device=device_of(Run(device=device)), track=_bar)
    classifiers.save(found, path)
    out.print(f"test accuracy {number(found.about['accuracy'])}, Inception Score of the test images "
              f"{number(found.about['score'])}; classifier: {path}", soft_wrap=True)


def images(
    folder: Annotated[Path, typer.Argument(help="the run folder of one method")],
    samples: Annotated[int, typer.Option(min=2, help="images to draw")] = SAMPLES,
    seed: Annotated[int, typer.Option(help="of the noise")] = 0,
    judge: Annotated[Path | None, typer.Option("--classifier", help="its file, if not the usual one")] = None,
    device: Device = "auto",
) -> None:
    """Inception Score and FID of the images that a finished run makes."""
    if not (folder / "model.safetensors").exists():
        raise SettingError(f"images {str(folder)!r}: holds no model.safetensors; give the folder of a finished run, of "
                           "one method")
    settings = settle(read(folder / "run.toml"))
    problem: Any = pose(settings, deal(settings))
    if not hasattr(problem, "samples"):
        raise SettingError(f"images {str(folder)!r}: its problem {settings.problem.name!r} makes no images; give a run "
                           "of the problem gan")
    saved = safetensors.torch.load_file(folder / "model.safetensors")
    place = device_of(Run(device=device))
    found = classifiers.load(judge or classifiers.usual_path(settings.data.name)).to(place)
    with torch.no_grad():
        made = problem.samples(Point(saved["x"], saved["y"]), samples, seed)
    measures = image_measures(judged(found.judge, _bar(made.split(SLICE), "judging images")), found.real)
    for name, value in measures.items():
        out.print(f"{name}: {number(value)}")
    if "score" in found.about:  # older files have none
        out.print(f"of real test images: inception_score {number(found.about['score'])}")


def add_to(app: typer.Typer) -> None:
    app.command()(classifier)
    app.command()(images)


def _bar(steps: Sequence[Any], description: str) -> Iterable[Any]:
    return track(steps, description, console=err)
