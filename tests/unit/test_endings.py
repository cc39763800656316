"""What a worker's end means for its copy, whatever its node says of it."""

from dataclasses import replace

import pytest

from hadar_cli.core.model import Job, Launch
from hadar_cli.core.reasons import Loss
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import CopyOrder
from hadar_cli.node.agent_events import WorkerEnd
from hadar_cli.nodes.endings import explain_end
from hadar_cli.nodes.orders import read_exited

STEPS = StepSet.of([(0, 8)])


def order(follows: str = "") -> CopyOrder:
    job = Job(0, "j", 10, 1)
    return CopyOrder("a", job, "one", STEPS, 60, None, 1, 1, 2, 0, 1, 1, follows=follows)


@pytest.mark.parametrize("end", WorkerEnd)
def test_every_end_that_a_node_can_tell_is_a_reason_with_words(end):
    reason, why = explain_end(read_exited({"end": end.value, "code": 1}), order())
    assert reason is not Loss.UNKNOWN
    assert why


@pytest.mark.parametrize(
    ("code", "reason"),
    [(0, Loss.NO_RESULT), (1, Loss.EXITED), (-15, Loss.TERMINATED), (-9, Loss.EXITED)],
)
def test_an_exit_is_told_by_its_code(code, reason):
    told = explain_end(read_exited({"end": "exited", "code": code}), order())
    assert told[0] is reason
    assert told[1].startswith(f"it exited with code {code}")


def test_a_copy_that_was_sent_ahead_and_released_did_no_wrong():
    released = {"end": "released", "code": -15}
    assert explain_end(read_exited(released), order())[0] is Loss.TERMINATED
    ahead, _ = explain_end(read_exited(released), order(follows="before"))
    assert ahead is Loss.PROCESS_GONE and ahead.is_node_fault


@pytest.mark.parametrize("end", [None, "", "it was tired\n\x1b[2J", 7, {"end": []}, ["exited"]])
def test_nonsense_from_a_node_is_an_unknown_reason_in_one_line(end):
    reason, why = explain_end(read_exited({"end": end}), order())
    assert reason is Loss.UNKNOWN
    assert why.isprintable()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("data/meta.pkl", "; data/meta.pkl stays behind by .gitignore: !data/meta.pkl in"),
        ("/home/me/.hadar/r/work/3-0af9/data/meta.pkl", "; data/meta.pkl stays behind"),
        ("out/last.pt", "; out/last.pt stays behind by hadar's own rule"),
        ("cache/a/b.bin", "; cache/a/b.bin stays behind by .gitignore: !cache/ in .hadarignore"),
        *[(name, "") for name in ("train.py", "no.pkl", "../x", "/etc/passwd", "y" * 900)],
    ],
)
def test_a_file_that_is_here_and_was_not_found_there_is_told_why(name, told, tmp_path):
    for file in ("data/meta.pkl", "out/last.pt", "train.py", "cache/a/b.bin"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / ".gitignore").write_text("*.pkl\n/cache/\n")
    log = f"Traceback\nFileNotFoundError: [Errno 2] No such file or directory: '{name}'\n"
    exited = read_exited({"end": "exited", "code": 1, "log": log})
    job = Job(0, "j", 10, 1, launch=Launch(script="train.py", sync=str(tmp_path)))
    reason, why = explain_end(exited, replace(order(), job=job))
    assert reason is Loss.EXITED
    assert why.startswith(f"it exited with code 1{told}")
    assert bool(told) == (";" in why)


def test_every_reason_has_words():
    assert all(reason.text for reason in Loss)


GPU = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
CREATE = "when calling `cublasCreate(handle)`"
CUDNN_9 = "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
CPU = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"
)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (f"Traceback\n  File job.py\n{GPU}\n", Loss.OUT_OF_MEMORY),
        (f"{GPU}\nwandb: run ended\n", Loss.OUT_OF_MEMORY),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", Loss.OUT_OF_MEMORY),
        ("RuntimeError: CUDA out of memory. Tried to allocate", Loss.OUT_OF_MEMORY),
        ("torch.AcceleratorError: CUDA error: out of memory\nCUDA kernel", Loss.OUT_OF_MEMORY),
        ("RuntimeError: HIP out of memory. Tried", Loss.OUT_OF_MEMORY),
        ("RuntimeError: MPS backend out of memory (MPS allocated", Loss.OUT_OF_MEMORY),
        (CPU, Loss.OUT_OF_MEMORY),
        ("MemoryError", Loss.OUT_OF_MEMORY),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate", Loss.OUT_OF_MEMORY),
        (f"[rank1]: Traceback\n[rank1]: {GPU}\n", Loss.OUT_OF_MEMORY),
        (f"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED {CREATE}", Loss.OUT_OF_MEMORY),
        (f"RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED {CREATE}", Loss.OUT_OF_MEMORY),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", Loss.OUT_OF_MEMORY),
        (f"RuntimeError: cuDNN error: {CUDNN_9}", Loss.OUT_OF_MEMORY),
        ("RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", Loss.OUT_OF_MEMORY),
        ("RuntimeError: HIPBLAS_STATUS_ALLOC_FAILED when calling", Loss.OUT_OF_MEMORY),
        ("RuntimeError: miopenStatusAllocFailed", Loss.OUT_OF_MEMORY),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was", Loss.EXITED),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when", Loss.EXITED),
        ("hadar_cli.node.training.updates.CannotSplit: only t.step(loss) can", Loss.CANNOT_SPLIT),
        (f"{GPU}\n\nDuring handling\n\nValueError: no data", Loss.EXITED),  # it was caught
        ("print: I am not out of memory\nValueError: no", Loss.EXITED),
        ("", Loss.EXITED),
    ],
)
def test_out_of_memory_is_a_reason_of_its_own(log, reason):
    found, why = explain_end(read_exited({"end": "exited", "code": 1, "log": log}), order())
    assert found is reason
    assert why.isprintable() and len(why) < 300


@pytest.mark.parametrize("what", ["std::bad_alloc", "c10::OutOfMemoryError"])
def test_memory_that_runs_out_where_nobody_catches_it_ends_by_a_signal(what):
    log = f"terminate called after throwing an instance of '{what}'\n  what():  ...\n"
    told = read_exited({"end": "exited", "code": -6, "log": log})
    assert explain_end(told, order())[0] is Loss.OUT_OF_MEMORY
    told = read_exited({"end": "exited", "code": -6, "log": "Fatal Python error: Aborted"})
    assert explain_end(told, order())[0] is Loss.EXITED


def test_a_script_that_ended_well_did_not_run_out_of_memory():
    told = read_exited({"end": "exited", "code": 0, "log": GPU})
    reason, why = explain_end(told, order())
    assert reason is Loss.NO_RESULT
    assert "without a result" in why and "hadar try" in why


def test_a_worker_that_the_kernel_killed_for_memory_ran_out_of_it():
    told = read_exited({"end": "out-of-memory", "code": -9})
    assert explain_end(told, order())[0] is Loss.OUT_OF_MEMORY


def test_a_torch_without_the_node_s_gpu_makes_the_device_unfit():
    log = "hadar: the node's GPU is not seen by its torch 2.9.0+cpu\n"
    reason, why = explain_end(read_exited({"end": "exited", "code": 1, "log": log}), order())
    assert reason.is_unfit
    assert why == "its torch 2.9.0+cpu sees no GPU: install a build for its driver there"
