"""Large weights over links of a known rate: what ``bench/machines.py`` measures, in small."""

from __future__ import annotations

from bench import machines
from hadar_cli.core import events


def test_large_weights_are_merged_and_resumed_in_the_middle_by_a_head_of_flat_memory(tmp_path):
    large = machines.run_large(tmp_path, mb=60, mb_per_s=40.0, to_end=False)
    assert large.merged, "several copies' weights"
    # What was there when the head was killed, 24 MB or more, is not fetched again, but for some
    # that was on its way.
    assert large.first_mb < 1.3 * large.weights_mb
    assert large.peak_mb < 160  # python and its packages take 90


def test_a_device_behind_a_slow_link_is_left_out_and_the_report_says_why(tmp_path):
    """6 s for 6 MB, each way, against 3 s of training: it was worth a try, and no more."""
    journal, told = machines.run_beside(tmp_path, mb=6, mb_per_s=1.0, steps=220, slot_s=3.0)
    dear = next(e for e in journal if isinstance(e, events.DeviceTooDear))
    assert dear.device == "far" and dear.cost_s > 3.0
    copies = [e for e in journal if isinstance(e, events.CopyStarted) and e.slices]
    after = [copy.device for copy in copies if copy.t > dear.t]
    assert after and after.count("near") > after.count("far")
    assert isinstance(journal[-1], events.RunFinished)
    assert "not forked" in told and "handing in takes" in told
