"""What third-party programs ask of ``torch.cuda``, and of tensors, beside operators: as on a CUDA device, or refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils import dlpack

EXPORTS: dict[str, Callable[[torch.Tensor], object]] = {
    "to_dlpack": dlpack.to_dlpack,
    "torch.to_dlpack": torch.to_dlpack,
    "method": lambda tensor: tensor.__dlpack__(),
    "from_dlpack": torch.from_dlpack,
}


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
def test_no_other_library_gets_an_address_that_leads_nowhere(export: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(RuntimeError, match=r"DLPack is not available .* give it tensor\.cpu\(\)"):
        export(torch.ones(3, device="cuda"))
    assert torch.equal(torch.from_dlpack(dlpack.to_dlpack(torch.ones(3))), torch.ones(3))


def test_the_array_interface_says_to_give_the_cpu_s_tensor() -> None:
    with pytest.raises(AttributeError, match=r"give tensor\.cpu\(\)"):
        _ = torch.ones(3, device="cuda").__cuda_array_interface__


def test_events_of_any_accelerator_measure_time() -> None:
    start, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
    x = torch.randn(300, 300, device="cuda")
    start.record()
    for _ in range(20):
        x = (x @ x).tanh()
    end.record()
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(torch.Event("cuda"))


def test_memory_of_the_program_counts_as_pinned_while_it_is_registered() -> None:
    x, runtime = torch.ones(1024), torch.cuda.cudart()
    place = x.data_ptr(), x.numel() * x.element_size()
    assert not x.is_pinned()
    torch.cuda.check_error(runtime.cudaHostRegister(*place, 0))
    assert x.is_pinned()
    assert int(runtime.cudaHostRegister(*place, 0)) == 712
    torch.cuda.check_error(runtime.cudaHostUnregister(place[0]))
    assert not x.is_pinned()
    assert int(runtime.cudaHostUnregister(place[0])) == 713


def test_return_codes_are_said_in_the_words_of_the_cuda_runtime() -> None:
    torch.cuda.check_error(0)
    with pytest.raises(RuntimeError, match=r"out of memory \(2\)"):
        torch.cuda.check_error(2)
    with pytest.raises(RuntimeError, match=r"unrecognized error code \(4242\)"):
        torch.cuda.check_error(4242)


def test_refused_functions_are_named_as_programs_call_them() -> None:
    with pytest.raises(RuntimeError, match=r"^torch\.cuda\._sleep is not available .* time\.sleep"):
        torch.cuda._sleep(1000)
    with pytest.raises(RuntimeError, match=r"^torch\.cuda\.temperature is not available .* `forebay smi`"):
        torch.cuda.temperature()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_margin_loss_over_several_labels_takes_half_precision_as_gpus_do(dtype: torch.dtype) -> None:
    scores, labels = torch.randn(5, 4), torch.tensor([[1, -1, 0, 0]] * 5)
    here = scores.to(dtype).float().requires_grad_()
    there = scores.to(dtype).cuda().requires_grad_()
    expected = torch.nn.functional.multilabel_margin_loss(here, labels)
    actual = torch.nn.functional.multilabel_margin_loss(there, labels.cuda())
    (expected.backward(), actual.backward())
    assert actual.dtype == there.grad.dtype == dtype
    torch.testing.assert_close(actual.float().cpu(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(there.grad.float().cpu(), here.grad, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("sizes", [(3, 5), (3, 5, 4), (2, 5, 4, 4)])
@pytest.mark.parametrize("affine", [False, True])
def test_the_parts_of_a_batch_norm_over_processes_make_up_one_over_all_samples(sizes: tuple[int, ...], affine: bool) -> None:
    parts = [torch.randn(sizes), torch.randn(sizes)]
    weight, bias = (torch.rand(5), torch.rand(5)) if affine else (None, None)
    means, variances = torch.zeros(5), torch.ones(5)
    whole = torch.cat(parts).requires_grad_()
    gradient = torch.randn(whole.shape)
    expected = torch.nn.functional.batch_norm(whole, means, variances, weight, bias, training=True)
    expected.backward(gradient)

    given = [part.cuda() for part in parts]
    w, b = (weight.cuda(), bias.cuda()) if weight is not None and bias is not None else (None, None)
    stats = [torch.batch_norm_stats(part, 1e-5) for part in given]
    gathered = torch.stack([mean for mean, _ in stats]), torch.stack([invstd for _, invstd in stats])
    running_mean, running_var = torch.zeros(5, device="cuda"), torch.ones(5, device="cuda")
    count = parts[0].numel() // 5
    mean, invstd = torch.batch_norm_gather_stats(given[0], *gathered, running_mean, running_var, 0.1, 1e-5, count)
    counts = torch.full((2,), float(count), device="cuda")
    again = torch.batch_norm_gather_stats_with_counts(given[0], *gathered, None, None, 0.1, 1e-5, counts)
    torch.testing.assert_close(again, (mean, invstd))
    actual = torch.cat([torch.batch_norm_elemt(part, w, b, mean, invstd, 1e-5) for part in given])
    torch.testing.assert_close(actual.cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close((running_mean.cpu(), running_var.cpu()), (means, variances), rtol=1e-4, atol=1e-4)

    pieces = gradient.cuda().chunk(2)
    sums = [torch.batch_norm_backward_reduce(g, part, mean, invstd, w, True, affine, affine) for g, part in zip(pieces, given, strict=True)]
    total, moved = (sum(one[index] for one in sums) for index in (0, 1))
    whole_count = torch.full((2,), count, dtype=torch.int32, device="cuda")
    back = [
        torch.batch_norm_backward_elemt(g, part, mean, invstd, w, total, moved, whole_count) for g, part in zip(pieces, given, strict=True)
    ]
    torch.testing.assert_close(torch.cat(back).cpu(), whole.grad, rtol=1e-3, atol=1e-3)
