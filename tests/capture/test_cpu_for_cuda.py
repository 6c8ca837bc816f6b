"""``--cpu``: what scripts ask of CUDA is answered by the CPU, with one device or several."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import copy, pickle
import torch
from dpaudit.recorder.cpu_for_cuda import answer_for_cuda

answer_for_cuda()
n = DEVICES
assert torch.cuda.device_count() == n
device = torch.device("cuda:1")
assert isinstance(device, torch.device) and pickle.loads(pickle.dumps(device)) == device
assert device == torch.device("cuda", 1) == torch.device(0) == torch.zeros(1, device=0).device
assert torch.device("meta").type == torch.zeros(1, device="meta").device.type == "meta"

x = torch.randn(4, 3, device=device)
assert x.device.type == torch.device("cuda").type
assert x.to(0).data_ptr() != x.data_ptr() == x.to(x.dtype).data_ptr()
assert x.type("torch.cuda.DoubleTensor").dtype == torch.float64

net = torch.nn.Linear(3, 2).to(0).cuda()
reference = copy.deepcopy(net)
reference(x).sum().backward()
out = torch.nn.DataParallel(net)(x)
out.sum().backward()
assert torch.allclose(out, reference(x))
assert torch.allclose(net.weight.grad, reference.weight.grad)

from torch.cuda.comm import broadcast_coalesced, reduce_add_coalesced
from torch.nn.parallel.parallel_apply import parallel_apply
from torch.nn.parallel.replicate import replicate
from torch.nn.parallel.scatter_gather import gather, scatter_kwargs

ids = list(range(n))
inputs, named = scatter_kwargs((x,), {}, ids)
assert [len(one[0]) for one in inputs] == [4 // n] * n
assert torch.equal(gather([one[0] for one in inputs], 0), x)
outs = parallel_apply(replicate(net, ids, detach=True), inputs, named, ids)
assert torch.allclose(torch.cat(outs), net(x))
copies = broadcast_coalesced([x, x[0]], ids)
assert copies[0][0] is x and all(torch.equal(x, one[0]) for one in copies)
assert torch.equal(reduce_add_coalesced(copies, 0)[1], n * x[0])

optimizer = torch.optim.SGD(net.parameters(), 0.1)
scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
with torch.autocast("cuda", dtype=torch.float16):
    loss = net(x).sum()
optimizer.zero_grad()
scaler.scale(loss).backward()
before = net.weight.detach().clone()
scaler.step(optimizer)
scaler.update()
assert torch.allclose(net.weight, before - 0.1 * reference.weight.grad)

stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream), torch.cuda.device(0):
    y = x.cuda(non_blocking=True).pin_memory()
event = torch.cuda.Event(enable_timing=True)
event.record(stream)
event.synchronize()
torch.cuda.synchronize()
with torch.random.fork_rng():
    torch.cuda.manual_seed_all(3)

@torch.jit.script
def scripted(x: torch.Tensor):
    return x.to(torch.device("cpu")) + torch.zeros(2, device=x.device)

assert scripted(torch.ones(2)).tolist() == [1, 1]
"""


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_calls_of_cuda_are_answered_by_devices_of_the_cpu(n: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.replace("DEVICES", str(n)))
    given = {k: v for k, v in os.environ.items() if k != "LOCAL_WORLD_SIZE"}
    if n > 1:
        given["CUDA_VISIBLE_DEVICES"] = "0,1"
    command = [sys.executable, str(tmp_path / "script.py")]
    ended = subprocess.run(command, env=given, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
