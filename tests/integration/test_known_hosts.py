"""Whatever known_hosts says, hadar takes the host keys that ssh takes, and no others."""

from tests.support.known_hosts import judges


def test_random_files_are_judged_as_ssh_judges_them(tmp_path):
    with judges(tmp_path) as both:
        verdicts = [both.judge(seed) for seed in range(1, 31)]
    differ = [f"{one.words}\n{one.file}" for one in verdicts if one.by_ssh is not one.by_hadar]
    assert not differ, "\n".join(differ)
    assert 6 < sum(one.by_ssh for one in verdicts) < 24  # both happen
