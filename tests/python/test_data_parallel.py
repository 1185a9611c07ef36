"""`torch.nn.DataParallel` and the pieces that it is made of, on two devices."""

from __future__ import annotations

from conftest import OnTwoDevices


def test_training_follows_one_device(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        results = []
        for parallel in (False, True):
            torch.manual_seed(0)
            module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to("spyre:0")
            model = nn.DataParallel(module) if parallel else module
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(torch.linspace(-1, 1, 21).view(7, 3).to("spyre:0")).pow(2).sum()
                loss.backward()
                optimizer.step()
            results.append([loss.detach(), *(parameter.detach() for parameter in module.parameters())])
        for actual, expected in zip(*results):
            assert actual.get_device() == 0
            torch.testing.assert_close(actual, expected)
        """
    )


def test_pieces(on_two_devices: OnTwoDevices) -> None:
    on_two_devices(
        """
        from torch.nn.parallel import comm, gather, parallel_apply, replicate, scatter
        for source in (torch.arange(8.0), torch.arange(8.0, device="spyre:0")):
            parts = scatter(source.view(4, 2), [0, 1])
            assert [part.get_device() for part in parts] == [0, 1]
            assert torch.equal(gather(parts, 1).cpu(), source.cpu().view(4, 2))
            assert torch.equal(gather(parts, "cpu"), source.cpu().view(4, 2))
        replicas = replicate(nn.BatchNorm1d(2).to("spyre:0"), [0, 1])
        assert [replica.running_mean.get_device() for replica in replicas] == [0, 1]
        outputs = parallel_apply(replicas, list(parts))
        assert [output.get_device() for output in outputs] == [0, 1]
        complex_ = torch.ones(2, dtype=torch.complex64, device="spyre:0")
        assert [copy.get_device() for copy in comm.broadcast(complex_, [0, 1])] == [0, 1]
        out = [torch.zeros(4, device=f"spyre:{index}") for index in (0, 1)]
        comm.broadcast(a, out=out)
        assert all(torch.equal(each.cpu(), a.cpu()) for each in out)
        assert torch.equal(comm.reduce_add([a, b], 0).cpu(), 2 * a.cpu())
        assert [part.tolist() for part in comm.scatter(a, [0, 1], chunk_sizes=[1, 3])] == [[0], [1, 2, 3]]
        comm.scatter(a, out=[each[:2] for each in out])
        assert out[1].tolist() == [2, 3, 2, 3]
        assert comm.gather(out, out=torch.empty(8, device="spyre:1")).tolist() == [0, 1, 2, 3, 2, 3, 2, 3]
        with pytest.raises(RuntimeError, match=r"All tensors must be on devices\\[0\\]: 1"):
            comm.broadcast_coalesced([a], [1, 0])
        with pytest.raises(RuntimeError, match="Expected at least one device to scatter to"):
            comm.scatter(a, [])
        with pytest.raises(RuntimeError, match="to be of same length, but got"):
            comm.scatter(a, [0, 1], chunk_sizes=[4])
        """
    )
