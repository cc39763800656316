"""What an instance costs an hour: as the inventory or AWS says, or by a table with its date."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from hadar_cli.aws.account import Account, input_errors
from hadar_cli.aws.launching import template_of
from hadar_cli.core.gpu_table import PRICED_ON, price_of
from hadar_cli.core.model import AwsRequest, Node
from hadar_cli.errors import InputError

_PRICE_LIST = "us-east-1"  # which tells the prices of all regions
_HELD = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "tenancy": "Shared",
    "capacitystatus": "Used",
}


@dataclass(frozen=True, slots=True)
class Price:
    """In dollars an hour, and where that is from."""

    per_hour: float
    source: str


def with_prices(nodes: Sequence[Node]) -> tuple[tuple[Node, ...], list[str]]:
    """The nodes, those to be rented with their prices; and how they came by them, in words."""
    asked: dict[tuple[Any, ...], tuple[Price | None, str]] = {}
    priced: list[Node] = []
    for node in nodes:
        if node.aws and node.enabled and node.price_per_hour is None:
            key = (node.aws.type, node.aws.template, node.aws.instance, node.aws.spot)
            if key not in asked:
                asked[key] = _find(node.aws)
            price, _ = asked[key]
            node = replace(node, price_per_hour=price.per_hour) if price else node
        priced.append(node)
    return tuple(priced), [words for _, words in asked.values()]


def _find(request: AwsRequest) -> tuple[Price | None, str]:
    kind = request.type or "an instance"
    bought = "spot" if request.spot else "on demand"
    try:
        with input_errors():
            kind = kind_of(request)
            price = ask_price(request, kind)
    except InputError as error:
        price, told = _from_table(request), f": {error.message}"
    else:
        told = ""
        price = price or _from_table(replace(request, type=kind))
    if not price:
        return None, f"{kind} {bought}: no price is known; set price_per_hour{told}"
    return price, f"{kind} {bought}: ${price.per_hour:g} an hour, {price.source}"


def kind_of(request: AwsRequest) -> str:
    """The type of instance that the request leads to."""
    if request.type:
        return request.type
    client = Account.of(request).ec2
    if request.template:
        return str(template_of(client, request)[1].get("InstanceType", ""))
    told = client.describe_instances(InstanceIds=[request.instance])["Reservations"]
    return str(told[0]["Instances"][0]["InstanceType"])


def ask_price(request: AwsRequest, kind: str) -> Price | None:
    """What AWS says; None where it has no price for it."""
    account = Account.of(request)
    today = time.strftime("%Y-%m-%d")
    if request.spot:
        told = account.ec2.describe_spot_price_history(
            InstanceTypes=[kind],
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.now(timezone.utc),
        )
        prices = [float(one["SpotPrice"]) for one in told["SpotPriceHistory"]]
        # Nobody knows yet in which zone it will be.
        return Price(max(prices), f"the dearest zone's on {today}, by AWS") if prices else None
    filters = {"instanceType": kind, "regionCode": account.ec2.meta.region_name, **_HELD}
    told = account.client("pricing", _PRICE_LIST).get_products(
        ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in filters.items()],
    )
    found = [price for text in told["PriceList"] for price in _dollars(json.loads(text))]
    return Price(max(found), f"on {today}, by AWS's price list") if found else None


def _dollars(product: dict[str, Any]) -> list[float]:
    return [
        float(dimension["pricePerUnit"]["USD"])
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term.get("priceDimensions", {}).values()
        if dimension.get("unit") == "Hrs" and float(dimension["pricePerUnit"].get("USD", 0)) > 0
    ]


def _from_table(request: AwsRequest) -> Price | None:
    """On demand: spot costs less, so that this is safe for a budget."""
    region = request.region or ""
    with suppress(InputError), input_errors():
        region = str(Account.of(request).ec2.meta.region_name)
    price = price_of(request.type or "", region)
    source = f"on demand, by hadar's own table of {PRICED_ON}, written by hand: check it"
    return Price(price, source) if price is not None else None
