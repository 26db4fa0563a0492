#!/usr/bin/env python3
"""Reads again what the grammars follow, and reports where it changed.

`upstream.toml` names for each grammar the file of a trainer's source that prints what it reads, the commit at which that was
looked at, and the text that must stand there. This script looks for the same text in a checkout of today. What is marked as
not verified has no place that could be looked at, and is counted. A repository is a
work tree, a bare git directory or an unpacked package, below CHECKOUTS as `owner/name`, `owner+name`, `name`, or `repo` in one of these.

    python3 exporter/formats/upstream.py CHECKOUTS [FORMAT...]

Exit status: 0 if nothing changed, 1 if something did, 2 if `upstream.toml` is wrong or no repository was there to be read.
"""

import argparse
import difflib
import json
import os
import re
import subprocess
import sys

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "upstream.toml")
KEYS = {"format", "kinds", "words", "repository", "file", "commit", "release", "text", "ended", "none", "unverified"}
#: Keys that hold strings, one or a list of them.
LISTS = {"text", "words"}
#: The format whose entries name rows of the table of last words.
WORDS = "last-words"
#: What a line of a grammar may be.
KINDS = {"step", "eval", "checkpoint", "end", "hello"}
#: Keys that stand in place of a repository.
INSTEAD = ("none", "unverified")
#: Below this likeness another line is another line, and not the same one after a change.
ALIKE = 0.6
#: Lines of a file that are compared with a text that is gone: a generated file may have a million.
MAX_LINES = 20000
#: Other files that are named as the place to which a text has moved.
MAX_PLACES = 3


class Wrong(Exception):
    """A mistake in the table, with its line."""


def string(text, line):
    """A TOML string: '…' as it stands, "…" with escapes."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == "'" and "'" not in text[1:-1]:
        return text[1:-1]
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, str):
        raise Wrong("line %d: not a string: %s" % (line, text))
    return value


def read(lines):
    """The entries, in order. The part of TOML that the table is written in; Python reads TOML by itself only since 3.11."""
    entries, texts = [], None
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if texts is not None:
            if line == "]":
                texts = None
            else:
                texts.append(string(line.rstrip(","), number))
        elif line == "[[grammar]]":
            entries.append({"line": number})
        elif line and not line.startswith("#"):
            key, equals, value = (part.strip() for part in line.partition("="))
            if not equals or not entries or key not in KEYS or key in entries[-1]:
                raise Wrong("line %d: expected [[grammar]] or one of %s, each once" % (number, ", ".join(sorted(KEYS))))
            if value == "[" and key in LISTS:
                entries[-1][key] = texts = []
            else:
                entries[-1][key] = [string(value, number)] if key in LISTS else string(value, number)
    for entry in entries:
        check(entry)
    return entries


def check(entry):
    instead = [key for key in INSTEAD if key in entry]
    wanted = {"format", instead[0]} if instead else {"format", "repository", "file", "text"}
    if entry.get("format") == WORDS:
        wanted.add("words")
    lacking = wanted - set(entry)
    if lacking:
        raise Wrong("line %d: %s is missing" % (entry["line"], ", ".join(sorted(lacking))))
    if instead and len(entry) > len(wanted | {"line"} | ({"kinds"} & set(entry))):
        raise Wrong("line %d: %s stands in place of a repository, and of all that is said of one" % (entry["line"], instead[0]))
    unknown = {kind.strip() for kind in entry.get("kinds", "step").split(",")} - KINDS
    if unknown:
        raise Wrong("line %d: kinds: %s is none of %s" % (entry["line"], ", ".join(sorted(unknown)), ", ".join(sorted(KINDS))))
    if entry.get("words") == []:
        raise Wrong("line %d: words is empty" % entry["line"])
    if not instead:
        check_place(entry)


def check_place(entry):
    if ("commit" in entry) == ("release" in entry):
        raise Wrong("line %d: give either commit or release" % entry["line"])
    if not re.fullmatch("[0-9a-f]{40}", entry.get("commit", "0" * 40)):
        raise Wrong("line %d: commit: 40 hexadecimal digits" % entry["line"])
    if not re.fullmatch("[^/ ]+/[^/ ]+", entry["repository"]):
        raise Wrong("line %d: repository: owner/name" % entry["line"])
    if not entry["text"]:
        raise Wrong("line %d: text is empty" % entry["line"])


class Checkout:
    """The newest files of a repository, and those of a commit where it has them."""

    def __init__(self, folder):
        self.folder = folder
        self.is_git = git(folder, "rev-parse", "--git-dir") is not None and not self.below_another()

    def below_another(self):
        """Whether the work tree is that of a directory further up: a package that was unpacked within a checkout of ours."""
        top = git(self.folder, "rev-parse", "--show-toplevel")
        return bool(top) and os.path.realpath(top.strip()) != os.path.realpath(self.folder)

    def version(self):
        head = git(self.folder, "log", "-1", "--format=%h of %cs") if self.is_git else None
        return (head or "not under git").strip()

    def file(self, path, at="HEAD"):
        """Its text, or None."""
        if self.is_git:
            return git(self.folder, "show", "%s:%s" % (at, path))
        try:
            with open(os.path.join(self.folder, path), encoding="utf-8", errors="replace") as f:
                return f.read()
        except OSError:
            return None

    def has(self, revision):
        return self.is_git and git(self.folder, "cat-file", "-e", revision + "^{commit}") is not None

    def places(self, text):
        """Other files that hold it."""
        if not self.is_git:
            return []
        found = git(self.folder, "grep", "-l", "-I", "-F", "-e", text, "HEAD") or ""
        return [line.partition(":")[2] for line in found.splitlines()][:MAX_PLACES]


def git(folder, *arguments):
    """What it prints, or None where it fails."""
    done = subprocess.run(["git", "-C", folder] + list(arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def find(checkouts, repository):
    owner, name = repository.split("/")
    for folder in (os.path.join(owner, name), "%s+%s" % (owner, name), name):
        for folder in (os.path.join(checkouts, folder, "repo"), os.path.join(checkouts, folder)):
            if os.path.isdir(folder):
                return Checkout(folder)
    return None


def nearest(text, content):
    """The line that is most like a text, with its number; None where nothing is."""
    best, found = ALIKE, None
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(text)
    for number, line in enumerate(content.splitlines()[:MAX_LINES], 1):
        line = line.strip()
        matcher.set_seq1(line)
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
            best, found = matcher.ratio(), (number, line)
    return found


def compare(entry, checkout):
    """What is different, in sentences; empty if nothing is."""
    said = []
    then = entry.get("commit") or entry["release"]
    if checkout.has(then):
        old = checkout.file(entry["file"], then)
        for text in entry["text"]:
            if old is None or text not in old:
                said.append("was never there: %s at %s has no  %s" % (entry["file"], then[:12], text))
    if said or "ended" in entry:
        return said
    content = checkout.file(entry["file"])
    if content is None:
        places = checkout.places(entry["text"][0])
        return ["file missing: %s%s" % (entry["file"], "; its text is in " + ", ".join(places) if places else "")]
    for text in entry["text"]:
        if text in content:
            continue
        line = nearest(text, content)
        places = [place for place in checkout.places(text) if place != entry["file"]]
        if places:
            said.append("moved: %s\n    is now in %s" % (text, ", ".join(places)))
        elif line:
            said.append("changed: %s\n    line %d is now  %s" % ((text,) + line))
        else:
            said.append("gone: %s" % text)
    return said


def report(entries, checkouts):
    """Prints a line an entry; how many were compared, and how many differ."""
    compared = different = 0
    known = {}
    for entry in entries:
        if "none" in entry:
            print("%-18s no upstream: %s" % (entry["format"], entry["none"]))
            continue
        if "unverified" in entry:
            about = " (%s)" % ", ".join(entry["words"]) if "words" in entry else ""
            print("%-18s NOT VERIFIED%s: %s" % (entry["format"], about, entry["unverified"]))
            continue
        repository = entry["repository"]
        if repository not in known:
            known[repository] = find(checkouts, repository)
        checkout = known[repository]
        where = "%-18s %s %s" % (entry["format"], repository, entry["file"])
        if checkout is None:
            print("%s: NOT COMPARED, no checkout" % where)
            continue
        compared += 1
        said = compare(entry, checkout)
        different += bool(said)
        verdict = "DIFFERENT" if said else "ended upstream: " + entry["ended"] if "ended" in entry else "unchanged"
        print("%s: %s (%s)" % (where, verdict, checkout.version()))
        for sentence in said:
            print("  " + sentence)
    return compared, different


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", help="a directory of checkouts")
    parser.add_argument("formats", nargs="*", help="only these grammars")
    parser.add_argument("--table", default=TABLE, help="default: upstream.toml beside this script")
    options = parser.parse_args(arguments)
    try:
        with open(options.table, encoding="utf-8") as f:
            entries = read(f)
    except (OSError, Wrong) as e:
        print("%s: %s" % (options.table, e), file=sys.stderr)
        return 2
    unknown = set(options.formats) - {entry["format"] for entry in entries}
    if unknown:
        print("no such format in %s: %s" % (options.table, ", ".join(sorted(unknown))), file=sys.stderr)
        return 2
    entries = [entry for entry in entries if not options.formats or entry["format"] in options.formats]
    compared, different = report(entries, options.checkouts)
    missed = sum(not any(key in entry for key in INSTEAD) for entry in entries) - compared
    unverified = sum("unverified" in entry for entry in entries)
    counts = (compared, different, missed, unverified)
    print("%d places compared, %d different, %d without a checkout, %d not verified" % counts)
    return 2 if not compared else 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
