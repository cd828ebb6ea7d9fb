#!/usr/bin/python3
"""The native backend and libshoal under a sanitizer, on two ranks: of addresses in `make check-asan`, of threads in
`make check-tsan`.

Neither Python nor torch is made with it. For this reason the sanitizer's library is loaded before them. Leaks are not
looked for: those that Python leaves at its end are many. Accesses of torch's own code to memory are not looked at
either."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
import unittest

import suite


@dataclasses.dataclass(frozen=True)
class Sanitizer:
    libraries: tuple
    options: dict


SANITIZERS = {
    "asan": Sanitizer(
        ("libasan.so", "libubsan.so"),
        {
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:exitcode=99",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:exitcode=98",
        },
    ),
    "tsan": Sanitizer(
        ("libtsan.so",),
        {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66:second_deadlock_stack=1:ignore_noninstrumented_modules=1"},
    ),
}
LIMIT_S = 170  # a backstop: under a sanitizer all takes longer
# The default group's backend, and the cases that were written for it.
IN_MEMORY = (
    "ranks_types.test_all_reduce_of_every_type",
    "ranks_collectives.test_all_gather",
    "ranks_collectives.test_reduce_scatter",
    "ranks_collectives.test_gather_and_scatter",
    "ranks_collectives.test_all_to_all_in_one_tensor",
    "ranks_collectives.test_send_and_receive",
    "ranks_collectives.test_receive_from_any_rank",
    "ranks_collectives.test_many_in_flight",
    "ranks_collectives.test_futures",
    "ranks_collectives.test_a_wait_with_a_timeout",
    "ranks_collectives.test_a_receive_whose_wait_has_expired",
    "ranks_collectives.test_coalesced",
    "ranks_native.test_futures_and_what_hangs_on_them",
    "ranks_native.test_a_work_that_nobody_keeps",
    "ranks_native.test_many_at_once",
    "ranks_native.test_threads_use_groups_of_their_own",
    "ranks_native.test_a_timeout_names_the_call_and_ends_the_group",
    "ranks_groups.test_a_wait_does_not_hold_up_other_threads",
    "ranks_groups.test_a_callback_that_waits_for_another_collective",
)
OF_BACKENDS = (
    "ranks_backend.test_timeouts",
    "ranks_backend.test_abort_frees_a_waiter",
    "ranks_backend.test_parts_of_a_group",
    "ranks_backend.test_a_receive_from_any_rank",
    "ranks_backend.test_errors_keep_their_class_in_backward",
)


def sanitizer_of(build):
    return next((name for name in SANITIZERS if name in build), None)


def path_of(library):
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    said = subprocess.run([*compiler, f"-print-file-name={library}"], stdout=subprocess.PIPE, text=True, check=True)
    return said.stdout.strip()


class Sanitized(unittest.TestCase):
    def run_cases(self, default, cases):
        sanitizer = SANITIZERS[sanitizer_of(suite.BUILD.name)]
        # libstdc++ is there before the sanitizer looks for what it replaces.
        preload = f"LD_PRELOAD={':'.join(map(path_of, (*sanitizer.libraries, 'libstdc++.so')))}"
        options = [f"{name}={value}" for name, value in sanitizer.options.items()]
        ranks = ["env", preload, *options, sys.executable, suite.RANKS / "ranks_sanitized.py", default, *cases]
        command = [suite.BUILD / "bin" / "shoalrun", "--timeout", LIMIT_S - 20, "-n", 2, "--", *ranks]
        done = suite.run(command, limit_s=LIMIT_S, SHOAL_NATIVE="1")
        wanted = "".join(f'RESULT ["{path.split(".")[1]}", ""]\n' for path in cases)
        results = "".join(re.findall(r"^RESULT .*\n", done.stdout, re.MULTILINE))
        self.assertEqual((done.returncode, results), (0, wanted), done.stdout)

    def test_collectives_messages_and_timeouts(self):
        self.run_cases("gloo", IN_MEMORY)

    def test_groups_and_their_end(self):
        self.run_cases("shoal", OF_BACKENDS)


def why_not():
    if not sanitizer_of(suite.BUILD.name):
        return "nothing is made with a sanitizer here"
    return suite.reason_to_skip(sanitized=True) or suite.reason_without_native()


if __name__ == "__main__":
    sys.exit(suite.main(why_not))
