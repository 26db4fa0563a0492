import os
import time
import unittest

from support import Case, until

from stepwatch import _identity

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "64", "SLURM_LOCALID": "3", "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"}
MPI = {"OMPI_COMM_WORLD_RANK": "7", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "7"}


class Detection(unittest.TestCase):
    def check(self, env, *want):
        self.assertEqual(tuple(_identity.detect(env)), want)

    def test_launchers(self):
        self.check({}, None, None, None, None, None)
        self.check(TORCHRUN, 5, 16, 1, None, 2)
        self.check(SLURM, 3, 64, 3, "4711", 1)
        self.check(MPI, 7, 8, 7, None, None)
        self.check({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}, 2, 4, 0, None, None)
        self.check({"PMIX_RANK": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}, 2, 4, 1, None, None)

    def test_one_launcher_answers_for_all_three(self):
        inherited = dict(SLURM, SLURM_PROCID="0", SLURM_NTASKS="1", SLURM_LOCALID="0")
        self.check(dict(inherited, **TORCHRUN), 5, 16, 1, "4711", 3)
        self.check(dict(inherited, **MPI), 7, 8, 7, "4711", 1)
        self.check(dict(inherited, RANK="9"), 9, None, None, "4711", 1)

    def test_a_step_of_a_job_beats_the_job(self):
        self.check(dict(SLURM, SLURM_STEP_NUM_TASKS="8"), 3, 8, 3, "4711", 1)

    def test_nonsense_is_absent(self):
        self.check({"RANK": "", "WORLD_SIZE": "many", "LOCAL_RANK": "-1", "SLURM_JOB_ID": ""}, None, None, None, None, None)
        self.check({"RANK": "1", "WORLD_SIZE": "many", "LOCAL_RANK": "-1"}, 1, None, None, None, None)


class Times(unittest.TestCase):
    def test_what_a_scheduler_says(self):
        self.assertEqual(_identity.times({}), {})
        self.assertEqual(_identity.times({"SLURM_JOB_START_TIME": "1795227416"}), {"allocated": 1795227416})
        ours = {"STEPWATCH_JOB_SUBMITTED": "1795220000", "STEPWATCH_JOB_STARTED": "1795227000"}
        self.assertEqual(
            _identity.times(dict(ours, SLURM_JOB_START_TIME="1795227416")),
            {"submitted": 1795220000, "allocated": 1795227000},
        )
        for nonsense in ("", "0", "-5", "soon", "1e9"):
            self.assertEqual(_identity.times({"SLURM_JOB_START_TIME": nonsense}), {})

    def test_when_this_process_began(self):
        began = _identity.started()
        self.assertIsNotNone(began)
        self.assertLess(abs(time.time() - began), 24 * 3600)


class InTheRun(Case):
    def test_hello_carries_what_the_launcher_says(self):
        receiver = self.receiver()
        os.environ.update(TORCHRUN, SLURM_JOB_ID="4711", SLURM_RESTART_COUNT="1")
        try:
            self.run_("r")
        finally:
            for key in list(TORCHRUN) + ["SLURM_JOB_ID", "SLURM_RESTART_COUNT"]:
                del os.environ[key]
        hello = until(lambda: receiver.events("hello"))[0]
        self.assertEqual({k: hello[k] for k in ("rank", "world", "local_rank", "job", "attempt_hint")},
                         {"rank": 5, "world": 16, "local_rank": 1, "job": "4711", "attempt_hint": 3})

    def test_arguments_beat_the_environment(self):
        receiver = self.receiver()
        os.environ.update(TORCHRUN)
        try:
            self.run_("r", rank=1, world=2)
        finally:
            for key in TORCHRUN:
                del os.environ[key]
        hello = until(lambda: receiver.events("hello"))[0]
        self.assertEqual((hello["rank"], hello["world"]), (1, 2))

    def test_alone(self):
        receiver = self.receiver()
        self.run_("r")
        hello = until(lambda: receiver.events("hello"))[0]
        self.assertEqual((hello["rank"], hello["world"]), (0, 1))


if __name__ == "__main__":
    unittest.main()
