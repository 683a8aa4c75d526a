"""An order system to talk about. In a real application this is a query, or somebody's API."""

from __future__ import annotations

ORDERS = {
    "1042": "Order 1042 (two kettles) was shipped on Monday and arrives on Friday.",
    "1043": "Order 1043 (a desk lamp) is being packed and leaves tomorrow.",
    "2001": "Order 2001 (a bookcase) was delivered on 3 November and signed for by the neighbour.",
}


def lookup(order_id: str) -> str:
    """What is known about an order, as a sentence that a model can pass on."""
    number = str(order_id).strip().lstrip("#").upper()
    return ORDERS.get(number, f"There is no order {number}.")
