"""Every text of our pages exists in both languages, with the same placeholders."""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from babel.messages.mofile import read_mo
from babel.messages.pofile import read_po
from flask import Flask
from flask.testing import FlaskClient
from jinja2 import Environment, nodes

from flask_multilimit import IP, Ban, Rule, rate_limiter
from flask_multilimit.control.store import LISTING_KINDS
from flask_multilimit.engine import rules
from flask_multilimit.engine.storage.layers import health as storage_health
from flask_multilimit.insight import impact, past, standing
from flask_multilimit.operate import dashboard, usage
from flask_multilimit.operate.blueprints import LANGUAGES, translated
from flask_multilimit.operate.dashboard import whatif
from flask_multilimit.operate.dashboard.shell import rule_in
from support.changes import control_of

from .conftest import ROOT, browser_of, made
from .test_now import send_requests
from .test_what_if_page import LOG, upload

FOLDER = Path(next(iter(dashboard.__path__)))
PACKAGE = FOLDER.parent.parent
TEMPLATES = sorted((FOLDER / "templates").glob("*.html"))
CATALOGUE = FOLDER / "translations" / "zh.po"


def texts(catalogue: Path) -> dict[str, str]:
    with catalogue.open("rb") as file:
        found = read_mo(file) if catalogue.suffix == ".mo" else read_po(file)
    return {str(each.id): str(each.string) for each in found if each.id}


CHINESE = texts(CATALOGUE)
OF_CUSTOMERS = Path(next(iter(usage.__path__)))
CATALOGUES = {"dashboard": CATALOGUE, "usage": OF_CUSTOMERS / "translations" / "zh.po"}
UNITS = {"s", "ms", "min", "h", "d", "never"}
WORKERS_FOUND_BY = {
    "memory of this process",
    "the settings of gunicorn",
    "the number of CPUs",
    "the other processes of the same server",
}
PLACES = re.compile(r"\{\w+(?::,)?\}")


def texts_in(template: Path) -> Iterator[str]:
    """The arguments of ``t(...)``: constants, and values of mappings and lists of pairs."""
    tree = Environment(autoescape=True).parse(template.read_text(encoding="utf-8"))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "t":
            yield from _constants(call.args[0])
    for mapping in tree.find_all(nodes.Dict):
        yield from (each for pair in mapping.items for each in _constants(pair.value))
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.iter, nodes.List):
            pairs = [each.items for each in loop.iter.items if isinstance(each, nodes.Tuple)]
            yield from (each for _, title in pairs for each in _constants(title))


def _constants(node: nodes.Node) -> Iterator[str]:
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        yield node.value


def sentences_in_constants() -> Iterator[str]:
    """Sentences that modules hold in constants."""
    for path in (*sorted(FOLDER.glob("*.py")), *(Path(str(room.__file__)) for room in (impact, standing, past))):
        if path.stem == "whatif":
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                text = str(node.value.value)
                if " " in text.strip() and text == text.strip():
                    yield text


def phrases_in(path: Path) -> Iterator[str]:
    """The templates of the phrases in a file, given directly or by a constant."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named: dict[str, list[str]] = {}
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign):
            for target in ast.walk(each.targets[0]):
                if isinstance(target, ast.Name):
                    named.setdefault(target.id, []).extend(_templates(each.value))
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Phrase":
            given = call.args[0]
            names = [each.id for each in ast.walk(given) if isinstance(each, ast.Name) and each.id in named]
            found = {*_templates(given), *(text for name in names for text in named[name])}
            assert found, f"{path}:{call.lineno}: the template cannot be found"
            yield from found


def _templates(node: ast.expr) -> Iterator[str]:
    parts = node.elts if isinstance(node, ast.Tuple) else node.values if isinstance(node, ast.Dict) else [node]
    yield from (each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str))


@cache
def phrases() -> set[str]:
    """The templates of all phrases."""
    return {text for path in sorted(PACKAGE.rglob("*.py")) for text in phrases_in(path)}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_every_text_of_a_template_is_translated(template: Path) -> None:
    assert [text for text in texts_in(template) if text and text not in CHINESE] == []


def test_every_sentence_in_a_constant_is_translated() -> None:
    written = set(sentences_in_constants())
    assert impact.MORE_PASS in written
    assert sorted(written - set(CHINESE)) == []


def test_slider_and_its_remarks_are_translated() -> None:
    assert sorted({*whatif.WORDS.values(), *whatif.REMARKS.values()} - set(CHINESE)) == []


def test_every_phrase_of_errors_and_entries_is_translated() -> None:
    assert "{entry} would refuse {n} addresses" in phrases()
    assert sorted(phrases() - set(CHINESE)) == []


def test_no_page_says_1_endpoints(ada: FlaskClient) -> None:
    """Most texts name a number after what is counted, so that they are right for each."""
    templates = Path(__file__).parents[3].glob("flask_multilimit/operate/dashboard/templates/*.html")
    asked = [
        text for each in templates for text in re.findall(r't\("([^"]*\{n\} [a-z]+s\b[^"]*)"', each.read_text("utf-8"))
    ]
    assert asked == []
    assert "endpoints: 1<" in ada.get(f"{ROOT}limits?q=mine").text


@pytest.mark.parametrize("catalogue", CATALOGUES.values(), ids=CATALOGUES)
def test_translations_have_the_same_placeholders_and_are_compiled(catalogue: Path) -> None:
    chinese, compiled = texts(catalogue), catalogue.with_suffix(".mo")

    assert [text for text, translation in chinese.items() if not translation] == []
    assert {text: sorted(PLACES.findall(text)) for text in chinese} == {
        text: sorted(PLACES.findall(translation)) for text, translation in chinese.items()
    }
    assert texts(compiled) == chinese, f"pybabel compile -i {catalogue} -o {compiled}"


@pytest.mark.parametrize("catalogue", CATALOGUES.values(), ids=CATALOGUES)
def test_each_text_is_translated_once_as_msgfmt_demands(catalogue: Path) -> None:
    found = re.findall(r'^msgid "(.+)"$', catalogue.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("catalogue", CATALOGUES.values(), ids=CATALOGUES)
def test_chinese_texts_have_chinese_punctuation(catalogue: Path) -> None:
    """It is as wide as a character. Text that a visitor types keeps its own punctuation."""
    ours = [chinese.replace("类型名:对象", "") for chinese in texts(catalogue).values()]
    assert [text for text in ours if re.search(r"[\u4e00-\u9fff”][,:;?!(]|[,:;?!)][\u4e00-\u9fff“]", text)] == []


def test_usage_catalogue_has_exactly_the_texts_of_its_page() -> None:
    written = {text for text in texts_in(OF_CUSTOMERS / "templates" / "usage.html") if text}
    assert set(texts(CATALOGUES["usage"])) == written | UNITS | set(usage.MONTHS)


def test_every_translation_is_used() -> None:
    written = {text for template in TEMPLATES for text in texts_in(template)} | set(sentences_in_constants())
    source = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py"))
    named = written | phrases() | UNITS | set(rules.UNITS) | WORKERS_FOUND_BY
    assert [text for text in CHINESE if text not in named and text.partition(":")[0] not in source] == []


@pytest.mark.parametrize(
    ("text", "english", "chinese"),
    [
        ("2 per minute", "2 per minute", "每分钟 2"),
        ("1000000 per 20 s", "1,000,000 per 20 s", "每20 秒 1,000,000"),
        ("3 at once", "3 at once", "同时 3 个"),
        ("9 per calendar month in UTC", "9 per calendar month in UTC", "9 per calendar month in UTC"),
    ],
)
def test_texts_of_rules_are_translated(text: str, english: str, chinese: str) -> None:
    assert (rule_in("en", text), rule_in("zh", text)) == (english, chinese)


def test_no_text_is_no_text_in_any_language() -> None:
    assert [translated("flask_multilimit.operate.dashboard", language, "") for language in LANGUAGES] == ["", ""]


def test_every_unit_of_a_rule_is_translated() -> None:
    assert set(rules.UNITS) <= set(CHINESE)


def test_every_kind_of_change_has_a_title() -> None:
    kinds = {"set", "undo", "import", "reset", "unban", "put back"}
    shown = (FOLDER / "templates" / "history.html").read_text(encoding="utf-8")
    assert all(f'"{kind}": "' in shown for kind in kinds)


def test_sources_of_the_worker_count_are_translated() -> None:
    """Except names of settings, which are the same in every language."""
    sources = Path(storage_health.__file__).read_text(encoding="utf-8")
    told = {text for text in re.findall(r'Workers\([^"\n]*"([^"]+)"', sources) if " " in text}

    assert told == WORKERS_FOUND_BY
    assert set(CHINESE) >= WORKERS_FOUND_BY


@pytest.mark.parametrize(
    "page", ["", "limits", "lists", "history", "subject?who=203.0.113.7", "change?endpoint=show", "what-if"]
)
def test_pages_are_served_in_chinese(app: Flask, ada: FlaskClient, page: str) -> None:
    send_requests(app)
    text = ada.get(ROOT + page, headers={"Accept-Language": "zh-CN"}).text
    assert 'lang="zh-Hans"' in text
    assert "限额" in text


LIMIT = {"kind": "override", "endpoint": "show", "part": "rule:ip-60s"}
WRONG: list[dict[str, str]] = [
    {"kind": "ban", "who": "x y"},
    {"kind": "ban", "who": "team:1"},
    {"kind": "ban", "who": "1" * 3000},
    {"kind": "ban", "who": "::1", "lasting": "1"},
    {"kind": "ban", "who": "::1", "for": "soon"},
    {"kind": "ban", "who": "::1", "for": "0 s"},
    {"kind": "ban", "who": "0.0.0.0/0"},
    {"kind": "allow", "who": "0.0.0.0/1"},
    {"kind": "deny", "who": "::1", "status": "404"},
    {"kind": "deny", "who": "::1", "reason": "x" * 600},
    {"kind": "override", "endpoint": "show", "part": "all", "rules": "1/hour"},
    {"kind": "override", "endpoint": "show", "part": "more", "more": "2"},
    {"kind": "override", "endpoint": "show", "part": "more", "more": "2/minute", "type": "team"},
    {"kind": "override", "endpoint": "show", "part": "who", "who": "2001:db8::1", "what": "times", "times": "2"},
    {"kind": "override", "endpoint": "show", "part": "who", "who": "user:1", "what": "off"},
    {"kind": "override", "endpoint": "none", "part": "all", "what": "off"},
    {"kind": "override", "endpoint": "open", "part": "all", "what": "off"},
    {"kind": "override", "endpoint": "*", "part": "all", "what": "off"},
    {**LIMIT, "part": "some"},
    {**LIMIT, "part": "rule:none", "what": "shadow"},
    {**LIMIT, "what": "some"},
    *({**LIMIT, "what": "times", "times": times} for times in ("", "two", "0", "1e9", "0.001", "1000")),
    *({**LIMIT, "rules": rules} for rules in ("", "2", "2/moment", "0/minute", "two/minute", "2 per 900 days")),
    *(
        {**LIMIT, "rules": f"2 per calendar {rest}"}
        for rest in ("moon", "month in Mars", "month from 40", "day from 4")
    ),
    {**LIMIT, "rules": "2" * 3000},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong}"[:100])
def test_errors_of_a_change_are_in_chinese(ada: FlaskClient, wrong: dict[str, str]) -> None:
    page = ada.get(f"{ROOT}change", query_string={"for": "1h", "reason": "test", "lang": "zh", **wrong}).text
    told = re.findall('<p class="(?:wrong|alert)[^>]*>([^<]*)', page)
    assert told
    assert [text for text in told if not re.search("[\u4e00-\u9fff]{3}", text)] == []


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"count": "many"}, "请用数字给出次数"),
        ({"window": "moon"}, "窗口"),
        ({"refuse_at_most": "few"}, "请给出比例"),
        ({"refuse_at_most": "200%"}, "超过了全部"),
        ({"endpoint": "api.mine"}, "没有可供参考的请求"),
        ({"name": ""}, "请选择要上传的日志"),
        ({"endpoint": "open"}, "1 . 不符合格式"),
    ],
)
def test_problems_of_an_uploaded_log_are_in_chinese(ada: FlaskClient, fields: dict[str, str], shown: str) -> None:
    ada.get(f"{ROOT}?lang=zh")  # a cookie keeps it
    page = upload(ada, LOG + b"no line of a log\n", **fields).text
    assert re.search(shown, page)


def test_slider_is_in_the_language_of_the_page(ada: FlaskClient) -> None:
    ada.get(f"{ROOT}?lang=zh")

    page = upload(ada).text

    (data,) = re.findall('<div class="peaks"><script type="application/json">(.*?)</script>', page)
    assert json.loads(data)["window"] == "60 秒"
    assert [each for each in json.loads(data)["words"].values() if each.isascii()] == []
    assert "60 s" not in page


def test_title_of_a_refusal_and_limit_of_an_upload_are_in_chinese(ada: FlaskClient) -> None:
    ada.get(f"{ROOT}?lang=zh")
    assert re.search("<title>[^<]*[\u4e00-\u9fff]", ada.post(f"{ROOT}reset").text)
    assert re.search('data-too-large="[^"]*[\u4e00-\u9fff]', ada.get(f"{ROOT}what-if").text)


def test_page_says_in_chinese_why_it_has_no_numbers() -> None:
    browser = browser_of("ada", made(MULTILIMIT_TRAFFIC=False))
    assert "MULTILIMIT_TRAFFIC 为 False" in browser.get(f"{ROOT}?lang=zh").text


@pytest.mark.parametrize(
    "query", ["who=x y", "who=::1&at=noon", "who=::1&at=3h", "who=::1&endpoint=shwo", "who=::1&endpoint=none"]
)
def test_errors_of_the_client_page_are_in_chinese(ada: FlaskClient, query: str) -> None:
    page = ada.get(f"{ROOT}subject?lang=zh&{query}").text
    told = re.sub("</?time[^>]*>", "", page)
    assert re.search('role="alert"[^>]*>[^<]*[\u4e00-\u9fff]{3}', told)


@pytest.mark.parametrize("page", ["lists", "limits", "subject"])
def test_entries_are_in_chinese_on_pages_and_in_english_as_json(app: Flask, ada: FlaskClient, page: str) -> None:
    control_of(app).override("*", who="203.0.113.7", times=2, lasting=True)
    control_of(app).override("*", rule="ip-60s", times=3, lasting=True)
    query = {"lang": "zh", "who": "203.0.113.7"}

    text, as_json = (ada.get(f"{ROOT}{path}", query_string=query).text for path in (page, f"api/{page}"))

    assert "times the count" not in text
    assert "次数乘以 2" in text
    assert "203.0.113.7 everywhere: 2 times the count" in as_json


@pytest.mark.parametrize("kind", LISTING_KINDS)
def test_warning_names_the_kind_of_its_entry_in_chinese(ada: FlaskClient, kind: str) -> None:
    query = {"kind": kind, "who": "0.0.0.0/0", "for": "1h", "reason": "test", "lang": "zh"}

    text = ada.get(f"{ROOT}change", query_string=query).text

    assert f"{CHINESE[kind]} 0.0.0.0/0" in text
    assert f"{kind} 0.0.0.0/0" not in text


@pytest.mark.parametrize("page", ["", "subject"])
@pytest.mark.parametrize(("kind", "english"), [("ban", "(banned by hand)"), ("deny", "(deny list)")])
def test_bans_and_lists_that_refused_are_named_in_chinese(
    app: Flask, ada: FlaskClient, page: str, kind: str, english: str
) -> None:
    getattr(control_of(app), kind)("203.0.113.7", for_=60)
    send_requests(app)

    text = ada.get(f"{ROOT}{page}", query_string={"lang": "zh", "who": "203.0.113.7"}).text

    assert CHINESE[english] in text
    assert english not in text


def test_options_of_limits_bans_and_lists_of_the_settings_are_in_chinese() -> None:
    app = made(MULTILIMIT_ALLOW=["203.0.113.8"], MULTILIMIT_DENY=["203.0.113.9"])
    waits = rate_limiter(rules=Rule(60, 3, algorithm="leaky_bucket", max_delay=5), wait=2)
    bans = rate_limiter(type=IP, rules="9/minute", ban=Ban(after=2, within=600, time=300), cost=lambda: 1)
    app.add_url_rule("/more", "more", waits(bans(lambda: "ok")), methods=["GET"])
    limits, lists = (browser_of("ada", app).get(f"{ROOT}{each}?lang=zh").text for each in ("limits", "lists"))

    for text in ("排队 5 秒", "等待 2 秒", "10 分钟内被拒 2 次后 5 分钟", "最多 24 小时", "成本取决于请求"):
        assert text in limits
    assert "refusal" not in limits
    assert "<li>放行 203.0.113.8 " in lists
    assert "<li>禁止 203.0.113.9 " in lists
