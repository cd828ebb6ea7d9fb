#!/usr/bin/env python3
"""Holds how comments of C and C++ begin. A line per violation: FILE:LINE: the words.

    check-comments.py [PATH...]      sources and folders; default: all of the tree that this script is in
    check-comments.py --self-test    shows that each rule catches what it is there for

No sentence of a comment begins with a word of ANYWHERE, which comes before the sentence has a subject. The
first one does not begin with a pronoun of FIRST either: what it would stand for is outside the comment.
"""
import os
import re
import subprocess
import sys

ANYWHERE = ("Of", "As", "So", "Else", "Likewise", "What", "Who", "Whose", "Those", "The same", "In which", "To which",
            "With which", "By which", "Nor", "But", "Which", "Whom", "Also", "Or")
FIRST = ("It", "They", "He", "She",
         "(?:This|These|That|One|Both|Neither|Either)(?= (?:is|are|has|have|was|were|does|do|may|must|can|will|would"
         "|that|who|which|whose|of)\\b)")
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*(.*?)\*/|//([^\n]*)', re.DOTALL)
SENTENCE = re.compile(r"(?:^|(?<=[.!?]))\s+(?=[A-Z])")
# A colon after the word makes it a label, an upper-case word beside it a name.
BEGINS = r"(?:%s)\b(?!:)"
REFUSED = re.compile(BEGINS % "|".join(ANYWHERE))
REFUSED_FIRST = re.compile(BEGINS % "|".join(ANYWHERE + FIRST))
SOURCES = (".c", ".h", ".cpp", ".hpp")


def faults(text):
    """(offset, the words it begins with) of each sentence that begins so."""
    for found in COMMENT.finditer(text):
        body = found[1] if found[1] is not None else found[2]
        if body is None:  # a string
            continue
        start = found.start(1) if found[1] is not None else found.start(2)
        # Stars at the beginning of lines are blanks, so that offsets stay.
        body = " " + re.sub(r"\n[ \t]*\*", lambda star: "\n" + " " * (len(star[0]) - 1), body)
        for number, sentence in enumerate(SENTENCE.finditer(body)):
            rest = body[sentence.end():]
            if (REFUSED if number else REFUSED_FIRST).match(rest):
                yield start + sentence.end() - 1, " ".join(rest[:60].split())


def sources(root, paths):
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "--",
                             *(os.path.abspath(path) for path in paths)],
                            text=True, check=True, stdout=subprocess.PIPE)
    return [path for path in listed.stdout.splitlines()
            if path.endswith(SOURCES) and os.path.exists(os.path.join(root, path))]


def self_test():
    cases = (
        ("int a; /* Of the peers. */", 1),
        ("/* Return the rank. So it is. */", 1),
        ("/* Return it,\n * as so often. But not now. */", 1),
        ("/* The same\n   as before. */", 1),
        ("/* It is here. */", 1),
        ("// What it is\n", 1),
        ("/* The job. It is here, as it was. */", 0),
        ("/* Ask so often. */ const char *text = \"/* So */\";", 0),
        ("/* One that waits. */", 1),
        ("/* One: the first. */", 0),
        ("/* One block of a key. This rank waits. */", 0),
        ("/* Software. */", 0),
    )
    for text, expected in cases:
        found = list(faults(text))
        if len(found) != expected:
            sys.exit(f"check-comments.py: {text!r} has {len(found)} faults, not {expected}: {found}")


def main(words):
    if words == ["--self-test"]:
        self_test()
        return 0
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    status = 0
    for path in sources(root, words or [root]):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        for offset, said in faults(text):
            line = text.count("\n", 0, offset) + 1
            print(f"{path}:{line}: a comment's sentence begins with \"{said} ...\": begin with its subject")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
