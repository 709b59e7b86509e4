/* Every element .peaks holds its data and words in a <script type="application/json">; the rest is made here. Nothing is fetched. */
"use strict";

(function () {
  const WIDEST = 860, NARROWEST = 300, HEIGHT = 300, LEFT = 64, BOTTOM = 28, TOP = 10, RIGHT = 10, STEPS = 1000, NAMED = 20;
  const svg = (name, attributes, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return parent ? parent.appendChild(made) : made;
  };
  const html = (name, parent, text) => {
    const made = parent.appendChild(document.createElement(name));
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const number = (value) => value.toLocaleString("en-US");
  const percent = (part, whole) => {
    const share = whole ? (100 * part) / whole : 0;
    if (share > 0 && share < 0.01) return "< 0.01 %";
    return share.toFixed(share >= 10 ? 1 : 2) + " %";
  };

  const sayer = (data) => (name, values) => {
    return data.words[name].replace(/\{(\w+)\}/g, (_, key) => ({ window: data.window, ...values })[key]);
  };

  /* Clients by their peaks: [peak, how many have it], from the smallest. */
  function above(data, count) {
    let sum = 0;
    for (const [peak, many] of data.peaks) if (peak > count) sum += many;
    return sum;
  }

  /* Requests refused by a count: known for some counts; between two of these, at most as many as the smaller refuses. */
  function refused(data, count) {
    let found = null;
    for (const [at, requests] of data.curve) {
      if (at > count) break;
      found = { exact: at === count, requests };
    }
    return found;
  }

  function draw(box, data, largest, say) {
    const WIDTH = Math.min(Math.max(box.clientWidth, NARROWEST), WIDEST);
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" }, box);
    svg("title", {}, picture).textContent = say("picture");
    const x = (clients) => LEFT + ((WIDTH - LEFT - RIGHT) * clients) / data.clients;
    const y = (peak) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.log(peak) / Math.log(Math.max(largest, 2)));
    const over = svg("rect", { class: "refused", y: TOP, height: 0, x: LEFT, width: 0 }, picture);
    let path = "", seen = 0;
    for (const [peak, many] of data.peaks) {
      path += `${path ? "L" : "M"}${x(seen).toFixed(1)},${y(peak).toFixed(1)}L${x(seen + many).toFixed(1)},${y(peak).toFixed(1)}`;
      seen += many;
    }
    svg("path", { class: "profile", d: path }, picture);
    svg("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }, picture);
    svg("line", { class: "axis", x1: LEFT, x2: LEFT, y1: TOP, y2: HEIGHT - BOTTOM }, picture);
    for (let power = 1; power <= largest; power *= 10) for (const tick of [power, 2 * power, 5 * power]) {
      if (tick > largest) break;
      svg("text", { class: "label", x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, picture).textContent = number(tick);
    }
    for (const share of WIDTH > 600 ? [0, 0.25, 0.5, 0.75, 1] : [0, 0.5, 1]) {
      const label = svg("text", { class: "label", x: x(share * data.clients), y: HEIGHT - 8 }, picture);
      label.setAttribute("text-anchor", share === 1 ? "end" : share ? "middle" : "start");
      const text = share ? `${100 * share} %` : "";
      label.textContent = share === 1 ? say("share", { share: text }) : text;
    }
    const line = svg("line", { class: "count", x1: LEFT, x2: WIDTH - RIGHT }, picture);
    return (count, clients) => {
      line.setAttribute("y1", y(count));
      line.setAttribute("y2", y(count));
      over.setAttribute("x", x(data.clients - clients));
      over.setAttribute("width", WIDTH - RIGHT - x(data.clients - clients));
      over.setAttribute("height", Math.max(y(count) - TOP, 0));
    };
  }

  function start(box) {
    const data = JSON.parse(box.querySelector("script").textContent);
    const largest = data.peaks[data.peaks.length - 1][0];
    const say = sayer(data);
    const mark = draw(box, data, largest, say);
    const choose = html("div", box);
    choose.className = "choose";
    const label = html("label", choose, `${say("most")} `);
    const field = html("input", label);
    label.append(` ${say("per")}`);
    const range = html("input", choose);
    Object.assign(field, { type: "number", min: 1, max: largest, value: data.chosen });
    Object.assign(range, { type: "range", min: 0, max: STEPS });
    range.setAttribute("aria-label", say("count"));
    const answer = html("dl", box);
    answer.className = "answer";
    const said = {};
    for (const name of ["requests", "clients"]) {
      html("dt", answer, say(name));
      said[name] = html("dd", answer);
    }
    const who = html("table", box);
    const scale = Math.log(Math.max(largest, 2));

    function show(count) {
      const clients = above(data, count), found = refused(data, count);
      mark(count, clients);
      const told = (part, whole) => say("part", { part: number(part), whole: number(whole), share: percent(part, whole) });
      const part = found ? told(found.requests, data.requests) : say("small");
      said.requests.textContent = !found || found.exact || !found.requests ? part : say("bound", { part });
      said.clients.textContent = told(clients, data.clients);
      who.replaceChildren();
      const named = data.names.filter(([, peak]) => peak > count).slice(0, NAMED);
      if (!named.length) return;
      const head = html("tr", html("thead", who));
      for (const title of ["who", "peak", "made"]) html("th", head, say(title)).scope = "col";
      const body = html("tbody", who);
      for (const [name, peak, requests, link] of named) {
        const row = html("tr", body), cell = html("td", row, link ? undefined : name);
        if (link) html("a", cell, name).href = link;
        for (const text of [number(peak), number(requests)]) html("td", row, text);
      }
      if (clients > named.length) html("td", html("tr", body), say("more", { many: number(clients - named.length) }));
    }

    const settle = (count) => Math.min(Math.max(Math.round(count) || 1, 1), largest);
    range.addEventListener("input", () => {
      field.value = settle(Math.exp((scale * range.value) / STEPS));
      show(Number(field.value));
    });
    field.addEventListener("input", () => {
      const count = settle(Number(field.value));
      range.value = Math.round((STEPS * Math.log(count)) / scale);
      show(count);
    });
    range.value = Math.round((STEPS * Math.log(data.chosen)) / scale);
    show(settle(data.chosen));
  }

  document.querySelectorAll(".peaks").forEach(start);
})();
