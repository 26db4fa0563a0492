"""``stepwatch run``: the command must not notice it, and the exporter must hear how it went."""

import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import unittest

from support import ROOT, Case, HttpReceiver, StoppableReceiver, until

STEPWATCH = [sys.executable, "-m", "stepwatch"]


class Launches(Case):
    def environment(self, **more):
        env = dict(os.environ, PYTHONPATH=ROOT, STEPWATCH_SOCKET=self.path, PYTHONDONTWRITEBYTECODE="1")
        env.update(more)
        return env

    def launch(self, *command, options=(), env=None, **popen):
        """Starts ``stepwatch run options -- command`` in a process group of its own."""
        arguments = STEPWATCH + ["run", *options, "--"] + [str(c) for c in command]
        for stream in ("stdin", "stdout", "stderr"):
            popen.setdefault(stream, subprocess.PIPE)
        popen.setdefault("start_new_session", True)
        process = subprocess.Popen(arguments, env=env or self.environment(), **popen)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def python(self, code, *arguments, **more):
        return self.launch(sys.executable, "-c", textwrap.dedent(code), *arguments, **more)

    def ran(self, process, given=b""):
        """(status, stdout, stderr) of a launched process at its end."""
        out, err = process.communicate(given, timeout=30)
        return process.returncode, out, err

    def heard(self, receiver):
        """(lines of stdout, lines of stderr, goodbye) at the end."""
        (bye,) = until(lambda: receiver.events("bye"), "a goodbye")
        lines = {"stdout": [], "stderr": []}
        for event in receiver.events("event"):
            self.assertEqual(event["name"], "output")
            lines[event["stream"]] += event["lines"]
        return lines["stdout"], lines["stderr"], bye


class Bytes(Launches):
    def test_every_byte_passes_as_it_is(self):
        dice = random.Random(3)
        given = bytes(dice.randrange(256) for _ in range(300_000))
        code = "import sys; b = sys.stdin.buffer.read(); sys.stdout.buffer.write(b); sys.stderr.buffer.write(b[::-1])"
        self.assertEqual(self.ran(self.python(code), given), (0, given, given[::-1]))

    def test_at_once(self):
        process = self.python("import sys; print('first', end=''); sys.stdin.read()")
        self.assertEqual(os.read(process.stdout.fileno(), 100), b"first", "while the command still runs")
        self.assertEqual(self.ran(process), (0, b"", b""))

    def test_one_file_for_both_keeps_their_order(self):
        code = """
            import os
            for i in range(2000):
                os.write(1 + i % 2, b"%d\\n" % i)
        """
        status, out, _ = self.ran(self.python(code, stderr=subprocess.STDOUT))
        self.assertEqual((status, out.split()), (0, [b"%d" % i for i in range(2000)]))

    def test_a_reader_that_goes_away_ends_the_command(self):
        process = self.launch("yes", stderr=subprocess.DEVNULL)
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        self.assertEqual(process.wait(30), -signal.SIGPIPE)

    def test_an_output_that_is_non_blocking(self):
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        process = self.launch("head", "-c", "400000", "/dev/zero", stdout=writer)
        os.close(writer)
        with open(reader, "rb") as f:
            self.assertEqual(len(f.read()), 400000)
        self.assertEqual(process.wait(30), 0)

    def test_a_full_disk_does_not_end_the_run(self):
        with open("/dev/full", "wb") as full:
            process = self.python("import os; [os.write(1, b'x' * 100) for _ in range(100)]; os.write(2, b'done')", stdout=full)
        self.assertEqual(self.ran(process), (0, None, b"done"))

    def test_closed_descriptors(self):
        receiver = self.receiver()
        process = self.launch("sh", "-c", "ls -l /proc/self/fd >&2", preexec_fn=lambda: (os.close(0), os.close(1)))
        status, _, err = self.ran(process)
        self.assertEqual(status, 0, err)
        self.heard(receiver)


class Ends(Launches):
    def test_the_exit_status_is_the_commands(self):
        for status in (0, 1, 3, 64, 255):
            self.assertEqual(self.ran(self.launch("sh", "-c", "exit %d" % status))[0], status)

    def test_so_is_the_signal_it_died_of(self):
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGHUP, signal.SIGRTMIN):
            receiver = self.receiver()
            status = self.ran(self.launch("sh", "-c", "kill -%d $$" % number))[0]
            self.assertEqual(status, -number)
            bye = self.heard(receiver)[2]
            receiver.close()
            self.assertEqual(bye["code"], 128 + number)
            name = getattr(number, "name", "")
            self.assertIn("SIGRTMIN" if number == signal.SIGRTMIN else name, bye["text"])

    def test_what_cannot_be_run(self):
        self.assertEqual(self.ran(self.launch("/no/such/program"))[::2], (127, b"stepwatch run: /no/such/program: No such file or directory\n"))
        self.assertEqual(self.ran(self.launch(self.folder))[0], 126)

    def test_mistakes_before_the_command(self):
        for options in ((), ("--nonsense",), ("--world", "many"), ("--model", "/no/such"), ("--model", "[1]"), ("--rank", "-1")):
            code, out, err = self.program("-m", "stepwatch", "run", *options, *(["--", "true"] if options else []))
            self.assertEqual((code, out), (64, ""), options)
            self.assertIn("Try 'stepwatch run --help'", err)

    def test_processes_left_behind_hold_up_nothing(self):
        # The child that stays has our pipe: its end of file will not come.
        process = self.launch("sh", "-c", "sleep 60 & echo $!; exit 4")
        status, out, _ = self.ran(process)
        self.assertEqual(status, 4)
        os.kill(int(out), signal.SIGKILL)

    def test_nor_do_those_that_never_stop_writing(self):
        process = self.launch("sh", "-c", "yes & exit 5", stdout=subprocess.DEVNULL)
        self.assertEqual(process.wait(30), 5)

    def test_a_killed_launcher_leaves_no_process_of_ours(self):
        process = self.python("import sys; print('ready', flush=True); sys.stdin.read()")
        self.assertEqual(process.stdout.readline(), b"ready\n")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()  # the command ends by itself
        until(lambda: not members(process.pid), "an empty process group")


class Reports(Launches):
    def test_lines_and_goodbye(self):
        receiver = self.receiver()
        code = "import sys; print('step 1 loss 2.5'); print(); print('step 2 loss 2.4'); print('careful', file=sys.stderr); sys.exit(3)"
        model = json.dumps({"n_params": 7e9})
        process = self.python(code, options=("--run", "llama", "--rank", "2", "--world", "8", "--job", "77", "--model", model, "--dtype", "bfloat16"))
        self.assertEqual(self.ran(process)[0], 3)
        out, err, bye = self.heard(receiver)
        self.assertEqual((out, err), (["step 1 loss 2.5", "step 2 loss 2.4"], ["careful"]))
        self.assertEqual((bye["code"], bye["text"]), (3, "careful"))
        (hello,) = receiver.events("hello")
        self.assertEqual([hello[k] for k in ("role", "run", "rank", "world", "job", "dtype")], ["launcher", "llama", 2, 8, "77", "bfloat16"])
        self.assertEqual(hello["model"], {"n_params": 7e9})
        self.assertEqual([e["role"] for e in receiver.events()], ["launcher"] * len(receiver.events()))
        self.assertEqual([receiver.events()[0]["k"], receiver.events()[-1]["k"]], ["hello", "bye"])
        until(lambda: receiver.ended)

    def test_success_has_no_last_words(self):
        receiver = self.receiver()
        self.ran(self.launch("sh", "-c", "echo warning >&2"))
        bye = self.heard(receiver)[2]
        self.assertEqual((bye["code"], "text" in bye), (0, False))

    def test_the_exception_that_ended_it(self):
        receiver = self.receiver()
        self.assertEqual(self.ran(self.python("def f(): raise RuntimeError('CUDA error: an illegal memory access')\nf()"))[0], 1)
        self.assertEqual(self.heard(receiver)[2]["text"], "RuntimeError: CUDA error: an illegal memory access")

    def test_what_torchelastic_recorded_is_the_reason(self):
        receiver = self.receiver()
        code = """
            import json, os
            with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f:
                json.dump({"message": {"message": "RuntimeError: rank 3 ran out of memory", "extraInfo": {}}}, f)
            raise ValueError("a consequence")
        """
        env = self.environment(TMPDIR=self.folder)
        self.ran(self.python(code, env=env))
        self.assertEqual(self.heard(receiver)[2]["text"], "RuntimeError: rank 3 ran out of memory")
        self.assertEqual([n for n in os.listdir(self.folder) if n.endswith(".json")], [])

    def test_output_while_it_runs(self):
        receiver = self.receiver()
        process = self.python("import sys; print('now', flush=True); sys.stdin.read()")
        until(lambda: [e["lines"] for e in receiver.events("event")] == [["now"]], "the line")
        self.ran(process)

    def test_long_lines_are_cut_and_counted(self):
        receiver = self.receiver()
        self.ran(self.python("print('a' * 100_000); print('\\x01' * 4000); print('short')"))
        out = self.heard(receiver)[0]
        self.assertEqual([len(line) for line in out], [4096, 1000, 5])
        self.assertEqual(sum(e.get("cut", 0) for e in receiver.events("event")), 3)

    def test_no_packet_is_too_long(self):
        receiver = self.receiver()
        lines = ["\u20ac\x1b\"" * (i % 700) + str(i) for i in range(1500)]
        path = os.path.join(self.folder, "log")
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(lines))
        self.ran(self.launch("cat", path, options=("--run", "\u20ac" * 50)))
        out = self.heard(receiver)[0]
        lost = sum(e.get("lost_bytes", 0) for e in receiver.events("event"))
        self.assertTrue(out[-1] == lines[-1] and (len(out) == len(lines) or lost > 0), (len(out), lost))
        for _, packet in receiver.packets:
            self.assertLessEqual(len(packet), 7 * 1024)

    def test_a_flood_costs_the_oldest_lines_and_they_are_counted(self):
        receiver = self.receiver()
        count = 400_000
        status, out, _ = self.ran(self.launch("seq", count))
        self.assertEqual((status, len(out.split())), (0, count), "nothing of it is lost on its way to the terminal")
        lines, _, bye = self.heard(receiver)
        self.assertEqual(lines[-1], str(count))
        numbers = [int(line) for line in lines]
        self.assertEqual(numbers, sorted(set(numbers)), "no half of a line is taken for a whole one")
        lost = sum(e.get("lost_bytes", 0) for e in receiver.events("event"))
        self.assertTrue(lost > 0 or bye.get("dropped") or len(lines) == count)

    def test_only_the_end(self):
        receiver = self.receiver()
        self.ran(self.launch("sh", "-c", "echo line; echo last >&2; exit 1", options=("--no-output",)))
        out, err, bye = self.heard(receiver)
        self.assertEqual((out, err, bye["text"]), ([], [], "last"))

    def test_a_receiver_that_is_stopped_slows_nothing(self):
        receiver = self.receiver(StoppableReceiver)
        receiver.stop()
        status, out, _ = self.ran(self.launch("head", "-c", "30000000", "/dev/zero"))
        self.assertEqual((status, len(out)), (0, 30_000_000))

    def test_nobody_listens(self):
        self.assertEqual(self.ran(self.launch("echo", "hi")), (0, b"hi\n", b""))

    def test_turned_off_there_is_nothing_between(self):
        for env in (self.environment(STEPWATCH_DISABLED="1"), self.environment(STEPWATCH_SOCKET="")):
            process = self.launch("sh", "-c", "echo $$", env=env)
            status, out, _ = self.ran(process)
            self.assertEqual((status, int(out)), (0, process.pid))

    def test_a_script_that_uses_the_client_is_of_the_same_run(self):
        receiver = self.receiver()
        script = os.path.join(self.folder, "finetune.py")
        with open(script, "w") as f:
            f.write("import stepwatch\nwith stepwatch.Run() as run:\n    run.step(1, loss=2.0)\nprint('done')\n")
        self.assertEqual(self.ran(self.launch(sys.executable, script))[1], b"done\n")
        until(lambda: len(receiver.events("bye")) == 2)
        (name,) = {e["run"] for e in receiver.events()}
        self.assertRegex(name, "^finetune-[0-9]{8}-[0-9]{6}-[0-9a-f]{8}$")
        self.assertEqual({e.get("role") for e in receiver.events("bye")}, {"launcher", None})

    def test_over_http(self):
        http = HttpReceiver()
        self.addCleanup(http.close)
        self.ran(self.launch("echo", "hello", options=("--url", http.url, "--socket", "")))
        self.assertEqual([e["k"] for e in http.events()], ["hello", "event", "bye"])


class Environment(Launches):
    def seen(self, *options, **more):
        process = self.python("import json, os; print(json.dumps(dict(os.environ)))", options=options, env=self.environment(**more))
        return json.loads(self.ran(process)[1])

    def test_what_helps_is_set_where_nobody_has_decided(self):
        env = self.seen("--run", "x", TORCH_FR_BUFFER_SIZE="7", PYTHONUNBUFFERED="")
        self.assertEqual((env["STEPWATCH_RUN"], env["STEPWATCH_SOCKET"]), ("x", self.path))
        self.assertEqual((env["PYTHONFAULTHANDLER"], env["TORCH_NCCL_DUMP_ON_TIMEOUT"]), ("1", "1"))
        self.assertEqual((env["TORCH_FR_BUFFER_SIZE"], env["PYTHONUNBUFFERED"]), ("7", ""))
        self.assertTrue(env["TORCHELASTIC_ERROR_FILE"].startswith(tempfile.gettempdir()))
        self.assertNotIn("KUBEFLOW_TRAINER_SERVER_URL", env)

    def test_or_not_at_all(self):
        env = self.seen("--no-env", "--run", "x", "--url", "http://h:9765")
        self.assertEqual((env["STEPWATCH_RUN"], env["STEPWATCH_URL"]), ("x", "http://h:9765"))
        for name in ("PYTHONFAULTHANDLER", "TORCHELASTIC_ERROR_FILE", "KUBEFLOW_TRAINER_SERVER_URL"):
            self.assertNotIn(name, env)

    def test_transformers_reports_by_itself_where_there_is_a_url(self):
        env = self.seen("--run", "a b/c", "--url", "http://h:9765/v1/events")
        self.assertEqual(env["KUBEFLOW_TRAINER_SERVER_URL"], "http://h:9765/v1/kubeflow/a%20b%2Fc")
        with open(env["KUBEFLOW_TRAINER_SERVER_TOKEN"]) as f:
            self.assertTrue(f.read().strip(), "without a token it does not report")

    def test_unless_somebody_else_wants_that_or_nobody_does(self):
        url = "http://h:9765"
        self.assertEqual(self.seen("--url", url, KUBEFLOW_TRAINER_SERVER_URL="http://theirs")["KUBEFLOW_TRAINER_SERVER_URL"], "http://theirs")
        for options, more in ((("--no-kubeflow",), {}), ((), {"DISABLE_KUBEFLOW_INTEGRATION": "TRUE"})):
            self.assertNotIn("KUBEFLOW_TRAINER_SERVER_URL", self.seen("--url", url, *options, **more))
        self.assertNotIn("KUBEFLOW_TRAINER_SERVER_URL", self.seen("--url", "http://user:secret@h:9765"))

    def named(self, env, *command, job=None, run=None):
        from argparse import Namespace

        from stepwatch._launch import name_of

        return name_of(env, Namespace(job=job, run=run), list(command))

    def test_names(self):
        for command, name in (
            (["python", "-u", "pretrain/train.py", "--config", "x.py"], "train"), (["torchrun", "--nproc-per-node", "8", "sft.py"], "sft"),
            (["python", "-m", "torchtitan.train"], "train"), (["./train.sh"], "train"), (["/usr/bin/mytrainer", "-x"], "mytrainer"),
        ):
            self.assertRegex(self.named({}, *command).run, "^%s-[0-9]{8}-[0-9]{6}-[0-9a-f]{8}$" % name)
        slurm = {"SLURM_JOB_NAME": "llama", "SLURM_JOB_ID": "101"}
        self.assertEqual(self.named(slurm, "x.py").run, "llama-101")
        self.assertEqual(self.named({"SLURM_JOB_NAME": "llama"}, "x.py", job="77").run, "x-77")
        self.assertEqual(self.named(slurm, "x.py", run="mine")[:2], ("mine", "name"))

    def test_launchers_of_several_nodes_give_one_name(self):
        for command, name in (
            ("torchrun --nnodes 2 --node-rank 1 --master-addr n1 --master-port=29501 train.py", "train-n1-29501"),
            ("torchrun --nnodes=2 --rdzv_backend c10d --rdzv_endpoint n1:29400 train.py", "train-n1-29400"),
            ("torchrun --nnodes 2 --rdzv-id exp7 --rdzv-endpoint=n1:29400 train.py", "train-exp7"),
            ("accelerate launch --num_machines 2 --main_process_ip n1 --main_process_port 7 train.py", "train-n1-7"),
        ):
            self.assertEqual(self.named({}, *command.split()).run, name, command)
        alone = "torchrun --nnodes 1 --master-addr n1 train.py --nnodes 8"
        self.assertEqual(self.named({}, *alone.split()).by, "script")

    def test_a_job_that_is_submitted_from_a_command_is_another_run(self):
        env = self.seen(SLURM_JOB_ID="101", SLURM_JOB_NAME="a")
        self.assertEqual((env["STEPWATCH_RUN"], env["STEPWATCH_RUN_BY"]), ("a-101", "job"))
        from stepwatch import _run_name

        process = _run_name.Process(dict(env, SLURM_JOB_ID="102"), [], 0.0, "")
        self.assertEqual(_run_name.name([process]).run, "a-102")
        self.assertEqual(self.seen("--run", "x")["STEPWATCH_RUN_BY"], "", "a name that somebody gave goes with it")

    def test_the_client_in_a_command_is_of_its_run(self):
        code = "from stepwatch import _run_name; import json; print(json.dumps(_run_name.here()))"
        process = self.python(code, options=(), env=self.environment())
        run, by, _, unnamed, _, _ = json.loads(self.ran(process)[1])
        self.assertEqual((by, run), ("launcher", unnamed))


COUNTS = """
    import os, select, signal, sys
    got = []
    def take(number, frame):
        got.append(number)
        os.write(1, b"got %d\\n" % number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, take)
    print("ready", os.getpid(), flush=True)
    # A signal that comes just before a system call does not interrupt it: Python would report it
    # when the next one comes.
    while not select.select([0], [], [], 0.05)[0]:
        pass
    sys.exit(got.count(int(sys.argv[1])))
"""


def heed():
    """Who runs the tests in the background of a shell has them ignore what a terminal sends, and so
    would we."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Signals(Launches):
    def counts(self, number, **popen):
        popen.setdefault("preexec_fn", heed)
        process = self.python(COUNTS, int(number), **popen)
        ready = process.stdout.readline().split()
        self.assertEqual(ready[0], b"ready")
        return process, int(ready[1])

    def settled(self, process):
        """How often the command got the signal by the time that a later one has come through,
        twice."""
        for _ in range(2):
            os.kill(process.pid, signal.SIGUSR2)
            self.assertTrue(select.select([process.stdout], [], [], 30)[0], "SIGUSR2 was lost")
            self.assertEqual(process.stdout.readline(), b"got %d\n" % signal.SIGUSR2)
        return self.ran(process, b"\n")[0]

    def test_one_sent_to_us_is_passed_on_once(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
            process, _ = self.counts(number)
            os.kill(process.pid, number)
            self.assertEqual(process.stdout.readline(), b"got %d\n" % number)
            self.assertEqual(self.settled(process), 1, number)

    def test_one_sent_to_the_group_is_not_passed_on(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            process, _ = self.counts(number)
            os.killpg(process.pid, number)
            self.assertEqual(process.stdout.readline(), b"got %d\n" % number)
            self.assertEqual(self.settled(process), 1, number)

    def test_a_command_that_dies_of_it(self):
        receiver = self.receiver()
        process = self.python("import sys; print('ready', flush=True); sys.stdin.read()")
        process.stdout.readline()
        os.kill(process.pid, signal.SIGTERM)
        self.assertEqual(process.wait(30), -signal.SIGTERM)
        bye = self.heard(receiver)[2]
        self.assertEqual((bye["code"], bye["text"]), (143, "SIGTERM: ready"))

    def test_ignored_ones_stay_ignored(self):
        process, pid = self.counts(signal.SIGUSR1, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        os.kill(process.pid, signal.SIGHUP)
        os.kill(process.pid, signal.SIGUSR1)
        self.assertEqual(process.stdout.readline(), b"got %d\n" % signal.SIGUSR1)
        self.ran(process, b"\n")
        inherits = self.launch("cat", "/proc/self/status", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        status = dict(line.split(":\t", 1) for line in self.ran(inherits)[1].decode().splitlines() if ":\t" in line)
        self.assertTrue(int(status["SigIgn"], 16) & 1)
        self.assertEqual(int(status["SigBlk"], 16), 0)
        self.assertEqual(int(status["SigCgt"], 16), 0)

    def test_stop_and_continue(self):
        # In a group, not in a session, of its own: a group that nobody in its session could
        # continue, the kernel does not stop.
        code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.readline(); sys.exit(6)"
        process = self.python(code, start_new_session=False, preexec_fn=os.setpgrp)
        pids = [process.pid, int(process.stdout.readline())]
        for _ in range(2):
            os.kill(process.pid, signal.SIGTSTP)
            until(lambda: [state(p) for p in pids] == ["T", "T"], "both stopped")
            os.kill(process.pid, signal.SIGCONT)
            until(lambda: "T" not in [state(p) for p in pids], "both going on")
            # Until it has its handler back, a stop is the launcher's alone.
            until(lambda: catches(process.pid, signal.SIGTSTP), "ready for the next")
        self.assertEqual(self.ran(process, b"\n")[0], 6)


class Terminal(Launches):
    """With a terminal of its own, as in a shell."""

    def on_terminal(self, *command, size=(24, 80)):
        """Starts the command in a session whose terminal is the one returned with it."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[0], size[1], 0, 0))
        attributes = termios.tcgetattr(theirs)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)

        def own():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        process = self.launch(*command, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=own)
        os.close(theirs)
        self.addCleanup(os.close, ours)
        return process, ours

    def read(self, terminal, pattern):
        """What the terminal shows up to ``pattern``."""
        shown = b""
        while not re.search(pattern, shown):
            self.assertTrue(select.select([terminal], [], [], 20)[0], shown)
            shown += os.read(terminal, 4096)
        return shown

    def test_it_is_one(self):
        code = "import os, sys; print([os.isatty(i) for i in range(3)], os.get_terminal_size(1), os.get_terminal_size(2))"
        process, terminal = self.on_terminal(sys.executable, "-c", code, size=(33, 132))
        shown = self.read(terminal, rb"\n")
        self.assertEqual(shown, b"[True, True, True] os.terminal_size(columns=132, lines=33) os.terminal_size(columns=132, lines=33)\r\n")
        self.assertEqual(process.wait(30), 0)

    def test_a_new_size_is_passed_on(self):
        code = """
            import os, signal, sys
            signal.signal(signal.SIGWINCH, lambda *_: print("size", *os.get_terminal_size(), flush=True))
            print("ready", flush=True)
            sys.stdin.readline()
        """
        process, terminal = self.on_terminal(sys.executable, "-c", textwrap.dedent(code))
        self.read(terminal, b"ready\r\n")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 111, 0, 0))
        self.read(terminal, b"size 111 50\r\n")
        os.write(terminal, b"\n")
        self.assertEqual(process.wait(30), 0)

    def test_control_c_arrives_once(self):
        process, terminal = self.on_terminal(sys.executable, "-c", textwrap.dedent(COUNTS), int(signal.SIGINT))
        self.read(terminal, b"ready")
        os.write(terminal, b"\x03")
        self.read(terminal, b"got 2\r\n")
        for _ in range(2):
            os.kill(process.pid, signal.SIGUSR2)
            self.read(terminal, b"got %d\r\n" % signal.SIGUSR2)
        os.write(terminal, b"\n")
        self.assertEqual(process.wait(30), 1)

    def test_progress_bars_are_reported_too(self):
        receiver = self.receiver()
        process, terminal = self.on_terminal("printf", "\\r 1/9 loss=2.0\\r 2/9 loss=1.9\\r          \\rdone\\n")
        self.assertEqual(self.read(terminal, b"done\r\n"), b"\r 1/9 loss=2.0\r 2/9 loss=1.9\r          \rdone\r\n")
        self.assertEqual(process.wait(30), 0)
        self.assertEqual(self.heard(receiver)[0], [" 1/9 loss=2.0", " 2/9 loss=1.9", "done"])


def state(pid):
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(")", 1)[1].split()[0]


def catches(pid, number):
    with open("/proc/%d/status" % pid) as f:
        (caught,) = [line.split()[1] for line in f if line.startswith("SigCgt:")]
    return int(caught, 16) >> (number - 1) & 1 == 1


def members(group):
    """Processes of a process group that have not ended."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name) as f:
                    fields = f.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] not in "ZX":
                found.append(int(name))
    return found


if __name__ == "__main__":
    unittest.main()
