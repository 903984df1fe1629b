// Three words as arrows in two planes. A score is a dot product of two arrows.

import {$, $$, el, fixed, setAttributes} from "../page/elements.js"
import {dot, softmax} from "./gpt2.js"

const UNIT = 90 // the length of an arrow of 1, as in scripts/page/pictures.py
const GAP = 20 // from the end of an arrow to its name
const LINE = 18 // the height of a name
const NAME = 60 // more than the width of a name
const EDGE = 115 // from here on, there is no room for a name between an arrow and the picture's edge
const LIMIT = 1.85 // of a number of an arrow, so that the arrow stays in the picture
const REACH = 25 // around an arrow's end and name, within which it can be taken: a finger needs 44 px on a phone
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

// A plane is {name, read, written}. `read` [n, 2] has each word's arrow when it is the word before,
// `written` [n, 2] its arrow when it is scored as the next word. In a tied plane they are the same arrows.
export function readyPlanes({toy}) {
	const arrows = copy(toy.tied)
	const tied = {name: "tied", read: arrows, written: arrows}
	const untied = {name: "untied", read: copy(toy.E), written: copy(toy.untied)}
	readyPlane(tied, toy)
	readyPlane(untied, toy)
	const showAt = (button, plane, read, written) => {
		$(button).onclick = () => moveAll(plane, {name: plane.name, read, written}, toy)
	}
	showAt("#best", tied, toy.best, toy.best)
	showAt("#tied-first", tied, toy.tied, toy.tied)
	showAt("#solve", untied, toy.E, toy.U)
	showAt("#untied-first", untied, toy.E, toy.untied)
}

const copy = arrows => arrows.map(arrow => [...arrow])

function drawnArrows({name, read, written}) {
	// -> {group, arrow} for each SVG group that draws an arrow of the plane. A tied plane has no hollow arrows:
	// there, a word's two arrows are one.
	const filled = $$(`#${name}-plane .arrow`).map((group, i) => ({group, arrow: read[i]}))
	const hollow = $$(`#${name}-plane .hollow`).map((group, i) => ({group, arrow: written[i]}))
	return [...filled, ...hollow]
}

function readyPlane(plane, toy) {
	const drawn = drawnArrows(plane)
	const move = ({group, arrow}, x, y) => {
		moveArrow(group, arrow, x, y)
		placeNames(drawn)
		showScores(plane, toy)
	}
	for (const one of drawn) readyKeys(one, move)
	readyPointers($(`#${plane.name}-plane`), drawn, move)
}

function moveAll(plane, targetPlane, toy) {
	// Each arrow of the plane is moved to where the target plane has it.
	const drawn = drawnArrows(plane)
	const targets = drawnArrows(targetPlane) // the same groups in the same order, with the target's arrows
	drawn.forEach(({group, arrow}, i) => {
		const [x, y] = targets[i].arrow
		moveArrow(group, arrow, x, y)
	})
	placeNames(drawn)
	showScores(plane, toy)
}

function readyKeys(one, move) {
	// move(one, x, y) is called for each place to which the reader moves the arrow
	const {group, arrow} = one
	const handle = group.querySelector("circle")
	const name = group.querySelector("text").textContent
	setAttributes(handle, {tabindex: 0, role: "slider", "aria-label": name, "aria-roledescription": "arrow"})
	sayArrow(handle, arrow)
	handle.onkeydown = event => {
		if (!(event.key in KEYS)) return
		event.preventDefault() // the page does not scroll
		const [right, up] = KEYS[event.key]
		move(one, arrow[0] + right, arrow[1] + up)
	}
}

function readyPointers(svg, drawn, move) {
	const dragged = new Map() // id of a pointer -> the arrow that it drags
	svg.onpointerdown = event => {
		const one = arrowAt(event, svg, drawn)
		if (!one) return
		dragged.set(event.pointerId, one)
		svg.setPointerCapture(event.pointerId) // it may leave the picture
	}
	svg.onpointermove = event => {
		if (!dragged.has(event.pointerId)) return
		const {x, y} = placeOf(event, svg)
		move(dragged.get(event.pointerId), x / UNIT, -y / UNIT)
	}
	svg.onlostpointercapture = event => dragged.delete(event.pointerId)
	// A finger on an arrow does not scroll the page. (Inside an SVG, Chromium does not look at touch-action.)
	const keepPage = event => {
		const [touch] = event.changedTouches
		if (arrowAt(touch, svg, drawn)) event.preventDefault()
	}
	svg.addEventListener("touchstart", keepPage, {passive: false})
}

function arrowAt(event, svg, drawn) {
	// -> the arrow whose end or name is nearest to a pointer, or null if none is within REACH
	const place = placeOf(event, svg)
	const distanceTo = ({group, arrow: [x, y]}) => {
		const toEnd = Math.hypot(place.x - UNIT * x, place.y + UNIT * y)
		const name = group.querySelector("text").getBBox()
		const beside = Math.max(name.x - place.x, place.x - name.x - name.width, 0)
		const above = Math.max(name.y - place.y, place.y - name.y - name.height, 0)
		return Math.min(toEnd, Math.hypot(beside, above))
	}
	const [nearest] = drawn.toSorted((a, b) => distanceTo(a) - distanceTo(b))
	return distanceTo(nearest) <= REACH ? nearest : null
}

// -> where a pointer is in the picture. The y axis points down, and an arrow's up.
const placeOf = ({clientX, clientY}, svg) =>
	new DOMPoint(clientX, clientY).matrixTransform(svg.getScreenCTM().inverse())

function moveArrow(group, arrow, x, y) {
	const inside = number => Math.max(-LIMIT, Math.min(LIMIT, number))
	arrow[0] = inside(x)
	arrow[1] = inside(y)
	const left = UNIT * arrow[0]
	const top = -UNIT * arrow[1]
	const handle = group.querySelector("circle")
	setAttributes(group.querySelector("line"), {x2: left, y2: top})
	setAttributes(handle, {cx: left, cy: top})
	sayArrow(handle, arrow)
}

function placeNames(drawn) {
	// A name stands beside the end of its arrow, in the picture, and below a name that is in its place.
	const places = drawn.map(({group, arrow}) => placeOfName(group, arrow))
	const placed = []
	for (const place of places.sort((a, b) => a.y - b.y)) {
		for (const {x, y} of placed) {
			if (Math.abs(x - place.x) < NAME && place.y - y < LINE) place.y = y + LINE
		}
		placed.push(place)
		const {group, side, x, y} = place
		setAttributes(group.querySelector("text"), {class: side, x, y})
	}
}

function placeOfName(group, arrow) {
	const left = UNIT * arrow[0]
	const top = -UNIT * arrow[1]
	const isNearEdge = Math.abs(left) > EDGE
	const isLeft = left < 0 !== isNearEdge // the name is to the left of the arrow's end
	const drop = group.matches(".hollow") ? 18 : -6 // so that the names of two arrows in one place are apart
	return {group, side: isLeft ? "end" : "start", x: isLeft ? left - GAP : left + GAP, y: top + drop}
}

function sayArrow(handle, [x, y]) {
	// A slider has one number. The text has both.
	setAttributes(handle, {
		"aria-valuemin": -LIMIT,
		"aria-valuemax": LIMIT,
		"aria-valuenow": x.toFixed(2),
		"aria-valuetext": `${fixed(x)} to the right, ${fixed(y)} up`
	})
}

function showScores({name, read, written}, {words, text}) {
	const scores = scoresOf(read, written)
	const rows = words.map((word, i) => {
		const next = (i + 1) % words.length
		return pairRow(word, words[next], scores[i][next], scores[next][i])
	})
	$(`#${name}-pairs tbody`).replaceChildren(...rows)
	$(`#${name}-nats`).textContent = fixed(natsFrom(scores, text))
}

function pairRow(first, second, score, mirrored) {
	const isSame = Math.abs(score - mirrored) < 1e-3
	return el(
		"tr",
		el("td", `${first} ${second}`),
		el("td.number", fixed(score)),
		el("td.sign", isSame ? "=" : "≠"),
		el("td.number", fixed(mirrored)),
		el("td", `${second} ${first}`)
	)
}
