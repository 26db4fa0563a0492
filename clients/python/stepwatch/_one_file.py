"""How the client finds its modules when all of it is one file. The file ends with this one: see
``_bundle``."""

import importlib.abc
import importlib.machinery
import sys
from types import CodeType, ModuleType
from typing import Any, Mapping, Optional, Sequence


class Bundled(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads the modules of a package whose sources are in one file."""

    def __init__(self, package: str, file: str, sources: Mapping[str, str]) -> None:
        self._package, self._file, self._sources = package, file, sources

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        package, _, name = fullname.rpartition(".")
        if package != self._package or name not in self._sources:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=self._origin(name))
        spec.has_location = True  # tracebacks name it, and take the line from get_source
        return spec

    def get_source(self, fullname: str) -> str:
        return self._sources[self._name(fullname)]

    def get_code(self, fullname: str) -> CodeType:
        name = self._name(fullname)
        return compile(self._sources[name], self._origin(name), "exec", dont_inherit=True)

    def is_package(self, fullname: str) -> bool:
        return fullname == self._package

    def _name(self, fullname: str) -> str:
        return "__init__" if fullname == self._package else fullname.rpartition(".")[2]

    def _origin(self, name: str) -> str:
        return "%s/%s.py" % (self._file, name)


def install(this: Any, package: str, sources: Mapping[str, str]) -> None:
    """Makes ``this`` module the package; where it is being run, and is ``__main__``, makes the
    package beside it."""
    bundled = Bundled(package, this.__file__, sources)
    sys.meta_path.insert(0, bundled)
    if this.__name__ != package:
        main, this = this, ModuleType(package)
        this.__file__, this._SOURCES = main.__file__, sources
        sys.modules[package] = this
    this.__path__, this.__package__ = [], package
    if this.__spec__ is not None:
        this.__spec__.submodule_search_locations = this.__path__
    exec(bundled.get_code(package), this.__dict__)
