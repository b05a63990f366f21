"""The nets of the papers: published parameter counts, one vmapped step for 8 clients, and a user's own module."""

import textwrap

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional

from fedsaddle.assemble import job_from_settings
from fedsaddle.config import settle
from fedsaddle.contracts import SettingError
from fedsaddle.maths import flat
from fedsaddle.models import (
    CNN,
    DCGAN28,
    DCGAN64,
    GRU,
    MODELS,
    DenseNet121,
    LeNet5,
    ResNet18,
    ResNet20,
    build,
    check_module,
    model_of,
)
from fedsaddle.models.blocks import NORMS

torch.set_num_threads(1)
CLIENTS = 8


def count(net):
    return sum(p.numel() for p in net.parameters())


def seeded(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("model", "shape", "outputs", "published"), [
    (LeNet5(), (1, 28, 28), 10, 44_426),
    (CNN(), (3, 32, 32), 10, 122_570),
    (ResNet18(), (3, 224, 224), 1000, 11_689_512),
    (ResNet18(), (3, 32, 32), 10, 11_173_962),
    (ResNet18(form="imagenet", norm="batch"), (3, 32, 32), 1000, 11_689_512),
    (ResNet20(), (3, 32, 32), 10, 269_722),  # shortcuts without parameters, as He et al. have on CIFAR
    (ResNet20(shortcut="convolution"), (3, 32, 32), 10, 272_474),
    (DenseNet121(norm="batch"), (3, 224, 224), 1000, 7_978_856),
    (DenseNet121(), (3, 32, 32), 10, 6_956_298),
])
def test_parameter_counts_are_those_of_the_published_nets(model, shape, outputs, published):
    assert count(model.build(shape, outputs)) == published


def test_parameter_counts_by_hand():
    nets = DCGAN28().build((1, 28, 28), 1)
    normalised = 2 * (1024 + 6272 + 64)
    assert count(nets.generator) == (100 * 1024 + 1024) + (1024 * 6272 + 6272) + (128 * 64 * 16 + 64) \
        + (64 * 16 + 1) + normalised
    assert count(nets.discriminator) == (25 * 32 + 32) + (32 * 64 * 25 + 64) + (1024 * 1024 + 1024) + (1024 + 1)
    narrow = DCGAN28(width=8).build((1, 28, 28), 1)
    assert count(narrow.generator) == (100 * 256 + 256) + (256 * 1568 + 1568) + (32 * 16 * 16 + 16) \
        + (16 * 16 + 1) + 2 * (256 + 1568 + 16)
    assert count(narrow.discriminator) == (25 * 8 + 8) + (8 * 16 * 25 + 16) + (256 * 256 + 256) + (256 + 1)
    nets = DCGAN64().build((3, 64, 64), 1)
    squares = 64 * 128 + 128 * 256 + 256 * 512
    assert count(nets.generator) == 16 * (100 * 512 + squares + 64 * 3) + 2 * (512 + 256 + 128 + 64)
    assert count(nets.discriminator) == 16 * (3 * 64 + squares + 512) + 2 * (128 + 256 + 512)
    assert count(GRU().build((50,), 86)) == 86 * 50 + 3 * (50 * 50 + 50 * 50 + 50 + 50) + (50 * 86 + 86)


def test_a_narrower_residual_net_has_as_many_parameters_as_by_hand():
    first = 9 * 3 * 8 + 2 * 8
    same = 4 * (9 * 8 * 8 + 2 * 8)  # two blocks of two convolutions, each with its normalisation
    wider = [9 * w // 2 * w + 3 * 9 * w * w + 4 * 2 * w + w // 2 * w + 2 * w for w in (16, 32, 64)]
    assert count(ResNet18(width=8).build((3, 32, 32), 2)) == first + same + sum(wider) + 64 * 2 + 2
    first, same = 9 * 3 * 4 + 2 * 4, 6 * (9 * 4 * 4 + 2 * 4)
    wider = [9 * w // 2 * w + 5 * 9 * w * w + 6 * 2 * w for w in (8, 16)]
    assert count(ResNet20(width=4).build((3, 32, 32), 2)) == first + same + sum(wider) + 16 * 2 + 2


CLASSIFIERS = {  # settings, the shape of an input
    "linear": ({}, (1, 8, 8)), "mlp": ({}, (1, 8, 8)), "lenet5": ({}, (1, 28, 28)), "cnn": ({}, (3, 32, 32)),
    "resnet18": ({}, (3, 8, 8)), "resnet20": ({"norm": "batch"}, (3, 16, 16)), "densenet121": ({}, (3, 8, 8)),
}
OTHERS = {"gru", "dcgan28", "dcgan64"}


def test_every_model_takes_a_step_below():
    assert {*CLASSIFIERS, *OTHERS} == set(MODELS)


def vectorised_step(net, loss, *data):
    """One gradient step of 8 clients at once; the gradient of the last client is checked against its own."""
    check_module(net)
    x = flat.flatten(net)
    start = torch.stack([(1 + i / 100) * x for i in range(CLIENTS)])
    gradients = vmap(grad(loss))(start, *data)
    assert gradients.shape == start.shape
    alone = grad(loss)(start[-1], *(part[-1] for part in data))
    torch.testing.assert_close(gradients[-1], alone, atol=2e-3 * float(alone.abs().max()), rtol=1e-2)
    after = start - 1e-3 * gradients
    assert bool(torch.isfinite(after).all()) and not torch.equal(after[0], start[0])
    return gradients


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_take_a_vectorised_step_for_8_clients(name):
    settings, shape = CLASSIFIERS[name]
    net = build(MODELS[name](**settings), shape, 3, seed=1)

    def loss(x, inputs, targets):
        return functional.cross_entropy(flat.call(net, x, inputs), targets)

    vectorised_step(net, loss, seeded(CLIENTS, 3, *shape), torch.arange(CLIENTS * 3).reshape(CLIENTS, 3) % 3)


@pytest.mark.parametrize(("name", "side"), [("dcgan28", 28), ("dcgan64", 64)])
def test_adversaries_take_a_vectorised_step_for_8_clients(name, side):
    nets = build(MODELS[name](noise=5), (1, side, side), 1, seed=1)
    made = nets.generator(seeded(2, 5)).detach()
    assert made.shape == (2, 1, side, side) and float(made.abs().max()) <= 1
    split = count(nets.generator)

    def loss(x, images, noise):
        fake = flat.call(nets.generator, x[:split], noise)
        real, fake = (flat.call(nets.discriminator, x[split:], each) for each in (images, fake))
        assert real.shape == fake.shape == (2, 1)
        return functional.softplus(-real).mean() + functional.softplus(fake).mean()

    gradients = vectorised_step(nets, loss, seeded(CLIENTS, 2, 1, side, side).tanh(), seeded(CLIENTS, 2, 5))
    assert bool(gradients[:, :split].any(1).all()) and bool(gradients[:, split:].any(1).all())


def test_the_first_weights_of_dcgan28_may_be_those_of_the_authors_code():
    """Xavier's uniform ones in linear and transposed layers: +- sqrt(6 / (fan in + fan out)). torch's own elsewhere."""
    nets = build(MODELS["dcgan28"](first_weights="xavier"), (1, 28, 28), 1, seed=1)
    bounds = {"generator.0": 6 / (100 + 1024), "generator.3": 6 / (1024 + 6272),
              "generator.7": 6 / (16 * (128 + 64)), "generator.10": 6 / (16 * (64 + 1)),
              "discriminator.7": 6 / (1024 + 1024), "discriminator.9": 6 / (1024 + 1),
              "discriminator.0": 1 / 25, "discriminator.3": 1 / (25 * 32)}
    for layer, square in bounds.items():
        weight = nets.get_submodule(layer).weight.detach()
        assert 0.98 * square**0.5 < float(weight.abs().max()) <= square**0.5
        assert float(weight.std()) == pytest.approx((square / 3) ** 0.5, rel=0.05)


def test_next_characters_take_a_vectorised_step_for_8_clients():
    net = build(GRU(embedding=6, hidden=5), (7,), 11, seed=1)
    text = torch.arange(CLIENTS * 2 * 8).reshape(CLIENTS, 2, 8) * 3 % 11

    def loss(x, inputs, targets):
        outputs = flat.call(net, x, inputs)
        assert outputs.shape == (2, 7, 11)
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    vectorised_step(net, loss, text[:, :, :-1], text[:, :, 1:])


def test_the_gated_recurrent_unit_is_that_of_torch():
    net = build(GRU(embedding=6, hidden=5), (7,), 11, seed=3)
    theirs = nn.GRU(6, 5, batch_first=True)
    unit = net.unit
    theirs.load_state_dict({
        "weight_ih_l0": unit.inputs_to_gates.weight, "bias_ih_l0": unit.inputs_to_gates.bias,
        "weight_hh_l0": unit.hidden_to_gates.weight, "bias_hh_l0": unit.hidden_to_gates.bias,
    })
    inputs = seeded(4, 9, 6)
    torch.testing.assert_close(unit(inputs), theirs(inputs)[0])


def test_an_early_character_knows_nothing_of_later_ones():
    net = build(GRU(), (6,), 20, seed=0)
    text = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8, 9]])
    outputs = net(text)
    torch.testing.assert_close(outputs[0, :3], outputs[1, :3])
    assert not torch.allclose(outputs[0, 3], outputs[1, 3])


def test_the_padded_shortcut_keeps_every_second_pixel_and_adds_channels_of_zeros():
    inputs = seeded(2, 16, 6, 6)
    block = build(ResNet20(), (3, 32, 32), 2, seed=0)[6]  # the first of width 32
    got = block.shortcut(inputs)
    assert got.shape == (2, 32, 3, 3)
    torch.testing.assert_close(got[:, 8:24], inputs[:, :, ::2, ::2])
    assert not bool(got[:, :8].any()) and not bool(got[:, 24:].any())


@pytest.mark.parametrize("kind", NORMS)
def test_only_batch_statistics_let_rows_see_each_other(kind):
    net = build(ResNet20(norm=kind), (3, 8, 8), 2, seed=0)
    rows = seeded(4, 3, 8, 8)
    together, alone = net(rows), net(rows[:2])
    assert torch.allclose(together[:2], alone, atol=1e-5) == (kind != "batch")
    torch.testing.assert_close(net.eval()(rows), together)  # evaluation is no other mode: nothing is kept


def test_the_form_follows_the_size_of_the_images_unless_it_is_set():
    def strides(model, side):
        return model.build((3, side, side), 2)[0].stride[0]

    for form in (ResNet18, DenseNet121):
        assert strides(form(), 32) == 1 and strides(form(), 64) == 2
        assert strides(form(form="imagenet"), 32) == 2 and strides(form(form="cifar"), 64) == 1


@pytest.mark.parametrize(("model", "shape", "words"), [
    (CNN(), (3, 16, 16), "16x16 are too small.*18x18"),
    (CNN(), (784,), "channels, height, width"),
    (ResNet18(groups=3), (3, 32, 32), r"model.groups = 3.*64 channels.*norm"),
    (ResNet20(width=5), (3, 32, 32), r"model.groups = 2.*5 channels.*norm"),
    (DenseNet121(form="imagenet"), (3, 28, 28), "29x29"),
    (DCGAN28(), (1, 32, 32), "28x28.*resize"),
    (DCGAN64(), (3, 96, 96), "64x64.*dcgan28"),
    (GRU(), (1, 28, 28), "no texts"),
])
def test_inputs_that_a_net_cannot_take_are_refused(model, shape, words):
    with pytest.raises(SettingError, match=words):
        model.build(shape, 2)


def test_models_of_another_kind_of_problem_say_so():
    with pytest.raises(SettingError, match="problem gan"):
        DCGAN28().build((1, 28, 28), 1)(torch.zeros(1, 1, 28, 28))
    with pytest.raises(SettingError, match="no characters"):
        GRU().build((4,), 5)(torch.zeros(2, 4))


# A user's own module.


OWN = """
from torch import nn
def net(shape, outputs, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width), nn.Tanh(),
                         nn.Linear(width, outputs))
class Fixed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = net((1, 8, 8), 1, width)
    def forward(self, inputs):
        return self.layers(inputs)
def running(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, outputs))
def words():
    return "no module"
"""


def own_run(tmp_path, monkeypatch, **model):
    (tmp_path / "own_nets.py").write_text(textwrap.dedent(OWN), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    settings = settle({
        "model": model, "problem": "auc", "data": {"name": "digits", "clients": 5, "positive": 3},
        "run": {"rounds": 1, "seed": 4}, "algorithm": {"name": "parallel-sgda", "asked": 2},
    })
    return job_from_settings(settings, "").problem.net


def test_a_module_of_ones_own_is_named_by_its_import_path(tmp_path, monkeypatch):
    net = own_run(tmp_path, monkeypatch, name="own_nets:net", width=7)
    assert [tuple(p.shape) for p in net.parameters()] == [(7, 64), (7,), (1, 7), (1,)]
    again = own_run(tmp_path, monkeypatch, name="own_nets:net", width=7)
    assert torch.equal(flat.flatten(net), flat.flatten(again))  # its first weights come from the run's seed
    assert count(own_run(tmp_path, monkeypatch, name="own_nets:Fixed", width=2)) == 65 * 2 + 3


@pytest.mark.parametrize(("model", "words"), [
    ({"name": "own_nets:running"}, "1 .BatchNorm1d. keeps running statistics.*GroupNorm"),
    ({"name": "own_nets:words"}, "gives str.*nn.Module"),
    ({"name": "own_nets:Fixed"}, r"model.width: Fixed needs it; set it under \[model\]"),
    ({"name": "own_nets:net", "widht": 3}, "model.widht = 3.*did you mean 'width'"),
    ({"name": "own_nets:missing"}, "own_nets has no class or function 'missing'"),
    ({"name": "no_such_package:Net"}, "no_such_package cannot be imported"),
    ({"name": "resnet81"}, "did you mean 'resnet18'"),
])
def test_a_module_that_cannot_be_used_is_refused_with_the_remedy(tmp_path, monkeypatch, model, words):
    with pytest.raises(SettingError, match=words):
        own_run(tmp_path, monkeypatch, **model)


def test_a_class_can_be_given_in_python():
    net = build(model_of(nn.Linear, {"in_features": 3, "out_features": 2}), (3,), 1, seed=0)
    assert isinstance(net, nn.Linear) and net.out_features == 2
