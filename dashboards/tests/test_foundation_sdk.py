"""The dashboards are what Grafana's own types say: read by Grafana's foundation SDK and written
again, they have lost nothing. A misspelt key, or one in the wrong place, would be lost.

    pip install 'grafana-foundation-sdk==1769699379!11.6.0'
    python -m unittest -v test_foundation_sdk
"""

import json
import os
import unittest
from pathlib import Path

try:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard
except ImportError:
    if os.environ.get("STEPWATCH_REQUIRE_PEERS") == "1":
        raise
    Dashboard = None

BOARDS = sorted(Path(__file__).parent.parent.glob("*.json"))

# Keys that Grafana reads and its types do not have: those of annotations by Prometheus
# (public/app/features/annotations and packages/grafana-prometheus of github.com/grafana/grafana).
NOT_IN_THE_TYPES = {"step", "titleFormat", "textFormat"}


def lost(before, after, path=""):
    """Every path of `before` that is not in `after`, or is something else there."""
    if isinstance(before, dict):
        if not isinstance(after, dict):
            yield path
            return
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{path}/{key}")
            elif not (path.startswith("/annotations") and key in NOT_IN_THE_TYPES):
                yield f"{path}/{key}"
    elif isinstance(before, list):
        if not isinstance(after, list) or len(before) != len(after):
            yield path
            return
        for i, (one, other) in enumerate(zip(before, after)):
            yield from lost(one, other, f"{path}/{i}")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


@unittest.skipIf(Dashboard is None, "grafana-foundation-sdk is not installed")
class RoundTrip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Without them the options of panels would be passed through unread.
        register_default_plugins()

    def again(self, board):
        return json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))

    def test_every_dashboard_survives_grafanas_own_types(self):
        self.assertGreaterEqual(len(BOARDS), 9)
        for path in BOARDS:
            with self.subTest(path.name):
                board = json.loads(path.read_text())
                self.assertEqual(list(lost(board, self.again(board))), [])

    def test_a_misspelt_key_is_lost(self):
        board = json.loads((BOARDS[0].parent / "fleet.json").read_text())
        panel = next(p for p in board["panels"] if p["type"] == "stat")
        panel["options"]["colourMode"] = panel["options"].pop("colorMode")
        self.assertTrue(any(p.endswith("/options/colourMode") for p in lost(board, self.again(board))))


if __name__ == "__main__":
    unittest.main()
