"""The command line as people meet it: what --help says, and what a mistake costs."""

import os
import re
import unittest

from support import ROOT, Case

from stepwatch import _cli


class Help(Case):
    def command(self, *arguments):
        code, out, err = self.program("-m", "stepwatch", *arguments, COLUMNS="120", NO_COLOR="1")
        self.assertEqual("Traceback" in out + err, False, err)
        return code, out, err

    def test_the_commands_are_listed(self):
        for arguments in (["--help"], ["-h"]):
            code, out, err = self.command(*arguments)
            self.assertEqual((code, err), (0, ""))
            for name, (_, does) in _cli.COMMANDS.items():
                self.assertRegex(out, r"\n    %s +%s" % (name, re.escape(does[:40])))

    def test_every_command_explains_itself(self):
        for name in _cli.COMMANDS:
            code, out, err = self.command(name, "--help")
            self.assertEqual((code, err), (0, ""), name)
            self.assertTrue(out.startswith("usage: stepwatch %s" % name), out)
            for line in out.splitlines():
                self.assertLessEqual(len(line), 130, name)

    def test_nothing_is_a_mistake_that_shows_the_help(self):
        code, out, err = self.command()
        self.assertEqual((code, err), (64, ""))
        self.assertIn("stepwatch COMMAND --help", out)

    def test_mistakes_end_with_64_and_one_hint(self):
        for arguments, hint in (
            (["nonsense"], "stepwatch"), (["--nonsense"], "stepwatch"), (["status", "--nonsense"], "stepwatch status"),
            (["bundle", "-o"], "stepwatch bundle"), (["run", "--rank", "x", "--", "true"], "stepwatch run"),
        ):
            code, out, err = self.command(*arguments)
            self.assertEqual((code, out), (64, ""), arguments)
            self.assertTrue(err.endswith("Try '%s --help'.\n" % hint), err)

    def test_only_what_was_asked_for_is_imported(self):
        status, out, _ = self.script("""
            import sys
            from stepwatch import _cli
            try:
                _cli.main(["status", "--dir", "/nonexistent"])
            except SystemExit:
                pass
            print(*[m for m in sys.modules if m in ("stepwatch._launch", "stepwatch._mfu", "stepwatch._bundle", "stepwatch.torch")])
        """)
        self.assertEqual(out.splitlines()[-1], "")

    def test_every_command_is_in_the_readme(self):
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
            readme = f.read()
        for name in _cli.COMMANDS:
            self.assertIn("`stepwatch %s" % name, readme)


if __name__ == "__main__":
    unittest.main()
