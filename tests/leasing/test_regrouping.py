"""Groups of workers in lockstep: losses at once, newcomers at a step that all members know."""

import random

from manyhands.leasing.regrouping import BROKEN_FOR, Regrouping
from manyhands.wire.regrouping import (
    BREAK,
    FAILED,
    NOW,
    OVER,
    PREPARE,
    SWITCH,
    GroupReport,
    Regroup,
)


class Workers:
    """Workers that hear announcements and report, as `GroupNotices` and the trainer do."""

    def __init__(self, count: int, row: int = 1) -> None:
        self.now = 0.0
        self.groups = Regrouping(self.deliver, lambda: self.now, row)
        self.heard: dict[str, list[Regroup]] = {f"worker-{rank}": [] for rank in range(count)}
        self.formed: dict[str, int] = {}
        self.groups.begin({name: rank for rank, name in enumerate(self.heard)})

    def deliver(self, names, message) -> None:
        for name in names:
            if name in self.heard:
                self.heard[name].append(message)

    def latest(self, name: str) -> Regroup | None:
        return max(self.heard[name], key=lambda one: (one.epoch, one.stage), default=None)

    def report(self, name: str, *, waits: bool = False, broken: int = 0) -> list[str]:
        known = self.latest(name)
        about = (known.epoch, known.stage) if known else (0, 0)
        rank = int(name.removeprefix("worker-"))
        formed = self.formed.get(name, 0)
        report = GroupReport(1, *about, formed=formed, waits=waits, broken=broken)
        return self.groups.report(name, rank, report)

    def form(self, epoch: int, *names: str) -> list[str]:
        self.formed |= dict.fromkeys(names, epoch)
        return [joined for name in names for joined in self.report(name)]


def test_the_loss_of_a_member_makes_the_others_the_next_group_at_once():
    workers = Workers(4)
    assert workers.latest("worker-3") == Regroup(1, (0, 1, 2, 3), NOW)
    workers.heard.pop("worker-1")
    assert workers.groups.lose("worker-1")
    for rank in (0, 2, 3):
        assert workers.latest(f"worker-{rank}") == Regroup(2, (0, 2, 3), NOW)


def test_a_newcomer_joins_when_all_members_have_confirmed_and_the_first_has_chosen_a_step():
    workers = Workers(3)
    workers.heard["worker-2"] = []
    workers.groups.lose("worker-2")
    assert workers.report("worker-2", waits=True) == []
    assert workers.latest("worker-2") is None, "the group of the others does not exist yet"
    workers.form(2, "worker-0", "worker-1")
    assert workers.latest("worker-0") == Regroup(3, (0, 1, 2), PREPARE)
    assert workers.latest("worker-1") == Regroup(3, (0, 1, 2), PREPARE)
    workers.report("worker-0")
    assert workers.latest("worker-0").stage == PREPARE, "one member has not confirmed"
    workers.report("worker-1")
    assert workers.latest("worker-0") == Regroup(3, (0, 1, 2), SWITCH)
    assert workers.latest("worker-2") == Regroup(3, (0, 1, 2), NOW)
    assert workers.form(3, "worker-2") == ["worker-2"]
    assert workers.groups.epoch == 3
    assert set(workers.groups.members) == {"worker-0", "worker-1", "worker-2"}


def test_a_group_that_replaces_a_broken_one_is_not_replaced_for_it():
    workers = Workers(3)
    workers.heard["worker-2"] = []
    workers.groups.lose("worker-2")
    workers.form(2, "worker-0")
    workers.report("worker-2", waits=True)
    workers.report("worker-0", broken=2)
    workers.form(2, "worker-1")
    workers.report("worker-0")
    workers.report("worker-1")
    workers.form(3, "worker-0", "worker-1", "worker-2")
    assert workers.groups.epoch == 3
    workers.now += BROKEN_FOR + 0.1
    workers.groups.check_timers()
    assert workers.groups.epoch == 3


def test_a_newcomer_that_dies_before_the_switch_interrupts_no_step():
    workers = Workers(2)
    workers.heard["worker-1"] = []
    workers.groups.lose("worker-1")
    workers.report("worker-1", waits=True)
    workers.formed["worker-0"] = 2
    workers.report("worker-0")
    assert workers.latest("worker-0").stage == PREPARE
    assert not workers.groups.lose("worker-1"), "no member has been told to wait for it"
    assert workers.groups.epoch == 2


def test_a_newcomer_that_dies_at_the_switch_returns_to_the_members_before_it():
    workers = Workers(2)
    workers.heard["worker-1"] = []
    workers.groups.lose("worker-1")
    workers.report("worker-1", waits=True)
    workers.form(2, "worker-0")
    workers.report("worker-0")
    assert workers.latest("worker-0").stage == SWITCH
    assert workers.groups.lose("worker-1")
    assert workers.latest("worker-0") == Regroup(4, (0,), NOW)


def test_a_donor_that_dies_while_a_newcomer_joins_leaves_it_waiting_for_the_next_group():
    workers = Workers(3)
    workers.heard["worker-2"] = []
    workers.groups.lose("worker-2")
    workers.report("worker-2", waits=True)
    workers.form(2, "worker-0", "worker-1")
    workers.report("worker-0")
    workers.report("worker-1")
    workers.heard.pop("worker-0")
    workers.groups.lose("worker-0")
    assert workers.latest("worker-1") == Regroup(4, (1,), NOW)
    workers.report("worker-2", waits=True)
    workers.form(4, "worker-1")
    workers.report("worker-1")
    assert workers.latest("worker-2") == Regroup(5, (1, 2), NOW)


def test_an_announcement_that_was_not_heard_is_sent_again_with_the_next_report():
    workers = Workers(2)
    workers.heard["worker-0"].clear()
    workers.report("worker-0")
    assert workers.latest("worker-0") == Regroup(1, (0, 1), NOW)


def test_connections_that_break_without_a_loss_lead_to_a_group_of_the_same_members():
    workers = Workers(2)
    workers.form(1, "worker-0", "worker-1")
    workers.report("worker-0", broken=1)
    workers.groups.check_timers()
    assert workers.groups.epoch == 1
    workers.now = BROKEN_FOR + 0.1
    workers.groups.check_timers()
    assert workers.latest("worker-1") == Regroup(2, (0, 1), NOW)


def test_a_worker_that_has_finished_ends_the_run_and_a_loss_after_that_frees_the_others():
    workers = Workers(3)
    workers.form(1, "worker-0", "worker-1", "worker-2")
    workers.groups.leave("worker-0")
    assert workers.latest("worker-1").stage == OVER
    workers.groups.lose("worker-2")
    assert workers.latest("worker-1").stage == BREAK


def test_a_worker_that_fails_with_an_error_ends_the_others_also_if_one_is_lost_after_it():
    workers = Workers(3)
    workers.form(1, "worker-0", "worker-1", "worker-2")
    workers.groups.leave("worker-0", failed=True)
    assert workers.latest("worker-1").stage == FAILED
    workers.groups.lose("worker-2")
    workers.report("worker-1")
    assert workers.latest("worker-1").stage == FAILED


def test_whatever_is_lost_in_whatever_order_the_last_group_is_that_of_the_present_workers():
    for seed in range(300):
        draw = random.Random(seed)  # noqa: S311 - the same orders every time
        workers = Workers(4)
        waiting: set[str] = set()
        for _ in range(60):
            name = f"worker-{draw.randrange(4)}"
            act = draw.random()
            holders = set(workers.groups.members) - {name}
            if act < 0.15 and holders:
                workers.groups.lose(name)
                workers.heard[name] = []
                workers.formed.pop(name, None)
                waiting.add(name)
            elif act < 0.3:
                # Messages to it get lost; it is told again.
                workers.heard[name] = workers.heard[name][:1]
            else:
                known = workers.latest(name)
                rank = int(name[-1])
                if known is not None and known.stage == NOW and rank in known.ranks:
                    workers.formed[name] = known.epoch
                    waiting.discard(name)
                workers.report(name, waits=name in waiting)
        for _ in range(20):
            for name in workers.heard:
                known = workers.latest(name)
                pending = known is not None and known.stage in (PREPARE, SWITCH)
                chosen = any(
                    one.stage == SWITCH and known is not None and one.epoch == known.epoch
                    for heard in workers.heard.values()
                    for one in heard
                )
                if known is not None and (known.stage == NOW or (pending and chosen)):
                    if int(name[-1]) in known.ranks:
                        workers.formed[name] = known.epoch
                        waiting.discard(name)
                    else:
                        waiting.add(name)
                workers.report(name, waits=name in waiting)
        assert set(workers.groups.members) == set(workers.heard), f"seed {seed}"


def test_a_row_is_left_out_with_one_of_its_workers_and_joins_when_all_of_them_wait():
    workers = Workers(6, row=2)
    workers.form(1, *workers.heard)
    assert workers.groups.lose("worker-2")
    rest = Regroup(2, (0, 1, 4, 5), NOW)
    for rank in (0, 1, 3, 4, 5):
        # The other worker of the row is told that it is no member.
        assert workers.latest(f"worker-{rank}") == rest
    workers.form(2, "worker-0", "worker-1", "worker-4", "worker-5")
    workers.report("worker-3", waits=True)
    assert workers.latest("worker-0") == rest
    workers.heard["worker-2"] = []
    workers.report("worker-2", waits=True)
    assert workers.latest("worker-0") == Regroup(3, (0, 1, 2, 3, 4, 5), PREPARE)
    for name in ("worker-0", "worker-1", "worker-4", "worker-5"):
        workers.report(name)
    assert workers.latest("worker-0").stage == SWITCH
    assert workers.latest("worker-2") == workers.latest("worker-3") == Regroup(3, (*range(6),), NOW)
    assert workers.form(3, "worker-0") == ["worker-2", "worker-3"]


def test_a_worker_that_did_not_hear_that_its_row_is_left_out_is_told_again():
    workers = Workers(4, row=2)
    workers.form(1, *workers.heard)
    workers.groups.lose("worker-0")
    workers.heard["worker-1"] = [Regroup(1, (0, 1, 2, 3), NOW)]
    workers.report("worker-1")
    assert workers.latest("worker-1") == Regroup(2, (2, 3), NOW)


def test_a_row_of_which_a_worker_is_lost_while_it_waits_does_not_join():
    workers = Workers(4, row=2)
    workers.form(1, *workers.heard)
    workers.groups.lose("worker-0")
    workers.form(2, "worker-2", "worker-3")
    workers.report("worker-1", waits=True)
    workers.groups.lose("worker-1")
    workers.report("worker-0", waits=True)
    assert workers.latest("worker-2") == Regroup(2, (2, 3), NOW)
