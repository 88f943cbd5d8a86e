"""Run a program in this interpreter, and print what it left behind: heavy modules, and the process's memory.

    python after_running.py PROGRAM | -c CODE

It imports nothing of its own but `sys`, so that the memory is the program's.
"""

import sys

HEAVY = ("jax", "lightning", "numpy", "pandas", "pyarrow", "pytorch_lightning", "ray", "tensorflow", "torch")


def source_of(arguments: list[str]) -> str:
    """The code to run."""
    if arguments[0] == "-c":
        return arguments[1]
    with open(arguments[0], encoding="utf-8") as program:
        return program.read()


def memory_mb(field: str) -> float:
    """A line of the kernel's account of this process, in MB (10^6 bytes): VmRSS is memory now, VmHWM at its peak."""
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(field)


exec(compile(source_of(sys.argv[1:]), sys.argv[1], "exec"), {"__name__": "__main__"})
now, peak = memory_mb("VmRSS"), memory_mb("VmHWM")
loaded = ", ".join(f'"{name}"' for name in HEAVY if name in sys.modules)
print(f'{{"rss_mb": {now:.3f}, "peak_rss_mb": {peak:.3f}, "heavy_modules": [{loaded}]}}')
