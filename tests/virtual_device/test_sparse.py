"""Sparse tensors on the device, against the CPU: sparse gradients, graphs, conversions, files, derivatives, and what is wrong."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # that they are in beta

LAYOUTS = [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
Layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout).rpartition("_")[2])


def thinned(*sizes: int) -> torch.Tensor:
    """A matrix most places of which are empty, on the host."""
    generator = torch.Generator().manual_seed(sum(sizes))
    dense = torch.randn(*sizes, generator=generator)
    return dense * (torch.rand(*sizes, generator=generator) < 0.3)


def made_sparse(dense: torch.Tensor, layout: torch.layout) -> torch.Tensor:
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    return dense.to_sparse(layout=layout, **blocks)


def repeated(device: str) -> torch.Tensor:
    """A COO tensor that has places twice, out of order."""
    return torch.sparse_coo_tensor([[2, 0, 2, 1], [1, 1, 1, 0]], [1.0, 2.0, 3.0, 4.0], (3, 4), device=device)


def parts(sparse: torch.Tensor) -> list[torch.Tensor]:
    sparse = sparse.detach()
    if sparse.layout == torch.sparse_coo:
        return [sparse._indices(), sparse._values()]
    if sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [sparse.crow_indices(), sparse.col_indices(), sparse.values()]
    return [sparse.ccol_indices(), sparse.row_indices(), sparse.values()]


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Bit by bit, part by part."""
    assert actual.is_cuda and actual.layout == expected.layout and actual.shape == expected.shape and actual.dtype == expected.dtype
    if expected.layout == torch.strided:
        assert torch.equal(actual.cpu(), expected)
        return
    if expected.layout == torch.sparse_coo:
        assert actual.is_coalesced() == expected.is_coalesced()
    for one, other in zip(parts(actual), parts(expected), strict=True):
        assert one.is_cuda
        assert torch.equal(one.cpu(), other)


# Making, converting, showing, keeping


@Layouts
def test_a_dense_tensor_is_made_sparse_and_comes_back(layout: torch.layout) -> None:
    dense = thinned(6, 8)
    there = made_sparse(dense.to("cuda"), layout)
    assert_same(there, made_sparse(dense, layout))
    assert_same(there.to_dense(), dense)


@Layouts
@pytest.mark.parametrize("target", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=["coo", "csr", "csc"])
def test_one_layout_is_converted_to_another(layout: torch.layout, target: torch.layout) -> None:
    sparse = made_sparse(thinned(6, 8), layout)
    try:
        expected = sparse.to_sparse(layout=target)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error).partition(" ")[0]):
            sparse.to("cuda").to_sparse(layout=target)
        return
    assert_same(sparse.to("cuda").to_sparse(layout=target), expected)


@Layouts
def test_a_sparse_tensor_goes_to_the_device_and_back(layout: torch.layout) -> None:
    sparse = made_sparse(thinned(6, 8), layout)
    for there in (sparse.to("cuda"), sparse.cuda(), sparse.to("cuda", torch.float32), sparse.cuda(non_blocking=True)):
        assert there.device == torch.device("cuda:0")
        assert_same(there, sparse)
    back = sparse.cuda().cpu()
    assert back.device.type == "cpu" and torch.equal(back.to_dense(), sparse.to_dense())
    assert_same(sparse.cuda().to(torch.float64), sparse.to(torch.float64))


def test_batches_of_csr_matrices_are_converted_both_ways() -> None:
    dense = thinned(4, 6).expand(3, 4, 6).contiguous()
    there = dense.cuda().to_sparse_csr()
    assert_same(there, dense.to_sparse_csr())
    assert_same(there.to_dense(), dense)


def test_lists_arrays_and_tensors_of_the_device_make_sparse_tensors() -> None:
    expected = repeated("cpu")
    assert_same(repeated("cuda"), expected)
    assert_same(torch.sparse_coo_tensor(expected._indices().cuda(), expected._values().cuda()), torch.sparse_coo_tensor(*parts(expected)))
    csr = torch.sparse_csr_tensor([0, 1, 3], [1, 0, 2], [1.0, 2.0, 3.0], (2, 3), device="cuda")
    assert_same(csr, torch.sparse_csr_tensor([0, 1, 3], [1, 0, 2], [1.0, 2.0, 3.0], (2, 3)))


def test_places_that_come_twice_are_added_up() -> None:
    there = repeated("cuda")
    assert not there.is_coalesced()
    assert_same(there.coalesce(), repeated("cpu").coalesce())
    assert_same(there.to_dense(), repeated("cpu").to_dense())


@Layouts
def test_what_is_printed_is_what_a_gpu_would_print(layout: torch.layout) -> None:
    sparse = made_sparse(thinned(4, 4), layout)
    assert repr(sparse.cuda()).replace("device='cuda:0', ", "").split() == repr(sparse).split()


@Layouts
def test_pickles_files_and_copies_keep_layout_and_device(layout: torch.layout) -> None:
    sparse = made_sparse(thinned(6, 8), layout)
    there = sparse.cuda()
    assert_same(pickle.loads(pickle.dumps(there)), sparse)  # noqa: S301 our own bytes
    if layout == torch.sparse_coo:  # PyTorch copies no others
        assert_same(copy.deepcopy(there), sparse)
    file = io.BytesIO()
    torch.save({"a": there}, file)
    assert_same(torch.load(io.BytesIO(file.getvalue()), weights_only=True)["a"], sparse)
    assert torch.load(io.BytesIO(file.getvalue()), map_location="cpu")["a"].device.type == "cpu"


def test_a_sparse_buffer_travels_with_its_module() -> None:
    class Propagation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", thinned(5, 5).to_sparse())

    module = Propagation().cuda()
    assert_same(module.adjacency, thinned(5, 5).to_sparse())
    assert module.cpu().adjacency.device.type == "cpu"


# Computing

MATRIX = thinned(6, 8)
COMPUTED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "product": lambda a, x: a @ x,
    "sparse.mm": lambda a, x: torch.sparse.mm(a, x),
    "addmm": lambda a, x: torch.addmm(torch.ones(6, 3, device=x.device), a, x, beta=0.5, alpha=2),
    "sparse.addmm": lambda a, x: torch.sparse.addmm(torch.ones(6, 3, device=x.device), a, x),
    "vector": lambda a, x: a.mv(x[:, 0].contiguous()),
    "transposed": lambda a, x: a.t() @ x[:6],
    "scaled": lambda a, x: a * 2.5,
    "sum": lambda a, x: a.sum(),
    "abs": lambda a, x: a.abs(),
    "sine": lambda a, x: torch.sin(a),
    "twice": lambda a, x: a + a,
    "with dense": lambda a, x: torch.ones(6, 8, device=x.device) + a,
    "dense, in place": lambda a, x: torch.ones(6, 8, device=x.device).add_(a, alpha=-0.5),
    "clone": lambda a, x: a.clone(),
    "zeros": lambda a, x: torch.zeros_like(a),
    "in place": lambda a, x: a.clone().mul_(3.0).to_dense(),
}
OF_COO: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "difference": lambda a, x: a - 2 * a,
    "divided": lambda a, x: a / 2,
    "squared": lambda a, x: a * a,
    "added in place": lambda a, x: a.clone().add_(a, alpha=2),
    "sums of rows": lambda a, x: torch.sparse.sum(a, 1),
    "softmax": lambda a, x: torch.sparse.softmax(a, 1),
    "log softmax": lambda a, x: torch.sparse.log_softmax(a, 0),
    "sparse product": lambda a, x: torch.sparse.mm(a, a.t()),
    "masked": lambda a, x: torch.ones(6, 8, device=x.device).sparse_mask(a.coalesce()),
    "selected": lambda a, x: a.index_select(0, torch.tensor([1, 4, 1], device=x.device)),
    "row": lambda a, x: a[2],
    "joined": lambda a, x: torch.cat([a, a], 0),
    "hybrid product": lambda a, x: torch.hspmm(a, x),
    "batched": lambda a, x: torch.bmm(torch.stack([a, a]), torch.stack([x, x])),
    "norm": lambda a, x: a.norm(),
    "permuted": lambda a, x: a.permute(1, 0),
    "power": lambda a, x: a.pow(2),
    "out": lambda a, x: torch.add(a, a, out=torch.zeros_like(a)),
    "by dense": lambda a, x: a * torch.full((6, 8), 3.0, device=x.device),
}
OF_CSR: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "sampled": lambda a, x: torch.sparse.sampled_addmm(a, x[:6], x.t().contiguous(), beta=0.5),
    "means": lambda a, x: torch.sparse.mm(a, x, "mean"),
    "largest": lambda a, x: torch.sparse.mm(a, x, "amax"),
    "sparse product": lambda a, x: a @ a.to_dense().t().contiguous().to_sparse_csr(),
    "row": lambda a, x: a[2],
    "sums of rows": lambda a, x: a.sum(1, keepdim=True),
    "squared": lambda a, x: a * a,
}
CASES = [
    *((name, layout, use) for name, use in COMPUTED.items() for layout in (torch.sparse_coo, torch.sparse_csr)),
    *((name, torch.sparse_coo, use) for name, use in OF_COO.items()),
    *((name, torch.sparse_csr, use) for name, use in OF_CSR.items()),
]


@pytest.mark.parametrize(("layout", "use"), [case[1:] for case in CASES], ids=[f"{case[0]}, {str(case[1])[13:]}" for case in CASES])
def test_what_is_computed_is_the_cpu_s_bit_by_bit(layout: torch.layout, use: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    sparse, x = MATRIX.to_sparse(layout=layout), torch.randn(8, 3)
    assert_same(use(sparse.cuda(), x.cuda()), use(sparse, x))


@Layouts
def test_a_matrix_of_any_layout_multiplies_a_dense_one_or_says_at_once_what_the_cpu_says(layout: torch.layout) -> None:
    sparse, x = made_sparse(MATRIX, layout), torch.randn(8, 4)
    try:
        expected = sparse @ x
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            sparse.cuda() @ x.cuda()
        return
    assert_same(sparse.cuda() @ x.cuda(), expected)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=["coo", "csr"])
def test_derivatives_of_a_product_are_the_cpu_s(layout: torch.layout) -> None:
    found = []
    torch.manual_seed(1)
    weight = torch.randn(8, 3)
    for device in ("cpu", "cuda"):
        a = MATRIX.to_sparse(layout=layout).to(device).detach().requires_grad_()
        x = weight.to(device, copy=True).requires_grad_()
        torch.sparse.mm(a, x).pow(2).sum().backward()
        found.append((a.grad, x.grad))
    for actual, expected in zip(found[1], found[0], strict=True):
        assert_same(actual, expected)


def test_derivatives_go_through_values_conversions_sums_and_softmax() -> None:
    found = []
    for device in ("cpu", "cuda"):
        values = torch.arange(1.0, 5.0, device=device).requires_grad_()
        a = torch.sparse_coo_tensor(torch.tensor([[2, 0, 2, 1], [1, 1, 1, 0]], device=device), values, (3, 4)).coalesce()
        loss = torch.sparse.softmax(a, 1).to_dense().square().sum() + torch.sparse.sum(a, 0).values().prod() + (a * 2).values().sum()
        loss.backward()
        found.append(values.grad)
    assert_same(found[1], found[0])


# Programs


class Words(nn.Module):
    """A classifier of bags of words, whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8, sparse=True, padding_idx=0)
        self.bags = nn.EmbeddingBag(50, 8, sparse=True, mode="sum")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(x).mean(1) + self.bags(x)


@pytest.mark.parametrize("name", ["SparseAdam", "SGD", "Adagrad"])
def test_embeddings_with_sparse_gradients_train_as_on_the_cpu(name: str) -> None:
    torch.manual_seed(3)
    host = Words()
    there = copy.deepcopy(host).cuda()
    batches = [(torch.randint(0, 50, (6, 4)), torch.randint(0, 8, (6,))) for _ in range(5)]
    for model in (host, there):
        device = next(model.parameters()).device
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            assert model.words.weight.grad.layout == torch.sparse_coo
            optimizer.step()
    for actual, expected in zip(there.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-6, atol=1e-7)


class Graphs(nn.Module):
    """Two layers of a graph convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 16), nn.Linear(16, 3)

    def forward(self, adjacency: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = F.relu(adjacency @ self.one(x))
        return adjacency @ self.two(hidden)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=["coo", "csr"])
def test_a_graph_convolution_trains_as_on_the_cpu(layout: torch.layout) -> None:
    torch.manual_seed(4)
    host = Graphs()
    there = copy.deepcopy(host).cuda()
    edges = (thinned(30, 30) != 0).float() + torch.eye(30)
    adjacency = (edges / edges.sum(1, keepdim=True)).to_sparse(layout=layout)
    x, y = torch.randn(30, 5), torch.randint(0, 3, (30,))
    losses = []
    for model in (host, there):
        device = next(model.parameters()).device
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        graph, features, labels = adjacency.to(device), x.to(device), y.to(device)
        for _ in range(10):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(graph, features), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[10:] == pytest.approx(losses[:10], rel=1e-5)
    assert losses[19] < losses[10]


def test_a_product_with_a_graph_that_stays_waits_for_nothing() -> None:
    from forebay import _C

    adjacency, x = MATRIX.to_sparse_csr().cuda(), torch.randn(8, 3, device="cuda")
    adjacency @ x
    torch.cuda.synchronize()
    before = _C.statistics()["syncs"]
    for _ in range(10):
        adjacency @ x
    assert _C.statistics()["syncs"] == before


# What is wrong


def test_indices_that_lead_out_are_told_and_the_session_lives() -> None:
    kept = torch.ones(3, device="cuda")
    outside = torch.sparse_coo_tensor(torch.tensor([[0, 9], [0, 0]]).cuda(), torch.ones(2).cuda(), (3, 3))
    with pytest.raises(RuntimeError, match="size is inconsistent with indices: for dim 0, size is 3 but found index 9"):
        outside.coalesce()
    ends = torch.sparse_csr_tensor(torch.tensor([0, 1, 900]).cuda(), torch.tensor([0, 1]).cuda(), torch.ones(2).cuda(), (2, 2))
    with pytest.raises(RuntimeError, match="nnz"):
        (ends @ torch.ones(2, 2, device="cuda")).cpu()
    assert kept.sum().item() == 3.0


def test_checked_invariants_are_raised_where_the_tensor_is_made() -> None:
    with torch.sparse.check_sparse_tensor_invariants(), pytest.raises(RuntimeError, match="found index 9"):
        torch.sparse_coo_tensor(torch.tensor([[0, 9]]).cuda(), torch.ones(2).cuda(), (3,))
    with pytest.raises(RuntimeError, match="crow_indices"):
        torch.sparse_csr_tensor([0, 2, 1], [0, 1], [1.0, 1.0], (2, 2), device="cuda", check_invariants=True)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda a, x: a @ x[:5],
        lambda a, x: a + x,
        lambda a, x: torch.addmm(x, a, x),
        lambda a, x: torch.ones(1, 8, device=x.device) + a,
        lambda a, x: torch.sparse.softmax(a, 7),
        lambda a, x: a.untyped_storage(),
        lambda a, x: a.double() @ x,
        lambda a, x: a.to_sparse_csr().double() @ x,
        lambda a, x: torch.sparse.sampled_addmm(a.to_sparse_csr(), x, x),
    ],
    ids=[
        "sizes",
        "sparse and dense",
        "sizes of a sum",
        "sizes of a sum that would broadcast",
        "dimension",
        "storage",
        "types",
        "types of csr",
        "sampled sizes",
    ],
)
def test_wrong_calls_are_raised_at_once_in_the_cpu_s_words(wrong: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    sparse, x = MATRIX.to_sparse(), torch.randn(8, 3)
    with pytest.raises((RuntimeError, NotImplementedError, IndexError)) as native:
        wrong(sparse, x)
    with pytest.raises(type(native.value)) as ours:
        wrong(sparse.cuda(), x.cuda())
    assert str(native.value).partition("\n")[0] in str(ours.value)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_a_reducing_product_has_the_cpu_s_result_and_gradients_ties_and_empty_rows_among_them(reduce: str) -> None:
    matrix = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 3.0]])
    other = torch.tensor([[1.0, -2.0], [0.5, -1.0], [-3.0, 0.0]])

    def run(device: str) -> list[torch.Tensor]:
        sparse, dense = matrix.to_sparse_csr().to(device).requires_grad_(), other.to(device).requires_grad_()
        with torch.no_grad():
            plain = torch.sparse.mm(sparse, dense, reduce)
        result = torch.sparse.mm(sparse, dense, reduce)
        (result * torch.arange(1.0, 7.0, device=device).reshape(3, 2)).sum().backward()
        assert sparse.grad is not None and dense.grad is not None
        return [plain, result.detach(), sparse.grad.to_dense(), dense.grad]

    for there, host in zip(run("cuda"), run("cpu"), strict=True):
        assert torch.equal(there.cpu(), host)


def test_what_no_kernel_does_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="aten::view is not available on the virtual device, or not for tensors of this layout"):
        MATRIX.to_sparse().cuda().view(-1)


def test_sparse_and_dense_tensors_of_different_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match=r"same device|two devices"):
        MATRIX.to_sparse().cuda() @ torch.randn(8, 3)
