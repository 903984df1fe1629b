// What the page shows, its address, the questions to the server, and when a panel is drawn.
import {$, $$, el, mark, on, put, side} from "./draw.js"

export const S = {
	...{panel: "switch", text: "", ids: null, place: null, heads: [], side: 0, copy: 0, path: "raw"},
	...{temperature: 1, top_k: 0, top_p: 1, seed: 1, layer: 1, head: 2, token: null, removed: []},
	...{W: null, P: null, vocab: 50000, dim: 4096, total: 7e9}
}
export const OF_TEXT = ["next", "path", "lens", "parts", "attention", "gradient"] // asked again for a text
export const facts = {} // what the server said: models, corpus, prompts, toy, sources; next of each model
let defaults

export const model = (i = S.side) => facts.models[i]
export const each = one => facts.models.map((_, i) => one(i))
export const headOf = (i = S.side) => S.heads[i]
export const named = i => [mark(), el("span.name", model(i).name)]
// What the page shows of one model, in the colour of its head.
export const ofModel = (i, title, ...children) => side(headOf(i), el("h3", named(i), title), children)
// The tokens up to the one that is chosen.
export const placed = () => facts.next?.[0].tokens.slice(0, facts.next[0].place + 1) ?? []

export const own = (i = S.side) => ({side: i, head: headOf(i)})
export const common = (i = S.side) => ({...own(i), text: S.text, ids: S.ids, place: S.place})

// --- the address: #panel?what=differs&from=the-start

const spelled = v => (Array.isArray(v) ? v.map(spelled).join(Array.isArray(v[0]) ? "*" : "_") : `${v}`)
function address() {
	const q = new URLSearchParams()
	for (const [name, value] of Object.entries(S))
		if (name !== "panel" && !(name === "text" && S.ids) && spelled(value) !== spelled(defaults[name]))
			q.set(name, spelled(value))
	return `#${S.panel}${q.size ? `?${q}` : ""}`
}
const numbers = said => said.split("_").map(Number)
const matrix = said => said.split("*").map(numbers)
const READ = {
	...{text: String, path: String, ids: numbers, W: matrix, P: matrix},
	removed: said => said.split("_").filter(Boolean),
	heads: said => facts.models.map((m, i) => m.heads.find(head => head === said.split("_")[i]) ?? m.heads[0])
}
export function readAddress() {
	const [panel, ...rest] = location.hash.slice(1).split("?")
	Object.assign(S, structuredClone(defaults))
	waiting = null
	if (Object.hasOwn(known, panel)) S.panel = panel
	for (const [name, said] of new URLSearchParams(rest.join("?"))) {
		const value = Object.hasOwn(S, name) ? (READ[name] ?? Number)(said) : Number.NaN
		if (!Number.isNaN(value)) S[name] = value
	}
	if (!model()) S.side = 0
	if (!model().paths.includes(S.path)) S.path = "raw"
	$("#prompt").value = S.text
	for (const input of $$("#sliders input")) input.value = S[input.id]
}
// Each change is an entry of the history. Quick changes of one thing (typing, a slider) are one entry.
let waiting = null
let timer
let last = {}
function remember(what) {
	if (waiting && waiting !== what) writeAddress()
	clearTimeout(timer)
	waiting = what
	timer = setTimeout(writeAddress, 150)
}
export function writeAddress() {
	clearTimeout(timer)
	const now = performance.now()
	const replaces = waiting === "scroll" || (waiting === last.what && now - last.at < 2000)
	const to = address()
	if (waiting && to.length < 30000 && to !== location.hash)
		history[replaces ? "replaceState" : "pushState"](null, "", to)
	last = {what: waiting, at: now}
	waiting = null
}
// Another panel is named at once. What still waits is an entry of its own.
export function moveTo(panel, what) {
	writeAddress()
	S.panel = panel
	waiting = what
	writeAddress()
}

// --- the server, or its recorded answers in a file that stands alone

const recorded = $("#recorded") && JSON.parse($("#recorded").textContent)
const sorted = body => JSON.stringify(Object.entries(body).sort(([a], [b]) => (a < b ? -1 : 1)))
class Gone extends Error {}

// The lines of an answer. An answer that is no stream has one line.
export async function* ask(view, body = {}, signal = undefined) {
	if (recorded) {
		const found = recorded[`${view} ${sorted(body)}`]
		if (!found) throw Error("This page is a recording. `tiedgpt explore` answers for any text.")
		yield* found
		return
	}
	try {
		const headers = {"Content-Type": "application/json"}
		const response = await fetch(view, {method: "POST", headers, signal, body: JSON.stringify(body)})
		if (response.ok) document.body.classList.remove("gone")
		let rest = ""
		for (const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
			const {value, done} = await reader.read()
			const lines = (rest + (value ?? (done ? "\n" : ""))).split("\n")
			rest = lines.pop()
			for (const text of lines.filter(Boolean)) {
				if (text[0] !== "{") throw Error(text) // the server is busy
				const line = JSON.parse(text)
				if (line.error) throw Error(line.error.message)
				yield line
			}
			if (done) return
		}
	} catch (error) {
		if (error instanceof TypeError) document.body.classList.add("gone")
		throw error instanceof TypeError ? new Gone("The server has stopped.") : error
	}
}
// The answer. `progress` is called with the part that is done, from 0 to 1.
export async function answer(view, body, progress, signal) {
	let found
	for await (const line of ask(view, body, signal)) {
		if ("part" in line) progress?.(line.part)
		else found = line
	}
	return found
}
// The answer for each model.
export function answers(view, body, progress, signal) {
	const parts = each(() => 0)
	const said = i => part => {
		parts[i] = part
		progress?.(Math.min(...parts))
	}
	return Promise.all(each(i => answer(view, body(i), said(i), signal)))
}
export async function begin() {
	Object.assign(facts, await answer("start"))
	Object.assign(S, {W: facts.toy.W_E, P: facts.toy.P, text: facts.prompts[0]})
	S.heads = facts.models.map(m => m.heads[0])
	defaults = structuredClone(S)
	document.body.classList.toggle("recorded", Boolean(recorded))
	readAddress()
}
export const beginning = (...names) => structuredClone(Object.fromEntries(names.map(n => [n, defaults[n]])))

// --- drawing, when something has changed and is in view

const known = {switch: null}
const dirty = new Set()
const again = new Set()
const drawing = {}
export const visible = new Set()
let soon
// show(answer) draws the answer to the question that query() makes. A list asks once for each model.
export function panel(name, query, show) {
	known[name] = {query, show}
}
// Something has changed: an entry of the history, and the panels to draw again.
export function changed(what, ...names) {
	if (what) remember(what)
	for (const name of names) dirty.add(name)
	const bars = dirty.has("next") ? draw("next") : null
	clearTimeout(soon)
	soon = setTimeout(drawVisible, bars ? 120 : 0)
	return bars
}
// Change what the page shows.
export function set(values, ...names) {
	Object.assign(S, values)
	changed(Object.keys(values)[0], ...names)
}
export const redraw = () => changed(null, ...Object.keys(known).slice(1))
export async function drawVisible() {
	await drawing.next
	for (const name of Object.keys(known)) {
		const hasText = $("#problem").hidden || !OF_TEXT.includes(name)
		if (visible.has(name) && dirty.has(name) && hasText) await draw(name)
	}
}
// One request of a panel at a time: the answer to the one before is drawn, and then the newest is asked.
function draw(name) {
	dirty.delete(name)
	again.add(name)
	drawing[name] ??= (async () => {
		while (again.delete(name)) await drawOnce(name)
		delete drawing[name]
	})()
	return drawing[name]
}
async function drawOnce(name) {
	const problem = name === "next" ? $("#problem") : $(`#${name} .warn`)
	try {
		const query = known[name].query()
		const isEach = Array.isArray(query)
		await known[name].show(await (isEach ? answers(name, i => query[i]) : answer(name, query)))
		problem.hidden = true
	} catch (error) {
		if (error instanceof Gone) return dirty.add(name)
		fail(error, problem)
		if (name === "parts") S.removed = [] // a part that this model does not have
		if (name === "next") for (const box of $$("#bars, #written, #flow")) box.classList.add("stale")
	}
}
let saying
export function say(text) {
	clearTimeout(saying)
	saying = setTimeout(() => {
		$("#live").textContent = text
	}, 700)
}
// What was stopped, by its button or with the server, is no problem.
export function fail(error, box = $("#problem")) {
	if (error.name === "AbortError" || error instanceof Gone) return
	put(box, error.message)
	box.hidden = false
	say(error.message)
}
// A button that starts something long, and then stops it with the signal that `work` gets.
export function stoppable(id, work) {
	const idle = $(id).textContent
	let running = null
	on(id, "click", async () => {
		if (running) return running.abort()
		running = new AbortController()
		await work(running.signal)
		running = null
		put($(id), idle)
	})
}
