"""Checks of the machine, on made-up machines."""

import pytest

from rlvr.doctor import machine
from rlvr.doctor.machine import GB, MEASURED, Needs, Torch

LAPTOP = MEASURED["laptop"]
PAPER = Needs("paper", 600 * GB, GB, 0, gpus=8)
CPU, CUDA = Torch("2.13.0+cpu", None), Torch("2.11.0", "13.0")
CARD = ("NVIDIA H200", 141 * GB)


def test_disk():
    enough = machine.disk("runs", "/data", 0.3 * GB, 0.3 * GB, "laptop")
    assert enough.state == "ok" and "0.3 GB free at /data" in enough.text
    assert machine.disk("runs", "/data", 0.2 * GB, 0.3 * GB, "laptop").fix == "make clean"
    assert machine.disk("cache", "/data", 0, 0.3 * GB, "laptop").fix == "dvc gc --workspace"


def test_memory():
    assert machine.memory(3 * GB, 4 * GB, LAPTOP).state == "ok"
    busy = machine.memory(1 * GB, 4 * GB, LAPTOP)
    assert busy.state == "note" and "1.0 of 4.0 GB" in busy.text
    small = machine.memory(1 * GB, 2 * GB, LAPTOP)
    assert small.state == "fault" and "swapon" in small.fix
    assert machine.memory(0.1 * GB, GB, PAPER).state == "ok"  # of experiments it is not estimated


def test_cores():
    assert machine.cores(2, LAPTOP).state == "ok"
    few = machine.cores(1, LAPTOP)
    assert few.state == "note" and "2 processes side by side" in few.text
    assert machine.cores(1, PAPER).state == "ok"


def test_threads():
    all_one = dict.fromkeys(machine.THREADS, "1")
    assert machine.threads(all_one).state == "ok"
    found = machine.threads(all_one | {"MKL_NUM_THREADS": "8"})
    assert found.state == "note" and "MKL_NUM_THREADS is 8" in found.text and "OMP" not in found.text
    unset = machine.threads({})
    assert "OMP_NUM_THREADS is not set" in unset.text
    assert unset.fix == "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1"


@pytest.mark.parametrize(
    ("torch", "driver", "needs", "environment", "state", "text"),
    [
        (CPU, None, LAPTOP, "laptop", "ok", "none is needed"),
        (CPU, None, LAPTOP, "gpu", "fault", "no NVIDIA driver"),
        (CPU, None, PAPER, "laptop", "fault", "no NVIDIA driver"),
        (CPU, "580.65", LAPTOP, "laptop", "ok", "is a build for CPU"),
        (CPU, "580.65", PAPER, "verl", "fault", "is a build for CPU"),
        (CUDA, "535.1", LAPTOP, "laptop", "note", "sees no GPU"),
        (CUDA, "535.1", LAPTOP, "gpu", "fault", "too old"),
        (None, None, LAPTOP, "laptop", "fault", "cannot be imported"),
        (Torch("2.11.0", "13.0", [CARD] * 8), "580.65", PAPER, "gpu", "ok", "8 seen by torch 2.11.0"),
        (Torch("2.11.0", "13.0", [CARD]), "580.65", PAPER, "gpu", "note", "ask for 8 a node"),
        (Torch("2.11.0", "13.0", [CARD]), "580.65", LAPTOP, "laptop", "ok", "H200 (141 GB)"),
    ],
)
def test_gpu(torch, driver, needs, environment, state, text):
    found = machine.gpu(torch, driver, needs, environment)
    assert found.state == state and text in found.text


def test_fixes_of_gpus():
    assert machine.gpu(CPU, "580", PAPER, "gpu").fix == "pip install --force-reinstall torch==2.13.0"
    assert machine.gpu(Torch("2.11.0", "13.0", [CARD]), "580", PAPER, "gpu").fix == "rlvr plan paper --gpus 1"
