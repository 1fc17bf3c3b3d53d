"""The crash matrix behind `scripts/chaos`: what is killed, stopped, full or damaged, nothing is lost, doubled or run again.

One JSON line per scenario: what was counted, whether the fault fired, and the problems if there were any. A scenario whose
fault did not fire has failed. What a failed one leaves lies below .state/chaos.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys

from chaos_parts.world import Scenario, Skipped, run_scenario
from chaos_scenarios import everything, quick
from stack import ROOT, running_stack


def main() -> int:
    """Run what was asked for; 1 when a scenario failed."""
    arguments = _arguments()
    scenarios = quick() if arguments.quick else everything()
    if arguments.only:
        scenarios = [scenario for scenario in scenarios if any(only in scenario.name for only in arguments.only)]
        if not scenarios:
            print(f"chaos: no scenario is called {' or '.join(arguments.only)}; see --list", file=sys.stderr)
            return 2
    if arguments.list:
        print("\n".join(scenario.name for scenario in scenarios))
        return 0
    return _run(scenarios)


def _run(scenarios: list[Scenario]) -> int:
    directory = ROOT / ".state" / "chaos"
    shutil.rmtree(directory, ignore_errors=True)
    passed = failed = 0
    with running_stack(directory / "triton") as stack:
        triton = stack.triton(first_token_ms=20)
        for scenario in scenarios:
            place = directory / re.sub(r"[^A-Za-z0-9.]+", "-", scenario.name)
            try:
                line = run_scenario(scenario, place, triton)
            except Skipped as exc:
                line = {"scenario": scenario.name, "skipped": str(exc)}
            print(json.dumps(line, ensure_ascii=False), flush=True)
            if line.get("passed"):
                shutil.rmtree(place)
            passed += line.get("passed") is True
            failed += line.get("passed") is False
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the scenarios, and run none")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="those whose name contains this; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="every crash point once, and nothing else")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
