// Elements, tables and colours. Text is never read as HTML.
export const $ = (selector, at = document) => at.querySelector(selector)
export const $$ = (selector, at = document) => [...at.querySelectorAll(selector)]
export const on = (selector, event, go) => $(selector).addEventListener(event, go)
export const range = n => [...Array(n).keys()]

// el("td.wide", {title: "x"}, "text"): key, label and pressed are data-key, aria-label and aria-pressed
const ATTRIBUTES = {key: "data-key", label: "aria-label", pressed: "aria-pressed"}
export function el(kind, ...children) {
	const [tag, ...classes] = kind.split(".")
	const given = children[0]?.constructor === Object ? children.shift() : {}
	const node = document.createElement(tag)
	node.classList.add(...classes.filter(Boolean))
	for (const [name, value] of Object.entries(given)) {
		if (value == null) continue
		if (name.startsWith("on")) node.addEventListener(name.slice(2), value)
		else if (name === "vars") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v)
		else if (name in node) node[name] = value
		else node.setAttribute(ATTRIBUTES[name] ?? name, value)
	}
	return fill(node, children)
}
export function shape(tag, attributes, ...children) {
	const node = document.createElementNS($("svg").namespaceURI, tag)
	for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value)
	return fill(node, children)
}
function fill(node, children) {
	node.append(...children.flat(Infinity).filter(child => child != null))
	return node
}
// Replace what is in a box. The element with the focus keeps it.
export function put(at, ...children) {
	const box = at.at ? $(at) : at
	const key = box.contains(document.activeElement) && document.activeElement.dataset.key
	box.replaceChildren()
	fill(box, children).classList.remove("stale")
	const again = key && $$("[data-key]", box).find(node => node.dataset.key === key)
	if (again) again.focus({preventScroll: true})
}

export const button = (text, go, more) => el("button", {onclick: go, ...more}, text)
export const note = (...children) => el("p.note", children)
export const code = text => el("code", text)
export const side = (kind, ...children) => el(`div.side.${kind}`, children)
export const mark = () => el("span.mark")
export const column = (...text) => el("th", {scope: "col"}, text)
export const line = (title, ...cells) => el("tr", el("th", {scope: "row"}, title), cells)
export const grid = (kind, caption, head, rows) =>
	el(`table.${kind}`, el("caption.sr", caption), el("thead", el("tr", head)), el("tbody", rows))
export const scroll = (label, ...children) => el("div.scroll", {tabIndex: 0, role: "group", label}, children)
export const corner = () => el("td.corner")
export const bar = (share, kind = "fill") =>
	el(`span.${kind}`, {hidden: !share, vars: {width: `${100 * share}%`}})
// A probability as an outline, and as a bar what it becomes.
export const bars = (before, after, most) =>
	el("span.track", bar(after / most), before === after ? null : bar(before / most, "ghost"))
export const becomes = (before, after) => [percent(before), " → ", el("b", percent(after))]
// Buttons of which one is on: each is [text, is on, go].
export const choice = (label, options) => {
	const one = ([text, pressed, go]) => button(text, go, {pressed, key: label + text})
	return el("span.switch", {role: "group", label}, options.map(one))
}

const SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
export const plain = text => [...text].map(c => SIGNS[c] ?? c).join("")
export function percent(p) {
	if (p >= 0.0995) return `${(100 * p).toFixed(0)} %`
	if (p >= 0.0005) return `${(100 * p).toFixed(1)} %`
	return p > 0 ? "<0.1 %" : "0"
}
export const fixed = (x, digits = 2) =>
	(Math.abs(x) < 0.5 * 10 ** -digits ? 0 : x).toFixed(digits).replace("-", "−")
export const whole = n => n.toLocaleString("en")
export function short(n) {
	const k = Math.min(4, Math.floor(Math.log10(n) / 3))
	return (n / 1000 ** k).toFixed(1) + " KMBT"[k].trim()
}
export const highest = values => Math.max(...values.flat(Infinity).map(Math.abs))

// One tab stop for all cells. The arrow keys move between them.
export function roving(box, cells, step, start = 0) {
	const stop = cell => {
		for (const other of cells) other.tabIndex = other === cell ? 0 : -1
	}
	stop(cells[start])
	box.onkeydown = e => {
		const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: step, ArrowUp: -step}[e.key]
		const at = cells.indexOf(e.target.closest("[tabindex]"))
		const to = cells[at + by]
		if (at < 0 || !to) return
		e.preventDefault()
		stop(to)
		to.focus()
	}
}

// The colour of a side, as strong as a number is large. A negative number is grey and has a minus sign.
export function paint(cell, value, max) {
	cell.classList.add("shade")
	cell.classList.toggle("text", value < 0)
	cell.style.setProperty("--a", Math.min(1, Math.abs(value) / (max || 1)))
	return cell
}
// A table of numbers. `point(i, j)` is called for the cell under the pointer or with the focus.
export function heat(rows, titles, M, {caption, max, digits = 1, show, shade, point, of = ""}) {
	const most = max ?? highest(M)
	const cell = (v, i, j) => {
		const td = el("td", {"data-i": i, "data-j": j}, v == null ? "" : (show?.(v) ?? fixed(v, digits)))
		return v == null ? td : paint(td, shade?.(v) ?? v, most)
	}
	const head = [corner(), titles.map(c => el("th", {scope: "col", title: plain(c)}, plain(c)))]
	const cells = (row, i) => row.map((v, j) => cell(v, i, j))
	const body = M.map((row, i) => line(plain(rows[i]), cells(row, i)))
	const table = grid(`heat.${of}`, caption, head, body)
	if (point) roving(table, $$("tbody td", table), titles.length)
	for (const event of point ? ["mouseover", "focusin"] : [])
		table.addEventListener(event, e => {
			const td = e.target.closest("tbody td")
			if (td) point(+td.dataset.i, +td.dataset.j)
		})
	return table
}
// Rows of numbers as rows of coloured points.
export function points(rows, max, kind) {
	const canvas = el("canvas", {width: rows[0].length, height: rows.length})
	const context = canvas.getContext("2d")
	const image = context.createImageData(canvas.width, canvas.height)
	const style = getComputedStyle(document.documentElement)
	const [own, grey] = [kind, "text"].map(k => style.getPropertyValue(`--${k}bg`).split(","))
	rows.flat().forEach((v, n) => {
		image.data.set([...(v < 0 ? grey : own), (255 * Math.abs(v)) / max], 4 * n)
	})
	context.putImageData(image, 0, 0)
	return canvas
}
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer
export const floats = text => new Float32Array(bytes(text))
export const shorts = text => new Uint16Array(bytes(text))
