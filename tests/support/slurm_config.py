"""The configuration files of the private Slurm cluster, as text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Layout:
    """Where everything of one cluster lies.

    Attributes:
        dir: The cluster's own folder.
        host: Short name of this machine.
        node_ports: Each node's name and the TCP port of its slurmd.
        ctl_port: TCP port of slurmctld.
        dbd_port: TCP port of slurmdbd.
        sql_port: TCP port of MariaDB.
    """

    dir: Path
    host: str
    node_ports: Mapping[str, int]
    ctl_port: int
    dbd_port: int
    sql_port: int

    @property
    def munge_socket(self) -> Path:
        """The socket of this cluster's munged."""
        return self.dir / "run/munge.sock"

    @property
    def slurm_conf(self) -> Path:
        """What SLURM_CONF points at."""
        return self.dir / "etc/slurm.conf"


_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={layout.dbd_port}
AccountingStoragePass={layout.munge_socket}
AccountingStorageTRES=gres/gpu
# Keeps --comment in sacct, where the program looks for its token.
AccountingStoreFlags=job_comment"""


def slurm_conf(layout: Layout, accounting: bool = True) -> str:
    """slurm.conf: many nodes on one host, each with GPUs that are only files, and a partition that can be preempted."""
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={layout.host} NodeAddr=127.0.0.1 Port={port} CPUs=128 RealMemory=1000000 "
        f"Gres=gpu:h100:{GPUS_PER_NODE}"
        for name, port in layout.node_ports.items()
    )
    return f"""\
ClusterName=test
SlurmctldHost={layout.host}(127.0.0.1)
SlurmctldPort={layout.ctl_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
StateSaveLocation={layout.dir}/state
SlurmdSpoolDir={layout.dir}/spool/%n
SlurmctldPidFile={layout.dir}/run/slurmctld.slurm-pid
SlurmdPidFile={layout.dir}/run/%n.slurm-pid
SlurmctldLogFile={layout.dir}/log/slurmctld.log
SlurmdLogFile={layout.dir}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
# Decide at once: tests wait for what happens.
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Otherwise a job that asks for no memory gets all of its node.
DefMemPerNode=100000
# A small host may claim to be {len(layout.node_ports)} large ones.
SlurmdParameters=config_overrides
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
JobAcctGatherParams=OverMemoryKill
{_ACCOUNTING.format(layout=layout) if accounting else "AccountingStorageType=accounting_storage/none"}
MaxArraySize=10001
MaxJobCount=50000
MinJobAge=60
ReturnToService=2
SlurmdTimeout=15
KillWait=5
OverTimeLimit=0
{nodes}
PartitionName=h100 Nodes=ALL Default=YES MaxTime=7-0 PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=scavenge Nodes=ALL MaxTime=7-0 PriorityTier=1 PreemptMode=REQUEUE State=UP
"""


def gres_conf(layout: Layout) -> str:
    """gres.conf: one device a GPU, because only then jobs get CUDA_VISIBLE_DEVICES."""
    devices = "\n".join(f"Name=gpu Type=h100 File={path}" for path in gpu_files(layout))
    return f"AutoDetect=off\n{devices}\n"


def gpu_files(layout: Layout) -> list[Path]:
    """The files that stand for the GPUs of every node."""
    return [layout.dir / f"dev/nvidia{number}" for number in range(GPUS_PER_NODE)]


def slurmdbd_conf(layout: Layout) -> str:
    """slurmdbd.conf: without accounting a finished job would be forgotten after MinJobAge."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost=localhost
DbdPort={layout.dbd_port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={layout.sql_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
LogFile={layout.dir}/log/slurmdbd.log
PidFile={layout.dir}/run/slurmdbd.slurm-pid
"""


SQL_INIT = (
    "create user if not exists slurm@127.0.0.1 identified by 'slurm';\ngrant all on slurm_acct.* to slurm@127.0.0.1;\n"
)
"""What MariaDB runs at its start: the account of slurmdbd."""
