// Elements, tables and colours. Text is never read as HTML.
export const $ = (selector, at = document) => at.querySelector(selector);
export const $$ = (selector, at = document) => [...at.querySelectorAll(selector)];
export const on = (selector, event, go) => $(selector).addEventListener(event, go);
export const range = n => [...Array(n).keys()];

// el("td.wide", { title: "x" }, "text"): key, label and pressed are data-key, aria-label and aria-pressed
const ATTRIBUTES = {key: "data-key", label: "aria-label", pressed: "aria-pressed"};
export function el(kind, ...children) {
	const [tag, ...classes] = kind.split(".");
	const given = children[0]?.constructor === Object ? children.shift() : {};
	const node = document.createElement(tag);
	if (classes.length) node.className = classes.join(" ");
	for (const [name, value] of Object.entries(given)) {
		if (value == null) continue;
		if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
		else if (name === "vars") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
		else if (name in node) node[name] = value;
		else node.setAttribute(ATTRIBUTES[name] ?? name, value);
	}
	return fill(node, children);
}
export function shape(tag, attributes, ...children) {
	const node = document.createElementNS($("svg").namespaceURI, tag);
	for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
	return fill(node, children);
}
function fill(node, children) {
	node.append(...children.flat(Infinity).filter(child => child != null));
	return node;
}
// Replace what is in the box. The element with the focus keeps it.
export function put(box, ...children) {
	const key = box.contains(document.activeElement) ? document.activeElement.dataset.key : null;
	box.replaceChildren();
	fill(box, children).classList.remove("stale");
	if (key)
		$$("[data-key]", box)
			.find(node => node.dataset.key === key)
			?.focus({preventScroll: true});
}

export const button = (text, go, more) => el("button", {type: "button", onclick: go, ...more}, text);
export const note = (...children) => el("p.note", children);
export const code = text => el("code", text);
export const side = (kind, ...children) => el(`div.side.${kind}`, children);
export const mark = () => el("span.mark");
export const column = (text, more) => el("th", {scope: "col", ...more}, text);
export const columns = texts => texts.map(text => column(text));
export const line = (title, ...cells) => el("tr", el("th", {scope: "row"}, title), cells);
export const grid = (kind, caption, head, rows, more) =>
	el(
		"table",
		{class: kind, ...more},
		el("caption.sr", caption),
		el("thead", el("tr", head)),
		el("tbody", rows)
	);
export const corner = () => el("td.corner");
export const bar = (share, kind = "fill") =>
	el(`span.${kind}`, {hidden: !share, vars: {width: `${100 * share}%`}});
export const choice = (label, options) => {
	const one = o => button(o.text, o.go, {pressed: o.on, disabled: o.disabled, title: o.title, key: o.key});
	return el("span.switch", {role: "group", label}, options.map(one));
};

const SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"};
export const spell = text => [...text].map(c => (SIGNS[c] ? el("i.ws", SIGNS[c]) : c));
export const plain = text => [...text].map(c => SIGNS[c] ?? c).join("");
export const isPart = text => /\\x[0-9a-f]{2}/.test(text); // bytes that are no whole character
export function percent(p) {
	if (p >= 0.0995) return `${(100 * p).toFixed(0)} %`;
	if (p >= 0.0005) return `${(100 * p).toFixed(1)} %`;
	return p > 0 ? "<0.1 %" : "0";
}
export const fixed = (x, digits = 2) =>
	(Math.abs(x) < 0.5 * 10 ** -digits ? 0 : x).toFixed(digits).replace("-", "−");
export const whole = n => n.toLocaleString("en");
export function short(n) {
	const k = Math.min(4, Math.floor(Math.log10(n) / 3));
	return (n / 1000 ** k).toFixed(1) + " KMBT"[k].trim();
}

// One tab stop for all cells. The arrow keys move between them.
export function roving(box, cells, step, start = 0) {
	const stop = cell => {
		for (const other of cells) other.tabIndex = other === cell ? 0 : -1;
	};
	stop(cells[start]);
	box.onkeydown = e => {
		const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: step, ArrowUp: -step}[e.key];
		const at = cells.indexOf(e.target.closest("[tabindex]"));
		const to = e.key === "Home" ? cells[0] : e.key === "End" ? cells.at(-1) : cells[at + by];
		if (at < 0 || !to) return;
		e.preventDefault();
		to.focus();
	};
	box.onfocusin = e => {
		const cell = e.target.closest("[tabindex]");
		if (cells.includes(cell)) stop(cell);
	};
}

let colours = {};
export const forgetColours = () => {
	colours = {};
};
const style = name => getComputedStyle(document.documentElement).getPropertyValue(name);
// The red, green and blue of a background that has `a` of the colour of a kind.
export function mixed(kind, a) {
	colours[kind] ??= {
		over: style(`--${kind}bg`).split(",").map(Number),
		under: getComputedStyle(document.body)
			.backgroundColor.match(/[\d.]+/g)
			.map(Number)
	};
	const {over, under} = colours[kind];
	const part = Math.max(0, Math.min(1, a));
	return over.map((c, i) => Math.round(c * part + under[i] * (1 - part)));
}
// A negative number is grey and has a minus sign.
export function paint(cell, kind, value, max) {
	const background = mixed(value < 0 ? "text" : kind, (0.88 * Math.abs(value)) / (max || 1));
	const linear = background.map(c => (c <= 10 ? c / 3295 : ((c / 255 + 0.055) / 1.055) ** 2.4));
	const light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
	cell.style.backgroundColor = `rgb(${background})`;
	cell.style.color = (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000" : "#fff";
	return cell;
}
// A table of numbers. `point(i, j)` is called for the cell under the pointer or with the focus.
export function heat(rows, titles, M, {kind, caption, max, digits = 1, show, shade, point, of = ""}) {
	const most = max ?? Math.max(...M.flat().map(v => Math.abs(v ?? 0)));
	const cell = (v, i, j) => {
		const td = el("td", {"data-i": i, "data-j": j}, v == null ? "" : (show?.(v) ?? fixed(v, digits)));
		return v == null ? td : paint(td, kind, shade?.(v) ?? v, most);
	};
	const head = [corner(), titles.map(c => column(spell(c), {title: plain(c)}))];
	const body = M.map((row, i) =>
		line(
			spell(rows[i]),
			row.map((v, j) => cell(v, i, j))
		)
	);
	const table = grid(`heat ${of}`, caption, head, body);
	if (point) {
		roving(table, $$("tbody td", table), titles.length);
		for (const event of ["mouseover", "focusin"])
			table.addEventListener(event, e => {
				const td = e.target.closest("tbody td");
				if (td) point(+td.dataset.i, +td.dataset.j);
			});
	}
	return table;
}
// Rows of numbers as rows of coloured points.
export function points(rows, max, kind) {
	const canvas = el("canvas", {width: rows[0].length, height: rows.length});
	const context = canvas.getContext("2d");
	const image = context.createImageData(canvas.width, canvas.height);
	const shades = Object.fromEntries([kind, "text"].map(k => [k, range(65).map(n => mixed(k, n / 64))]));
	rows.forEach((row, y) => {
		row.forEach((v, x) => {
			const colour = shades[v < 0 ? "text" : kind][Math.min(64, Math.round((64 * Math.abs(v)) / max))];
			image.data.set([...colour, 255], 4 * (y * canvas.width + x));
		});
	});
	context.putImageData(image, 0, 0);
	return canvas;
}
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer;
export const floats = text => new Float32Array(bytes(text));
export const shorts = text => new Uint16Array(bytes(text));
