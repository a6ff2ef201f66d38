import os

from streamloader.topology import allowed_cpus


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_a_quota_the_affinity_mask_counts(tmp_path):
    assert allowed_cpus(tmp_path) == len(os.sched_getaffinity(0))
    write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    assert allowed_cpus(tmp_path) == len(os.sched_getaffinity(0))


def test_a_quota_of_one_and_a_half_cpus_allows_two_at_most(tmp_path):
    write(tmp_path, "sys/fs/cgroup/cpu.max", "150000 100000\n")
    assert allowed_cpus(tmp_path) == min(2, len(os.sched_getaffinity(0)))


def test_a_quota_of_a_tenth_of_a_cpu_still_allows_one(tmp_path):
    write(tmp_path, "sys/fs/cgroup/cpu.max", "10000 100000\n")
    assert allowed_cpus(tmp_path) == 1


def test_the_files_of_the_first_control_group_version_count_too(tmp_path):
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert allowed_cpus(tmp_path) == 1
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    assert allowed_cpus(tmp_path) == len(os.sched_getaffinity(0))


def test_an_unreadable_quota_is_ignored(tmp_path):
    write(tmp_path, "sys/fs/cgroup/cpu.max", "what ever\n")
    assert allowed_cpus(tmp_path) == len(os.sched_getaffinity(0))


def test_the_tightest_of_the_nested_groups_counts(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/pod/container\n")
    write(tmp_path, "sys/fs/cgroup/pod/container/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/pod/cpu.max", "100000 100000\n")
    assert allowed_cpus(tmp_path) == 1


def test_a_group_that_is_not_the_process_own_does_not_count(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/pod/container\n")
    write(tmp_path, "sys/fs/cgroup/other/cpu.max", "100000 100000\n")
    assert allowed_cpus(tmp_path) == len(os.sched_getaffinity(0))


def test_a_path_that_only_the_host_has_means_the_group_at_the_mount_point(tmp_path):
    write(tmp_path, "proc/self/cgroup", "4:cpu,cpuacct:/docker/0123\n0::/docker/0123\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert allowed_cpus(tmp_path) == 1


def test_a_path_out_of_the_group_namespace_is_not_followed(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/../../other\n")
    write(tmp_path, "sys/other/cpu.max", "100000 100000\n")
    write(tmp_path, "other/cpu.max", "100000 100000\n")
    assert allowed_cpus(tmp_path) == len(os.sched_getaffinity(0))
    write(tmp_path, "sys/fs/cgroup/cpu.max", "100000 100000\n")
    assert allowed_cpus(tmp_path) == 1
