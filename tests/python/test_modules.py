"""Moving modules to the device keeps what else refers to their parameters; modules made there, and meta modules."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence


class TestMoving:
    def test_parameters_stay_the_same_objects(self) -> None:
        model = nn.Linear(2, 3)
        weight, reference = model.weight, weakref.ref(model.weight)
        for target in ("spyre", "cpu", "spyre:0"):
            model.to(target)
            assert model.weight is weight is reference()
            assert weight.device.type == target.partition(":")[0]

    def test_an_optimizer_made_before_goes_on(self) -> None:
        results = []
        for device in ("cpu", "spyre"):
            torch.manual_seed(0)
            model = nn.Linear(2, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model.to(device)
            model(torch.ones(3, 2, device=device)).sum().backward()
            optimizer.step()
            results.append([parameter.detach().cpu() for parameter in model.parameters()])
        for actual, expected in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(actual, expected)

    def test_tied_weights_stay_tied(self) -> None:
        first, second = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
        second.weight = first.weight
        model = nn.Sequential(first, second).to("spyre")
        assert first.weight is second.weight
        assert len(list(model.parameters())) == 1
        model(torch.tensor([1], device="spyre")).sum().backward()
        assert first.weight.grad is second.weight.grad

    def test_gradients_and_buffers_move_too(self) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model(torch.randn(3, 2)).sum().backward()
        before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        model.to("spyre")
        after = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        for actual, expected in zip(after, before, strict=True):
            assert actual.is_spyre
            assert torch.equal(actual.cpu(), expected)
        assert all(buffer.is_spyre for buffer in model.buffers())

    def test_hooks_of_parameters_stay(self) -> None:
        model, seen = nn.Linear(2, 2), []
        model.weight.register_hook(lambda grad: seen.append(grad.device.type))
        model.to("spyre")(torch.ones(1, 2, device="spyre")).sum().backward()
        assert seen == ["spyre"]

    def test_data_may_be_assigned_across_devices(self) -> None:
        parameter = nn.Parameter(torch.ones(2))
        parameter.data = torch.full((3,), 2.0, device="spyre")
        assert parameter.is_spyre
        (parameter * parameter).sum().backward()
        assert parameter.grad is not None
        assert parameter.grad.tolist() == [4.0, 4.0, 4.0]
        parameter.grad, parameter.data = None, parameter.data.cpu()
        assert parameter.device.type == "cpu"

    def test_forms_of_to(self) -> None:
        model = nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))
        model.to("spyre", torch.half)
        assert (model[0].weight.dtype, model[1].num_batches_tracked.dtype) == (torch.half, torch.int64)
        model.to(torch.ones(1, dtype=torch.double, device="spyre"))
        assert model[0].weight.dtype == torch.double
        model.cpu().to(device="spyre", non_blocking=True, memory_format=torch.channels_last)
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
        assert model.cpu().spyre()[0].weight.is_spyre
        assert model.float()[1].running_mean.dtype == torch.float

    def test_without_a_device_there(self) -> None:
        with pytest.raises(RuntimeError, match="invalid device ordinal: got device index 7"):
            nn.Linear(2, 2).to("spyre:7")

    @pytest.mark.parametrize("flag", ["overwrite", "swap"])
    def test_with_torchs_flags(self, flag: str) -> None:
        switch = getattr(torch.__future__, f"set_{flag}_module_params_on_conversion")
        model = nn.Linear(2, 2)
        weight = model.weight
        switch(True)
        try:
            model.to("spyre")
        finally:
            switch(False)
        assert model.weight.is_spyre
        assert (model.weight is weight) is (flag == "swap")


class TestMaking:
    def test_on_the_device(self) -> None:
        assert nn.Linear(2, 2, device="spyre").weight.is_spyre
        assert nn.utils.skip_init(nn.Linear, 2, 2, device="spyre").weight.is_spyre
        with torch.device("spyre"):
            assert nn.LSTM(2, 2).weight_hh_l0.is_spyre

    def test_initial_values_are_those_of_the_cpu(self) -> None:
        initializers = (
            nn.init.xavier_uniform_,
            nn.init.kaiming_normal_,
            nn.init.orthogonal_,
            nn.init.trunc_normal_,
        )
        for initialize in initializers:
            torch.manual_seed(1)
            expected = initialize(torch.empty(4, 4))
            torch.manual_seed(1)
            torch.testing.assert_close(initialize(torch.empty(4, 4, device="spyre")).cpu(), expected)

    def test_meta_modules(self) -> None:
        with torch.device("meta"):
            model = nn.Linear(2, 2)
        with pytest.raises(NotImplementedError, match=r"Please use torch.nn.Module.to_empty\(\)"):
            model.to("spyre")
        model.to_empty(device="spyre").load_state_dict({"weight": torch.ones(2, 2), "bias": torch.zeros(2)})
        assert model(torch.ones(1, 2, device="spyre")).tolist() == [[2.0, 2.0]]

    def test_lazy_modules(self) -> None:
        model = nn.LazyLinear(2).to("spyre")
        assert model(torch.ones(1, 5, device="spyre")).shape == (1, 2)
        assert model.weight.is_spyre

    def test_loading_keeps_or_assigns(self) -> None:
        model, state = nn.Linear(2, 1).to("spyre"), {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
        model.load_state_dict(state)
        assert model.weight.is_spyre
        model.load_state_dict(state, assign=True)
        assert model.weight.device.type == "cpu"

    def test_deepcopy(self) -> None:
        model = nn.GRU(2, 2).to("spyre")
        made = copy.deepcopy(model)
        given = torch.ones(3, 1, 2, device="spyre")
        assert torch.equal(made(given)[0], model(given)[0])
        assert made.weight_ih_l0.data_ptr() != model.weight_ih_l0.data_ptr()

    @pytest.mark.parametrize(
        "parametrize", [parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal]
    )
    def test_parametrizations(self, parametrize: object) -> None:
        torch.manual_seed(2)
        reference = parametrize(nn.Linear(3, 3)).eval()
        model = copy.deepcopy(reference).to("spyre")
        given = torch.randn(2, 3)
        torch.testing.assert_close(model(given.to("spyre")).cpu(), reference(given))

    def test_packed_sequences(self) -> None:
        packed = pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
        for moved in (packed.to("spyre"), packed.spyre()):
            assert moved.is_spyre
            assert moved.batch_sizes.device.type == "cpu"
            padded, lengths = pad_packed_sequence(moved)
            assert padded.is_spyre
            assert lengths.tolist() == [3, 2]


class TestMetaTensors:
    def test_conversions(self) -> None:
        tensor = torch.ones(2, 3, device="spyre")
        assert tensor.to("meta").shape == torch.empty_like(tensor, device="meta").shape == (2, 3)
        for make in (
            lambda: torch.empty(2, device="meta").to("spyre"),
            lambda: tensor.copy_(torch.empty(2, 3, device="meta")),
        ):
            with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
                make()

    def test_mixing_is_rejected(self) -> None:
        with pytest.raises(RuntimeError, match="is not on the expected device|on the same device"):
            torch.ones(2, device="spyre") + torch.empty(2, device="meta")

    def test_fake_tensors_take_no_memory(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        real, before = torch.ones(3, 4, device="spyre"), torch.spyre.memory_allocated()
        with FakeTensorMode() as mode:
            product = mode.from_tensor(real) @ torch.empty(4, 1 << 30, device="spyre")
        assert product.device == torch.device("spyre", 0)
        assert product.shape == (3, 1 << 30)
        assert torch.spyre.memory_allocated() <= before + 4096


@pytest.mark.skipif(not hasattr(torch.Tensor, "rename"), reason="PyTorch from 2.13 has no named tensors any more")
@pytest.mark.filterwarnings("ignore:Named tensors and all their associated APIs are an experimental feature")
def test_named_tensors() -> None:
    named = torch.ones(2, 3, names=("N", "C")).to("spyre")
    assert named.names == (named + 1).names == named.cpu().names == ("N", "C")
    assert named.sum("C").tolist() == [3.0, 3.0]
    assert named.align_to("C", "N").shape == (3, 2)
    assert named.mm(torch.ones(3, 2, names=("C", "K"), device="spyre")).names == ("N", "K")
    with pytest.raises(RuntimeError, match="Error when attempting to broadcast dims"):
        named + named.rename("N", "D")
