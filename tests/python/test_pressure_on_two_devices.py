"""Memory runs out on one of two devices: only its memory counts, and only it says so."""

from __future__ import annotations

import pytest

from conftest import OnTwoDevices

pytestmark = pytest.mark.pressure


def test_rescues_and_counts_where_memory_ran_out(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        gc.collect(); gc.disable()
        class Node: pass
        def garbage(index):
            node = Node(); node.me = node; node.tensor = block(index)
        for _ in range(10): garbage(0)
        for _ in range(200): garbage(1)
        one, zero = memory.pressure_stats(1), memory.pressure_stats(0)
        assert one["events"] == one["rescued"] >= 3 and one["failed"] == 0
        assert one["reclaimed_bytes"] >= 120 * MIB
        # What collections freed on the other device counts there; nobody asked for it.
        assert zero["events"] == zero["collections.full"] == zero["collections.young"] == 0
        assert memory.memory_allocated(0) < 10 * MIB
        """
    )


def test_a_copy_to_a_full_device_is_rescued(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        gc.collect(); gc.disable()
        class Node: pass
        source = torch.full((8 * MIB,), 7, dtype=torch.uint8, device="spyre:0")
        node = Node(); node.me = node; node.tensor = block(1, 60 * MIB)
        del node
        moved = source.to("spyre:1")
        assert moved.sum().item() == 7 * 8 * MIB
        assert memory.pressure_stats(1)["rescued"] == 1 and memory.pressure_stats(0)["events"] == 0
        """
    )


def test_one_exhausted_device_leaves_the_other_alone(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        kept = [block(1) for _ in range(63)]
        for request in (lambda: block(1, 2 * MIB), lambda: block(0, 2 * MIB).to("spyre:1")):
            with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 2.00 MiB. Device 1 has a total"):
                request()
        assert memory.memory_stats(1)["num_ooms"] == 2 and memory.memory_stats(0)["num_ooms"] == 0
        collections = memory.pressure_stats(1)["collections.full"]
        assert collections >= 2
        more = [block(0) for _ in range(60)]
        assert memory.pressure_stats(0)["events"] == 0
        assert memory.pressure_stats(1)["collections.full"] == collections
        del kept[:3]
        assert block(1, 2 * MIB).get_device() == 1
        """
    )


def test_an_output_that_grows_counts_where_it_is(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        kept, target = block(1, 60 * MIB), torch.empty(0, device="spyre:1")
        with pytest.raises(torch.OutOfMemoryError, match="Device 1 has a total"):
            torch.arange(2 * MIB, out=target)
        assert target.shape == (0,) and memory.memory_stats(0)["num_ooms"] == 0
        """
    )


def test_a_backward_on_both_devices_is_rescued(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        gc.collect(); gc.disable()
        class Node: pass
        def step():
            x = torch.ones(MIB, device="spyre:0", requires_grad=True)
            y = (x * 2).to("spyre:1").exp().sum()
            y.backward()
            node = Node(); node.me = node; node.held = (x, x.grad, y)
            return x.grad.sum().item()
        results = {step() for _ in range(40)}
        assert len(results) == 1
        stats = [memory.pressure_stats(index) for index in (0, 1)]
        assert sum(each["rescued"] for each in stats) >= 3 and not any(each["failed"] for each in stats)
        """
    )


def test_threads_on_both_devices(on_two_devices: OnTwoDevices) -> None:
    """Each sets a device of its own, and is served by it while the others exhaust theirs."""
    on_two_devices(
        """
        from torch_spyre import _C
        gc.collect(); gc.disable()
        class Node: pass
        errors, start = [], threading.Barrier(4)
        def work(index):
            try:
                spyre.set_device(index)
                start.wait()
                for step in range(60):
                    node = Node(); node.me = node
                    node.tensor = torch.full((MIB,), step, dtype=torch.uint8, device="spyre")
                    assert node.tensor.get_device() == index == spyre.current_device()
                    assert node.tensor[-1].item() == step
                    assert _C.device_of(node.tensor.data_ptr()) == index
            except BaseException as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(index % 2,)) for index in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not errors, errors
        # A collection for one device frees the other's garbage too, which may spare that one its own.
        stats = [memory.pressure_stats(index) for index in (0, 1)]
        assert sum(each["rescued"] for each in stats) > 0, stats
        for index, each in enumerate(stats):
            assert each["events"] == each["rescued"] and each["failed"] == 0, each
            _C.testing.validate(index)
        """
    )


def test_each_history_tells_what_was_freed_there_and_for_whom(on_two_devices: OnTwoDevices) -> None:
    """A collection for one device frees memory of both; two threads whose requests wait have one each."""
    on_two_devices(
        """
        gc.collect(); gc.disable()
        class Node: pass
        def garbage(index, nbytes):
            node = Node(); node.me = node; node.tensor = block(index, nbytes)
        def collections(index, me):
            entries = memory._snapshot()["device_traces"][index]
            assert {entry["thread_id"] for entry in entries if entry["action"] == "gc_collect"} <= {me}
            return [(entry["for_device"], entry["size"]) for entry in entries if entry["action"] == "gc_collect"]
        memory._record_memory_history()
        me = threading.get_native_id()
        done = threading.Event()
        other = threading.Thread(target=done.wait); other.start()  # So that the collector thread collects.
        garbage(0, 3 * MIB); garbage(1, 60 * MIB)
        block(1, 8 * MIB)
        assert collections(0, me) == [(1, 3 * MIB)], collections(0, me)
        assert collections(1, me) == [(1, 60 * MIB)]
        garbage(0, 60 * MIB)
        block(0, 8 * MIB)
        assert collections(0, me)[1:] == [(0, 60 * MIB)] and len(collections(1, me)) == 1
        (entry,) = [entry for entry in memory._snapshot()["device_traces"][1] if entry["action"] == "gc_collect"]
        assert entry["frames"][0]["name"] == "block"
        done.set(); other.join()
        """
    )
