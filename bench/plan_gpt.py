"""Export, plan and emit a 24-layer GPT for 8 devices, phase by phase; and Llama-70B on an 8 x 8 mesh.

nnScaler 0.9 needs 19.8 s and 2.2 GB for the GPT on a quiet machine with 2 cores (trace 4.9, IR 1.4, dump 1.3, plan 3.4,
apply 4.0, code for all ranks 4.8; operator costs given, GPU profiling not counted). `torch.export` itself is measured in
the same run, alternating with `nnscaler.export`, so that what is ours can be told apart.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
CORE = next(
    (
        p
        for p in (ROOT / ".venv/bin/nnscaler-core", ROOT / "build/release/nnscaler-core")
        if p.exists()
    ),
    "nnscaler-core",
)


def gpt():
    from examples.models.gpt import GPT

    torch.manual_seed(0)
    model = GPT(vocabulary=50304, length=128, layers=24, hidden=768, heads=12)
    tokens = torch.randint(0, 50304, (8, 128))
    return model, (tokens, torch.randint(0, 50304, (8, 128)))


def llama_70b(path: str) -> float:
    """Writes the archive of Llama-70B on the meta device; seconds."""
    from transformers import LlamaConfig, LlamaForCausalLM

    import nnscaler

    config = LlamaConfig(
        vocab_size=32000, hidden_size=8192, intermediate_size=28672, num_hidden_layers=80,
        num_attention_heads=64, num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
        ids = torch.zeros(8, 2048, dtype=torch.long)
        labels = torch.zeros(8, 2048, dtype=torch.long)
    start = time.perf_counter()
    nnscaler.export(model, (), {"input_ids": ids, "labels": labels}, path)
    return time.perf_counter() - start


def run(*arguments: str) -> tuple[float, float, float, dict]:
    """A command of the core as a whole process: wall seconds, processor seconds, peak MiB, its JSON."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    process = subprocess.Popen([str(CORE), *arguments, "--json"], stdout=subprocess.PIPE, text=True)
    peak = 0
    # The kernel's own maximum counts the image before exec, this large one; so the new one's is sampled.
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        if status.startswith("Name:\tnnscaler-core"):
            peak = max(
                [peak, *(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM"))]
            )
        time.sleep(0.0005)
    output = process.stdout.read()
    process.wait()
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        sys.exit(f"nnscaler-core {' '.join(arguments)} failed")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, used, peak / 1024, json.loads(output)


def measured(*arguments: str, repeats: int) -> dict:
    runs = [run(*arguments) for _ in range(repeats)]
    return {
        "seconds": statistics.median(r[0] for r in runs),
        "cpu_seconds": statistics.median(r[1] for r in runs),
        "peak_mib": max(r[2] for r in runs),
        "result": runs[-1][3],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each command (default 5)")
    parser.add_argument("--exports", type=int, default=3, help="pairs of exports (default 3)")
    parser.add_argument("--no-llama", action="store_true", help="leave Llama-70B out")
    given = parser.parse_args()

    import nnscaler

    with tempfile.TemporaryDirectory() as directory:
        archive, plan = f"{directory}/gpt.pt2", f"{directory}/plan.json"
        model, args = gpt()
        torch.export.export(model, args, strict=False)  # warm-up of PyTorch
        pure, ours = [], []
        for _ in range(given.exports):
            start = time.perf_counter()
            torch.export.export(model, args, strict=False)
            pure.append(time.perf_counter() - start)
            start = time.perf_counter()
            nnscaler.export(model, args, {}, archive)
            ours.append(time.perf_counter() - start)
        beyond = statistics.median(b - a for a, b in zip(pure, ours, strict=True))
        facts = {
            "torch_export_seconds": statistics.median(pure),
            "nnscaler_export_seconds": statistics.median(ours),
            "export_beyond_torch_seconds": beyond,
            "archive_kib": Path(archive).stat().st_size / 1024,
            "plan": measured(
                "plan", archive, "--mesh", "dp=4,tp=2", "--cluster", "a100-80gb", "-o", plan,
                repeats=given.repeats,
            ),
            "emit": measured("emit", archive, plan, "-o", f"{directory}/gen", repeats=given.repeats),
        }  # fmt: skip
        facts["own_seconds"] = beyond + facts["plan"]["seconds"] + facts["emit"]["seconds"]
        if not given.no_llama:
            llama = f"{directory}/llama.pt2"
            seconds = llama_70b(llama)
            facts["llama_70b"] = {
                "export_seconds": seconds,
                "plan": measured(
                    "plan", llama, "--mesh", "dp=8,tp=8", "--cluster", "h100-80gb", "--memory", "4000GiB",
                    "-o", f"{directory}/llama.json", repeats=given.repeats,
                ),
                "emit": measured(
                    "emit", llama, f"{directory}/llama.json", "-o", f"{directory}/llama", repeats=given.repeats
                ),
            }  # fmt: skip
    if given.json:
        print(json.dumps(facts, indent=1))
        return
    print("24-layer GPT, hidden 768, batch 8 x 128, loss included, 8 devices (dp=4,tp=2)")
    print(f"  torch.export itself        {facts['torch_export_seconds']:8.2f} s")
    print(f"  nnscaler.export beyond it  {beyond:8.2f} s   ({facts['archive_kib']:.0f} KiB)")
    for name in ("plan", "emit"):
        row = facts[name]
        print(
            f"  {name:<26} {row['seconds']:8.3f} s   whole process; {row['cpu_seconds']:.3f} s of processor, "
            f"{row['peak_mib']:.0f} MiB"
        )
    result = facts["plan"]["result"]
    print(
        f"  of it the search           {result['search_seconds']:8.3f} s   gap {result['gap']}, {result['operators']} operators"
    )
    print(f"  our own time in all        {facts['own_seconds']:8.2f} s")
    print(f"  code for one rank          {facts['emit']['result']['lines']:8d} lines")
    if "llama_70b" in facts:
        row = facts["llama_70b"]
        print("Llama-70B on the meta device, batch 8 x 2048, 64 devices (dp=8,tp=8)")
        print(f"  nnscaler.export            {row['export_seconds']:8.2f} s")
        for name in ("plan", "emit"):
            part = row[name]
            print(
                f"  {name:<26} {part['seconds']:8.3f} s   whole process; {part['cpu_seconds']:.3f} s of processor, "
                f"{part['peak_mib']:.0f} MiB"
            )
        result = row["plan"]["result"]
        print(
            f"  of it the search           {result['search_seconds']:8.3f} s   gap {result['gap']}, {result['operators']} operators"
        )
        print(f"  code for one rank          {row['emit']['result']['lines']:8d} lines")


if __name__ == "__main__":
    main()
