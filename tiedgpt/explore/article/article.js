// The article: the reader's word, the switch, the arrows, the calculator.

import {$, $$, selectAtTap} from "../page/elements.js"
import {readyCalculator} from "./cost.js"
import {readFigures, readModels} from "./data.js"
import {readyPlanes} from "./drag.js"
import {showRow} from "./rows.js"
import {sayReading, showLists, showStreams, showWord, tokensOf} from "./words.js"

const MANY = 20 // tokens, which the whole model does not read between two keystrokes
const PAUSE = 300 // ms without a keystroke, after which it reads so many

const figures = readFigures()
readyPlanes(figures)
readyCalculator()
readyMenu()
readyWord({figures, models: readModels()})
document.body.dataset.ready = "true"

function readyWord(page) {
	const inputs = $$(".word") // They have one text: what is typed in one is shown in all.
	let ids = [] // of the word that is shown
	let waiting = null // the timer of a text of many tokens
	const show = typed => {
		for (const input of inputs) {
			if (input.value !== typed) input.value = typed // in the one with the cursor, the cursor stays
		}
		const text = typed.trim()
		if (text === "") {
			sayReading("Type a word. What is shown is still that of the last one.")
			return
		}
		ids = tokensOf(text, page.models.tokenizer)
		showWord(ids, page)
		showLists(ids, $$("#question [data-words]"), page)
		clearTimeout(waiting)
		if (ids.length > MANY) waiting = setTimeout(() => showRest(ids, page), PAUSE)
		else showRest(ids, page) // at once: a second frame would take a browser longer than the models take
	}
	show(inputs[0].value)
	for (const input of inputs) {
		selectAtTap(input)
		input.oninput = () => show(input.value)
	}
	for (const button of $$(".choose")) {
		button.onclick = () => chooseHead(button, ids, page)
	}
	for (const button of $$(".try button")) {
		button.onclick = () => show(button.textContent)
	}
}

function readyMenu() {
	// The menu marks the section that the reader is in, and on a phone keeps its name in sight.
	const links = $$("nav a[href^='#']")
	const sections = links.map(link => $(link.hash))
	let marked = null
	const mark = () => {
		const isAbove = section => section.getBoundingClientRect().top < innerHeight / 2
		const current = links[Math.max(0, sections.findLastIndex(isAbove))]
		if (current === marked) return
		marked?.removeAttribute("aria-current")
		current.setAttribute("aria-current", "true")
		const menu = $("nav")
		menu.scrollLeft = current.offsetLeft - (menu.clientWidth - current.offsetWidth) / 2
		marked = current
	}
	addEventListener("scroll", mark, {passive: true})
	mark()
}

function showRest(ids, page) {
	// the streams of part 2, the dots of part 4, and the four stops of part 5
	showStreams(ids, page)
	showRow(ids.at(-1), page)
	showLists(ids, $$(".stops [data-words]:not([data-words$=model])"), page)
}

function chooseHead(button, ids, page) {
	// The third list shows the tied or the untied model, as the button says.
	const {head} = button.dataset
	for (const other of $$(".choose")) other.setAttribute("aria-pressed", other === button)
	const list = $("#through ol")
	list.dataset.words = `${head}.mlp0`
	$("#through").className = `list ${head}`
	showLists(ids, [list], page)
}
