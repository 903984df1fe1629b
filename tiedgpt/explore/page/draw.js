// The laboratory's tables, bars and buttons.
import {$, $$, append, el, fixed, percent} from "./elements.js"

export const on = (selector, event, listener) => $(selector).addEventListener(event, listener)
export const range = n => [...Array(n).keys()]

// Replace what is in a box, given by its selector or itself. The element with the focus keeps it.
export function put(place, ...children) {
	const box = typeof place === "string" ? $(place) : place
	// A new element with the same data-key replaces the one that has the focus.
	const focused = box.contains(document.activeElement) ? document.activeElement.dataset.key : null
	box.replaceChildren()
	box.classList.remove("stale")
	append(box, children)
	if (!focused) return
	const sameNode = $$("[data-key]", box).find(node => node.dataset.key === focused)
	if (sameNode) sameNode.focus({preventScroll: true})
}

export const button = (text, go, attributes) => el("button", {onclick: go, ...attributes}, text)
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
// Buttons of which one is on. An option is {text, isOn, go}.
export function choice(label, options) {
	const buttons = options.map(({text, isOn, go}) => button(text, go, {pressed: isOn, key: label + text}))
	return el("span.switch", {role: "group", label}, buttons)
}

// The text of a token {id, token}; an id that only pads the vocabulary has no text but its number.
export const textOf = ({id, token}) => token ?? `[${id}]`
export const nameOf = token => plain(textOf(token))
const SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
export const plain = text => [...text].map(letter => SIGNS[letter] ?? letter).join("")
export const highest = values => Math.max(...values.flat(Infinity).map(Math.abs))

// Only one of the cells can be reached with Tab. The arrow keys move from cell to cell, up and down by
// `rowLength` cells.
export function roving(box, cells, rowLength, start = 0) {
	const steps = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: rowLength, ArrowUp: -rowLength}
	const setTabStop = stop => {
		for (const cell of cells) cell.tabIndex = cell === stop ? 0 : -1
	}
	setTabStop(cells[start])
	box.onkeydown = e => {
		const from = cells.indexOf(e.target.closest("[tabindex]"))
		const to = cells[from + steps[e.key]]
		if (from < 0 || !to) return // another key, or there is no cell in this direction
		e.preventDefault()
		setTabStop(to)
		to.focus()
	}
}

// The colour of a side, as strong as a number is large. A negative number is grey and has a minus sign.
export function paint(cell, value, max) {
	cell.classList.add("shade")
	cell.classList.toggle("text", value < 0)
	const largest = max || 1 // max is 0 where all numbers are 0
	cell.style.setProperty("--a", Math.min(1, Math.abs(value) / largest))
	return cell
}
// A table of the numbers M, with an empty cell for null. Its options are:
// - show(v) is the text of a number; without it, the number has `digits` digits.
// - shade(v) is the number that colours the cell, of which `max` has the strongest colour.
// - point(i, j) is called for the cell under the pointer or with the focus.
// - kind is a class of the table.
export function heat(rows, titles, M, options) {
	const {
		caption,
		digits = 1,
		show = v => fixed(v, digits),
		shade = v => v,
		max = highest(M),
		point = null,
		kind = ""
	} = options
	const cell = (v, i, j) => {
		const position = {"data-i": i, "data-j": j}
		if (v == null) return el("td", position)
		return paint(el("td", position, show(v)), shade(v), max)
	}
	const head = titles.map(title => el("th", {scope: "col", title: plain(title)}, plain(title)))
	const body = M.map((row, i) =>
		line(
			plain(rows[i]),
			row.map((v, j) => cell(v, i, j))
		)
	)
	const table = grid(`heat.${kind}`, caption, [corner(), head], body)
	if (point) addPointing(table, titles.length, point)
	return table
}
function addPointing(table, rowLength, point) {
	roving(table, $$("tbody td", table), rowLength)
	const pointTo = e => {
		const cell = e.target.closest("tbody td")
		if (cell) point(Number(cell.dataset.i), Number(cell.dataset.j))
	}
	table.addEventListener("mouseover", pointTo)
	table.addEventListener("focusin", pointTo)
}
// Rows of numbers as rows of coloured points.
export function points(rows, max, kind) {
	const canvas = el("canvas", {width: rows[0].length, height: rows.length})
	const context = canvas.getContext("2d")
	const image = context.createImageData(canvas.width, canvas.height)
	const colour = colourOf(kind)
	const grey = colourOf("text")
	// A point is four bytes: red, green, blue, opacity.
	rows.flat().forEach((v, n) => {
		const [red, green, blue] = v < 0 ? grey : colour
		const opacity = (255 * Math.abs(v)) / max
		image.data.set([red, green, blue, opacity], 4 * n)
	})
	context.putImageData(image, 0, 0)
	return canvas
}
const colourOf = kind => getComputedStyle(document.documentElement).getPropertyValue(`--${kind}bg`).split(",")
// The float32 numbers whose bytes are in base64.
export const floats = base64 =>
	new Float32Array(Uint8Array.from(atob(base64), letter => letter.charCodeAt(0)).buffer)
