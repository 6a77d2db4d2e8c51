"""The recipe in docs/gpu.md: a pinned block as host memory from which a GPU copies."""

import numpy as np
import pytest

import glebe
from glebe.cuda import PinnedPool

torch = pytest.importorskip("torch", reason="skipped: torch is not installed")


def tensor_of(block, dtype=np.uint8):
    """Makes a tensor by NumPy, because `torch.frombuffer` would let the block be freed."""
    return torch.from_numpy(np.frombuffer(block, dtype))


def test_a_tensor_shares_the_memory_of_a_block(reserve):
    block = reserve.alloc(4, zeroed=True, any=True)
    tensor = tensor_of(block, np.float32)
    tensor.fill_(2)
    assert tensor.data_ptr() == block.address and bytes(memoryview(block)[:4]) == b"\0\0\0@"
    with pytest.raises(BufferError):
        block.free()
    del tensor
    block.free()


@pytest.fixture
def cuda():
    """Returns PyTorch's interface to the CUDA runtime."""
    if not torch.cuda.is_available():
        pytest.skip("skipped: no GPU")
    return torch.cuda.cudart()


def check_copies(host):
    assert host.is_pinned()
    host.random_(0, 256)
    device = host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(device.cpu(), host)
    host.copy_(device.bitwise_not(), non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(~device.cpu(), host)


def test_a_registered_block_is_pinned_memory(cuda):
    with glebe.Reserve(64 << 20) as reserve:
        block = reserve.alloc(bytes=32 << 20, any=True)
        assert cuda.cudaHostRegister(block.address, len(block), 0) == 0
        try:
            check_copies(tensor_of(block))
        finally:
            assert cuda.cudaHostUnregister(block.address) == 0
        block.free()


def test_a_reserve_that_is_registered_once_stays_so_while_a_cache_uses_it(cuda):
    with glebe.Reserve(64 << 20) as reserve:
        whole = reserve.alloc(reserve.stats()["total_pages"], any=True)
        address = whole.address
        assert cuda.cudaHostRegister(address, len(whole), 0) == 0
        try:
            whole.free()
            cache = reserve.cache("between two peaks")
            for _ in range(3):
                kept = sum(cache.put(str(n), bytes([n % 251]) * 60_000) for n in range(1000))
                assert kept > 500
                with reserve.alloc(bytes=32 << 20, any=True) as block:
                    check_copies(tensor_of(block))
            assert reserve.stats()["recalled"] > 0
        finally:
            assert cuda.cudaHostUnregister(address) == 0


def test_tensors_of_a_pool_are_pinned_memory(cuda):
    with PinnedPool(64 << 20, piece=16 << 20) as pool:
        for _ in range(12):
            check_copies(pool.tensor(12 << 20, torch.uint8))
        assert pool.wait() and pool.settle() > 0
        cache = pool.cache("between two peaks")
        assert cache.put("k", bytes(16 << 20))
        check_copies(pool.tensor(16 << 20, torch.uint8))
