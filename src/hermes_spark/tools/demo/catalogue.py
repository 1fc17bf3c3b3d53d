"""What the demo's shop holds when it opens: customers, orders, tickets and articles, known to service and messages alike."""

from __future__ import annotations

import msgspec


class Customer(msgspec.Struct, frozen=True):
    """A customer of the shop."""

    name: str
    city: str
    level: str


class Order(msgspec.Struct, frozen=True):
    """An order; `id` is `A-` and a number."""

    id: str
    customer: str
    status: str
    item: str


class Ticket(msgspec.Struct, frozen=True):
    """A support ticket; `id` is `T-` and a number."""

    id: str
    title: str
    priority: str


class Article(msgspec.Struct, frozen=True):
    """An article of the knowledge base."""

    title: str
    text: str


CUSTOMERS = (
    Customer("张三", "北京", "gold"),
    Customer("李四", "上海", "silver"),
    Customer("王芳", "广州", "gold"),
    Customer("赵敏", "深圳", "standard"),
    Customer("Alice Johnson", "Boston", "gold"),
    Customer("Bob Smith", "Leeds", "standard"),
    Customer("Carla Rossi", "Torino", "silver"),
)

ORDERS = (
    Order("A-1001", "张三", "shipped", "keyboard"),
    Order("A-1002", "李四", "paid", "monitor"),
    Order("A-1003", "Alice Johnson", "delivered", "desk lamp"),
    Order("A-1004", "王芳", "returned", "headphones"),
    Order("A-1005", "Bob Smith", "packed", "webcam"),
    Order("A-1006", "张三", "paid", "mouse"),
    Order("A-1007", "Carla Rossi", "shipped", "notebook stand"),
    Order("A-1008", "赵敏", "delivered", "microphone"),
)

TICKETS = (
    Ticket("T-101", "Parcel is late", "normal"),
    Ticket("T-102", "Wrong colour", "low"),
    Ticket("T-103", "屏幕不亮", "high"),
    Ticket("T-104", "发票抬头有误", "normal"),
)

ARTICLES = (
    Article("Refunds", "A refund is paid within 5 working days after the parcel has come back."),
    Article("Shipping times", "Parcels take 2 to 4 working days inside the country and up to 10 abroad."),
    Article("Warranty", "Every device has a warranty of 24 months; keep the invoice."),
    Article("Password reset", "Choose 'forgotten password' on the login page; the link is valid for one hour."),
    Article("退货政策", "收到商品后 7 天内可以无理由退货，退款在 5 个工作日内到账。"),
    Article("发票", "电子发票在发货后自动发送到注册邮箱。"),
    Article("会员等级", "一年内消费满 5000 元升为金卡会员，免运费。"),
)
