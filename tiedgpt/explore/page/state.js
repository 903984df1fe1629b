// What the page shows, its address, the questions to the server, and when a panel is drawn.
import {mark, put, side} from "./draw.js"
import {$, $$, el} from "./elements.js"

export const state = {
	panel: "switch",
	text: "",
	ids: null, // of the text, if it is not typed
	place: null, // of the chosen token; null for the last one
	heads: [], // "tied" or "untied", for each model
	side: 0, // the model of the panels that show one
	copy: 0, // 1 if the switch shows an untied copy of a tied model
	path: "raw",
	seed: 1,
	layer: 1,
	head: 2,
	token: null, // whose logit is shown in parts; null for the likeliest
	removed: []
}
export const OF_TEXT = ["next", "path", "lens", "parts", "attention", "gradient"] // asked again for a text
// What the server said at the start: models, corpus, prompts, sampling, sources.
// next: the newest answer to the question "next", of each model.
export const facts = {}
let defaults // the state at the start, which is not written into the address

export const model = (i = state.side) => facts.models[i]
export const forEachModel = compute => facts.models.map((_, i) => compute(i))
export const headOf = (i = state.side) => state.heads[i]
export const markedName = i => [mark(), el("span.name", model(i).name)]
// What the page shows of one model, in the colour of its head.
export const ofModel = (i, title, ...children) => side(headOf(i), el("h3", markedName(i), title), children)
// The tokens up to the one that is chosen.
export const promptTokens = () => {
	if (!facts.next) return []
	const {tokens, place} = facts.next[0]
	return tokens.slice(0, place + 1)
}

// The fields of a request about a model, and about the text as well.
export const modelFields = (i = state.side) => ({side: i, head: headOf(i)})
export const promptFields = (i = state.side) => ({
	...modelFields(i),
	text: state.text,
	ids: state.ids,
	place: state.place
})

// --- the address: #panel?name=value&name=value, of what differs from the start

// An address can hold _ as it is. It joins what is in a list.
const spelled = value => (Array.isArray(value) ? value.join("_") : `${value}`)
function isInAddress(name) {
	if (name === "panel") return false // it stands before the others
	if (name === "text" && state.ids) return false // the ids are the text
	return spelled(state[name]) !== spelled(defaults[name])
}
function address() {
	const query = new URLSearchParams()
	for (const name of Object.keys(state)) {
		if (isInAddress(name)) query.set(name, spelled(state[name]))
	}
	const fields = query.size ? `?${query}` : ""
	return `#${state.panel}${fields}`
}
const readNumbers = text => text.split("_").map(Number)
// A head that a model does not have is replaced by its own: the address may be of other models.
const readHeads = text => {
	const heads = text.split("_")
	return facts.models.map((m, i) => (m.heads.includes(heads[i]) ? heads[i] : m.heads[0]))
}
const READERS = {
	text: String,
	path: String,
	ids: readNumbers,
	removed: text => text.split("_").filter(Boolean),
	heads: readHeads,
	greedy: text => text === "true" || null // null: the default
}
function readValue(name, text) {
	const read = READERS[name] ?? Number
	const value = read(text)
	if (!Number.isNaN(value)) state[name] = value
}
export function readAddress() {
	const [panel, ...rest] = location.hash.slice(1).split("?") // a value may have a ? too
	Object.assign(state, structuredClone(defaults))
	changedControl = null // what is read from the address is no change for the history
	if (Object.hasOwn(panels, panel)) state.panel = panel
	for (const [name, text] of new URLSearchParams(rest.join("?"))) {
		if (Object.hasOwn(state, name)) readValue(name, text)
	}
	// The address may be that of a page of other models.
	if (!model()) state.side = 0
	if (!model().paths.includes(state.path)) state.path = "raw"
	$("#prompt").value = state.text
}
// Each change is an entry of the history. Quick changes of one control (typing, a slider) are one entry.
let changedControl = null // the control whose change is not in the history yet
let entryTimer
let lastEntry = {}
function remember(control) {
	clearTimeout(entryTimer)
	changedControl = control
	entryTimer = setTimeout(writeAddress, 150) // ms, in which more letters may follow
}
export function writeAddress() {
	clearTimeout(entryTimer)
	const now = performance.now()
	const isQuickChange = changedControl === lastEntry.control && now - lastEntry.time < 2000 // ms
	const newAddress = address()
	const isNew = newAddress !== location.hash && newAddress.length < 30000 // browsers have a limit
	if (changedControl && isNew) {
		// Scrolling makes no entries: it changes the newest one.
		if (changedControl === "scroll" || isQuickChange) history.replaceState(place(), "", newAddress)
		else history.pushState(place(), "", newAddress)
	}
	lastEntry = {control: changedControl, time: now}
	changedControl = null
}
// How far the panel is from the top of the window. An entry of the history has it, for Back and Forward.
export const place = () => ({top: $(`#${state.panel}`).getBoundingClientRect().top})
// Go to another panel. A change that still waits becomes an entry of its own before.
export function moveTo(panel, control) {
	writeAddress()
	state.panel = panel
	changedControl = control
	writeAddress()
}

// --- the server

class Gone extends Error {}

// The lines of an answer. An answer that is no stream has one line.
export async function* ask(question, fields = {}, signal = undefined) {
	try {
		const headers = {"Content-Type": "application/json"}
		const response = await fetch(question, {method: "POST", headers, signal, body: JSON.stringify(fields)})
		if (response.ok) document.body.classList.remove("gone")
		for await (const text of linesOf(response)) yield parseLine(text)
	} catch (error) {
		const isFromFetch = error instanceof TypeError // there was no answer
		if (!isFromFetch) throw error
		document.body.classList.add("gone")
		throw new Gone("The server has stopped.")
	}
}
async function* linesOf(response) {
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
	let rest = "" // of a line whose end has not come yet
	while (true) {
		const {value, done} = await reader.read()
		if (done) break
		const lines = (rest + value).split("\n")
		rest = lines.pop()
		yield* lines.filter(Boolean)
	}
	if (rest) yield rest
}
function parseLine(text) {
	const line = JSON.parse(text)
	if (line.error) throw Error(line.error)
	return line
}
export async function answer(question, fields) {
	const {value} = await ask(question, fields).next() // the first line, which is all of it
	return value
}
// The answer for each model, to the question with the fields that fieldsOf(i) makes.
export const answers = (question, fieldsOf) => Promise.all(forEachModel(i => answer(question, fieldsOf(i))))
export async function begin() {
	Object.assign(facts, await answer("start"))
	state.text = facts.prompts[0]
	state.heads = facts.models.map(m => m.heads[0])
	for (const {name} of facts.sampling) state[name] = null // the default
	defaults = structuredClone(state)
}

// --- drawing, when something has changed and is in view

const panels = {switch: null} // name -> {query, show}; the switch has no question of its own
const dirty = new Set() // the panels to draw when they are in view
const toAsk = new Set() // the panels whose newest question has not been asked yet
const drawing = {} // name -> the promise that the panel is drawn
export const visible = new Set() // the panels in view
let drawTimer
// show(answer) draws the answer to the question that query() makes. A list asks once for each model.
export function panel(name, query, show) {
	panels[name] = {query, show}
}
// What the page shows has changed.
// - control: what the reader has changed, by its name in the state, for the history; null for none
// - names: the panels to draw again
export function changed(control, ...names) {
	if (control) remember(control)
	for (const name of names) dirty.add(name)
	// The bars follow each letter. The other panels wait until no more is typed.
	const drawnBars = dirty.has("next") ? draw("next") : null
	clearTimeout(drawTimer)
	drawTimer = setTimeout(drawVisible, drawnBars ? 120 : 0) // ms without a keystroke
	return drawnBars
}
// Change what the page shows.
export function set(values, ...names) {
	const [control] = Object.keys(values) // the first value names the change in the history
	// The change of another control that still waits becomes an entry of its own.
	if (changedControl && changedControl !== control) writeAddress()
	Object.assign(state, values)
	changed(control, ...names)
}
export const redraw = () => changed(null, ...Object.keys(panels).filter(name => panels[name]))
export async function drawVisible() {
	await drawing.next // other panels show tokens of its answer
	for (const name of Object.keys(panels)) {
		// #problem says why there is no answer for the text. What asks for the text would fail as well.
		const hasText = $("#problem").hidden || !OF_TEXT.includes(name)
		if (visible.has(name) && dirty.has(name) && hasText) await draw(name)
	}
}
// One request of a panel at a time: the answer to the one before is drawn, and then the newest is asked.
function draw(name) {
	dirty.delete(name)
	toAsk.add(name)
	drawing[name] ??= drawNewest(name)
	return drawing[name]
}
async function drawNewest(name) {
	while (toAsk.delete(name)) await drawOnce(name)
	delete drawing[name]
}
async function drawOnce(name) {
	const problem = name === "next" ? $("#problem") : $(`#${name} .warn`)
	const {query, show} = panels[name]
	try {
		const reply = await askAll(name, query())
		await released // a click that has begun is not lost
		await show(reply)
		problem.hidden = true
	} catch (error) {
		if (error instanceof Gone) return dirty.add(name) // it is drawn when the server is back
		fail(error, problem)
		if (name === "parts") state.removed = [] // a part that this model does not have
		if (name !== "next") return
		// The new text has no answer: these boxes still show that of the text before.
		for (const box of $$("#bars, #written, #flow")) box.classList.add("stale")
	}
}
// A click is lost if its control is replaced or moved while it is pressed. So no answer is drawn meanwhile.
let released // a promise that the control is released
addEventListener("pointerdown", ({target, button}) => {
	const control = target instanceof Element && target.closest("button, a, summary, label")
	const isClick = button === 0 // of another button, a menu may hide the release
	if (!control || !isClick) return
	released = new Promise(resolve => {
		const drawAfterTheClick = () => setTimeout(resolve, 50) // ms: click comes after pointerup
		for (const end of ["pointerup", "pointercancel"]) addEventListener(end, drawAfterTheClick, {once: true})
	})
})
function askAll(name, fields) {
	if (Array.isArray(fields)) return answers(name, i => fields[i])
	return answer(name, fields)
}
let sayTimer
export function say(text) {
	clearTimeout(sayTimer)
	sayTimer = setTimeout(() => {
		$("#live").textContent = text
	}, 700) // ms: a screen reader is not interrupted by each letter
}
// Show an error. An answer that ended because it was stopped, or the server was, is no error.
export function fail(error, box = $("#problem")) {
	if (error.name === "AbortError" || error instanceof Gone) return
	put(box, error.message)
	box.hidden = false
	say(error.message)
}
