#!/usr/bin/env python3
"""Holds what can be counted of the papers: *.md, and the text files in doc/. A line per violation.

    check-papers.py [ROOT]        the tree that this script is in, or another
    check-papers.py --self-test   shows that each rule catches what it is there for

No line is over 120 columns, tables and code among them, unless it is one link or one address. A link
to a file names one that is there. README.md and CHANGELOG.md, which everybody reads, and the README
of a folder have the lengths of LIMITS.
"""
import os
import re
import subprocess
import sys
import tempfile

COLUMNS = 120
# By path; "*/" is any folder but the top. First match wins.
LIMITS = (
    ("README.md", "words", 1200),
    ("CHANGELOG.md", "lines", 60),
    ("*/README.md", "lines", 80),
)
LINK = r"!?\[[^]]*\]\(([^()\s]*)\)"
ONE_LINK = re.compile(rf"[\s>*|-]*({LINK}|\[[^]]*\]: *\S+|<?https?://\S+>?)[.,;:|\s]*")


def papers(root):
    """Paths of the papers, tracked or new."""
    try:
        listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
                                text=True, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        paths = listed.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):  # no git, or no clone
        paths = [os.path.relpath(os.path.join(folder, name), root)
                 for folder, _, names in os.walk(root) for name in names]
    return sorted(path for path in set(paths)
                  if (path.endswith(".md") or path.startswith("doc/")) and not path.startswith("build/")
                  and not path.endswith((".svg", ".png")) and os.path.exists(os.path.join(root, path)))


def check_lengths(path, text):
    for name, unit, most in LIMITS:
        if path == name or (name.startswith("*/") and path.endswith(name[1:])):
            count = len(text.split()) if unit == "words" else len(text.splitlines())
            return [f"{path}: {count} {unit}, {most} is the most"] if count > most else []
    return []


def check_lines(path, text):
    return [f"{path}:{number}: {len(line)} columns, {COLUMNS} is the most"
            for number, line in enumerate(text.splitlines(), 1)
            if len(line) > COLUMNS and not ONE_LINK.fullmatch(line)]


def check_links(root, path, text):
    """Links to files of the tree; what is written as code is none."""
    text = re.sub(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", "", text, flags=re.M | re.S)
    found = []
    for target in re.findall(LINK, text):
        file = target.split("#")[0]
        if file and not re.match(r"[a-z]+:", file):
            there = os.path.join(root, os.path.dirname(path), file)
            if not os.path.exists(there):
                found.append(f"{path}: the link to {target} leads nowhere")
    return found


def check(root):
    problems = []
    for path in papers(root):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        problems += check_lengths(path, text) + check_lines(path, text) + check_links(root, path, text)
    return problems


CASES = (  # path, text, what is said of it
    ("doc/good.md", "x" * 120 + "\n[a](../doc/good.md#b) [c](https://example.org/none) `[d](none)`\n", ""),
    ("doc/fence.md", "```\n[a](none)\n```\n    [b](none)\n", ""),
    ("doc/umlauts.md", "\u00e4" * 120, ""),
    ("doc/link.md", f"* [{'x' * 130}](good.md)\nhttps://example.org/{'x' * 120}\n", ""),
    ("doc/wide.md", "x" * 121, "doc/wide.md:1: 121 columns"),
    ("doc/man/wide.1", "x" * 121, "doc/man/wide.1:1: 121 columns"),
    ("doc/table.md", f"| a |\n| [{'x' * 130}](good.md) and more |", "doc/table.md:2: 154 columns"),
    ("doc/code.md", "    " + "x" * 121, "doc/code.md:1: 125 columns"),
    ("doc/lost.md", "[a](none.md)", "doc/lost.md: the link to none.md leads nowhere"),
    ("doc/README.md", "x\n" * 80, ""),
    ("server/README.md", "x\n" * 81, "server/README.md: 81 lines"),
    ("CHANGELOG.md", "x\n" * 61, "CHANGELOG.md: 61 lines"),
    ("README.md", "x \n" * 1201, "README.md: 1201 words"),
    ("doc/house.svg", "x" * 121, ""),
    ("server/wide.c", "x" * 121, ""),
)


def self_test():
    failed = 0
    with tempfile.TemporaryDirectory() as root:
        for path, text, expected in CASES:
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        problems = check(root)
        for path, _, expected in CASES:
            said = [problem for problem in problems if problem.split(":")[0] == path]
            if len(said) != bool(expected) or not all(expected in problem for problem in said):
                print(f"check-papers self-test: {path}: expected '{expected}', got {said}")
                failed += 1
    print(f"check-papers self-test: {f'{failed} of ' if failed else ''}{len(CASES)} cases{' failed' if failed else ''}")
    return int(failed > 0)


def main(words):
    if words == ["--self-test"]:
        return self_test()
    problems = check(words[0] if words else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    if problems:
        print("\n".join(problems))
        print(f"check-papers: {len(problems)} problem(s)")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
