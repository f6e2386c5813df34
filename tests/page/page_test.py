#!/usr/bin/env python3
"""The web page in a headless Chromium, against canned answers or, with --url, a server that runs.

    python3 tests/page/page_test.py [--url http://127.0.0.1:8000/] [--shots FOLDER]

Exit 0: all checks hold; 1: one does not; 77: there is no Chromium here. With --url only those checks
run that hold for any model.
"""

import argparse
import json
import sys
import threading
import time
import traceback
import urllib.request
from pathlib import Path

import mock_server
from browser import Browser, find_chromium

LAST = "[...document.querySelectorAll('.answer')].at(-1)"
DONE = f"{LAST}?.getAttribute('aria-busy') === 'false'"
TEXT = f"{LAST}.querySelector(':scope > .md').innerText"
CHECKS = []


def check(canned=True):
    """A check; `canned`: it needs the canned answers."""
    def mark(function):
        CHECKS.append((function, canned))
        return function
    return mark


def must(holds, what):
    if not holds:
        raise AssertionError(what)


class Page:
    def __init__(self, browser, url):
        self.browser, self.url = browser, url
        self.eval, self.wait, self.key, self.click, self.type = browser.eval, browser.wait, browser.key, browser.click, browser.type

    def fresh(self):
        """The page without conversations, settings and keys."""
        self.browser.size(1280, 820)
        self.browser.scheme("light")
        if self.eval("location.href").startswith(self.url):
            self.eval("localStorage.clear(); sessionStorage.clear(); history.replaceState(null, '', location.pathname)")
            self.browser.reload()
        else:
            self.browser.open(self.url)
        self.wait("document.querySelector('#model').textContent !== ''")

    def say(self, text, wait=True):
        self.eval("document.querySelector('#input').focus()")
        self.type(text)
        self.key("Enter")
        if wait:
            self.wait(DONE, 60)

    def mock(self, query=""):
        return json.load(urllib.request.urlopen(self.url + "mock?" + query))

    def shot(self, name):
        if self.shots:
            self.browser.screenshot(Path(self.shots) / f"{name}.png")


@check(canned=False)
def streams_an_answer_that_grows(page):
    page.say("Count slowly to ten." if not page.canned else "slow please", wait=False)
    page.wait(f"{LAST} && {TEXT}.length > 0 || {LAST}?.querySelector('.thought:not([hidden])')", 120)
    page.key("Escape")
    page.wait(DONE)
    page.say("And hello again.")

    must(page.eval(f"{LAST}.querySelector('.stats').textContent").count("token"), "an answer shows its tokens")
    must(page.eval("document.querySelectorAll('article').length") == 4, "two questions and two answers")


@check()
def text_shows_before_the_end_and_stop_keeps_it(page):
    page.say("slow please", wait=False)
    page.wait(f"({LAST} && {TEXT}.length) > 20")
    must(page.eval(f"{LAST}.getAttribute('aria-busy')") == "true", "the answer goes on while its text shows")
    gone = page.mock()["gone"]
    page.click("#send")
    page.wait(DONE)
    length = page.eval(f"{TEXT}.length")

    must(0 < length < 1900, f"a part of the text stays: {length} characters")
    must("Stopped" in page.eval(f"{LAST}.innerText"), "it says that it was stopped")
    for _ in range(100):
        if page.mock()["gone"] > gone:
            return
        time.sleep(0.05)
    must(False, "the server sees that the client has gone")


@check()
def markdown_becomes_elements(page):
    page.say("Explain.")
    found = page.eval(f"(() => {{ const a = {LAST}.querySelector(':scope > .md'); return ['h2', 'strong', 'em', 'ol > li', 'ol ul > li', "
                      "'table td', '.code pre code', '.tok-word', 'blockquote', 'a[href^=https]', 'code', '.math'].filter(s => !a.querySelector(s)); })()")
    must(found == [], f"kinds that are missing: {found}")
    must(page.eval(f"{LAST}.querySelector('a').rel") == "noopener noreferrer", "links do not hand over the opener")
    must(page.eval(f"{LAST}.querySelectorAll('tbody tr').length") == 2, "rows of the table")
    must(page.eval(f"{LAST}.querySelector('.code code').textContent").startswith("def scores(q_latent, cache):"), "text of the code")
    must("38.4 tok/s" in page.eval(f"{LAST}.querySelector('.stats').innerText"), "speed, as the server gave it")


@check()
def streamed_and_whole_drawings_are_equal(page):
    """A text drawn in pieces of any size is the same as one drawn at once."""
    different = page.eval("""(() => {
      const text = %s;
      const whole = document.createElement('div');
      new Drawing(whole).update(text, true);
      for (const size of [1, 2, 3, 7, 31]) {
        const root = document.createElement('div'), drawing = new Drawing(root);
        for (let n = size; n < text.length; n += size) drawing.update(text.slice(0, n), false);
        drawing.update(text, true);
        if (!root.isEqualNode(whole)) return size;
      }
      return 0;
    })()""" % json.dumps(mock_server.ANSWER + "\n" + mock_server.HOSTILE + "\n1. a\n2. b\n\n   c\n- d\n\ne\n| f |\n|--|\n| g |\nlast"))
    must(different == 0, f"pieces of {different} characters give another drawing")


@check()
def markdown_details(page):
    cases = {
        "**a *b* c**": "<p><strong>a <em>b</em> c</strong></p>",
        "***a***": "<p><em><strong>a</strong></em></p>",
        "a_b_c _d_": "<p>a_b_c <em>d</em></p>",
        "2 * 3 * 4": "<p>2 * 3 * 4</p>",
        "~~x~~ ~y~": "<p><del>x</del> ~y~</p>",
        "``a`b``": "<p><code>a`b</code></p>",
        "\\*a\\*": "<p>*a*</p>",
        "a  \nb": "<p>a  <br>b</p>",
        "# A #": "<h1>A</h1>",
        "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
        "- a\n  - b": "<ul><li>a<ul><li>b</li></ul></li></ul>",
        "- [x] a": "<ul><li>☑ a</li></ul>",
        "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
        "a\n***\nb": "<p>a</p><hr><p>b</p>",
        "[a](javascript:alert(1))": "<p>[a](javascript:alert(1))</p>",
        "https://a.b/c.": '<p><a href="https://a.b/c" target="_blank" rel="noopener noreferrer">https://a.b/c</a>.</p>',
        "$$x_1 + y_1$$": '<div class="math">x_1 + y_1</div>',
        "unclosed **bold and `code": "<p>unclosed **bold and `code</p>",
    }
    for text, expected in cases.items():
        found = page.eval(f"(() => {{ const e = document.createElement('div'); new Drawing(e).update({json.dumps(text)}, true); return e.innerHTML; }})()")
        must(found == expected, f"{text!r}: {found}, expected {expected}")


@check()
def html_of_the_model_is_text(page):
    page.say("hostile please")
    page.eval("new Promise(r => setTimeout(r, 300))")

    must(page.eval("window.__pwned === undefined"), "nothing of it ran")
    bad = page.eval(f"[...{LAST}.querySelectorAll('.md img, .md script, .md svg:not(.icon), .md iframe, .md style, .md base, .md b, "
                    ".md [onclick], .md [onerror]')].length")
    must(bad == 0, f"{bad} elements of the model's HTML")
    must(page.eval(f"[...{LAST}.querySelectorAll('a')].every(a => /^https?:/.test(a.href))"), "links of other schemes")
    must(page.eval(f"{LAST}.querySelector('a').getAttribute('href')") == "https://example.org/a_(b)", "an address with parentheses")
    must("<img src=x onerror=\"window.__pwned=1\">" in page.eval(TEXT), "it shows as text")
    page.say('<img src=x onerror="window.__pwned=10">')
    must(page.eval("window.__pwned === undefined && !document.querySelector('.said img')"), "nor does a question's")


@check()
def policy_forbids_what_the_page_does_not_do(page):
    must(page.eval("(() => { try { document.createElement('div').innerHTML = '<b>x</b>'; return false; } catch { return true; } })()"),
         "strings become no HTML")
    page.eval("window.__ran = 0; const s = document.createElement('script'); try { s.textContent = 'window.__ran = 1' } catch {} document.head.append(s)")
    must(page.eval("window.__ran") == 0, "no other script runs")
    must(page.eval("fetch('http://127.0.0.1:9/').then(() => 'sent', e => String(e.message))") == "Failed to fetch", "no other origin")
    loads = {e["params"]["request"]["url"].split("/")[2] for e in page.browser.events
             if e["method"] == "Network.requestWillBeSent" and e["params"]["request"]["url"].startswith("http")}
    must(loads <= {page.url.split("/")[2], "127.0.0.1:9"}, f"requests to others: {loads}")


@check()
def reasoning_is_folded(page):
    page.say("Explain.")
    must(page.eval(f"!{LAST}.querySelector('.thought').open"), "folded at first")
    must(page.eval(f"{LAST}.querySelector('summary').textContent") == "Thoughts · 28 tokens", "its tokens")
    must("shapes" not in page.eval(f"{LAST}.innerText"), "its text is hidden")
    page.click(".answer summary")
    page.wait(f"{LAST}.querySelector('.thought .md li')")
    must("latent rank 512" in page.eval(f"{LAST}.innerText"), "opened, it shows")


@check()
def regenerate_keeps_both_versions(page):
    page.say("Explain.")
    page.click(".answer button[title=Regenerate]")
    page.wait(f"{DONE} && {LAST}.querySelector('.turns')")
    must("2 / 2" in page.eval(f"{LAST}.innerText"), "the second version shows")
    page.click(".answer button[title='Version before']")
    page.wait(f"{LAST}.innerText.includes('1 / 2')")  # the first is still there
    must(len(page.mock()["body"]["messages"]) == 1, "the question is asked again, alone")


@check()
def arrow_up_edits_the_last_message(page):
    page.say("Explain one thing.")
    page.eval("document.querySelector('#input').focus()")
    page.key("ArrowUp")
    must(page.eval("document.activeElement.value") == "Explain one thing.", "the field holds the message")
    page.type(" Slowly? No.")
    page.key("Enter")
    page.wait(DONE)
    must(page.mock()["body"]["messages"] == [{"role": "user", "content": "Explain one thing. Slowly? No."}], "the edited message is sent")
    must("2 / 2" in page.eval("document.querySelector('.ask').innerText"), "the one before is kept")


@check()
def shift_enter_is_a_new_line(page):
    page.eval("document.querySelector('#input').focus()")
    page.type("a")
    page.key("Enter", shift=True)
    page.type("b")
    must(page.eval("document.querySelector('#input').value") == "a\nb", "two lines")
    must(page.eval("document.querySelectorAll('article').length") == 0, "nothing is sent")


@check()
def settings_are_sent(page):
    page.click("#tune")
    must(page.eval("document.activeElement.id") == "system", "focus goes into the settings")
    page.type("Be brief.")
    for field, value in {"temperature": "0.25", "top_k": "40", "max_tokens": "77", "seed": "5", "stop": "END\\n"}.items():
        page.eval(f"document.querySelector('#{field}').focus()")
        page.type(value)
    page.eval("for (const [id, v] of [['thinking', 'effort high'], ['format', 'json_schema']]) "
              "{ const e = document.getElementById(id); e.value = v; e.dispatchEvent(new Event('input')); }")
    must(page.eval("document.querySelector('#schema-fault').textContent") != "", "an empty schema is refused")
    page.eval("document.querySelector('#schema').focus()")
    page.type('{"type":"object"}')
    page.shot("settings")
    page.key("Escape")
    must(page.eval("document.querySelector('#settings').hidden && document.activeElement.id") == "tune", "Esc closes, focus goes back")
    page.say("Explain.")
    body = page.mock()["body"]
    wanted = {"temperature": 0.25, "top_k": 40, "max_tokens": 77, "seed": 5, "stop": ["END\n"], "thinking": {"type": "enabled"},
              "reasoning_effort": "high", "stream": True, "stream_options": {"include_usage": True}, "timings": True,
              "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}}}
    for name, value in wanted.items():
        must(body.get(name) == value, f"{name}: {body.get(name)}, expected {value}")
    must("top_p" not in body, "a field left empty is not sent")
    must(body["messages"][0] == {"role": "system", "content": "Be brief."}, "the system prompt")


@check()
def thinking_is_offered_where_the_model_has_it(page):
    must(not page.eval("document.querySelector('#thinking-row').hidden"), "offered")
    page.mock("thinking=0")
    page.browser.reload()
    page.wait("document.querySelector('#model').textContent !== ''")
    must(page.eval("document.querySelector('#thinking-row').hidden"), "not offered")


@check()
def conversations_survive_a_reload(page):
    page.say("Explain the first.")
    page.key("k", ctrl=True)
    must(page.eval("document.querySelectorAll('article').length") == 0, "Ctrl K: a new one")
    must(page.eval("document.activeElement.id") == "input", "ready to write")
    page.say("Explain the second.")
    page.browser.reload()
    page.wait("document.querySelectorAll('article').length === 2")
    names = page.eval("[...document.querySelectorAll('.pick')].map(e => e.textContent)")
    must(names == ["Explain the second.", "Explain the first."], f"the list: {names}")
    must("Latent attention" in page.eval(TEXT), "the answer is back")
    page.click("#talks li:nth-child(2) .pick")
    must("Explain the first." in page.eval("document.querySelector('.said').innerText"), "the other one opens")


@check()
def rename_delete_and_undo(page):
    page.say("Explain.")
    page.click("#talks .acts button:first-child")
    page.eval("document.activeElement.select()")
    page.type("Attention")
    page.key("Enter")
    must(page.eval("document.querySelector('.pick').textContent") == "Attention", "renamed")
    page.click("#talks .acts button:last-child")
    must(page.eval("document.querySelectorAll('.pick').length") == 0, "deleted")
    page.click("#toast button")
    must(page.eval("document.querySelector('.pick').textContent") == "Attention", "back again")
    page.browser.reload()
    page.wait("document.querySelector('.pick')?.textContent === 'Attention'")


@check()
def export_and_import(page):
    page.say("Explain.")
    count = page.eval("""(async () => {
      const text = JSON.stringify({fathom_conversations: 1, talks: [...talks.values()]});
      const normal = () => JSON.stringify([...talks.values()].map(talk => readTalk(talk)));
      const before = normal();
      localStorage.clear(); talks.clear();
      await importTalks(new File([text], 'x.json'));
      if (normal() !== before) return 'changed';
      await importTalks(new File([text], 'x.json'));
      if (talks.size !== 1) return 'doubled';
      await importTalks(new File(['{"fathom_conversations":1,"talks":[{"root":{"role":"admin"}}]}'], 'x.json'));
      return talks.size + ' ' + document.querySelector('#toast').textContent;
    })()""")
    must(count == '1 Not imported: a message has the role "admin"', f"after export and import: {count}")


@check()
def a_broken_stream_can_go_on(page):
    page.say("cut please")
    must("The connection broke" in page.eval(f"{LAST}.innerText"), "it says so")
    before = page.eval(TEXT)
    page.shot("cut")
    page.click(".note button")
    page.wait(f"{DONE} && !{LAST}.querySelector('.note')")
    must(page.eval(TEXT).startswith(before.strip()[:40]) and page.eval(TEXT).endswith("and this is the rest."), "the text goes on")
    must(page.mock()["body"]["messages"][-1]["prefix"] is True, "asked as a prefix to continue")


@check()
def errors_are_shown_as_the_server_words_them(page):
    page.say("context please")
    must("exceeds max_model_len 8192" in page.eval(f"{LAST}.querySelector('[role=alert]').innerText"), "the server's message")
    page.shot("context")
    page.say("fault please")
    must("the engine stopped" in page.eval(f"{LAST}.innerText"), "an error within the stream")
    page.say("length please")
    must("Cut at the limit of tokens" in page.eval(f"{LAST}.innerText"), "cut at max_tokens")


@check()
def draining_shows_before_and_after_sending(page):
    page.mock("health=draining")
    page.eval("lookAtHealth()")
    page.wait("!document.querySelector('#banner').hidden")
    must("shutting down" in page.eval("document.querySelector('#state').textContent"), "the state")
    page.say("Explain.")
    must("takes no new requests" in page.eval(f"{LAST}.innerText"), "the refusal")
    page.shot("draining")
    page.mock("health=ready")
    page.click(".answer button[title='Try again']")
    page.wait(f"{DONE} && {LAST}.querySelector('h2')")
    must(page.eval(f"!{LAST}.querySelector('.turns')"), "the failed try is no version")


@check()
def offline_shows(page):
    page.browser.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
    page.eval("lookAtHealth()")
    page.wait("document.querySelector('#state').textContent === 'offline'")
    page.say("Explain.")
    must("cannot be reached" in page.eval(f"{LAST}.innerText"), "the answer says so")
    page.browser.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    page.eval("lookAtHealth()")
    page.wait("document.querySelector('#state').textContent === 'ready'")


@check()
def a_key_is_asked_for_and_kept_in_the_session_only(page):
    page.mock("key=secret-1")
    page.say("Explain.", wait=False)
    page.wait("document.querySelector('#ask-key').open")
    page.shot("key")
    must(page.eval("document.activeElement.id") == "ask-field", "focus is in the field")
    page.type("secret-1")
    page.key("Enter")
    page.wait(DONE)
    must(page.eval(f"!!{LAST}.querySelector('h2')"), "the request goes on with the key")
    must(page.eval("Object.values(sessionStorage).includes('secret-1')"), "in the session")
    must(not page.eval("JSON.stringify({...localStorage}).includes('secret-1')"), "not beyond it")


@check()
def follows_the_answer_only_from_the_end(page):
    page.browser.size(900, 420)
    page.say("Explain.")
    page.say("slow please", wait=False)
    page.wait(f"{TEXT}.length > 1000", 30)
    must(page.eval("atEnd && scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 50"), "it follows")
    page.eval("scroller.scrollTop = 0")
    page.wait("!atEnd")
    length = page.eval(f"{TEXT}.length")
    page.wait(f"{TEXT}.length > {length} + 100")
    must(page.eval("scroller.scrollTop") == 0, "the reader is left where they are")
    page.click("#down")
    page.wait("atEnd")
    page.key("Escape")
    page.wait(DONE)


@check()
def long_answers_stay_fast(page):
    """Ten thousand words, drawn as they come, in steps of 20 characters: the mean of a step."""
    ms = page.eval("""(() => {
      const text = (%s + '\\n').repeat(60), root = document.createElement('div'), drawing = new Drawing(root);
      document.querySelector('#log').append(root);
      const from = performance.now();
      let steps = 0;
      for (let n = 20; n < text.length; n += 20, steps++) drawing.update(text.slice(0, n), false);
      drawing.update(text, true);
      const each = (performance.now() - from) / steps;
      root.remove();
      return each;
    })()""" % json.dumps(mock_server.ANSWER))
    print(f"    {ms:.3f} ms a step of drawing")
    must(ms < 10, f"{ms} ms a step")
    hostile = page.eval("""(() => { const from = performance.now();
      for (const piece of ['*a ', '_a', '**', '`', '[', '[a](', '~~a', '<http://', '$$ ', '> ', '- ', '|', '\\\\(', '\\n1. '])
        new Drawing(document.createElement('div')).update(piece.repeat(20000), true);
      return performance.now() - from; })()""")
    print(f"    {hostile:.0f} ms for fourteen texts of one piece 20,000 times")
    must(hostile < 30000, f"{hostile} ms for texts that repeat one piece")


@check()
def light_and_dark(page):
    ground = "getComputedStyle(document.body).backgroundColor"
    must(page.eval(ground) == "rgb(255, 255, 255)", "light by the system")
    page.browser.scheme("dark")
    must(page.eval(ground) == "rgb(19, 27, 30)", "dark by the system")
    page.click("#theme")
    must(page.eval(ground) == "rgb(255, 255, 255)", "light by hand")
    page.click("#theme")
    page.browser.scheme("light")
    must(page.eval(ground) == "rgb(19, 27, 30)", "dark by hand")
    page.browser.reload()
    must(page.eval(ground) == "rgb(19, 27, 30)", "kept")


CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = colour => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const out = [];
  for (const [ink, ground] of [['ink', 'surface'], ['muted', 'surface'], ['muted', 'ground'], ['muted', 'soft'], ['accent', 'surface'],
      ['on-accent', 'accent'], ['bad', 'bad-soft'], ['word', 'ground'], ['string', 'ground'], ['number', 'ground']]) {
    const probe = document.createElement('i');
    probe.style.color = `var(--${ink})`; probe.style.backgroundColor = `var(--${ground})`;
    document.body.append(probe);
    const style = getComputedStyle(probe), a = light(rgb(style.color)), b = light(rgb(style.backgroundColor));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) out.push(ink + ' on ' + ground + ': ' + ratio.toFixed(2));
    probe.remove();
  }
  return out;
})()"""


@check()
def colours_have_contrast(page):
    """WCAG 2.1, 1.4.3: 4.5 to 1 for text."""
    for scheme in ("light", "dark"):
        page.browser.scheme(scheme)
        low = page.eval(CONTRAST)
        must(low == [], f"{scheme}: {low}")


@check()
def a_phone_has_no_sideways_scroll(page):
    page.browser.size(390, 844, phone=True)
    page.say("Explain.")
    narrow = "document.documentElement.scrollWidth <= 390 && [...document.querySelectorAll('#scroll, #live')].every(e => e.scrollWidth <= e.clientWidth)"
    must(page.eval(narrow), "chat")
    page.shot("phone-chat")
    page.click("#menu")
    page.wait("document.querySelector('#side').getBoundingClientRect().left === 0")
    page.shot("phone-menu")
    page.key("Escape")
    page.wait("document.querySelector('#side').getBoundingClientRect().right <= 0")
    page.click("#tab-live")
    page.wait("document.querySelectorAll('.tile').length > 8")
    page.click("#measure-decode")
    page.wait("document.querySelector('.ops tbody tr')")
    must(page.eval(narrow), "live")
    page.shot("phone-live")


@check()
def everything_works_by_keys(page):
    first = "[...document.querySelectorAll('a[href], button, input, textarea')][0]"
    page.eval(f"{first}.focus()")
    must(page.eval(f"{first}.className === 'skip' && {first}.getBoundingClientRect().top >= 0"), "the first stop is the way to the message, and shows")
    seen = []
    for _ in range(12):
        page.key("Tab")
        seen.append(page.eval("document.activeElement.id || document.activeElement.tagName"))
    order = [name for name in ("new", "export", "tab-chat", "theme", "tune", "input") if name in seen]
    must(order == ["new", "export", "tab-chat", "theme", "tune", "input"] and [n for n in seen if n in order][:6] == order, f"order of the stops: {seen}")
    page.eval("document.querySelector('#tab-chat').focus()")
    page.key("ArrowRight")
    must(page.eval("document.activeElement.id === 'tab-live' && !document.querySelector('#live').hidden"), "arrows change the tab")
    unnamed = page.eval("[...document.querySelectorAll('button, input, select, textarea')].filter(e => !e.hidden && !e.closest('dialog') && "
                        "!(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label'))).map(e => e.outerHTML)")
    must(unnamed == [], f"controls without a name: {unnamed}")


@check(canned=False)
def live_figures_show(page):
    page.click("#tab-live")
    page.wait("document.querySelectorAll('.tile').length >= 8", 20)
    tiles = page.eval("Object.fromEntries([...document.querySelectorAll('.tile')].map(e => [e.querySelector('h3').textContent, e.querySelector('.value').textContent]))")
    print(f"    {tiles}")
    must(tiles["Requests running"] not in ("", "not given"), "requests")
    if page.canned:
        must(tiles["KV cache used"] == "37 %" and tiles["Preemptions"] == "2" and tiles["Errors"] == "1", "figures of the server")
        page.wait("document.querySelectorAll('.spark').length >= 3 && ![...document.querySelectorAll('.value')].some(e => e.textContent.startsWith('–'))", 20)
        must("61.2 GiB" in page.eval("document.querySelector('#memory').innerText"), "memory by kind")
        must("256 experts" in page.eval("document.querySelector('#about').innerText"), "fall-backs are named")
    page.eval("history.replaceState(null, '', location.pathname)")


@check()
def quantiles_are_those_of_the_buckets(page):
    """10 up to 0.1 s, 20 up to 0.2 s, 10 beyond: the median is 0.15 s; p99 is past the last bound."""
    found = page.eval("""(() => {
      const row = (le, n) => `x:a_seconds_bucket{le="${le}",engine="0"} ${n}\\n`;
      samples = [{time: 0, figures: readMetrics('x:num_requests_running{engine="0"} 1\\n' + row('0.1', 10) + row('0.2', 30) + row('+Inf', 40))}];
      return quantiles('a_seconds', [0.5, 0.99]).values.map(quantileText).join(', ');
    })()""")
    must(found == "150 ms, > 200 ms", f"found {found}")


@check()
def ops_of_a_step_show_and_sort(page):
    page.click("#tab-live")
    page.wait("document.querySelectorAll('.tile').length > 8")
    page.click("#measure-decode")
    page.wait("document.querySelector('.ops tbody tr')")
    first = "document.querySelector('.ops tbody td').textContent"
    must(page.eval(first) == "experts_gate_up", "the longest op first")
    page.click("[data-field=pct_of_roof]")
    must(page.eval(first) == "o_proj", "sorted by share of the roof")
    page.click("[data-field=pct_of_roof]")
    must(page.eval(first) == "rms_norm", "and the other way")
    must("72 %" in page.eval("document.querySelector('#step p').textContent"), "the whole step against its roofs")


@check()
def absent_figures_are_named_absent(page):
    page.mock("metrics=0")
    page.click("#tab-live")
    page.wait("!document.querySelector('#live-note').hidden")
    must("gives no metrics" in page.eval("document.querySelector('#live-note').textContent"), "it says so")
    must(page.eval("document.querySelectorAll('.tile').length") == 0, "no tile without figures")


def shots(page):
    """Screenshots for people."""
    if page.canned:
        page.mock("key=&health=ready&thinking=1&metrics=1")
    page.fresh()
    page.shot("empty")
    page.say("How does latent attention save memory?")
    page.shot("chat-light")
    page.browser.scheme("dark")
    page.shot("chat-dark")
    page.click("#tab-live")
    page.eval("new Promise(r => setTimeout(r, 30000))")
    page.click("#measure-decode")
    page.wait("document.querySelector('.ops tbody tr')")
    page.browser.size(1280, 1190)
    page.shot("live-dark")
    page.browser.scheme("light")
    page.shot("live-light")


def run(page, only, canned):
    failures = 0
    for function, needs_canned in CHECKS:
        if needs_canned and not canned or only and only not in function.__name__:
            continue
        try:
            if canned:
                page.mock("key=&health=ready&thinking=1&metrics=1")
            page.fresh()
            function(page)
            print(f"ok   {function.__name__}")
        except Exception:  # noqa: BLE001: a failed check is one line, the others go on
            failures += 1
            print(f"FAIL {function.__name__}\n{traceback.format_exc()}")
    thrown = [str(e["params"])[:500] for e in page.browser.events if e["method"] == "Runtime.exceptionThrown"]
    if thrown:
        print("FAIL exceptions within the page:", *thrown, sep="\n  ")
    return failures + len(thrown)


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--url", help="of a running server, with the slash at its end; without: canned answers")
    flags.add_argument("--only", help="checks whose name contains this")
    flags.add_argument("--shots", help="write screenshots here")
    args = flags.parse_args()
    chromium = find_chromium()
    if not chromium:
        print("skipped: no chromium on this machine")
        return 77
    url = args.url
    if not url:
        server = mock_server.start(root="/below")  # as behind --root-path
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/below/"
    browser = Browser(chromium)
    try:
        page = Page(browser, url)
        page.canned, page.shots = not args.url, args.shots
        failures = run(page, args.only, page.canned)
        if args.shots:
            shots(page)
    finally:
        browser.close()
    print(f"page: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
