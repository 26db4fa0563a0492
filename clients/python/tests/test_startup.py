import sys
import types
import unittest

from support import Case, until

from stepwatch import _startup


class FakeDistributed(types.ModuleType):
    """What ``_startup`` sees of ``torch.distributed``."""

    def __init__(self, made=False):
        super().__init__("torch.distributed")
        self.made, self.calls = made, []

        def init_process_group(backend, fail=False):
            """Makes the group."""
            self.calls.append(backend)
            if fail:
                raise RuntimeError("Timeout waiting for key: default_pg/0/0")
            self.made = True
            return "group"

        self.init_process_group = init_process_group

    def is_available(self):
        return True

    def is_initialized(self):
        return self.made

    def get_rank(self):
        return 1

    def get_world_size(self):
        return 2


class ProcessGroup(Case):
    def install(self, fake):
        inner = types.ModuleType("torch.distributed.distributed_c10d")
        inner.init_process_group = fake.init_process_group
        for name, module in (("torch.distributed", fake), ("torch.distributed.distributed_c10d", inner)):
            self.addCleanup(sys.modules.pop, name, None)
            sys.modules[name] = module
        self.addCleanup(setattr, _startup, "_sender", None)
        return inner

    def phases(self, receiver):
        return [(e["name"], e["phase"]) for e in receiver.events("phase")]

    def test_it_is_announced_and_does_what_it_did(self):
        receiver, fake = self.receiver(), FakeDistributed()
        inner = self.install(fake)
        self.run_("r", rank=0, world=2)
        self.assertEqual(fake.init_process_group("nccl"), "group")
        self.assertIs(inner.init_process_group, fake.init_process_group)
        self.assertEqual((fake.calls, fake.init_process_group.__doc__), (["nccl"], "Makes the group."))
        until(lambda: self.phases(receiver) == [("init", "begin"), ("init", "end")])

    def test_one_that_fails_ends_too(self):
        receiver, fake = self.receiver(), FakeDistributed()
        self.install(fake)
        self.run_("r", rank=0, world=2)
        with self.assertRaisesRegex(RuntimeError, "Timeout waiting for key"):
            fake.init_process_group("nccl", fail=True)
        until(lambda: self.phases(receiver) == [("init", "begin"), ("init", "end")])
        self.assertEqual([e.get("failed") for e in receiver.events("phase")], [None, True])

    def test_a_second_run_does_not_wrap_it_again(self):
        receiver, fake = self.receiver(), FakeDistributed()
        self.install(fake)
        self.run_("r", rank=0, world=2)
        once = fake.init_process_group
        self.run_("s", rank=0, world=2)
        self.assertIs(fake.init_process_group, once)
        fake.init_process_group("nccl")
        until(lambda: self.phases(receiver) == [("init", "begin"), ("init", "end")])

    def initialised(self, made):
        receiver = self.receiver()
        self.install(FakeDistributed(made=made))
        self.run_("r", rank=1, world=2)
        return until(lambda: receiver.events("hello"))[0].get("initialised")

    def test_hello_says_that_the_group_exists(self):
        self.assertIs(self.initialised(made=True), True)

    def test_hello_says_nothing_of_a_group_to_come(self):
        self.assertIsNone(self.initialised(made=False))

    def test_a_group_that_exists_is_left_alone(self):
        fake = FakeDistributed(made=True)
        self.install(fake)
        before = fake.init_process_group
        self.receiver()
        self.run_("r", rank=0, world=2)
        self.assertIs(fake.init_process_group, before)


if __name__ == "__main__":
    unittest.main()
