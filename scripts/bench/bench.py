"""Measures shoal beside its peers and the floors, and writes the table and the plot.

    bench.py [--build DIR] [--rows 1,3,plot] [--pairs N] [--strict]

Writes DIR/bench/bench.md, bench.json and bench.svg. See scripts/bench/README.md.
"""
import argparse
import json
import os
import signal
import sys
import traceback

import curves
import plot
import report
from peers import Failed, Missing, Tools, say
from rows import ROWS, Result


def options_parse(words):
    parser = argparse.ArgumentParser(prog="bench.py", description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="where the programs are (default: build)")
    parser.add_argument("--rows", default=",".join([*ROWS, "plot"]),
                        help="some of " + ",".join([*ROWS, "plot"]) + " (default: all)")
    parser.add_argument("--pairs", type=int, default=7, help="of runs by turns (default: 7)")
    parser.add_argument("--strict", action="store_true",
                        help="exit status 1 also when a target is not reached")
    options = parser.parse_args(words)
    options.rows = options.rows.split(",")
    unknown = [row for row in options.rows if row not in ROWS and row != "plot"]
    if unknown:
        parser.error(f"--rows: there is no row {', '.join(unknown)}")
    if not 1 <= options.pairs <= 101:
        parser.error("--pairs: must be a number from 1 to 101")
    return options


def rows_measure(tools, options, keep=lambda results: None):
    """All results, and whether a row failed. keep(results so far) is called after each row."""
    results, failed = [], False
    for row in options.rows:
        if row == "plot":
            continue
        say(f"row {row}")
        try:
            for result in ROWS[row](tools, options.pairs):
                say("  " + report.table_line(result))
                results.append(result)
        except Missing as missing:
            results.append(Result(row, "", "", None, skipped=str(missing)))
        except Exception as error:  # whatever it is: the other rows have taken their time
            say("  failed: " + (str(error) if isinstance(error, Failed) else traceback.format_exc()))
            text = str(error).split("\n")[0] if isinstance(error, Failed) else repr(error)
            results.append(Result(row, "", "", None, skipped="failed: " + text))
            failed = True
        keep(results)
    return results, failed


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main(words):
    options = options_parse(words)
    tools, about = Tools(options.build), report.machine()
    folder = tools.program("bench")
    panels = []

    def keep(results):
        table = report.as_markdown(results, about, options.pairs, "bench.svg" if panels else None)
        write(os.path.join(folder, "bench.md"), table)
        write(os.path.join(folder, "bench.json"),
              json.dumps(report.as_json(results, panels, about), indent=1) + "\n")
        return table

    results, failed = rows_measure(tools, options, keep)
    if "plot" in options.rows:
        say("plot")
        panels = curves.measure(tools)
        if panels:
            write(os.path.join(folder, "bench.svg"), plot.svg(panels))
    print(keep(results))
    missed = any(report.measured(result)[1] is False for result in results)
    return 1 if failed or (options.strict and missed) else 0


def catch_signals():
    """Told to end, once or more, take down what is up first: clusters, and what runs in them."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP)
               if signal.getsignal(number) != signal.SIG_IGN]  # nohup

    def end(number, _):
        for other in numbers:
            signal.signal(other, lambda *_: None)
        sys.exit(128 + number)

    for number in numbers:
        signal.signal(number, end)


if __name__ == "__main__":
    catch_signals()
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
