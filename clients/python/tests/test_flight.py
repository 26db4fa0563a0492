"""Values on their way from a device: in order, never waited for, never in the way of what comes
after."""

import unittest

from support import ROOT  # noqa: F401

from stepwatch._flight import MAX_IN_FLIGHT, MAX_REPORTED, InFlight


class Value:
    def __init__(self, value, landed=False, error=None):
        self.value, self.here, self.error = value, landed, error

    def landed(self, newest):
        if self.error:
            raise self.error
        return self.here

    def read(self):
        if self.error:
            raise self.error
        self.here = True
        return self.value


def start(value):
    if isinstance(value, Exception):
        raise value
    return value if isinstance(value, Value) else Value(value, True)


class Flight(unittest.TestCase):
    def setUp(self):
        self.flight, self.seen = InFlight(start), []

    def put(self, **values):
        self.flight.put(values, self.seen.append)

    def test_reports_leave_in_order(self):
        late = Value(1.0)
        self.put(loss=late)
        self.put(loss=2.0)
        self.assertEqual(self.seen, [])
        late.here = True
        self.flight.poll()
        self.assertEqual(self.seen, [{"loss": 1.0}, {"loss": 2.0}])

    def test_the_end_waits_and_an_exception_gives_up(self):
        self.put(loss=Value(1.0))
        self.flight.poll(wait=True)
        self.put(loss=Value(1.0), lr=0.5)
        with self.assertLogs("stepwatch", "WARNING"):
            self.flight.poll(give_up=True)
        self.assertEqual((self.seen, self.flight.given_up), ([{"loss": 1.0}, {"lr": 0.5}], 1))

    def test_a_device_that_hangs_holds_back_so_much_and_no_more(self):
        with self.assertLogs("stepwatch", "WARNING") as logs:
            for _ in range(MAX_IN_FLIGHT + 3):
                self.put(loss=Value(1.0), lr=0.5)
        self.assertEqual((self.seen, self.flight.given_up, len(logs.output)), ([{"lr": 0.5}] * 3, 3, 1))

    def test_a_device_in_error_holds_back_nothing(self):
        self.put(loss=Value(1.0, error=RuntimeError("CUDA error: an illegal memory access")), lr=0.5)
        self.assertEqual(self.seen, [{"lr": 0.5}])

    def test_what_is_no_number_is_left_out_and_reported_once(self):
        with self.assertLogs("stepwatch", "WARNING") as logs:
            for _ in range(3):
                self.put(loss=ValueError("it has 3 elements"), lr=0.5)
            for i in range(2 * MAX_REPORTED):
                self.put(**{"m%d" % i: ValueError("no")})
        self.assertEqual(self.seen[:3], [{"lr": 0.5}] * 3)
        self.assertEqual(len(logs.output), MAX_REPORTED)
        self.assertIn("'loss' is left out: it has 3 elements", logs.output[0])


if __name__ == "__main__":
    unittest.main()
