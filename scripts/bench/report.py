"""The table of a run, in Markdown and JSON, and the machine that it ran on."""
import os
import platform
import statistics
import subprocess

import peers


def first_line(argv):
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
    except OSError:
        return "not installed"
    return done.stdout.splitlines()[0] if done.returncode == 0 and done.stdout else "not installed"


def machine():
    """Return the facts about this machine that a reader needs to compare figures."""
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    with open("/proc/meminfo", encoding="utf-8") as file:
        memory_KiB = int(file.readline().split()[1])
    return {
        "processor": model, "cores": os.cpu_count(), "memory_GiB": round(memory_KiB / (1 << 20), 1),
        "kernel": platform.release(),
        "load_average_before": os.getloadavg()[0],
        "commit": first_line(["git", "-C", peers.HERE, "describe", "--always", "--dirty"]),
        "torch": first_line([peers.PYTHON, "-c", "import torch; print(torch.__version__)"]),
        "open_mpi": first_line(["mpirun", "--version"]),
    }


def measured(result):
    """Median, and whether the target is reached (None: nothing to reach, or not measured)."""
    if not result.ratios:
        return None, None
    median = statistics.median(result.ratios)
    if result.target is None:
        return median, None
    return median, median >= result.target if result.at_least else median <= result.target


def as_json(results, panels, about):
    rows = []
    for result in results:
        median, reached = measured(result)
        rows.append({"row": result.row, "what": result.what, "figure": result.figure,
                     "target": result.target, "at_least": result.at_least, "median": median,
                     "reached": reached, "ratios": result.ratios, "skipped": result.skipped,
                     "measured": result.seconds})
    return {"machine": about, "rows": rows, "plot": panels}


def table_line(result):
    median, reached = measured(result)
    sign = "at least" if result.at_least else "at most"
    target = f"{sign} {result.target:g}" if result.target is not None else ""
    if median is None:
        value, verdict = "", "skipped: " + result.skipped
    else:
        value = f"{median:.3f} ({min(result.ratios):.3f} to {max(result.ratios):.3f})"
        verdict = {True: "pass", False: "FAIL", None: ""}[reached]
    cells = (result.row, result.what, result.figure, target, value, verdict)
    return "| " + " | ".join(cells) + " |"


def as_markdown(results, about, pairs, plot):
    """plot: the picture's file name, or None."""
    lines = [
        "# shoal beside its peers", "",
        f"{about['cores']} cores of {about['processor']}, {about['memory_GiB']} GiB, "
        f"Linux {about['kernel']}, load average {about['load_average_before']:.1f} before the run; "
        f"shoal {about['commit']}, torch {about['torch']} (Gloo), {about['open_mpi']}.", "",
        f"Medians of {pairs} pairs, measured by turns (of heap and descriptors one run each); least and "
        "greatest in brackets.", "",
        "| row | what | figure | target | measured | |", "|---|---|---|---|---|---|",
        *map(table_line, results), ""]
    verdicts = [measured(result)[1] for result in results]
    lines += [f"{verdicts.count(True)} reached, {verdicts.count(False)} not reached, "
              f"{sum(1 for result in results if result.skipped)} skipped.", ""]
    if plot:
        lines += [f"![bandwidth against size]({plot})", ""]
    return "\n".join(lines)
