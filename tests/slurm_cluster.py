"""A Slurm of one node on this machine, in a separate folder: real daemons, real queue.

Packages in Debian and Ubuntu: slurmctld slurmd slurmdbd slurm-client munge mariadb-server.
"""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path

import psutil
from processes import wait_until

NEEDED = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "mariadb-install-db", "setpriv")
NODE = socket.gethostname().partition(".")[0]
WAIT = 120  # seconds before a start counts as failed

SLURM_CONF = """\
ClusterName=test
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={slurmctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
PlugStackConfig={folder}/plugstack.conf
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
MailProg=/bin/true
FirstJobId={first_job}
# Intervals of the queue.
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_interval=2,requeue_setup_env_fail
SchedulerTimeSlice=5
KillWait=5
MinJobAge=600
InactiveLimit=0
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Accounting, which sacct reads.
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={slurmdbd}
AccountingStoragePass={folder}/munge.socket
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
{limits}
GresTypes=gpu
NodeName={node} NodeAddr=127.0.0.1 CPUs=2 RealMemory=6000 Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes={node} Default=YES MaxTime=60 DefaultTime=10 DefMemPerCPU=1000 \
State=UP PriorityTier=1
PartitionName=urgent Nodes={node} MaxTime=60 DefaultTime=10 DefMemPerCPU=1000 State=UP \
PriorityTier=10 PreemptMode=OFF
"""

# Where this process can create control groups, the kernel enforces memory limits; otherwise Slurm
# polls the memory once a second.
BY_CGROUP = "ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup"
BY_POLLING = (
    "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherParams=OverMemoryKill"
)

CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace={ram}
ConstrainSwapSpace={ram}
"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost={node}
DbdAddr=127.0.0.1
DbdPort={slurmdbd}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={mariadb}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
"""


def missing():
    """The missing programs or privileges; empty if a cluster can be started."""
    if os.geteuid() != 0:
        return "slurmd has to be started by root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [name for name in NEEDED if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def has_cgroups():
    """Whether memory control groups (version 1) can be created here."""
    made = Path("/sys/fs/cgroup/memory") / f"bnrecon-{os.getpid()}"
    try:
        made.mkdir()
        limits_memory = (made / "memory.limit_in_bytes").exists()
        made.rmdir()
        return limits_memory
    except OSError:
        return False


class SlurmCluster:
    """Starts the daemons in ``folder`` and stops exactly these; use it in a ``with`` block.

    ``environment`` holds the variables for this cluster's commands; ``limits`` says how memory is
    limited: "cgroup" or "polling".
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.limits = "cgroup" if has_cgroups() else "polling"
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._started = []

    def __enter__(self):
        try:
            self._write_configuration()
            self._start_all()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def call(self, *command, check=True):
        """Standard output of a Slurm command."""
        done = subprocess.run(
            command, env=self._all_variables, capture_output=True, text=True, timeout=60
        )
        if check and done.returncode:
            raise AssertionError(f"{command} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def queue(self):
        """The states of waiting and running jobs, by number."""
        lines = self.call("squeue", "--array", "--noheader", "--format=%i %T").splitlines()
        return dict(line.split() for line in lines)

    def states(self, job):
        """Accounting's state of a job, and of each started job of an array."""
        command = ("sacct", "-X", "-n", "-P", "-o", "JobID,State", "-j", str(job))
        return dict(line.split("|") for line in self.call(*command).splitlines())

    def stop(self):
        """End the jobs, then the daemons, last started first; safe at any point."""
        with contextlib.suppress(Exception):
            self.call("scancel", "--full", "--state=RUNNING")
            self.call("scancel", "--state=PENDING")
            self.call("scancel", "--quiet", *self.queue())
            _wait_until(lambda: not self.queue(), "jobs to end", 20)
        steps = []  # job processes would outlive slurmd
        for name, process in self._started:
            if name == "slurmd" and process.poll() is None:
                steps = psutil.Process(process.pid).children(recursive=True)
        for _, process in reversed(self._started):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for step in steps:
            with contextlib.suppress(psutil.NoSuchProcess):
                step.kill()
        self._started.clear()
        shutil.rmtree(self.folder / "database", ignore_errors=True)  # large and unused

    @property
    def _all_variables(self):
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return os.environ | {"PATH": path} | self.environment

    def _write_configuration(self):
        for name in ("state", "spool", "database", "temporary"):
            (self.folder / name).mkdir(parents=True)
        values = _free_ports("slurmctld", "slurmd", "slurmdbd", "mariadb") | {
            "folder": self.folder,
            "node": NODE,
            "limits": BY_CGROUP if self.limits == "cgroup" else BY_POLLING,
            "ram": "yes" if self.limits == "cgroup" else "no",
            # Job numbers name control groups and must differ between clusters on one machine.
            "first_job": 1000 + secrets.randbelow(900_000),
        }
        self._port = values["mariadb"]
        for name, text in (
            ("slurm.conf", SLURM_CONF),
            ("cgroup.conf", CGROUP_CONF),
            ("slurmdbd.conf", SLURMDBD_CONF),
            ("gres.conf", "NodeName={node} Name=gpu File=/dev/null\n"),
            ("plugstack.conf", ""),
        ):
            (self.folder / name).write_text(text.format(**values))
        (self.folder / "slurmdbd.conf").chmod(0o600)
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (self.folder / "munge.key").chmod(0o400)

    def _start_all(self):
        self._start_munge()
        self._start_database()
        self._start("slurmdbd", "slurmdbd", "-D")
        self._wait_for_port("DbdPort", "slurmdbd.conf")
        self.call("sacctmgr", "--immediate", "add", "cluster", "test", check=False)
        self._start("slurmctld", "slurmctld", "-D", "-c")
        self._start("slurmd", "slurmd", "-D")
        self._wait(lambda: "idle" in self.call("sinfo", "-h", "-o", "%T", check=False), "a node")
        self._wait(lambda: "JobID" in self.call("sacct", check=False), "sacct")

    def _start_munge(self):
        paths = {
            "socket": "munge.socket",
            "key-file": "munge.key",
            "pid-file": "munge.pid",
            "seed-file": "munge.seed",
        }
        options = [f"--{name}={self.folder / file}" for name, file in paths.items()]
        self._start("munged", "munged", "--foreground", "--force", *options)
        self._wait(lambda: (self.folder / "munge.socket").exists(), "munged")

    def _start_database(self):
        data, socket_file = self.folder / "database", self.folder / "database.socket"
        options = ["--no-defaults", f"--datadir={data}", "--user=root"]
        install = ["mariadb-install-db", *options, "--auth-root-authentication-method=normal"]
        self.call(*install, "--skip-test-db", "--skip-name-resolve")
        self._start(
            "mariadbd",
            "mariadbd",
            *options,
            f"--socket={socket_file}",
            f"--port={self._port}",
            "--bind-address=127.0.0.1",
            f"--pid-file={self.folder / 'database.pid'}",
            f"--tmpdir={self.folder / 'temporary'}",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-lock-wait-timeout=900",
        )
        self._wait(socket_file.exists, "mariadbd")
        grant = "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm'; GRANT ALL ON slurm.* TO "
        client = ["mariadb", "--no-defaults", f"--socket={socket_file}", "--user=root", "--execute"]
        self.call(*client, f"{grant} slurm@'127.0.0.1';")

    def _start(self, name, *command):
        """Start a daemon that ends with this process, even if this process is killed."""
        with (self.folder / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                env=self._all_variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests alone
            )
        self._started.append((name, process))

    def _wait_for_port(self, key, file):
        lines = dict(
            line.split("=", 1) for line in (self.folder / file).read_text().splitlines() if line
        )

        def answers():
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", int(lines[key])), 1).close()
                return True

        self._wait(answers, file)

    def _wait(self, condition, what):
        """Wait for a condition while all daemons run; on failure name the daemon and its log."""

        def holds():
            if ended := [name for name, process in self._started if process.poll() is not None]:
                raise RuntimeError(f"{', '.join(ended)} ended")
            return condition()

        try:
            _wait_until(holds, what, WAIT)
        except (RuntimeError, TimeoutError) as error:
            for out in self.folder.glob("*.out"):
                error.add_note(f"{out.name}:\n{out.read_text(errors='replace')[-1500:]}")
            raise


def _wait_until(condition, what, seconds):
    if not wait_until(condition, seconds):
        raise TimeoutError(f"waited {seconds} s for {what}")


def _free_ports(*names):
    """A free port for each name."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in names]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}
