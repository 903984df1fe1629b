// Where the reader's word is among the dots: how many tokens can follow it.

import {$, $$, shape} from "../page/elements.js"
import {shownToken} from "./words.js"

export function showRow(id, {models, figures}) {
	const {rows} = figures
	const place = rows.ids.indexOf(id) // -1 if the token has no dot
	for (const panel of $$("svg.rows")) ringDot(panel, place, rows)
	$("#row-of-word").textContent = sayRow(place, rows, shownToken(id, models.tokenizer))
}

function ringDot(panel, place, rows) {
	panel.querySelector(".yours")?.remove()
	if (place < 0) return
	const {axes} = panel.querySelector(".axes").dataset // what scripts/page/pictures.py has drawn
	const [left, right, top, bottom, most] = axes.split(" ").map(Number)
	const part = number => Math.log(Math.max(1, number)) / Math.log(most) // of an axis, 0 to 1
	const byText = rows.text[place]
	const byTable = rows[panel.dataset.head][place]
	const cx = left + (right - left) * part(byText)
	const cy = bottom - (bottom - top) * part(byTable)
	panel.append(shape("circle", {class: "yours", cx, cy, r: 8}))
}

// 143 tokens, 12 tokens, 2.7 tokens
const shortCount = count => count.toFixed(count < 10 ? 1 : 0)

function sayRow(place, rows, name) {
	if (place < 0) return `“${name}” occurs fewer than 100 times in the text, so it has no dot.`
	const number = kind => shortCount(rows[kind][place])
	return `The ring is your word. After “${name}” the text leaves ${number("text")} tokens open, the untied table ${number("untied")}, the tied table ${number("tied")}.`
}
