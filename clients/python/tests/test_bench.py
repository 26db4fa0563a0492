"""How `bench/bench_step.py --check` judges: a slow client is distinguished from a slow machine, and
a slow machine is no excuse without limit."""

import os
import sys
import unittest

from support import ROOT

sys.path.insert(0, os.path.join(ROOT, "bench"))
import bench_step as bench  # noqa: E402


def row(p50=1.0, p99=8.0, empty=0.3, empty_p99=2.0, peer=0.6, age=0.01):
    """What a receiver gave, of microseconds and of the seconds that a step takes to arrive."""
    def spread(median, tail):
        return sorted([median * 1e3] * 98 + [tail * 1e3] * 2)

    return bench.Row(spread(p50, p99), spread(empty, empty_p99), spread(peer, 3 * peer), [age], 0, 0.0, 0.0)


class Judging(unittest.TestCase):
    def judge(self, *rows):
        measured = []

        def measure(attempt):
            measured.append(attempt)
            return rows[min(attempt, len(rows) - 1)]

        return bench.judge(measure, pause=0.0), len(measured)

    def test_a_good_row_is_measured_once(self):
        self.assertEqual(self.judge(row()), (None, 1))

    def test_a_miss_is_measured_again_and_stays_one(self):
        self.assertEqual(self.judge(row(p50=2.5)), ("missed", bench.ATTEMPTS))
        self.assertEqual(self.judge(row(p99=13.0)), ("missed", bench.ATTEMPTS))
        self.assertEqual(self.judge(row(age=0.2)), ("missed", bench.ATTEMPTS))
        self.assertEqual(self.judge(row(p99=13.0), row()), (None, 2))

    def test_a_slower_machine_widens_the_targets_but_not_the_ratio(self):
        self.assertEqual(self.judge(row(p50=4.0, p99=30.0, empty=1.0, empty_p99=10.0, peer=2.0)), (None, 1))
        self.assertEqual(self.judge(row(p50=4.0, p99=30.0, empty=1.0, empty_p99=10.0, peer=0.6))[0], "missed")

    def test_a_machine_without_time_is_no_excuse(self):
        worst = row(p50=20.0, p99=900.0, empty=10.0, empty_p99=1000.0, peer=20.0)
        self.assertEqual(self.judge(worst), ("not measured: the machine is too busy", bench.BUSY_ATTEMPTS))
        self.assertEqual(self.judge(worst, worst, row()), (None, 3))


if __name__ == "__main__":
    unittest.main()
