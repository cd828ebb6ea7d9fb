#!/usr/bin/python3
"""Tests that a framework brings itself: they pass on shoal."""

import sys

import frameworks_case
import running
import suite
import table

# Of accelerate.test_utils.scripts: what needs no GPU and no hub, and on how many ranks.
ACCELERATE = {"test_script": (2,), "test_ops": (2, 4), "test_sync": (2, 4)}
# One whose ranks call different collectives where there is no GPU: on Gloo they wait until somebody ends them.
DISAGREE = "test_distributed_data_loop"


class Own(frameworks_case.FrameworksCase):
    def run_on(self, on, framework, module, size):
        with table.reserved_port() as port:
            command = [*table.ACCELERATE, f"--num_processes={size}", f"--main_process_port={port}", "-m"]
            module = f"accelerate.test_utils.scripts.{module}"
            run = running.Running([[*command, module]], on, self.path, **framework.environment)
            try:
                return run.wait()
            finally:
                run.close()

    def check(self, framework, module, size):
        ours = self.run_on("shoal", framework, module, size)
        self.check_ended(ours, [0])
        self.assertIn(running.LINE, ours.text)

    def check_disagree(self, framework):
        ours = self.run_on("shoal", framework, DISAGREE, 2)
        self.check_ended(ours, [1])
        self.assertIn("differs between ranks", ours.text, ours.end())


(accelerate,) = (one for one in table.FRAMEWORKS if one.name == "accelerate")
for script, sizes in ACCELERATE.items():
    for ranks in sizes:
        check = lambda self, framework, words=(script, ranks): self.check(framework, *words)  # noqa: E731
        Own.add(accelerate, f"{script}_{ranks}_ranks", check, in_short=script != "test_sync" and ranks == 2)
Own.add(accelerate, DISAGREE, Own.check_disagree, in_short=False)

if __name__ == "__main__":
    sys.exit(suite.main())
