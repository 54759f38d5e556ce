"""The private cluster does what the other tests rest on."""

from ..daemon import wait_until
from .slurm_cluster import SlurmCluster


def test_every_node_is_idle_with_eight_gpus(slurm: SlurmCluster) -> None:
    lines = slurm.run("sinfo", "-h", "-N", "-p", "h100", "-o", "%N %T %G").splitlines()
    assert lines == [f"{node} idle gpu:h100:8" for node in slurm.nodes]


def test_two_nodes_run_one_task_each_and_see_their_gpus(slurm: SlurmCluster) -> None:
    script = "echo $SLURM_NODEID $CUDA_VISIBLE_DEVICES"
    printed = slurm.run("srun", "-N2", "--ntasks-per-node=1", "--gpus-per-node=4", "bash", "-c", script)
    assert sorted(printed.splitlines()) == ["0 0,1,2,3", "1 0,1,2,3"]


def test_accounting_keeps_the_comment(slurm: SlurmCluster) -> None:
    job = slurm.sbatch("true", "--comment=token 7")
    assert slurm.wait_job(job) == "COMPLETED"
    assert slurm.run("sacct", "-X", "-n", "-P", "-j", job, "--format=Comment") == "token 7"


def test_a_job_of_scavenge_is_preempted_for_good_without_requeue(slurm: SlurmCluster) -> None:
    everything = [f"--nodes={len(slurm.nodes)}", "--gpus-per-node=8"]
    low = slurm.sbatch("sleep 300", "--partition=scavenge", "--no-requeue", *everything)
    slurm.wait_job(low, "RUNNING")
    high = slurm.sbatch("true", "--partition=h100", *everything)
    assert slurm.wait_job(low) == "PREEMPTED"
    assert slurm.wait_job(high) == "COMPLETED"


def test_two_jobs_share_a_node(slurm: SlurmCluster) -> None:
    on_one_node = ["--gpus-per-node=4", f"--nodelist={slurm.nodes[0]}"]
    jobs = [slurm.sbatch("sleep 300", *on_one_node) for _ in range(2)]
    assert [slurm.wait_job(job, "RUNNING") for job in jobs] == ["RUNNING", "RUNNING"]


def test_an_expired_job_times_out(slurm: SlurmCluster) -> None:
    job = slurm.sbatch("sleep 300", "--time=60")
    slurm.wait_job(job, "RUNNING")
    slurm.expire(job)
    assert slurm.wait_job(job) == "TIMEOUT"


def test_jobs_outlive_their_slurmd_and_die_with_the_cluster(slurm: SlurmCluster) -> None:
    job = slurm.sbatch("sleep 300", f"--nodelist={slurm.nodes[0]}")
    slurm.wait_job(job, "RUNNING")
    slurm.kill(slurm.nodes[0])
    assert slurm.job_pids()
    slurm.reset()
    assert slurm.idle()


def test_a_paused_controller_answers_again_when_it_goes_on(slurm: SlurmCluster) -> None:
    slurm.pause("slurmctld")
    assert not slurm.idle()
    slurm.resume("slurmctld")
    wait_until(slurm.idle)


def test_lost_state_forgets_jobs_and_starts_job_ids_again(own_slurm: SlurmCluster) -> None:
    job = own_slurm.sbatch("sleep 300")
    own_slurm.wait_job(job, "RUNNING")
    own_slurm.lose_state()
    assert own_slurm.run("squeue", "-h", "-o", "%A") == ""
    wait_until(own_slurm.idle)
    assert own_slurm.sbatch("true") == job
