"""The words the planner knows, Chinese and English: which ones mean the same, which ones mean nothing.

A *concept* is a set of words that the planner takes for one. Words outside all concepts still match themselves, so a tool
about something not listed here is found when message and description use the same word.
"""

from __future__ import annotations

CONCEPTS: dict[str, str] = {
    # what is done
    "lookup": "look up|look for|find|search|query|get|fetch|show|tell|check|list|read|view|see|give|what|which|lookup"
    "|查一下|查一查|查询|查找|查看|查|搜索|搜一下|搜|检索|看一下|看看|看|获取|告诉|显示|列出|了解",
    "create": "create|open|raise|add|make|new|submit|file|register|book"
    "|创建|新建|建立|开一个|开个|开一张|开|提交|新增|添加|登记|建",
    "cancel": "cancel|close|abort|revoke|withdraw|取消|撤销|关闭|关掉|撤回",
    "update": "update|change|modify|edit|rename|set|修改|更新|更改|更换|编辑",
    "delete": "delete|remove|erase|drop|删除|移除|删掉",
    "send": "send|mail|notify|post|publish|发送|发给|寄|通知|发布",
    # what it is done to
    "customer": "customer|client|crm|buyer|客户|顾客|买家",
    "account": "account|profile|user|member|账户|账号|资料|用户|会员",
    "contact": "contact|phone|telephone|联系方式|联系人|电话|手机",
    "email": "email|e-mail|邮箱|邮件",
    "order": "order|purchase|订单|单子",
    "status": "status|state|progress|where|状态|进度|到哪里|到哪|在哪里|在哪|物流",
    "delivery": "delivery|shipping|shipment|package|parcel|tracking|配送|快递|包裹|发货|运单",
    "ticket": "ticket|issue|incident|case|工单|报障",
    "knowledge": "knowledge base|knowledge|kb|faq|article|document|documentation|doc|manual|guide|policy|how|why"
    "|知识库|知识|文档|文章|手册|指南|政策|说明|怎么办|怎么|怎样|如何|为什么",
    "invoice": "invoice|bill|billing|receipt|发票|账单",
    "payment": "payment|pay|paid|付款|支付",
    "refund": "refund|退款",
    "return": "return|exchange|退货|换货",
    "price": "price|cost|fee|价格|多少钱|费用",
    "product": "product|item|goods|产品|商品|货物",
    "stock": "stock|inventory|库存",
    "weather": "weather|forecast|temperature|temp|天气|气温|温度",
    "city": "city|town|place|location|城市|地点|地方",
    "date": "date|day|日期|日子",
    "time": "time|clock|now|时间|现在几点|几点",
    "calendar": "calendar|meeting|appointment|schedule|日历|会议|预约|日程",
    "note": "note|memo|reminder|笔记|备忘|提醒",
    "file": "file name|filename|folder|path|文件|目录",
    "translate": "translate|translation|language|翻译|语言",
    "calculate": "calculate|compute|calculator|sum|计算|算一下",
    "priority": "priority|urgency|优先级|紧急程度",
    "high": "high|urgent|critical|高|紧急",
    "normal": "normal|medium|regular|普通|一般|中等",
    "low": "low|minor|低",
    "count": "top|first|limit|max|most|number|count|results|result|k|n|前|最多|条|篇",
    "title": "title|titled|subject|标题|主题|题目",
}

CHANGING = frozenset({"create", "cancel", "update", "delete", "send"})
"""Actions with effects: a tool named after one is asked for only when the message names it too."""
ACTIONS = CHANGING | {"lookup"}
VAGUE = ACTIONS | {"count", "status", "high", "normal", "low", "title", "priority"}
"""Concepts that alone do not tell what a message is about."""

_IGNORED_ENGLISH = (
    "a about all also am an and any are as at be because been but by can could did do does done for from had has have he hello"
    " help her hi him his i id if in into is it its just let may me my name named called no not of ok on or our out please she"
    " should so some such tell than thank thanks that the their them then there these they this those to too us use was"
    " we were when who will with would you your by via need want like ask say string value"
)
_IGNORED_CHINESE = (
    "麻烦|请问|请|帮我|帮忙|帮|给我|我们|我的|我|你们|你好|你|您好|您|谢谢|帮助|一下|一个|一张|一些|这个|那个|这|那|什么|哪些|哪个|多少|什么时候"
    "|的|了|吗|呢|吧|啊|是|在|有|把|被|给|对|还|也|都|就|想要|想|要|需要|能|可以|怎么样|现在|今天|明天|名叫|名为|叫|姓名|名字|名称|编号|号码"
    "|以及|并且|并|然后|同时|另外|和|与|或者|或|关于|他们|她们|他|她|它|用|从|到|为|未完成|所有|全部|最近|里|上|下"
)
IGNORED = frozenset(_IGNORED_ENGLISH.split()) | frozenset(_IGNORED_CHINESE.split("|"))
"""Words that say nothing about what is asked for, and are no names either."""
