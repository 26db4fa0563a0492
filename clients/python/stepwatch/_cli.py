"""The command line. A command is one module, with ``arguments(parser)`` and
``run(options) -> exit status``, and one line here.

Only the module of the command that was asked for is imported.
"""

import argparse
import importlib
import sys
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from ._version import __version__

#: What sysexits.h calls EX_USAGE, and every program of ours answers to arguments that it does not
#: understand.
USAGE = 64

#: Name of the command: its module, and what it does.
COMMANDS: Dict[str, Tuple[str, str]] = {
    "run": ("_launch", "run a training command and report its output, exit code and last words"),
    "status": ("_status", "show where every training process of this node is, also while it hangs"),
    "mfu": ("_mfu_command", "calculate model FLOP/s utilisation from the dimensions of a model"),
    "bundle": ("_bundle", "write this client as one Python file, for machines where nothing can be installed"),
}


class Parser(argparse.ArgumentParser):
    """Prints what was wrong and how to get help, and exits with 64."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:  # here and not at the end, where it would be the main program's mistake
            self.error("unrecognized arguments: " + " ".join(unknown))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, "%s: %s\nTry '%s --help'.\n" % (self.prog, message, self.prog))


def main(arguments: Optional[List[str]] = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser(arguments[:1]).parse_args(arguments)
    if options.command is None:
        parser([]).print_help()
        return USAGE
    return int(options.execute(options))


def parser(first: List[str]) -> Parser:
    """The parser for a command line that begins with ``first``."""
    top = Parser(
        prog="stepwatch",
        description="Metrics of training runs: every step, from every framework.",
        epilog="'stepwatch COMMAND --help' describes a command.",
    )
    top.add_argument("--version", action="version", version="stepwatch " + __version__)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name, (module, does) in COMMANDS.items():
        command = commands.add_parser(name, help=does)
        if first == [name]:
            implementation: Any = importlib.import_module("." + module, __package__)
            implementation.arguments(command)
            command.set_defaults(execute=implementation.run)
    return top
