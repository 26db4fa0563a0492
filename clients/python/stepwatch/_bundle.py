"""``stepwatch bundle``: the whole client as one Python file, for clusters where nothing can be
installed.

The file holds the source of every module as it is, readable and with its own line numbers. Imported
as ``stepwatch`` it stands in for the package, and run it is the command line.
"""

import argparse
import hashlib
import os
import pkgutil
import sys
import tempfile
from typing import Any, Dict

from ._version import __version__

_PACKAGE = "stepwatch"
#: The variable that holds the sources, in the file.
_SOURCES = "_SOURCES"

DESCRIPTION = """\
Writes the client as ONE Python file that needs nothing but Python 3.8 or later. Beside the training script,

  import stepwatch, import stepwatch.torch, ...  work as if it were installed
  python stepwatch.py run -- python train.py     is the command line
"""

_HEAD = """\
# Stepwatch %s for Python, all of it in one file to be put beside a training script:
#
#     import stepwatch
#     with stepwatch.Run("llama-70b") as run:
#         run.step(step, loss=loss, grad_norm=norm, lr=lr, tokens=tokens)
#
# or, with no change to the script: python stepwatch.py run -- python train.py
#
# Made by "stepwatch bundle" from the package of that name, which is the place for changes. Licence: Apache-2.0.
# SHA-256 of what it holds: %s

%s = {}
"""

_TAIL = """

install(sys.modules[__name__], %r, %s)

if __name__ == "__main__":
    from stepwatch._cli import main

    sys.exit(main())
"""


def arguments(parser: Any) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="stepwatch.py", help="where to write it (default: %(default)s; -: standard output)"
    )


def run(options: Any) -> int:
    bundle = build()
    if options.output == "-":
        sys.stdout.write(bundle)
        return 0
    try:
        _write(options.output, bundle.encode("utf-8"))
    except OSError as e:
        print("stepwatch bundle: %s: %s" % (options.output, e.strerror), file=sys.stderr)
        return 1
    print("%s: stepwatch %s, %d KiB" % (options.output, __version__, len(bundle) // 1024))
    return 0


def build() -> str:
    """The text of the file; that of a bundle is its own."""
    package: Any = sys.modules[_PACKAGE]
    sources: Dict[str, str] = getattr(package, _SOURCES, None) or _sources(package.__path__[0])
    digest = hashlib.sha256("\0".join("%s\0%s" % pair for pair in sorted(sources.items())).encode("utf-8")).hexdigest()
    parts = [_HEAD % (__version__, digest, _SOURCES)]
    parts += ["\n%s[%r] = %s\n" % (_SOURCES, name, literal(source)) for name, source in sorted(sources.items())]
    return "".join(parts) + "\n" + sources["_one_file"] + _TAIL % (_PACKAGE, _SOURCES)


def _sources(folder: str) -> Dict[str, str]:
    sources: Dict[str, str] = {}
    for name in ["__init__"] + [module.name for module in pkgutil.iter_modules([folder])]:
        if name != "__main__":
            with open(os.path.join(folder, name + ".py"), encoding="utf-8") as f:
                sources[name] = f.read()
    return sources


def literal(source: str) -> str:
    """``source`` as a literal: as it reads, where that is possible."""
    quotes = 3 * "'"
    plain = all(c.isprintable() or c == "\n" for c in source)
    if plain and quotes not in source and not source.endswith(("'", "\\")):
        return "r" + quotes + source + quotes
    return repr(source)


def _write(path: str, content: bytes) -> None:
    """All of it or nothing: a job that starts meanwhile must not import half a file."""
    fd, new = tempfile.mkstemp(prefix=".stepwatch", dir=os.path.dirname(os.path.abspath(path)))
    try:
        with open(fd, "wb") as f:
            f.write(content)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(new, 0o666 & ~umask)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
