// Three words as arrows in a plane. A score is a dot product of two arrows.

import {dot, softmax} from "./gpt2.js"
import {find, findAll, fixed, make, setAttributes} from "./page.js"

const UNIT = 90 // the length of an arrow of 1, as in pictures.py
const LIMIT = 1.85 // of a number of an arrow, so that the arrow stays in the picture
const STEP = 0.05 // of an arrow key
const KEYS = {ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, STEP], ArrowDown: [0, -STEP]}

export const scoresOf = (read, written) => read.map(row => written.map(column => dot(row, column))) // [n, n]

export function natsFrom(scores, text) {
	// [n, n], [n, n] -> KL(text || softmax(scores)), the mean over rows
	const distances = scores.map((row, i) => {
		const probabilities = softmax(row)
		return text[i].reduce((sum, p, j) => sum + p * Math.log(p / probabilities[j]), 0)
	})
	return distances.reduce((a, b) => a + b) / distances.length
}

// tied and untied: {read, written} are arrows [n, 2], in a tied plane the same ones
const planes = {}
const KINDS = {read: ".arrow", written: ".hollow"} // and what draws them

export function readyPlanes({toy}) {
	const tied = copy(toy.tied)
	readyPlane("tied", {read: tied, written: tied}, toy)
	readyPlane("untied", {read: copy(toy.E), written: copy(toy.U)}, toy)
	find("#best").onclick = () => moveAll("tied", {read: toy.best}, toy)
	find("#solve").onclick = () => moveAll("untied", {read: toy.E, written: toy.U}, toy)
}

const copy = arrows => arrows.map(arrow => [...arrow])

function readyPlane(name, arrows, toy) {
	planes[name] = arrows
	forEachArrow(name, (group, arrow) => {
		readyHandle(group, arrow, (x, y) => {
			moveArrow(group, arrow, x, y)
			showScores(name, toy)
		})
	})
}

function moveAll(name, target, toy) {
	forEachArrow(name, (group, arrow, kind, i) => moveArrow(group, arrow, ...target[kind][i]))
	showScores(name, toy)
}

function forEachArrow(name, visit) {
	// A tied plane draws no hollow arrows.
	for (const [kind, selector] of Object.entries(KINDS)) {
		findAll(`#${name}-plane ${selector}`).forEach((group, i) => visit(group, planes[name][kind][i], kind, i))
	}
}

function readyHandle(group, arrow, move) {
	const handle = group.querySelector("circle")
	const name = group.querySelector("text").textContent
	setAttributes(handle, {tabindex: 0, role: "slider", "aria-label": name, "aria-roledescription": "arrow"})
	sayArrow(handle, arrow)
	handle.onkeydown = event => {
		const step = KEYS[event.key]
		if (!step) return
		event.preventDefault()
		move(arrow[0] + step[0], arrow[1] + step[1])
	}
	handle.onpointerdown = event => handle.setPointerCapture(event.pointerId)
	handle.onpointermove = event => {
		if (handle.hasPointerCapture(event.pointerId)) move(...placeOf(event, handle.ownerSVGElement))
	}
}

function placeOf(event, svg) {
	// -> x, y of the pointer in the plane
	const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse())
	return [point.x / UNIT, -point.y / UNIT]
}

function moveArrow(group, arrow, x, y) {
	const inside = number => Math.max(-LIMIT, Math.min(LIMIT, number))
	arrow[0] = inside(x)
	arrow[1] = inside(y)
	const [left, top] = [UNIT * arrow[0], -UNIT * arrow[1]]
	setAttributes(group.querySelector("line"), {x2: left, y2: top})
	const handle = group.querySelector("circle")
	setAttributes(handle, {cx: left, cy: top})
	sayArrow(handle, arrow)
	const side = left < 0 ? {class: "end", x: left - 15} : {class: "start", x: left + 15}
	const drop = group.matches(".hollow") ? 18 : -6 // so that the names of two arrows in one place are apart
	setAttributes(group.querySelector("text"), {...side, y: top + drop})
}

function sayArrow(handle, [x, y]) {
	const numbers = {
		"aria-valuemin": -LIMIT,
		"aria-valuemax": LIMIT,
		"aria-valuenow": fixed(x).replace("−", "-")
	}
	setAttributes(handle, {...numbers, "aria-valuetext": `${fixed(x)} to the right, ${fixed(y)} up`})
}

function showScores(name, {words, text}) {
	const {read, written} = planes[name]
	const scores = scoresOf(read, written)
	const rows = words.map((word, i) => {
		const j = (i + 1) % words.length
		return pairRow(word, words[j], scores[i][j], scores[j][i])
	})
	find(`#${name}-pairs tbody`).replaceChildren(...rows)
	find(`#${name}-nats`).textContent = fixed(natsFrom(scores, text))
}

function pairRow(first, second, score, mirrored) {
	const isSame = Math.abs(score - mirrored) < 1e-3
	return make(
		"tr",
		"",
		make("td", "", `${first} ${second}`),
		make("td", "number", fixed(score)),
		make("td", "sign", isSame ? "=" : "≠"),
		make("td", "number", fixed(mirrored)),
		make("td", "", `${second} ${first}`)
	)
}
