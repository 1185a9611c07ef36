"""Several devices: each has its own memory, guards, streams and random numbers, and only copies join them.

The number of devices is read when torch is imported, so each test is a script in a process of its own.
"""

from __future__ import annotations

from conftest import OnTwoDevices


def test_guards(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        assert spyre.device_count() == torch.accelerator.device_count() == 2
        with spyre.device(1):
            assert spyre.current_device() == torch.accelerator.current_device_index() == 1
            made = [torch.ones(2, device="spyre"), torch.ones(2).spyre(), nn.Linear(2, 2).spyre().weight,
                    torch.ones(2).to("spyre"), torch.tensor([1.0]).to(device="spyre")]
            assert {tensor.get_device() for tensor in made} == {1}
            assert torch.Generator(device="spyre").device == torch.device("spyre:1")
            with spyre.device_of(a):
                assert spyre.current_device() == 0
            with spyre.device_of(torch.ones(1)), spyre.device(-1), spyre.device(None):
                assert spyre.current_device() == 1
            with pytest.raises(KeyError), spyre.device("spyre:0"):
                raise KeyError
            assert spyre.current_device() == 1
        assert spyre.current_device() == 0
        with torch.accelerator.device_index(1):
            assert spyre.current_device() == 1
        with torch.device("spyre:1"):
            assert torch.ones(2).get_device() == 1 and spyre.current_device() == 0
        torch.set_default_device("spyre:1")
        assert torch.ones(2).get_device() == 1 and nn.Linear(1, 1).weight.get_device() == 1
        torch.set_default_device(None)
        with pytest.raises(RuntimeError, match="invalid device ordinal: got device index 2, but the number .* is 2"):
            spyre.set_device(2)
        """
    )


def test_current_device_and_stream_are_the_threads_own(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        spyre.set_device(1)
        spyre.set_stream(spyre.Stream(1))
        seen = []
        def look():
            seen.append((spyre.current_device(), spyre.current_stream(1).stream_id))
            spyre.set_device(0)
            spyre.set_stream(spyre.Stream(0))
        thread = threading.Thread(target=look)
        thread.start(); thread.join()
        assert seen == [(0, 0)]
        assert spyre.current_device() == 1 and spyre.current_stream(1).stream_id != 0
        assert spyre.current_stream(0).stream_id == 0
        """
    )


def test_results_are_where_their_arguments_are(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        before = memory.memory_allocated(0)
        c = (b + 1) * 2
        made = [c, c.nonzero(), c.clone(), torch.empty_like(c), torch.rand_like(c), c.new_zeros(2), c.sort()[0],
                c.view(2, 2), c.resize_(4096), nn.LSTM(2, 2).to("spyre:1")(torch.ones(1, 1, 2, device=c.device))[0],
                torch.fft.fft(b), functional.scaled_dot_product_attention(*[b.view(1, 1, 2, 2)] * 3),
                functional.conv1d(b.view(1, 1, 4), torch.ones(1, 1, 2, device=b.device))]
        assert {tensor.get_device() for tensor in made} == {1}
        assert [each.get_device() for each in torch._foreach_add([a, b], 1)] == [0, 1]
        assert memory.memory_allocated(0) == before
        assert "device='spyre:1'" in repr(b)
        """
    )


def test_memory_is_that_of_the_output(on_two_devices: OnTwoDevices) -> None:
    """Also where a CPU kernel gives an output its size, and another device is current."""
    on_two_devices(
        """
        from torch_spyre import _C
        def empty(dtype=torch.float):
            return torch.empty(0, dtype=dtype, device="spyre:1")
        before, long = memory.memory_allocated(0), torch.long
        made = [
            torch.arange(500.0, device="spyre:1"), torch.linspace(0, 1, 500, device="spyre:1"),
            torch.eye(30, device="spyre:1"), torch.hann_window(300, device="spyre:1"),
            torch.randperm(500, out=empty(long)), torch.cat([b, b], out=empty()), torch.nonzero(b, out=empty(long)),
            torch.masked_select(b, b > 1, out=empty()), *torch.sort(b, out=(empty(), empty(long))),
            *torch.linalg.svd(b.view(2, 2), out=(empty(), empty(), empty())), b.unique(), empty().resize_as_(b),
            torch.from_dlpack(b),
        ]
        storage = torch.UntypedStorage(400, device="spyre:1")
        storage.resize_(4000)
        assert [_C.device_of(tensor.data_ptr()) for tensor in made] == [tensor.get_device() for tensor in made] \\
            == [1] * len(made)
        assert _C.device_of(storage.data_ptr()) == 1
        assert memory.memory_allocated(0) == before
        """
    )


def test_copies_between_devices(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        assert spyre.can_device_access_peer(0, 1) is False
        with pytest.raises(ValueError, match="two different devices, but got spyre:1 twice"):
            spyre.can_device_access_peer(1, 1)
        with pytest.raises(RuntimeError, match="invalid device ordinal: got device index 7"):
            spyre.can_device_access_peer(0, 7)
        source = torch.randn(64, 32, device="spyre:0").t()
        for moved in (source.to("spyre:1"), source.to(1), source.spyre(1), source.to(b), source.to(1, copy=True)):
            assert moved.get_device() == 1 and moved.stride() == source.stride()
            assert torch.equal(moved.cpu(), source.cpu()) and moved.data_ptr() != source.data_ptr()
        assert source.to("spyre:0") is source
        target = torch.empty(32, 64, dtype=torch.half, device="spyre:1")
        target.copy_(source, non_blocking=True)
        assert torch.equal(target.cpu(), source.cpu().half())
        pinned = torch.ones(4).pin_memory()
        assert pinned.is_pinned() and pinned.to("spyre:1", non_blocking=True).get_device() == 1
        assert torch.equal(torch.ones(3, device="spyre:0").expand(2, 3).to("spyre:1").cpu(), torch.ones(2, 3))
        scales = torch.tensor([0.5, 1.0], device="spyre:0")
        ones = torch.ones(2, 3, device="spyre:0")
        quantized = torch.quantize_per_channel(ones, scales, scales.long(), 0, torch.qint8)
        moved = quantized.to("spyre:1")
        assert {t.get_device() for t in (moved, moved.q_per_channel_scales(), moved.dequantize())} == {1}
        assert torch.equal(moved.dequantize().cpu(), torch.ones(2, 3))
        storage = a.untyped_storage()
        assert storage.spyre(1).device == torch.device("spyre:1") and storage.spyre(0) is storage
        storage = b.untyped_storage()
        for size in (0, 1 << 20):
            storage.resize_(size)
            assert storage.device == torch.device("spyre:1")
        assert spyre.memory_allocated(1) >= 1 << 20
        """
    )


MIXED = {
    "add": "a + b",
    "in_place": "a.add_(b)",
    "out": "torch.add(a, a, out=b)",
    "without_dimensions": "a + b[0]",
    "comparison": "torch.equal(a, b)",
    "where": "torch.where(a > 0, a, b)",
    "cat": "torch.cat([a, b])",
    "stack": "torch.stack([a, b])",
    "matmul": "a.view(2, 2) @ b.view(2, 2)",
    "dot": "torch.dot(a, b)",
    "linear": "functional.linear(a, b.view(1, 4))",
    "convolution": "functional.conv1d(a.view(1, 1, 4), b.view(1, 1, 4))",
    "batch_norm": "nn.BatchNorm1d(1).to('spyre:1')(a.view(4, 1))",
    "embedding": "functional.embedding(a.long(), b.view(4, 1))",
    "index": "a[b.long()]",
    "index_select": "a.index_select(0, b.long())",
    "gather": "a.gather(0, b.long())",
    "index_put": "a.index_put_((a.long(),), b)",
    "loss": "functional.mse_loss(a, b)",
    "cross_entropy": "functional.cross_entropy(a.view(1, 4), b.long()[:1])",
    "attention": "functional.scaled_dot_product_attention(*[t.view(1, 1, 2, 2) for t in (a, b, a)])",
    "recurrent": "nn.LSTM(4, 2).to('spyre:1')(a.view(1, 1, 4))",
    "foreach": "torch._foreach_mul([a, a], [a, b])",
    "set": "torch.empty(0, device='spyre:0').set_(b)",
    "cpu": "a + torch.ones(4)",
}


def test_mixing_is_rejected(on_two_devices: OnTwoDevices) -> None:
    """Every case, with both devices in the message; a CPU number mixes with any device, as with CUDA."""
    on_two_devices(
        f"""
        cases = {MIXED!r}
        before = a.clone(), b.clone()
        for name, expression in cases.items():
            with pytest.raises(RuntimeError, match="device") as caught:
                eval(expression)
            assert "spyre:0" in str(caught.value), (name, caught.value)
            assert ("cpu" if name == "cpu" else "spyre:1") in str(caught.value) or name == "index", (name, caught.value)
        assert torch.equal(a, before[0]) and torch.equal(b, before[1])
        assert (a + torch.tensor(1.0)).get_device() == 0 and a[torch.tensor([0, 1])].get_device() == 0
        """
    )


def test_autograd_across_devices(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        results = []
        for first, second in (("cpu", "cpu"), ("spyre:0", "spyre:1")):
            x = torch.linspace(-1, 1, 6, dtype=torch.double).view(2, 3).to(first).requires_grad_()
            torch.manual_seed(0)
            one, other = nn.Linear(3, 4).double().to(first), nn.Linear(4, 1).double().to(second)
            devices = []
            hidden = one(x).tanh()
            hidden.register_hook(lambda grad: devices.append((grad.device, spyre.current_device())))
            loss = other(hidden.to(second)).pow(2).sum().to(first)
            loss.backward()
            results.append([loss.detach(), x.grad, one.weight.grad, other.weight.grad])
        assert devices == [(torch.device("spyre:0"), 0)]
        assert [tensor.get_device() for tensor in results[1]] == [0, 0, 0, 1]
        for actual, expected in zip(results[1], results[0]):
            torch.testing.assert_close(actual.cpu(), expected)
        """
    )


def test_each_device_has_its_own_backward_thread(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        seen = []
        def look(grad):
            seen.append((spyre.current_device(), threading.get_ident()))
        x = torch.ones(3, device="spyre:0", requires_grad=True)
        first = x * 2; first.register_hook(look)
        second = first.to("spyre:1") * 2; second.register_hook(look)
        second.sum().backward()
        assert [device for device, _ in seen] == [1, 0]
        assert len({thread for _, thread in seen} | {threading.get_ident()}) == 3
        """
    )


def test_streams_and_events(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        first, second = spyre.Stream(0), spyre.Stream(1)
        with spyre.stream(first):
            with spyre.stream(second):
                assert spyre.current_device() == 1 and spyre.current_stream() == second
                assert spyre.current_stream(0) == first
                assert torch.ones(1, device="spyre").get_device() == 1
            assert spyre.current_device() == 0 and spyre.current_stream() == first
            assert spyre.current_stream(1) == spyre.default_stream(1)
            with second:
                assert spyre.current_device() == 1
        assert spyre.current_device() == 0 and spyre.current_stream() == spyre.default_stream()
        first.wait_stream(second)
        b.record_stream(second); b.record_stream(first); a.record_stream(torch.Stream("spyre:1"))
        event = torch.Event("spyre:1", enable_timing=True)
        event.record(second)
        first.wait_event(event)
        assert event.device == torch.device("spyre:1") and event.query()
        with pytest.raises(RuntimeError, match="Event device index 1 does not match recording stream's device index 0"):
            event.record(first)
        with spyre.device(1):
            started, ended = spyre.Event(enable_timing=True), spyre.Event(enable_timing=True)
            started.record(); ended.record()
        assert started.device == torch.device("spyre:1") and started.elapsed_time(ended) >= 0
        for index in (0, 1):
            spyre.synchronize(index); torch.accelerator.synchronize(index)
        """
    )


def test_random_numbers(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        torch.manual_seed(3)
        first = torch.rand(4, device="spyre:1")
        assert torch.equal(first.cpu(), torch.rand(4, device="spyre:0").cpu())
        states = spyre.get_rng_state_all()
        drawn = [torch.rand(2, device=f"spyre:{index}") for index in (0, 1)]
        spyre.set_rng_state(states[1], 1)
        assert torch.equal(torch.rand(2, device="spyre:1"), drawn[1])
        assert not torch.equal(torch.rand(2, device="spyre:0"), drawn[0])
        with spyre.device(1):
            spyre.manual_seed(9)
            assert spyre.initial_seed() == 9 and torch.initial_seed() == 3
        with torch.random.fork_rng(devices=[0, 1], device_type="spyre"):
            expected = [torch.rand(2, device=f"spyre:{index}") for index in (0, 1)]
        assert all(torch.equal(torch.rand(2, device=f"spyre:{index}"), expected[index]) for index in (0, 1))
        """
    )


def test_saving_and_loading(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        def loaded(**arguments):
            stream = io.BytesIO(); torch.save(b, stream); stream.seek(0)
            tensor = torch.load(stream, **arguments)
            assert torch.equal(tensor.cpu(), b.cpu())
            return str(tensor.device)
        assert loaded() == "spyre:1"
        assert loaded(map_location="spyre:0") == loaded(map_location={"spyre:1": "spyre:0"}) == "spyre:0"
        assert loaded(map_location="cpu") == "cpu"
        with spyre.device(1):
            assert loaded(map_location="spyre") == "spyre:1"
        assert copy.deepcopy(b).get_device() == 1
        shared = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(b))
        assert shared.get_device() == 1 and shared.data_ptr() == b.data_ptr()
        assert b.__dlpack_device__()[1] == 1 and torch.from_dlpack(b).get_device() == 1
        """
    )


def test_statistics_are_each_devices_own(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        zero, one = memory.memory_stats(0), memory.memory_stats(1)
        kept = block(1, 4 * MIB)
        assert memory.memory_stats(0) == zero
        assert memory.memory_allocated(1) - one["allocated_bytes.all.current"] == 4 * MIB
        assert torch.accelerator.memory_allocated(1) == memory.memory_allocated("spyre:1")
        assert torch.accelerator.get_memory_info(1) == spyre.mem_get_info(1) != spyre.mem_get_info(0)
        with spyre.device(1):
            assert memory.memory_allocated() == memory.memory_allocated(1) == torch.accelerator.memory_allocated()
        memory.reset_peak_memory_stats(1)
        del kept
        assert memory.max_memory_allocated(1) - memory.memory_allocated(1) == 4 * MIB
        assert {segment["device"] for segment in memory.memory_snapshot()} == {0, 1}
        assert {segment["device"] for segment in memory.memory_snapshot(1)} == {1}
        memory.set_per_process_memory_fraction(0.25, 1)
        block(0, 20 * MIB)
        with pytest.raises(torch.OutOfMemoryError, match="Device 1 has .* memory fraction"):
            block(1, 20 * MIB)
        """
    )
