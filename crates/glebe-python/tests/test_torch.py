"""The recipe of the page for Python: host memory of a block that a GPU copies from, pinned."""

import pytest

import glebe

torch = pytest.importorskip("torch", reason="skipped: torch is not installed")


def test_a_tensor_shares_the_memory_of_a_block(reserve):
    block = reserve.alloc(4, zeroed=True, any=True)
    tensor = torch.frombuffer(block, dtype=torch.float32)
    tensor.fill_(2)
    assert tensor.data_ptr() == block.address and bytes(memoryview(block)[:4]) == b"\0\0\0@"
    with pytest.raises(BufferError):
        block.free()


def test_a_registered_block_is_pinned_memory():
    if not torch.cuda.is_available():
        pytest.skip("skipped: no GPU")
    runtime = torch.cuda.cudart()
    with glebe.Reserve(64 << 20) as reserve:
        block = reserve.alloc(bytes=32 << 20, any=True)
        assert runtime.cudaHostRegister(block.address, len(block), 0) == 0
        try:
            host = torch.frombuffer(block, dtype=torch.uint8)
            assert host.is_pinned()
            host.random_(0, 256)
            device = host.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
            assert torch.equal(device.cpu(), host)
            del host
        finally:
            assert runtime.cudaHostUnregister(block.address) == 0
        block.free()
