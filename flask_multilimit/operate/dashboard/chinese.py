"""The texts of the pages in Chinese, by the English that templates and rooms write."""

from __future__ import annotations

CHINESE: dict[str, str] = {
    # On every page
    "Skip to the content": "跳到正文",
    "Pages": "页面",
    "Now": "实时",
    "Limits": "限额",
    "Subject": "对象",
    "Lists": "名单",
    "History": "历史",
    "What if": "推演",
    "Changes are recorded under this name": "更改以此名义进行",
    "Pause": "暂停",
    "Refresh by itself": "自动刷新",
    "No answer; trying again": "没有响应，正在重试",
    "The same as JSON": "以 JSON 查看",
    "Find": "查找",
    "Show": "显示",
    "Show all": "全部显示",
    "Pages of this list": "本列表的页",
    "Previous": "上一页",
    "Next": "下一页",
    "Page {page} of {pages}": "第 {page} 页，共 {pages} 页",
    "Not possible": "无法进行",
    "You may not see this page.": "您无权访问此页。",
    "Debug mode: anyone on this machine may see and change this. Give Dashboard authorize=.": (
        "调试模式：本机上的任何人都可以查看和更改。请为 Dashboard 提供 authorize=。"
    ),
    "MULTILIMIT_ENABLED is False: nothing is limited.": "MULTILIMIT_ENABLED 为 False：未限制任何请求。",
    "SECRET_KEY is not set, so nothing can be changed here: forged forms could not be recognised.": (
        "未设置 SECRET_KEY，因此无法在此更改：无法区分真实表单与伪造表单。"
    ),
    "This form was opened too long ago, or by somebody else. Go back, load the page again, and send it again.": (
        "此表单打开过久，或由他人打开。请返回并重新加载页面，然后再次提交。"
    ),
    "This form was not sent by a page of this dashboard, so nothing was changed.": (
        "此表单并非来自本面板，未作任何更改。"
    ),
    "Too many changes in a minute. Nothing was changed; wait a little, and send it again.": (
        "一分钟内更改过多，未作任何更改；请稍候再提交。"
    ),
    "You may look, but not change anything.": "您可以查看，但不能更改。",
    "MULTILIMIT_CONTROL or MULTILIMIT_ENABLED is False: nothing can be changed.": (
        "MULTILIMIT_CONTROL 或 MULTILIMIT_ENABLED 为 False：无法更改。"
    ),
    "The storage does not answer.": "存储没有响应。",
    "This page shows what was read earlier.": "此处显示的是先前读取的内容。",
    "Quotas are in the memory of each process: a change applies only in the process that answers.": (
        "配额保存在各进程的内存中：更改只在作出响应的进程中有效。"
    ),
    "s": "秒",
    "ms": "毫秒",
    "min": "分钟",
    "h": "小时",
    "d": "天",
    "never": "永不",
    # Now
    "As of": "截至",
    "passed": "通过",
    "refused": "拒绝",
    "near a limit": "接近限额",
    "banned, denied, unanswered": "封禁、禁止、无响应",
    "{n} in the hour": "一小时内 {n}",
    "Set MULTILIMIT_TRAFFIC to True to see here what limits do.": (
        "将 MULTILIMIT_TRAFFIC 设为 True，即可在此查看限流情况。"
    ),
    "Checks a second over the last hour: {passed} passed, {refused} refused in all": (
        "过去一小时每秒检查次数：共通过 {passed} 次，拒绝 {refused} 次"
    ),
    "The last {minutes} minutes so far; older traffic is still being read.": (
        "目前为最近 {minutes} 分钟；更早的仍在读取。"
    ),
    "60 min ago": "60 分钟前",
    "now": "现在",
    "checks a second": "次检查/秒",
    "By endpoint": "按端点",
    "Find an endpoint": "查找端点",
    "endpoint": "端点",
    "last hour": "过去一小时",
    "passed / s": "通过/秒",
    "refused / s": "拒绝/秒",
    "near / s": "接近/秒",
    "refused in the hour": "一小时内拒绝",
    "No endpoint that was checked in the last hour has “{q}” in its name.": (
        "过去一小时检查过的端点中，没有名称包含“{q}”的。"
    ),
    "No limit was checked in the last hour.": "过去一小时没有检查过任何限额。",
    "Send a request to a view that has a limit; it shows here within seconds.": (
        "向有限额的视图发送一个请求，几秒内即会显示在此。"
    ),
    "See which views have limits": "查看哪些视图有限额",
    "Refused most": "被拒最多",
    "who": "谁",
    "type": "类型",
    "rule": "规则",
    "since": "自",
    "Nobody was refused in the last hour.": "过去一小时无人被拒。",
    "By rule": "按规则",
    "refuses": "拒绝",
    "near": "接近",
    "would refuse, as a shadow": "若非影子则拒绝",
    "bans started": "开始的封禁",
    "bans started by limits, in the hour": "一小时内由限额开始的封禁",
    "Checks of the last hour. Near: the check passed, and more than 80 % of the quota is used.": (
        "过去一小时的检查。接近：检查通过，且配额已用超过 80 %。"
    ),
    "No rule refused anything in the last hour, or came near its limit.": (
        "过去一小时没有规则拒绝过请求，也没有接近限额。"
    ),
    "Storage": "存储",
    "works": "正常",
    "away": "无响应",
    "kept in": "保存于",
    "the memory of this process": "本进程的内存",
    "answers in": "响应时间",
    "breaker": "熔断器",
    "closed": "闭合",
    "open": "断开",
    "half-open": "半开",
    "workers": "工作进程",
    "(a guess)": "（估计）",
    "memory of this process": "本进程的内存",
    "the number of CPUs": "CPU 数量",
    "the processes beside this one": "与本进程并列的进程",
    "the arguments of gunicorn": "gunicorn 的参数",
    "counted here": "在此计数",
    "{n} keys": "{n} 个键",
    "to be charged": "待补计",
    "{n} checks": "{n} 次检查",
    "given up": "已放弃",
    "guard": "守护",
    "Each process has its own: this page shows that of the process that answered.": (
        "各进程互相独立：此页显示作出响应的那一个。"
    ),
    "Changed while it runs": "运行中的更改",
    "The newest changes cannot be put in force.": "无法采用最新的更改。",
    "limits": "限额",
    "bans": "封禁",
    "denied": "禁止",
    "allowed": "放行",
    # Limits
    "{n} endpoints": "{n} 个端点",
    "Name, path, rule or type": "名称、路径、规则或类型",
    "all endpoints": "所有端点",
    "changed while it runs": "运行中已更改",
    "with a shadow": "含影子",
    "without limits": "没有限额",
    "at most": "最多",
    "of each": "按",
    "declared": "声明于",
    "change": "更改",
    "no route": "无路由",
    "requests that match no route": "不匹配任何路由的请求",
    "and {n} more": "以及另外 {n} 个",
    "Add": "添加",
    "a limit at {endpoint}": "{endpoint} 的限额",
    "changed": "已更改",
    "shadow": "影子",
    "by request": "视请求而定",
    "declared: {rules}": "声明为：{rules}",
    "would {n}": "若非影子则 {n}",
    "Change": "更改",
    "no limit": "没有限额",
    "by {author}": "由 {author}",
    "until": "至",
    "lasting": "长期",
    "No endpoint matches.": "没有匹配的端点。",
    "This app has no endpoints yet. Add a view, and put @rate_limiter on it.": (
        "此应用还没有端点。请添加一个视图，并加上 @rate_limiter。"
    ),
    # Changes
    "Change a limit": "更改限额",
    "Ban somebody": "封禁",
    "Deny somebody": "禁止",
    "Allow somebody": "放行",
    "Where": "位置",
    "An endpoint, a blueprint, or a pattern such as api.*; * is everywhere.": (
        "端点、蓝图或 api.* 之类的模式；* 表示所有。"
    ),
    "Whose": "谁的",
    "Who": "谁",
    "An address, a network, or a subject after the name of its type: user:42": (
        "地址、网络，或“类型名:对象”，例如 user:42"
    ),
    "At most": "最多",
    "Of each": "按",
    "As a shadow: it counts, but never refuses": "作为影子：只计数，从不拒绝",
    "Which limit": "哪个限额",
    "all rules of {name}": "{name} 的所有规则",
    "all limits there": "该处的所有限额",
    "Change it to": "改为",
    "another count": "另一个次数",
    "multiply the count by": "次数的倍数",
    "shadow: it counts, but never refuses": "影子：只计数，从不拒绝",
    "no shadow: it refuses again": "取消影子：重新拒绝",
    "off: as if it were not there": "关闭：如同不存在",
    "Answer": "回应",
    "as MULTILIMIT_DENY_STATUS says": "按 MULTILIMIT_DENY_STATUS",
    "How long": "多久",
    "until somebody undoes it": "直到有人撤销",
    "Why": "原因",
    "Show what it would do": "查看效果",
    "Cancel": "取消",
    "What it would do": "效果",
    "It replaces: {text}": "将取代：{text}",
    "before": "之前",
    "afterwards": "之后",
    "In the last hour": "过去一小时",
    "Nothing is known: traffic is not counted, or has not been read yet.": "尚无数据：流量未计数，或尚未读取。",
    "No limit of a view changes.": "没有视图的限额改变。",
    "I am sure": "确实如此",
    "Change it": "更改",
    "In force in all workers within a second.": "一秒内在所有工作进程中生效。",
    "The history keeps it under your name: {author}": "历史将以您的名义记录：{author}",
    "Fill in the form. Before anything changes, this shows which limits would change, and what the last hour says "
    "about them.": "请填写表单。更改之前，此处会显示哪些限额将改变，以及过去一小时的情况。",
    "This is your own address: you would be refused here too.": "这是您自己的地址：您在此也会被拒绝。",
    "say why: others will read it": "请说明原因：他人会看到",
    "say how long it lasts": "请说明有效多久",
    "confirm that you are sure": "请确认确实如此",
    "It refused {refuses:,} checks. They would have passed, unless another rule refuses them.": (
        "它拒绝了 {refuses:,} 次检查。若无其他规则拒绝，这些检查本会通过。"
    ),
    "As a shadow, it would have refused {shadows:,} checks.": "作为影子，它本会拒绝 {shadows:,} 次检查。",
    "It refused {refuses:,} checks. At most that many more would have passed.": (
        "它拒绝了 {refuses:,} 次检查。最多会多通过这么多次。"
    ),
    "It refused {refuses:,} checks. At most {near:,} more would have been refused.": (
        "它拒绝了 {refuses:,} 次检查。最多会再多拒绝 {near:,} 次。"
    ),
    "Nobody came near it, and it refused nothing. How near clients came to the new one is not known.": (
        "无人接近它，它也没有拒绝过请求。与新限额有多接近尚不清楚。"
    ),
    "It refused {refuses:,} checks, and {near:,} passed with m"
    "ore than 80 % of it used. How many more the new one would "
    "have refused is not known: make it a shadow first, and look here again.": (
        "它拒绝了 {refuses:,} 次检查，另有 {near:,} 次在已用"
        "超过 80 % 时通过。新限额会多拒绝多少尚不清楚：请先设为影子，再来查看。"
    ),
    "It did not exist, so nothing is known about it: make it a shadow first, and look here again.": (
        "它先前不存在，因此没有数据：请先设为影子，再来查看。"
    ),
    "Its rules depend on the request, so nothing is known about it.": "其规则视请求而定，因此没有数据。",
    # Lists and history
    "Changes while the app runs": "应用运行中所作的更改",
    "In force within a second:": "一秒内生效：",
    "Undone in all workers within a second:": "一秒内在所有工作进程中撤销：",
    "This entry is no longer in force.": "此条目已不再有效。",
    "Undo": "撤销",
    "Undo {text}": "撤销 {text}",
    "Kinds": "种类",
    "all": "全部",
    "Find an entry": "查找条目",
    "Entries": "条目",
    "what": "内容",
    "ends": "结束",
    "by": "由",
    "why": "原因",
    "limit": "限额",
    "ban": "封禁",
    "deny": "禁止",
    "allow": "放行",
    "matches nothing in the app": "没有与之对应的内容",
    "No entry matches.": "没有匹配的条目。",
    "Nothing is changed: all limits are as declared, and nobody is banned.": (
        "没有更改：所有限额如声明所述，无人被封禁。"
    ),
    "From the settings": "来自设置",
    "Find a change": "查找更改",
    "when": "时间",
    "set": "设置",
    "undone": "已撤销",
    "reset": "重置",
    "in force": "有效",
    "No change matches.": "没有匹配的更改。",
    "Nothing has been changed yet. Changes made here, on the command line or by the app itself are kept here: "
    "who, when, what and why.": "尚无更改。在此处、命令行或应用中所作的更改都会记录于此：谁、何时、什么、为什么。",
    # Subject
    "Look up": "查询",
    "Look up an address, a network, or a subject after the name of its type: 203.0.113.7, 203.0.113.0/24, user:42": (
        "查询地址、网络，或“类型名:对象”：203.0.113.7、203.0.113.0/24、user:42"
    ),
    "Refused most in the last hour:": "过去一小时被拒最多：",
    "Reset: {n} quotas.": "已重置 {n} 个配额。",
    "No limit applies to it.": "不受任何限额约束。",
    "Its requests are refused before any limit.": "其请求在检查限额之前即被拒绝。",
    "It is banned.": "已被封禁。",
    "Ban": "封禁",
    "Deny": "禁止",
    "Allow": "放行",
    "Give it rules of its own": "为其单独设定规则",
    "Entries about it": "运行中对它的设置",
    "Where it stands": "当前状况",
    "Reset all its quotas": "重置其所有配额",
    "Reset": "重置",
    "Reset at {endpoint}": "重置 {endpoint} 处的配额",
    "used": "已用",
    "left": "剩余",
    "a request": "请求",
    "resets in": "完全恢复",
    "passes": "通过",
    "for": "持续",
    "while not logged in": "未登录时",
    "{used} of {quota} used": "已用 {used}/{quota}",
    "banned": "已封禁",
    "{n} refusals to go": "还差 {n} 次拒绝",
    "A network is many clients: each has quotas of its own. Look up one of its addresses to see where it stands.": (
        "一个网络包含许多客户端，各有自己的配额。请查询其中一个地址以查看其状况。"
    ),
    "No limit of this app counts it.": "此应用没有限额对其计数。",
    "Refused in the last hour": "过去一小时被拒",
    "last": "最近",
    "It was not refused, or others were refused so much more often that it was not kept.": (
        "它没有被拒，或者其他对象被拒更多，因此未保留记录。"
    ),
    "MULTILIMIT_TRAFFIC_SUBJECTS does not keep subjects as they are, so this is not known.": (
        "MULTILIMIT_TRAFFIC_SUBJECTS 不按原样保存对象，因此无法得知。"
    ),
    # What if
    "Endpoint": "端点",
    "Counted by": "计数依据",
    "In any (seconds)": "任意时段（秒）",
    "At most (count)": "最多（次数）",
    "let the traffic choose": "由流量决定",
    "It may refuse at most": "最多可拒绝",
    "How many requests do your clients really make, and whom w"
    "ould a limit refuse? Nothing is changed here, and nothing "
    "is charged.": "您的客户端实际发出多少请求？限额会拒绝谁？此处不作任何更改，也不计入任何配额。",
    "Recorded traffic": "已记录的流量",
    "This app records no traffic.": "此应用没有记录流量。",
    "Add a recorder, or upload a log below:": "请添加记录器，或在下方上传日志：",
    "A log of yours": "您的日志",
    "Access log, at most {megabytes} MB": "访问日志，最大 {megabytes} MB",
    "Upload and show": "上传并显示",
    "From nginx, Apache, gunicorn, Caddy, Traefik, IIS or a recorder; it may be compressed (.gz). It is read once, "
    "and not kept.": (
        "来自 nginx、Apache、gunicorn、Caddy、Traefik、IIS 或记录器；也可为压缩文件（.gz）。只读取一次，不会保留。"
    ),
    "The app needs a SECRET_KEY before forms can be sent.": "应用需要 SECRET_KEY 才能提交表单。",
    "{requests} requests of {clients} clients": "{clients} 个客户端的 {requests} 个请求",
    "The newest that were recorded": "最新记录的请求",
    "Requests in any {window} s: at most {p50} by half of the clients, {p90} by 90 %, {p99} by 99 %; {max} by the "
    "busiest.": (
        "在任意 {window} 秒内，半数客户端最多发出 {p50} 个请求，90 % "
        "最多 {p90} 个，99 % 最多 {p99} 个；最忙的发出 {max} 个。"
    ),
    "To paste": "可粘贴",
    "What each count would have refused": "各次数会拒绝多少",
    "requests refused": "被拒请求",
    "of all": "占比",
    "clients ever refused": "曾被拒的客户端",
    "remark": "备注",
    "Problems in the log:": "日志中的问题：",
}
