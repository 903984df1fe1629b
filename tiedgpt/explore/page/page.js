// Draw the server's numbers. The page computes positions and colours only.
const $ = (selector, at = document) => at.querySelector(selector);
const $$ = (selector, at = document) => [...at.querySelectorAll(selector)];

// --- elements. Text is never read as HTML.
// el("td.wide", { title: "x" }, "text"): key, label and pressed are data-key, aria-label and aria-pressed
function el(kind, ...children) {
	const [tag, ...classes] = kind.split("."), node = document.createElement(tag), given = children[0]?.constructor === Object ? children.shift() : {};
	if (classes.length) node.className = classes.join(" ");
	for (const [name, value] of Object.entries(given)) {
		if (value == null) continue;
		if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
		else if (name === "vars") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
		else if (name === "key") node.dataset.key = value;
		else if (name === "label") node.setAttribute("aria-label", value);
		else if (name === "pressed") node.setAttribute("aria-pressed", value);
		else if (name in node) node[name] = value;
		else node.setAttribute(name, value);
	}
	node.append(...children.flat(Infinity).filter(child => child != null));
	return node;
}
const button = (text, go, properties) => el("button", { type: "button", onclick: go, ...properties }, text);
const note = (...children) => el("p.note", children);
const code = text => el("code", text);
const column = (text, properties) => el("th", { scope: "col", ...properties }, text);
const columns = texts => texts.map(text => column(text));
const line = (title, ...cells) => el("tr", el("th", { scope: "row" }, title), cells);
const grid = (kind, caption, head, rows, more) => el("table", { class: kind, ...more }, el("caption.sr", caption), el("thead", el("tr", head)), el("tbody", rows));
const corner = () => el("td.corner");
function put(box, ...children) { // replace what is in the box; the element with the focus keeps it
	const key = box.contains(document.activeElement) ? document.activeElement.dataset.key : null;
	box.replaceChildren(...children.flat(Infinity).filter(child => child != null));
	box.classList.remove("stale");
	if (key) $$("[data-key]", box).find(node => node.dataset.key === key)?.focus({ preventScroll: true });
}
const range = n => [...Array(n).keys()];
const on = (selector, event, go) => $(selector).addEventListener(event, go);
const SIGNS = { " ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍" };
const spell = text => [...text].map(c => SIGNS[c] ? el("i.ws", SIGNS[c]) : c);
const plain = text => [...text].map(c => SIGNS[c] ?? c).join("");
const percent = p => p >= .0995 ? (100 * p).toFixed(0) + " %" : p >= .001 ? (100 * p).toFixed(1) + " %" : p > 0 ? "<0.1 %" : "0";
const fixed = (x, digits = 2) => (Math.abs(x) < .5 * 10 ** -digits ? 0 : x).toFixed(digits).replace("-", "−");
const short = n => { const k = Math.min(4, Math.floor(Math.log10(n) / 3)); return (n / 1000 ** k).toFixed(1) + " KMBT"[k].trim(); };
const whole = n => n.toLocaleString("en");

// --- the server
const PAGE = Math.random().toString(36).slice(2, 14), running = {};
let count = 0;
function request(view, body) { // a newer request of a view replaces the one before
	running[view]?.abort();
	const { signal } = running[view] = new AbortController();
	return fetch(view, { method: "POST", headers: { "Content-Type": "application/json" }, signal, body: JSON.stringify({ page: PAGE, number: ++count, ...body }) }).catch(error => { gone(error); return null; });
}
function gone(error) { if (error.name !== "AbortError") $("#stopped").hidden = false; }
async function ask(view, body) { // the answer; null if a newer request replaced this one, or the server is gone
	let response = await request(view, body);
	for (let tries = 0; response?.status === 503 && tries < 5; tries++) { await new Promise(go => setTimeout(go, 300)); response = await request(view, body); }
	const answer = await response?.json().catch(() => null);
	if (!answer || response.status === 409) return null;
	$("#stopped").hidden = !running.quit; // an answer may come after the end
	if (answer.error) throw Error(answer.error.message);
	return answer;
}

// --- what the page shows, and its address
const PROMPT = "ROMEO:\nMy lord, I will not";
const S = { text: PROMPT, ids: null, place: null, heads: [null, null], t: .9, k: 8, p: .9, seed: 1, layer: 1, head: 2, side: 0, token: null, removed: [], W: null, P: null, vocab: 50000, dim: 4096, total: 7e9 };
const INPUTS = { "#prompt": "text", "#temperature": "t", "#top_k": "k", "#top_p": "p", "#seed": "seed" };
const DEFAULT = structuredClone(S);
let START, MODELS, TOKENS = [];
const matrix = M => M.map(row => row.join(",")).join(";"), unmatrix = s => s.split(";").map(row => row.split(",").map(Number));
const COUNTS = ["place", "seed", "layer", "head", "side", "token", "vocab", "dim", "total"];
function writeAddress() {
	const q = new URLSearchParams();
	if (S.ids) q.set("ids", S.ids.join(".")); else if (S.text !== PROMPT) q.set("text", S.text);
	if (S.heads.some(Boolean)) q.set("heads", S.heads.map(h => h ?? "").join("."));
	for (const name of ["t", "k", "p", ...COUNTS]) if (S[name] !== DEFAULT[name]) q.set(name, S[name]);
	if (S.removed.length) q.set("removed", S.removed.join(","));
	for (const name of ["W", "P"]) if (S[name] && matrix(S[name]) !== matrix(DEFAULT[name])) q.set(name, matrix(S[name]));
	const address = q.toString();
	if (address.length < 30000) history.replaceState(null, "", address ? "#" + address : location.pathname);
}
function readAddress() {
	const q = new URLSearchParams(location.hash.slice(1));
	Object.assign(S, structuredClone(DEFAULT));
	if (q.has("text")) S.text = q.get("text");
	if (q.has("ids")) S.ids = q.get("ids").split(".").map(Number);
	if (q.has("heads")) q.get("heads").split(".").forEach((h, i) => { if (MODELS[i]?.heads.includes(h)) S.heads[i] = h; });
	for (const name of ["t", "k", "p", ...COUNTS]) if (q.has(name) && isFinite(+q.get(name))) S[name] = +q.get(name);
	if (q.has("removed")) S.removed = q.get("removed").split(",");
	for (const name of ["W", "P"]) if (q.has(name)) S[name] = unmatrix(q.get(name));
	for (const id in INPUTS) $(id).value = S[INPUTS[id]];
}
const head = i => S.heads[i] ?? MODELS[i].heads[0];
const nameOf = i => MODELS[i].name;
const named = i => [mark(), nameOf(i)];
const prompt = () => S.ids ? { ids: S.ids } : { text: S.text };
const common = () => ({ ...prompt(), heads: MODELS.map((_, i) => head(i)) });
const sampling = () => ({ temperature: S.t, top_k: S.k || null, top_p: S.p < 1 ? S.p : null });

// --- drawing when something has changed and is in view
const panels = {}, dirty = new Set(), visible = new Set(["next"]);
let timer, saving, began, took = 0; // took: ms of the slowest panel; panels wait for such a pause in typing
function changed(...names) {
	names.forEach(name => dirty.add(name));
	const bars = dirty.has("next") ? draw("next") : null;
	clearTimeout(timer); timer = setTimeout(async () => { if (await bars !== false) drawVisible(); }, bars ? Math.min(120, took) : 0);
	clearTimeout(saving); saving = setTimeout(writeAddress, 150);
}
function panel(view, query, show, name = view) { // show(answer) draws
	panels[name] = async () => { const q = query(), d = q && await ask(view, q); return d ? show(d) : false; };
}
async function drawVisible() {
	let slowest = 0;
	for (const name in panels) if (visible.has(name) && dirty.has(name) && ($("#problem").hidden || !ALL.includes(name))) {
		const start = performance.now();
		await draw(name); slowest = Math.max(slowest, performance.now() - start);
	}
	took = slowest || took;
}
async function draw(name) {
	dirty.delete(name);
	const section = document.getElementById(name), problem = name === "next" ? $("#problem") : $(".warn", section);
	try {
		if (await panels[name]() === false) return false;
		problem.hidden = true;
	} catch (error) {
		if (name === "parts") S.removed = []; // a part that this model does not have
		fail(error, problem);
		if (name === "next") $$("#bars, #written").forEach(box => box.classList.add("stale"));
	}
}
const ALL = ["next", "path", "lens", "parts", "attention", "gradient"];
let saytimer;
const say = text => { clearTimeout(saytimer); saytimer = setTimeout(() => { $("#live").textContent = text; }, 700); };

// --- pieces of several panels
const mark = () => el("span.mark");
const side = (kind, ...children) => el("div", { class: "side " + kind }, children);
const switches = (label, options, key) => el("span.switch", { role: "group", label }, options.map(o => button(o.name, o.go, { pressed: o.on, disabled: o.disabled, title: o.title, key: key + o.name })));
function sideSwitch(box) { // which model a panel shows
	put(box, switches("Model", MODELS.map((m, i) => ({ name: m.name, on: i === S.side, go: () => { S.side = i; changed("parts", "attention", "gradient"); } })), "side"));
	$$("button", box).forEach((b, i) => b.classList.add(head(i)));
}
function roving(box, cells, step, start = 0) { // one tab stop for all cells; the arrow keys move between them
	cells.forEach((c, i) => { c.tabIndex = i === start ? 0 : -1; });
	box.onkeydown = e => {
		const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: step, ArrowUp: -step }[e.key], at = cells.indexOf(e.target.closest("[tabindex]"));
		const to = e.key === "Home" ? cells[0] : e.key === "End" ? cells.at(-1) : cells[at + by];
		if (at < 0 || !to) return;
		e.preventDefault(); cells[at].tabIndex = -1; to.tabIndex = 0; to.focus();
	};
	box.onfocusin = e => { const c = e.target.closest("[tabindex]"); if (cells.includes(c)) cells.forEach(o => { o.tabIndex = o === c ? 0 : -1; }); };
}
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name);
let colours = {};
function shade(kind, a) { // a background, and black or white text on it
	colours[kind] ??= { over: style(`--${kind}bg`).split(",").map(Number), under: getComputedStyle(document.body).backgroundColor.match(/[\d.]+/g).map(Number) };
	const { over, under } = colours[kind];
	a = Math.max(0, Math.min(1, a));
	const mixed = over.map((c, i) => c * a + under[i] * (1 - a)), linear = mixed.map(c => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
	const y = .2126 * linear[0] + .7152 * linear[1] + .0722 * linear[2];
	return [`rgb(${mixed.map(Math.round)})`, (y + .05) / .05 > 1.05 / (y + .05) ? "#000" : "#fff"];
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { colours = {}; changed(...Object.keys(panels)); });
function paint(cell, kind, value, max) {
	const [background, color] = shade(value < 0 ? "text" : kind, .88 * Math.abs(value) / (max || 1));
	cell.style.backgroundColor = background; cell.style.color = color;
	if (value < 0 && /[1-9]/.test(cell.textContent)) cell.classList.add("neg");
	return cell;
}
// A table of numbers. `point(i, j)` is called for the cell under the pointer or with the focus.
function heat(rows, titles, M, { kind, caption, max, digits = 1, show = v => fixed(v, digits), point, of = "" }) {
	max ??= Math.max(...M.flat().map(v => Math.abs(v ?? 0)));
	const table = grid("heat " + of, caption, [corner(), titles.map(c => column(spell(c), { title: c }))], M.map((row, i) => line(spell(rows[i]), row.map((v, j) => {
		const cell = el("td", { "data-i": i, "data-j": j }, v == null ? "" : show(v));
		return v == null ? cell : paint(cell, kind, v, max);
	}))));
	if (point) {
		const cells = $$("tbody td", table);
		roving(table, cells, titles.length);
		for (const kind of ["mouseover", "focusin"]) table.addEventListener(kind, e => { const c = e.target.closest("tbody td"); if (c) point(+c.dataset.i, +c.dataset.j); });
	}
	return table;
}
function setPrompt(ids) { Object.assign(S, { ids, place: null, token: null }); $("#prompt").blur(); changed(...ALL); }

// --- next token
panel("next", () => {
	$$("#sliders output").forEach((out, i) => { out.textContent = [S.t, S.k || "off", S.p < 1 ? S.p : "off"][i]; });
	began = performance.now();
	return { ...common(), place: S.place, ...sampling() };
}, d => {
	TOKENS = d.tokens; S.text = d.text;
	if (S.ids && document.activeElement !== $("#prompt")) $("#prompt").value = d.text;
	drawStrip(d);
	const max = Math.max(...d.sides.flatMap(s => s.rows.map(r => Math.max(r.probability, r.drawn))));
	put($("#bars"), d.sides.map((s, i) => {
		const kind = head(i), rows = [];
		let cut = false;
		for (const r of s.rows) {
			if (!r.drawn && !cut) { cut = true; rows.push(el("div.cut", `${whole(s.kept)} kept, ${percent(s.kept_probability)} of the probability; ${whole(s.V - s.kept)} dropped`)); }
			rows.push(button([el("span.t", spell(r.text)),
				el("span.track", el("span.fill", { vars: { width: 100 * r.drawn / max + "%" } }), el("span.ghost", { vars: { width: 100 * r.probability / max + "%" } })),
				el("span.p", percent(r.probability).replace(" %", ""), " → ", el("b", percent(r.drawn)))],
			() => setPrompt([...d.tokens.slice(0, d.place + 1).map(t => t.id), r.id]), { class: "row" + (r.drawn ? "" : " out"), key: `bar${i}.${r.id}`, title: `token ${r.id}, logit ${fixed(r.logit)}: add it to the prompt` }));
		}
		const m = MODELS[i], heads = [["tied", "wte.T"], ["untied", "W_U"]].map(([name, text]) => ({ name: text, on: name === kind, disabled: !m.heads.includes(name), title: m.heads.includes(name) ? "" : "this model has no W_U", go: () => { S.heads[i] = name; changed(...ALL); } }));
		return side(kind, el("h3", named(i), el("span.right", switches(`Output matrix of ${m.name}`, heads, "head" + i), button("Draw one", () => drawOne(i), { key: "draw" + i, title: "draw one token and add it to the prompt" }))), rows);
	}));
	$("#status").textContent = `${d.tokens.length} of ${Math.min(...MODELS.map(m => m.context))} tokens · ${(performance.now() - began).toFixed(0)} ms`;
	say("Likeliest next token: " + d.sides.map((s, i) => `${nameOf(i)}: ${plain(s.rows[0].text)}, ${percent(s.rows[0].probability)}`).join("; "));
});
function drawStrip(d) {
	const strip = $("#strip"), cells = d.tokens.map((t, i) => button(spell(t.text), () => { S.place = i === d.tokens.length - 1 ? null : i; changed("next", "path", "parts"); }, { class: "tok", key: "tok" + i, pressed: i === d.place, title: `token ${t.id}` }));
	put(strip, cells); roving(strip, cells, 1, d.place);
}
async function drawOne(i) {
	try {
		const line = await readStream({ ...atPlace(), n: 1, side: i });
		if (line?.id != null) { S.seed++; $("#seed").value = S.seed; setPrompt([...placed().map(t => t.id), line.id]); }
	} catch (error) { fail(error); }
}
const placed = () => S.place == null ? TOKENS : TOKENS.slice(0, S.place + 1);
const atPlace = () => ({ ...common(), ids: placed().map(t => t.id), text: null, ...sampling(), seed: S.seed });
const fail = (error, box = $("#problem")) => { put(box, error.message); box.hidden = false; say(error.message); };

let writing = false;
async function readStream(body, each) { // calls each(line); returns the first line
	const response = await request("generate", body);
	if (!response || response.status === 409) return null;
	if (!response.ok) throw Error((await response.json()).error.message);
	let rest = "", first;
	try {
		for (const reader = response.body.getReader(), decoder = new TextDecoder(); ;) {
			const { value, done } = await reader.read();
			if (done) break;
			const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
			rest = lines.pop();
			for (const line of lines.map(JSON.parse)) { if (line.error) throw Error(line.error.message); first ??= line; each?.(line); }
		}
	} catch (error) { if (error instanceof TypeError || error.name === "AbortError") gone(error); else throw error; }
	return first;
}
async function write() {
	if (writing) { running.generate.abort(); return; }
	writing = true;
	const given = placed();
	$("#write").textContent = "Stop"; $("#writtennote").hidden = false;
	const sides = MODELS.map((m, i) => ({ tokens: [], page: el("p.page", { tabIndex: 0, role: "group", label: `Text by ${m.name}` }, el("span.given", given.map(t => t.text).join(""))), note: note("writing …") }));
	put($("#written"), sides.map((s, i) => side(head(i), el("h3", named(i)), s.page, s.note)));
	try {
		await readStream({ ...atPlace(), n: 40 }, line => {
			const s = sides[line.side];
			if (line.end) { s.note.textContent = `${s.tokens.length} tokens${line.end === "length" ? "" : ", to the end of the text"}; mean surprisal ${line.bits_per_token.toFixed(2)} bits`; return; }
			const at = s.tokens.push(line) - 1, back = () => setPrompt([...given, ...s.tokens.slice(0, at)].map(t => t.id));
			const atEnd = s.page.scrollTop + s.page.clientHeight > s.page.scrollHeight - 30;
			s.page.append(el("span", { class: "w" + (line.text === "\n" ? " nl" : ""), role: "button", tabIndex: -1, title: `${percent(line.probability)}, rank ${whole(line.rank)}. Go back to the text before it.`, label: `${plain(line.text)}, ${percent(line.probability)}`, vars: { "--bits": Math.min(9, 1 + .7 * line.bits) }, onclick: () => { if (!String(getSelection())) back(); }, onkeydown: e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); back(); } } }, line.text));
			if (atEnd) s.page.scrollTop = s.page.scrollHeight;
		});
	} catch (error) { fail(error); }
	for (const s of sides) { if (s.note.textContent === "writing …") s.note.textContent = `${s.tokens.length} tokens; stopped`; s.page.removeAttribute("tabindex"); const cells = $$(".w", s.page); if (cells.length) roving(s.page, cells, 1); else s.page.tabIndex = 0; }
	writing = false; $("#write").textContent = "Write 40 tokens"; say("Wrote " + sides.map(s => s.tokens.length).join(" and ") + " tokens");
	document.body.dataset.written = sides.map(s => s.tokens.length);
}

// --- direct path
let measured = {};
panel("path", common, async d => {
	const names = d.tokens.map(t => t.text), kinds = MODELS.map((_, i) => head(i));
	const point = (i, j) => {
		for (const c of $$("#matrices td[data-i]")) { const [a, b] = [+c.dataset.i, +c.dataset.j]; c.classList.toggle("on", a === i && b === j); c.classList.toggle("mirror", a === j && b === i && i !== j); }
		const [x, y] = [plain(names[i]), plain(names[j])], equal = (a, b) => Math.abs(a - b) < 1e-4 ? "=" : "≠";
		put($("#mirror"), i === j ? [el("b", `${x} after itself`), "\n"] : [el("b", `“${x}” then “${y}”`), "  against  ", el("b", `“${y}” then “${x}”`), "\n"],
			d.sides.map((s, k) => `${nameOf(k)}: ${i === j ? fixed(s.A[i][i]) : `${fixed(s.A[i][j])} ${equal(s.A[i][j], s.A[j][i])} ${fixed(s.A[j][i])}`}    `), d.text ? `in the text: ${i === j ? `${whole(d.text.counts[i][i])} times` : `${whole(d.text.counts[i][j])} times, ${whole(d.text.counts[j][i])} times`}` : "");
	};
	const mini = (M, kind) => heat(names, names, M.map((row, i) => row.map((v, j) => v - M[j][i])), { kind, caption: "", show: () => "" });
	const block = (kind, title, M, options, verdict) => side(kind, el("h3", mark(), title), heat(names, names, M, { kind, point, ...options }), el("div.mini", el("div", { "aria-hidden": "true" }, mini(M, kind)), verdict));
	const boxes = d.sides.map((s, i) => block(kinds[i], `${nameOf(i)}: A`, s.A, { caption: `A of ${nameOf(i)}: scores of the column's token after the row's` }, el("div.verdict", { id: "verdict" + i })));
	if (d.text) boxes.push(block("text", "The text: % of what follows", d.text.percent, { digits: 0, caption: "How often the column's token follows the row's in the text, in percent" }, el("div.verdict", { id: "verdictText" })));
	put($("#matrices"), boxes);
	if (!d.text) $("#matrices").append(note("To compare with a text, start with ", code("--corpus FILE"), "."));
	let [a, b] = [Math.max(0, names.length - 2), names.length - 1]; // or the pair that is the commonest in the text
	d.text?.percent.forEach((row, i) => row.forEach((v, j) => { if (i !== j && v > d.text.percent[a][b]) [a, b] = [i, j]; }));
	point(a, b);
	$("#solvedbox").hidden = !START.corpus; $("#solvenote").textContent = START.corpus ? `Compared with ${START.corpus}. This takes some seconds.` : "";
	drawVerdicts(kinds);
	await drawNear();
});
async function drawVerdicts(kinds) {
	const key = kinds.join(), verdict = (id, ...text) => { const box = $("#verdict" + id); if (box) put(box, text); };
	const show = () => {
		const m = measured[key];
		m.sides.forEach((s, i) => verdict(i, "|A − Aᵀ| / |A|, all tokens", el("b", s.asymmetry ? s.asymmetry.toFixed(2) : "0, symmetric"), s.asymmetry ? "1.41 for random matrices. " : "", `${percent(s.self_prediction)} of all tokens predict themselves`));
		verdict("Text", "Text less its mirror image", el("b", "not symmetric"), m.text == null ? "" : `${percent(m.text)} of frequent tokens mostly follow themselves`);
	};
	if (measured[key]) return show();
	const run = async () => { try { const d = await ask("symmetry", { heads: kinds }); if (d) { measured[key] = d; show(); } } catch (error) { fail(error); } };
	if (MODELS.every(m => m.quick)) return run();
	kinds.forEach((_, i) => put($("#verdict" + i), button("Measure all tokens", e => { e.target.disabled = true; e.target.textContent = "measuring …"; run(); }), " takes a minute or more"));
}
async function drawNear() {
	const t = TOKENS[S.place ?? TOKENS.length - 1];
	if (!t) return;
	const d = await ask("nearest", { heads: common().heads, token: t.id });
	if (!d) return;
	put($("#nearto"), spell(d.token.text));
	const list = (kind, name, rows) => [el("h3", mark(), name), el("ol.near", rows.map(r => el("li", spell(r.text), el("small", fixed(r.cosine)))))];
	put($("#near"), d.sides.map((s, i) => side(head(i), head(i) === "tied" ? list("tied", `${nameOf(i)}: wte`, s.W_E) : [list("untied", `${nameOf(i)}: W_E`, s.W_E), list("untied", `${nameOf(i)}: W_U`, s.W_U)])));
}
async function solve() {
	const solving = $("#solve"); solving.disabled = true; solving.textContent = "Solving …";
	try {
		const d = await ask("solved", { heads: common().heads });
		if (d) put($("#solved"), grid("sum", "What the direct path misses", [column("nats per token"), MODELS.map(m => column(m.name))], [["scale", "scale: gone with one factor for all logits"], ["head", "head: gone with the best W_U"], ["rank", "rank: left with the best W_U"]].map(([name, text]) => line(text, d.sides.map(s => el("td", s ? fixed(s[name]) : "–"))))),
			note(`How far softmax(ln_f(W_E) W_U) is from the text (mean KL divergence after the ${d.tokens} tokens that occur 100 times or more), in three parts. The best W_U is fitted to the same text.`));
	} catch (error) { put($("#solved"), el("p.note.warn", error.message)); }
	solving.disabled = false; solving.textContent = "Solve for the best W_U";
}

// --- three words
const dim = j => "dim\u00a0" + j;
panel("toy", () => ({ W_E: S.W, P: S.P }), d => {
	const words = START.toy.words, D = S.W[0].length, table = (p, kind, caption) => heat(words, words, p, { kind, max: 1.05, digits: 2, caption, of: "toy" });
	const inputs = (name, title, M, titles) => side("text", el("h3", title), grid("heat toy", title, [corner(), columns(titles)], M.map((row, i) => line(words[i], row.map((v, j) => el("td", el("input", { type: "number", step: name === "W" ? .1 : .05, min: name === "W" ? -100 : .01, max: 100, value: +v.toFixed(3), key: name + i + j, label: `${title}: ${words[i]}, ${titles[j]}`, oninput: e => { if (e.target.value === "") return; S[name][i][j] = +e.target.value; changed("toy"); } })))))));
	const box = $("#toyin"), now = document.activeElement;
	if (!(box.contains(now) && now.tagName === "INPUT")) put(box, inputs("W", `The embedding W_E, ${D} numbers for each word`, S.W, range(D).map(dim)), inputs("P", "The text: what follows each word", S.P, words));
	$("#dims").textContent = D === 2 ? "Use 3 dimensions" : "Use 2 dimensions"; $("#dims").dataset.key = "dims";
	const way = (name, kind, title, formula) => { const w = d.ways[name], [a, b] = [w.scores[0][1], w.scores[1][0]];
		return side(kind, el("h3", mark(), title), table(w.probabilities, kind, `${title}: predictions`), note(el("b", `${w.kl.toFixed(2)} nats from the text.`), ` New York ${fixed(a)} ${Math.abs(a - b) < 1e-6 ? "=" : "≠"} York New ${fixed(b)}.`),
			name === "untied" ? heat(range(D).map(dim), words, w.W_U, { kind, digits: 2, caption: "W_U, solved", of: "wu" }) : note(formula)); };
	put($("#toyout"), way("tied", "tied", "Tied", ["softmax of ", code("W_E W_Eᵀ")]), way("untied", "untied", "Untied, W_U solved"), way("mlp0", "tied", "Tied, with an MLP between", ["softmax of ", code("(W_E + MLP(W_E)) W_Eᵀ"), "; the MLP has 8 random units; its output is solved for"]));
	const least = d.ways.untied.kl, best = d.ways.fitted.kl;
	$("#toynote").textContent = "Each table: the probability of the column's word after the row's word. “Solved”: least squares for the logarithms of the text's numbers. " + (least > .004 ? `The best W_U of all, fitted to the numbers themselves, misses them by ${best.toFixed(2)} nats: ${D} columns of W_E are too few. Solve for W_E as well, or use 3 dimensions.` : "With this W_E, a W_U fits the text, and W_E W_Eᵀ does not.");
});

// --- logit lens
panel("lens", common, d => {
	put($("#lensbox"), d.sides.map((s, i) => { const kind = head(i);
		return side(kind, el("h3", named(i)), el("div.scroll", { tabIndex: 0, role: "group", label: "Logit lens of " + nameOf(i) }, grid("heat lens", `What each layer of ${nameOf(i)} predicts`, [column("after", { class: "corner" }), d.tokens.map(t => column(spell(t.text)))],
			s.layers.map((row, n) => line(n ? `block ${n - 1}` : "embedding", row.map((cell, j) => paint(el("td", { title: cell.map(c => `${plain(c.text)} ${percent(c.probability)}`).join("\n") }, cell[0].id === d.tokens[j].id ? "↺ " : "", spell(cell[0].text), el("small", percent(cell[0].probability))), kind, .06 + cell[0].probability, 1.06)))))));
	}));
});

// --- parts
panel("parts", () => ({ ...common(), ids: placed().map(t => t.id), side: S.side, token: S.token, removed: S.removed }), d => {
	sideSwitch($("#partsby"));
	const listed = d.likeliest.some(t => t.id === d.before.id) ? d.likeliest : [d.before, ...d.likeliest];
	put($("#token"), listed.map(t => el("option", { value: t.id, selected: t.id === d.before.id }, plain(t.text))));
	$("#putback").disabled = !S.removed.length;
	const m = MODELS[S.side], kind = head(S.side), max = Math.max(...Object.values(d.parts).map(Math.abs)), P = d.parts;
	const label = name => name.replace(/attn\.(\d+)\.head\.(\d+)/, "head $2 of block $1").replace(/mlp\.(\d+)/, "the MLP of block $1");
	const toggle = name => { const out = S.removed.includes(name); return paint(button(fixed(P[name]), () => { S.removed = out ? S.removed.filter(x => x !== name) : [...S.removed, name]; changed("parts"); }, { key: name, pressed: out, label: `${label(name)}: ${fixed(P[name])}`, title: `${out ? "put back" : "remove"} ${label(name)}` }), kind, P[name], max); };
	const cell = (name, wide = 1) => paint(el("td", { colSpan: wide }, fixed(P[name])), kind, P[name], max), alone = name => line(name, cell(name, m.n_head + 3)), heads = range(m.n_head);
	const table = grid("heat", "What each part adds to the logit", [corner(), heads.map(h => column(m.n_head > 8 ? String(h) : "head\u00a0" + h)), columns(["bias", "MLP", "bias"])], [
		alone("wte"), alone("wpe"), range(m.layers).map(l => line("block " + l, heads.map(h => el("td", toggle(`attn.${l}.head.${h}`))), cell(`attn.${l}.bias`), el("td", toggle("mlp." + l)), cell(`mlp.${l}.bias`))), alone("ln_f.bias")].flat(), { vars: { "min-width": 6 + 2.9 * (m.n_head + 3) + "em" } });
	put($("#partsbox"), side(kind, table));
	roving(table, $$("button", table), m.n_head + 1);
	const said = p => `${plain(p.text)} has ${percent(p.probability)}, logit ${fixed(p.logit)}, rank ${whole(p.rank)}`;
	put($("#partsout"), el("b", said(d.before)), "; the logit is the sum of all numbers in the table.", d.after ? ["\nWithout ", S.removed.map(label).join(", "), ": ", el("b", said(d.after)), d.first_after.id === d.after.id ? ", still the likeliest." : `; the likeliest is then ${plain(d.first_after.text)} with ${percent(d.first_after.probability)}.`] : "");
	if (d.after) say($("#partsout").textContent);
});

// --- attention
panel("attention", () => {
	const m = MODELS[S.side];
	if (!m.layers) { put($("#attnbox"), "This model has no layers."); return null; }
	S.layer = Math.min(S.layer, m.layers - 1); S.head = Math.min(S.head, m.n_head - 1);
	return { ...common(), side: S.side, layer: S.layer, head: S.head };
}, d => {
	sideSwitch($("#attnby"));
	const m = MODELS[S.side], T = d.tokens.length, bytes = Uint8Array.from(atob(d.all), c => c.charCodeAt(0)), kind = head(S.side), box = $("#heads");
	const shades = range(256).map(v => shade(kind, v / 255)[0].match(/\d+/g).map(Number));
	box.style.gridTemplateColumns = `repeat(${m.n_head},1fr)`;
	const cells = range(m.layers * m.n_head).map(n => {
		const c = el("canvas", { width: T, height: T }), g = c.getContext("2d"), image = g.createImageData(T, T);
		for (let i = 0; i < T * T; i++) image.data.set([...shades[bytes[n * T * T + i]], 255], 4 * i);
		g.putImageData(image, 0, 0);
		const [l, h] = [Math.floor(n / m.n_head), n % m.n_head];
		return button(c, () => { S.layer = l; S.head = h; changed("attention"); }, { key: `head${l}.${h}`, title: `block ${l}, head ${h}`, pressed: l === S.layer && h === S.head });
	});
	put(box, cells); roving(box, cells, m.n_head, S.layer * m.n_head + S.head);
	const names = d.tokens.map(t => t.text), table = heat(names, names, d.pattern.map((row, i) => row.map((v, j) => j > i ? null : v)), { kind, max: 1, show: v => fixed(v).replace(/^0/, "").replace(/^\.00$/, "·"), caption: `Attention of block ${S.layer}, head ${S.head}` });
	put($("#attnbox"), side(kind, el("h3", mark(), `block ${S.layer}, head ${S.head}`), table, TOKENS.length > T ? note(`The last ${T} tokens. The columns of earlier ones are left out.`) : null));
});

// --- gradient
panel("gradient", () => ({ ...common(), side: S.side }), d => {
	sideSwitch($("#gradby"));
	const max = Math.max(...d.rows.map(r => Math.max(r.embed, r.head))), used = new Set(TOKENS.map(t => t.id));
	const bar = (v, kind) => el("td", el("span.track", { title: v.toFixed(4) }, el("span", { class: `fill ${kind}`, hidden: !v, vars: { width: Math.max(.6, 100 * Math.sqrt(v / max)) + "%" } })), el("span.sr", v.toFixed(4)));
	let other = false;
	put($("#gradbox"), grid("bars2", "Lengths of the two gradients by row of wte", columns(["row of wte", "as embedding", "as output matrix", "cosine"]), d.rows.flatMap(r => {
		const row = line(spell(r.text), bar(r.embed, "tied"), bar(r.head, "untied"), el("td", r.embed && r.head ? fixed(r.cosine) : "–"));
		if (!used.has(r.id) && !other) { other = true; return [el("tr.rule", el("th", { scope: "colgroup", colSpan: 4 }, "other tokens, those with the longest gradients")), row]; }
		return row; })),
		note(`${TOKENS.length > d.read ? `The last ${d.read} tokens. ` : ""}Loss ${d.loss.toFixed(2)} nats per token. The first gradient reaches ${whole(d.reached[0])} rows of ${whole(d.V)}, the second ${whole(d.reached[1])}. Their lengths are ${d.embed.toFixed(2)} and ${d.head.toFixed(2)}; the cosine between them is ${fixed(d.cosine, 3)}. Bars show the square root of the length. With a cosine below 0, the gradients partly cancel. `, head(S.side) === "tied" ? "With wte.T, both are added to the same row." : "With W_U, the first changes W_E and the second W_U."));
});

// --- cost
panel("params", () => ({ vocab: S.vocab, dim: S.dim, total: S.total }), d => {
	$("#ovocab").textContent = whole(S.vocab); $("#odim").textContent = whole(S.dim); $("#ototal").textContent = short(d.total);
	const rest = d.total - d.difference, all = d.untied_total, piece = (n, kind, text) => el("div", { class: kind, vars: { flex: `${n / all} 0 0` } }, n / all < .08 ? "" : text);
	put($("#costbox"), el("div.stack", { role: "img", label: `layers ${short(rest)}, W_E ${short(d.difference)}, W_U ${short(d.difference)}` }, piece(rest, "rest", "layers"), piece(d.difference, "e", "W_E"), piece(d.difference, "u", "")), el("p.note.first", "grey: layers · solid: W_E · hatched: W_U, only in an untied model"),
		el("p.readout", `Tied ${short(d.total)}, untied ${short(all)}: tying saves ${short(d.difference)}, ${d.saving_percent.toFixed(1)} % of the tied model.`),
		grid("sum", "Parameters of GPT-2 with either head", columns(["model", "tied", "untied", "tying saves"]), d.models.map(m => line(m.name, [whole(m.tied), whole(m.untied), m.saving_percent.toFixed(1) + " %"].map(t => el("td", t))))));
}, "cost");
function costSliders() {
	const slider = (name, label, least, most, digits) => el("label", label, el("output", { id: "o" + name }), el("input", { type: "range", id: "c" + name, label, min: Math.log10(least), max: Math.log10(most), step: .005, value: Math.log10(S[name]), oninput: e => { S[name] = +(10 ** e.target.value).toPrecision(digits); changed("cost"); } }));
	put($("#costsliders"), slider("vocab", "vocabulary", 1000, 300000, 3), slider("dim", "width", 64, 16384, 3), slider("total", "whole model", 1e8, 1e12, 2));
}

// --- source code
async function drawCode() {
	const sources = await ask("source");
	if (!sources) return;
	for (const box of $$(".code")) {
		const details = el("details", { open: matchMedia("(min-width:1081px)").matches }, el("summary", "The lines that computed this"));
		put(box, details);
		for (const name of box.dataset.sources.split(" ")) {
			const d = sources[name], pre = el("pre", { tabIndex: 0, label: `source code of ${name}` });
			let all = false;
			const more = button("", () => { all = !all; show(); }, { class: "more" });
			const show = () => {
				const out = [];
				let gap = false;
				d.lines.forEach((line, n) => {
					if (!all && n && !line.matters) { gap = true; return; }
					if (gap) out.push(el("span.gap", "⋯"));
					gap = false;
					const text = line.pieces.map(p => p[1]).join(""), indent = text.length - text.trimStart().length;
					out.push(el("span", { class: "line" + (line.matters ? " matters" : ""), "data-n": d.line + n, vars: { "--in": indent + "ch" } }, line.pieces.map(([kind, t], k) => { t = k ? t : t.trimStart(); return kind ? el("span", { class: kind }, t) : t; })));
				});
				if (gap) out.push(el("span.gap", "⋯"));
				pre.replaceChildren(...out); more.textContent = all ? "fewer lines" : `all ${d.lines.length} lines`; more.setAttribute("aria-expanded", all);
			};
			show(); details.append(el("div.snippet", el("p", el("span", `${d.file}:${d.line}`), more), pre));
		}
	}
}

// --- start
START = await ask("start");
if (START) {
	MODELS = START.models;
	DEFAULT.W = START.toy.W_E; DEFAULT.P = START.toy.P;
	const [a, b] = MODELS; // one model is on both sides: as a copy with W_U, or with either matrix
	put($("#models"), MODELS.map((m, i) => el("span", { class: m.heads[0] }, mark(), ` ${m.name}, ${short(m.parameters)} parameters`)));
	put($("#about"), b.copy ? [`${a.name} is tied. Its copy has a W_U that starts as wte.T, so every number on both sides is the same until training changes one of the two: `, code(`tiedgpt train FILE --from ${a.name} --head untied --out DIR`), "."]
		: b.heads.length > 1 && !a.copy ? "Switch the untied model to wte.T: its predictions become useless, because its layers have learned to work with W_U." : "");
	readAddress(); costSliders();
	on("#prompt", "input", e => {
		const text = e.target.value;
		Object.assign(S, { text, ids: null, place: null, token: null });
		if (text.length > 16000 || new Blob([text]).size > 60000) { fail(Error(`The prompt has ${whole(text.length)} characters. The models read up to ${MODELS[0].context} tokens: shorten it.`)); return; }
		changed(...ALL);
	});
	on("#sliders", "input", e => { S[INPUTS["#" + e.target.id]] = Math.max(0, +e.target.value); if (e.target.id === "seed") S.seed = Math.floor(S.seed); changed("next"); });
	for (const form of $$("form")) form.addEventListener("submit", e => e.preventDefault());
	on("#write", "click", write);
	on("#solve", "click", solve);
	on("#token", "change", e => { S.token = +e.target.value; changed("parts"); });
	on("#putback", "click", () => { S.removed = []; changed("parts"); });
	on("#toyreset", "click", () => { Object.assign(S, structuredClone({ W: DEFAULT.W, P: DEFAULT.P })); changed("toy"); });
	on("#dims", "click", () => { S.W = S.W.map((row, i) => row.length === 2 ? [...row, [.6, -.4, .2][i] ?? 0] : row.slice(0, 2)); changed("toy"); });
	on("#solveW", "click", async () => { const d = await ask("toy", { W_E: S.W, P: S.P, solve_W_E: true }).catch(fail); if (d) { S.W = d.W_E.map(row => row.map(v => +v.toFixed(3))); changed("toy"); } });
	on("#quit", "click", async () => { running.generate?.abort(); await request("quit"); $("#stopped").hidden = false; });
	document.addEventListener("click", e => { const link = e.target.closest("a[href^='#']"); if (!link) return; e.preventDefault(); const to = $(link.getAttribute("href")); to.scrollIntoView(); $("h2", to).focus({ preventScroll: true }); });
	addEventListener("hashchange", () => { readAddress(); costSliders(); changed(...Object.keys(panels)); });
	const observer = new IntersectionObserver(entries => { for (const e of entries) { if (e.isIntersecting) visible.add(e.target.id); else visible.delete(e.target.id); } visible.add("next"); drawVisible();
		const top = $$("main section").filter(s => s.getBoundingClientRect().top < innerHeight / 2).at(-1); $$("nav a").forEach(a => { a.ariaCurrent = a.hash === "#" + top?.id || null; }); }, { rootMargin: "150px", threshold: [0, .2, .5] });
	for (const section of $$("main section")) observer.observe(section);
	changed(...Object.keys(panels));
	await drawCode();
	document.body.dataset.ready = "1";
}
