"""A judge for the images of a miniature: a small classifier, trained in seconds where nobody has trained one yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedsaddle.assemble import device_of
from fedsaddle.data.sources import SOURCES
from fedsaddle.engine.classifier import Track, save, silent, train_classifier, usual_path
from fedsaddle.studies.reproduce import Plan

FILE = "judge.safetensors"  # beside the runs; not in the cache, where the judges of whole studies are
PASSES = 2


def with_judge(plan: Plan, out: Path, track: Track = silent, train: bool = True) -> Plan:
    """The plan with the judge that its miniature names, if images are to be judged and there is no other.

    train: make it where it is missing; without, the runs were judged by another, or there are none.
    """
    run, data, file = plan.settings.run, plan.settings.data, out / FILE
    named = plan.study.quick.judge if plan.quick and plan.study.quick else ""
    if not named or not run.image_samples or run.classifier:
        return plan
    if not file.exists():
        if not train or usual_path(data.name).exists():
            return plan
        images = SOURCES[data.name](**data.settings).load(plan.settings.dealing.seed)
        save(train_classifier(images, data.name, named, {}, epochs=PASSES, device=device_of(run), track=track), file)
    return plan._replace(settings=replace(plan.settings, run=replace(run, classifier=str(file))))
