"""What `upstream.py` says of repositories that are made here."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import upstream  # noqa: E402

ENTRY = """# A comment.
[[grammar]]
format = "tiny"
repository = "someone/tiny"
file = "train.py"
commit = "%s"
text = [
  'print(f"step {step} | loss {loss:.4f}")',
  "print(\\"done\\\\n\\")",
]

[[grammar]]
format = "ours"
none = "nobody's"
"""
TRAIN = 'def train():\n    print(f"step {step} | loss {loss:.4f}")\n    print("done\\n")\n'


class Upstream(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.checkouts = folder.name
        self.repository = os.path.join(folder.name, "someone+tiny", "repo")
        os.makedirs(self.repository)
        self.git("init", "--quiet")
        self.table = os.path.join(folder.name, "upstream.toml")
        self.commit("train.py", TRAIN)
        self.write_table(ENTRY % self.git("rev-parse", "HEAD").strip())

    def git(self, *arguments):
        person = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", "-C", self.repository] + person + list(arguments), check=True, stdout=subprocess.PIPE).stdout.decode()

    def commit(self, name, text):
        with open(os.path.join(self.repository, name), "w", encoding="utf-8") as f:
            f.write(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", name)

    def write_table(self, text):
        with open(self.table, "w", encoding="utf-8") as f:
            f.write(text)

    def run_it(self, *formats, checkouts=None):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = upstream.main([checkouts or self.checkouts] + list(formats) + ["--table", self.table])
        return status, out.getvalue() + err.getvalue()

    def test_nothing_changed(self):
        status, said = self.run_it()
        self.assertEqual(status, 0, said)
        self.assertIn("someone/tiny train.py: unchanged (", said)
        self.assertIn("no upstream: nobody's", said)
        self.assertIn("1 places compared, 0 different, 0 without a checkout", said)

    def test_a_format_string_that_changed_is_shown_as_it_is_now(self):
        self.commit("train.py", TRAIN.replace("{loss:.4f}", "{loss:.3f} | lr {lr}"))
        status, said = self.run_it("tiny")
        self.assertEqual(status, 1, said)
        self.assertIn('changed: print(f"step {step} | loss {loss:.4f}")', said)
        self.assertIn('line 2 is now  print(f"step {step} | loss {loss:.3f} | lr {lr}")', said)
        self.assertNotIn("done", said)

    def test_a_text_that_moved_or_is_gone(self):
        self.commit("metrics.py", TRAIN)
        self.commit("train.py", 'print("done\\n")\n')
        status, said = self.run_it()
        self.assertEqual(status, 1)
        self.assertRegex(said, r"moved: print\(f\"step.*\n    is now in metrics.py")
        self.commit("metrics.py", "")
        status, said = self.run_it()
        self.assertEqual(status, 1)
        self.assertIn('gone: print(f"step', said)

    def test_a_file_that_is_missing(self):
        self.git("mv", "train.py", "trainer.py")
        self.git("commit", "--quiet", "--message", "rename")
        status, said = self.run_it()
        self.assertEqual(status, 1)
        self.assertIn("file missing: train.py; its text is in trainer.py", said)

    def test_a_bare_repository_and_an_unpacked_package(self):
        self.commit("train.py", "\n")
        with tempfile.TemporaryDirectory() as other:
            self.git("clone", "--quiet", "--bare", self.repository, os.path.join(other, "tiny"))
            self.assertEqual(self.run_it(checkouts=other)[0], 1)
        with tempfile.TemporaryDirectory() as other:
            os.makedirs(os.path.join(other, "someone", "tiny"))
            with open(os.path.join(other, "someone", "tiny", "train.py"), "w", encoding="utf-8") as f:
                f.write(TRAIN)
            status, said = self.run_it(checkouts=other)
            self.assertEqual(status, 0, said)
            self.assertIn("not under git", said)

    def test_an_entry_that_was_never_true(self):
        with open(self.table, encoding="utf-8") as f:
            table = f.read()
        self.write_table(table.replace("step {step}", "iter {step}"))
        status, said = self.run_it()
        self.assertEqual(status, 1)
        self.assertIn("was never there: train.py at ", said)

    def test_what_has_ended_may_be_gone(self):
        with open(self.table, encoding="utf-8") as f:
            table = f.read()
        self.commit("train.py", "\n")
        self.write_table(table.replace("file =", 'ended = "prints JSON since 2026"\nfile ='))
        status, said = self.run_it()
        self.assertEqual(status, 0)
        self.assertIn("ended upstream: prints JSON since 2026", said)

    def test_what_has_no_place_is_counted_and_named(self):
        with open(self.table, "a", encoding="utf-8") as f:
            f.write('\n[[grammar]]\nformat = "last-words"\nwords = [\n  "loss is lost",\n]\nunverified = "in no public source"\n')
        status, said = self.run_it()
        self.assertEqual(status, 0, said)
        self.assertIn("NOT VERIFIED (loss is lost): in no public source", said)
        self.assertIn("1 places compared, 0 different, 0 without a checkout, 1 not verified", said)

    def test_a_last_word_that_changed(self):
        with open(self.table, encoding="utf-8") as f:
            table = f.read()
        self.write_table(table.replace('format = "tiny"', 'format = "last-words"\nwords = "done"'))
        self.commit("train.py", TRAIN.replace("done", "over"))
        status, said = self.run_it("last-words")
        self.assertEqual(status, 1, said)
        self.assertIn('changed: print("done\\n")', said)

    def test_nothing_to_compare_is_not_nothing_changed(self):
        with tempfile.TemporaryDirectory() as other:
            status, said = self.run_it(checkouts=other)
        self.assertEqual(status, 2)
        self.assertIn("NOT COMPARED, no checkout", said)
        self.assertIn("0 places compared, 0 different, 1 without a checkout", said)
        self.assertEqual(self.run_it("tidy")[0], 2)

    def test_mistakes_of_the_table_are_named_with_their_line(self):
        with open(self.table, encoding="utf-8") as f:
            good = f.read()
        for old, new, said in (
            ('format = "tiny"', 'format = tiny', "line 3: not a string: tiny"),
            ('commit = "', 'commit = "x', "line 2: commit: 40 hexadecimal digits"),
            ('file = "train.py"', "", "line 2: file is missing"),
            ('file = "train.py"', 'fiel = "train.py"', "line 5: expected [[grammar]] or one of commit, ended"),
            ("someone/tiny", "tiny", "line 2: repository: owner/name"),
            ('format = "tiny"', 'format = "last-words"', "line 2: words is missing"),
            ('format = "tiny"', 'format = "tiny"\nkinds = "step, stop"', "line 2: kinds: stop is none of checkpoint, end"),
            ('file = "train.py"', 'file = [', "line 5: not a string: ["),
            ("none =", 'file = "train.py"\nunverified =', "line 12: unverified stands in place of a repository"),
            ("none =", 'none = "a"\nunverified =', "line 12: none stands in place of a repository"),
        ):
            self.write_table(good.replace(old, new, 1))
            status, found = self.run_it()
            self.assertEqual(status, 2)
            self.assertIn(said, found)

    def test_our_table(self):
        with open(upstream.TABLE, encoding="utf-8") as f:
            text = f.read()
        entries = upstream.read(text.splitlines())
        self.assertGreater(len(entries), 40)
        if sys.version_info >= (3, 11):
            import tomllib

            for entry, full in zip(entries, tomllib.loads(text)["grammar"]):
                full["line"] = entry["line"]
                for key in upstream.LISTS & set(full):
                    full[key] = [full[key]] if isinstance(full[key], str) else full[key]
                self.assertEqual(entry, full)


if __name__ == "__main__":
    unittest.main()
