"""Orders and results keep their meaning on every way they take."""

import ast
import json
import re
from dataclasses import fields, replace
from pathlib import Path

import msgspec

import hadar_cli
from hadar_cli.node import contract
from hadar_cli.node.contract import (
    AttemptFiles,
    Membership,
    Order,
    OrderRequest,
    Result,
    Seconds,
    Update,
    WorkerStart,
)

ROOT = Path(hadar_cli.__file__).parent
# Of those who lend machines, of `hadar try` and of the head.
OTHERS = {contract.NOTICE, contract.METADATA, contract.ALIVE, contract.TRACE, contract.SSH_CONFIG}
NAMES = {
    value
    for name, value in vars(contract).items()
    if name.isupper() and re.fullmatch(r"HADAR_[A-Z_]+", str(value))
}
ORDER = Order(
    steps=60,
    slices=((120, 180), (300, 320)),
    seconds=12.5,
    checkpoint_in=Path("/n/base.safetensors"),
    global_step=120,
    total_steps=1000,
    round=3,
    copy=2,
    num_copies=4,
    job_seed=7,
    seed=8,
    lr_scale=0.1 + 0.2,
    micro_batches=3,
    update=Update(5, 3),
    evaluate=True,
    hand_in="int8",
    keeps_optimizer=True,
    optimizer_in=Path("/node/objects/older"),
    attempt="e1-r2-c3-4",
    inherits=True,
    merged_of=("e1-r1-c3-1", "e1-r1-c4-2"),
    emulate_speed=0.25,
    member=Membership("g1", 2, 3, "tcp://10.0.0.1:29500", (0.5, 0.1 + 0.2, 0.2)),
)
PLACED = ORDER.placed(AttemptFiles(Path("/n/attempts/a")), Path("/n/orders/2.json"), True)


def test_names_of_the_contract_are_in_one_file():
    """And in the meanings of fields, for people."""
    spelled = {ROOT / "node" / "contract.py", ROOT / "config" / "meanings.py"}
    for path in ROOT.rglob("*.py"):
        if path not in spelled:
            assert contract.PREFIX not in strings_in(path.read_text()), path


def strings_in(code: str) -> str:
    """All text that a program works with; what it says about itself is left out."""
    tree = ast.parse(code)
    places = (ast.Module, ast.ClassDef, ast.FunctionDef)
    told = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, places) and told_of(n)}
    constants = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in told)
    return "\n".join(str(n.value) for n in constants)


def told_of(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str | None:
    return ast.get_docstring(node, clean=False)


def test_the_contract_s_page_tells_every_variable_that_scripts_see():
    page = (ROOT / "node" / "contract.md").read_text()
    told = set(re.findall(r"HADAR_[A-Z_]+", page))
    assert told == NAMES - {contract.ISSUED_AT, contract.WORKER, *OTHERS}


def test_an_order_is_the_same_after_its_way_to_the_worker():
    assert all(getattr(PLACED, field.name) != field.default for field in fields(Order))
    of_workers = {contract.WORKER, contract.DATA, contract.OUT}
    assert set(PLACED.variables()) == NAMES - of_workers - OTHERS
    assert Order.from_variables(json.loads(json.dumps(PLACED.variables()))) == PLACED


def test_only_what_must_be_done_has_to_be_said():
    least = {contract.STEPS: "5", contract.SLICES: "0:5", contract.SECONDS_LEFT: "9"}
    order = Order.from_variables(least)
    assert order.issued_at > 0
    assert replace(order, issued_at=0.0) == Order(5, ((0, 5),), 9.0)


def test_a_request_is_the_same_on_the_node():
    start = WorkerStart([None, "train.py"], {"A": "b"}, "/n/code", 3, "pip install x")
    request = OrderRequest("e1-r1-c1-1", "0-3-1-e1", False, ORDER, start)
    there = OrderRequest.from_message(json.loads(json.dumps(request.message())))
    assert replace(there, order=replace(there.order, issued_at=0.0)) == request


def test_a_copy_whose_weights_are_not_wanted_is_told_nowhere_to_leave_them():
    placed = ORDER.placed(AttemptFiles(Path("/n/attempts/a")), Path("/n/orders/2.json"), False)
    assert placed.checkpoint_out is None and placed.variables()[contract.CKPT_OUT] == ""


def test_a_result_is_the_same_on_the_head(tmp_path):
    result = Result(
        steps=60,
        slices=((120, 180),),
        samples=3840,
        seconds=Seconds(1.9, 8.0, 0.1),
        metrics={"loss": 0.41},
        evaluation={"accuracy": 0.1},
        higher_is_better=True,
        stopped="steps",
        waiting=True,
        missed_paces=1,
        lr=(0.1, 0.09),
        data=(17, 4, 33),
    )
    result.write(tmp_path / "result.json")
    found = json.loads((tmp_path / "result.json").read_text())
    assert msgspec.convert(found, Result) == result
    assert msgspec.convert({"steps": 60}, Result) == Result(60)
