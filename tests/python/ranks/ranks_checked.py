"""With TORCH_DISTRIBUTED_DEBUG=DETAIL torch puts a wrapper before each backend, which compares over Gloo what the ranks
call."""

import ranks
import torch
import torch.distributed as dist


def test_calls_go_through():
    group, size, rank = ranks.shoal_group, dist.get_world_size(), dist.get_rank()
    backend = group._get_backend(torch.device("cpu"))
    assert "Wrapper" in type(backend).__name__ and ranks.member(group) is not None
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [sum(range(size))] * 3
    dist.broadcast(tensor.fill_(rank), 1, group=group)
    assert tensor.tolist() == [1] * 3
    gathered = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(gathered, torch.full((2,), float(rank)), group=group)
    assert [part[0].item() for part in gathered] == list(range(size))
    dist.barrier(group=group)


def test_data_parallel():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=ranks.shoal_group)
    model(torch.full((2, 4), dist.get_rank() + 1.0)).sum().backward()
    mean = (dist.get_world_size() + 1) / 2
    torch.testing.assert_close(model.module.weight.grad, torch.full((4, 4), 2 * mean))


def test_ranks_that_differ():
    error = ranks.raises(RuntimeError, lambda: dist.all_reduce(torch.ones(3 + dist.get_rank()), group=ranks.shoal_group))
    assert "Detected mismatch between collectives" in str(error), error


if __name__ == "__main__":
    ranks.start("gloo")
    ranks.run("__main__")
