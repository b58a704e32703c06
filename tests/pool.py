"""Processes that tests of several ranks share: started once, gloo, jobs sent to all ranks.

    def job(scale):                      # in a test file, at module level
        return dist.get_rank() * scale

    def test_it():
        assert run_on(2, job, 10) == [0, 10]

A rank that raises, dies or does not answer fails the test by its number; the pool is then made
anew, as the other ranks may be in a collective for ever.
"""

import atexit
import faulthandler
import importlib
import importlib.util
import inspect
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT = 60.0  # Seconds that a job may take.
_GRACE = 3.0  # Seconds that the other ranks get after one has failed.

_pools: dict[tuple[int, str], "_Pool"] = {}


class RankError(AssertionError):
    """A rank failed; the message has its number and its traceback."""


def run_on(
    num_ranks: int, fn: Callable, *args: Any, timeout: float = TIMEOUT, backend: str = "gloo"
) -> list[Any]:
    """Runs ``fn(*args)`` on every rank of a job of ``num_ranks`` processes.

    Args:
        num_ranks: 1 or more.
        fn: a function at the top of a file; functions with the same name in one file are not told
            apart.
        args: picklable.
        timeout: seconds.
        backend: ``gloo``, or ``nccl`` with a GPU a rank.

    Returns:
        What it returned, rank by rank; picklable.

    Raises:
        RankError: a rank raised, died or hung.
    """
    key = (num_ranks, backend)
    pool = _pools.get(key)
    if pool is None:
        pool = _pools[key] = _Pool(num_ranks, backend)
    try:
        return pool.run(fn, args, timeout)
    except BaseException:
        _pools.pop(key).end()
        raise


@atexit.register
def end_pools() -> None:
    """Ends all processes."""
    while _pools:
        _pools.popitem()[1].end()


class _Pool:
    def __init__(self, num_ranks: int, backend: str):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo"])
        self._stacks = [tempfile.NamedTemporaryFile("r", suffix=".txt") for _ in range(num_ranks)]
        port = _free_port()
        self._ranks, self._pipes = [], []
        for rank in range(num_ranks):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(
                    rank,
                    num_ranks,
                    port,
                    backend,
                    there,
                    self._stacks[rank].name,
                    list(sys.path),
                ),
                daemon=True,
            )
            process.start()
            there.close()
            self._ranks.append(process)
            self._pipes.append(here)

    def run(self, fn: Callable, args: tuple, timeout: float) -> list[Any]:
        job = (fn.__module__, inspect.getfile(fn), fn.__qualname__, args)
        for pipe in self._pipes:
            pipe.send(job)
        results: dict[int, Any] = {}
        errors: dict[int, str] = {}
        end = time.monotonic() + timeout
        while len(results) + len(errors) < len(self._pipes):
            waiting = [r for r in range(len(self._pipes)) if r not in results and r not in errors]
            pipes = [self._pipes[r] for r in waiting]
            ready = multiprocessing.connection.wait(pipes, max(0.0, end - time.monotonic()))
            if not ready:
                break
            for rank in waiting:
                if self._pipes[rank] not in ready:
                    continue
                try:
                    fine, value = self._pipes[rank].recv()
                except (EOFError, ConnectionResetError):
                    self._ranks[rank].join(1)
                    fine, value = False, f"died with exit code {self._ranks[rank].exitcode}"
                if fine:
                    results[rank] = value
                else:
                    errors[rank] = value
                    end = min(end, time.monotonic() + _GRACE)
        if len(results) == len(self._pipes):
            return [results[rank] for rank in range(len(self._pipes))]
        silent = [r for r in range(len(self._pipes)) if r not in results and r not in errors]
        if silent and not errors:
            errors = {r: f"no answer within {timeout:g} s:\n{self._stack(r)}" for r in silent}
        elif silent:
            errors[min(errors)] += f"\n(no answer from rank {', '.join(map(str, silent))} then)"
        # One that died first: the others' errors follow from it.
        order = sorted(errors, key=lambda rank: (not errors[rank].startswith("died"), rank))
        text = "\n".join(f"rank {rank}: {errors[rank]}" for rank in order)
        raise RankError(f"{fn.__qualname__} on {len(self._pipes)} ranks\n{text}")

    def _stack(self, rank: int) -> str:
        os.kill(self._ranks[rank].pid, signal.SIGUSR1)
        time.sleep(0.5)
        return self._stacks[rank].read()

    def end(self) -> None:
        for process in self._ranks:
            process.kill()
        for process in self._ranks:
            process.join(5)
        for stack in self._stacks:
            stack.close()


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _serve(
    rank: int, num_ranks: int, port: int, backend: str, pipe, stack_file: str, path: list[str]
) -> None:
    faulthandler.register(signal.SIGUSR1, open(stack_file, "w"), all_threads=True)
    sys.path[:] = path
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(num_ranks),
        LOCAL_WORLD_SIZE=str(num_ranks),
    )  # fmt: skip
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=TIMEOUT),
    )
    while True:
        try:
            module, file, name, args = pipe.recv()
        except EOFError:
            return
        try:
            torch.manual_seed(0)
            fn: Any = _module(module, file)
            for part in name.split("."):
                fn = getattr(fn, part)
            answer = (True, fn(*args))
            dist.barrier()
        except BaseException:
            answer = (False, traceback.format_exc())
        try:
            pipe.send(answer)
        except BaseException:
            pipe.send((False, f"the result cannot be sent: {traceback.format_exc()}"))


def _module(name: str, file: str):
    """The module that a function is in, imported from its file."""
    if name in sys.modules:
        return sys.modules[name]
    if "." in name:  # In a package, which is on the path.
        return importlib.import_module(name)
    folder = str(Path(file).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
