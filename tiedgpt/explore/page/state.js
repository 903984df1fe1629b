// What the page shows, its address, and the questions to the server.
import {$, $$, put, whole} from "./draw.js";

export const S = {
	...{panel: "switch", text: "", ids: null, place: null, heads: [null, null], side: 0, copy: false},
	...{path: "raw", t: 1, k: 0, p: 1, seed: 1, layer: 1, head: 2, token: null, removed: []},
	...{W: null, P: null, vocab: 50000, dim: 4096, total: 7e9}
};
export const PANELS = ["switch", "path", "next", "toy", "lens", "parts", "attention", "gradient", "cost"];
export const OF_TEXT = ["next", "path", "lens", "parts", "attention", "gradient"]; // asked again for a text
export const INPUTS = {"#prompt": "text", "#temperature": "t", "#top_k": "k", "#top_p": "p", "#seed": "seed"};
export const facts = {}; // what the server says at the start: models, corpus, prompts, toy
let defaults;

export const head = i => S.heads[i] ?? facts.models[i].heads[0];
export const nameOf = i => facts.models[i].name;
export const common = () => ({
	heads: facts.models.map((_, i) => head(i)),
	...(S.ids ? {ids: S.ids} : {text: S.text}),
	...(S.place == null ? {} : {place: S.place})
});
export const sampling = () => ({
	...(S.t === 1 ? {} : {temperature: S.t}),
	...(S.k ? {top_k: S.k} : {}),
	...(S.p < 1 ? {top_p: S.p} : {})
});

// --- the address: #panel?what=differs&from=the-start

const LISTS = {ids: ".", heads: ".", removed: ","};
const matrix = M => M?.map(row => row.join(",")).join(";");
const spelled = (name, value) => {
	if (name === "W" || name === "P") return matrix(value);
	return LISTS[name] && value ? value.map(x => x ?? "").join(LISTS[name]) : `${value}`;
};
function address() {
	const q = new URLSearchParams();
	for (const [name, value] of Object.entries(S)) {
		const said = spelled(name, value);
		if (name === "panel" || (name === "text" && S.ids) || said === spelled(name, defaults[name])) continue;
		q.set(name, said);
	}
	return `#${S.panel}${q.size ? `?${q}` : ""}`;
}
const READ = {
	text: String,
	path: String,
	copy: said => said === "true",
	ids: said => said.split(".").map(Number),
	removed: said => said.split(",").filter(Boolean),
	heads: said => said.split(".").map((h, i) => (facts.models[i]?.heads.includes(h) ? h : null)),
	W: said => said.split(";").map(row => row.split(",").map(Number))
};
READ.P = READ.W;
export function readAddress() {
	const [panel, ...rest] = location.hash.slice(1).split("?");
	Object.assign(S, structuredClone(defaults));
	if (PANELS.includes(panel)) S.panel = panel;
	for (const [name, said] of new URLSearchParams(rest.join("?")))
		if (name in S) {
			const value = (READ[name] ?? Number)(said);
			if (!Number.isNaN(value)) S[name] = value;
		}
	S.side = Math.max(0, Math.min(S.side, facts.models.length - 1)) || 0;
	if (!facts.models[S.side].paths.includes(S.path)) S.path = "raw";
	for (const id in INPUTS) $(id).value = S[INPUTS[id]];
}
// Each change is an entry of the history. Quick changes of one thing (typing, a slider) are one entry.
let waiting = null;
let timer;
let last = {};
export function remember(what) {
	if (waiting && waiting !== what) writeAddress();
	clearTimeout(timer);
	waiting = what;
	timer = setTimeout(writeAddress, 150);
}
export function writeAddress() {
	clearTimeout(timer);
	const now = performance.now();
	const replaces = waiting === "scroll" || (waiting === last.what && now - last.at < 2000);
	const to = address();
	if (waiting && to.length < 30000 && to !== location.hash)
		history[replaces ? "replaceState" : "pushState"](null, "", to);
	last = {what: waiting, at: now};
	waiting = null;
}

// --- the server, or its recorded answers in a file that stands alone

const recorded = $("#recorded") && JSON.parse($("#recorded").textContent);
const sorted = body => JSON.stringify(Object.entries(body).sort(([a], [b]) => (a < b ? -1 : 1)));
export class Gone extends Error {}
const pause = ms => new Promise(go => setTimeout(go, ms));

async function send(view, body, signal) {
	const headers = {"Content-Type": "application/json"};
	const options = {method: "POST", headers, signal, body: JSON.stringify(body)};
	let response = await fetch(view, options);
	for (let tries = 0; response.status === 503 && tries < 5; tries++) {
		await pause(400);
		response = await fetch(view, options);
	}
	document.body.classList.remove("gone");
	return response;
}
// The lines of an answer. An answer that is no stream has one line.
export async function* ask(view, body = {}, signal = undefined) {
	if (recorded) {
		const found = recorded[`${view} ${sorted(body)}`];
		if (!found) throw Error("This page is a recording. `tiedgpt explore` answers for any text.");
		yield* found;
		return;
	}
	try {
		const response = await send(view, body, signal);
		let rest = "";
		for (const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
			const {value, done} = await reader.read();
			const lines = (rest + (value ?? (done ? "\n" : ""))).split("\n");
			rest = lines.pop();
			for (const text of lines.filter(Boolean)) {
				if (text[0] !== "{") throw Error(text); // the server is busy
				const line = JSON.parse(text);
				if (line.error) throw Error(line.error.message);
				yield line;
			}
			if (done) return;
		}
	} catch (error) {
		if (error instanceof TypeError) document.body.classList.add("gone");
		throw error instanceof TypeError ? new Gone("The server has stopped.") : error;
	}
}
// The answer. `progress` is called with the part that is done, from 0 to 1.
export async function answer(view, body, progress, signal) {
	let found;
	for await (const line of ask(view, body, signal)) {
		if ("part" in line) progress?.(line.part);
		else found = line;
	}
	return found;
}
export async function begin(prompt) {
	Object.assign(facts, await answer("start"));
	Object.assign(S, {W: facts.toy.W_E, P: facts.toy.P, text: prompt ?? facts.prompts[0]});
	defaults = structuredClone(S);
	document.body.classList.toggle("recorded", Boolean(recorded));
	readAddress();
}
export const startAgain = (...names) => {
	for (const name of names) S[name] = structuredClone(defaults[name]);
};

// --- drawing, when something has changed and is in view

const known = {};
const dirty = new Set();
const again = new Set();
const drawing = {};
export const visible = new Set();
let soon;
let took = 0; // ms of the slowest panel: panels wait for such a pause in typing
// show(answer) draws the answer to the question that query() makes; null asks nothing.
export function panel(name, query, show) {
	known[name] = {query, show};
}
export function changed(what, ...names) {
	if (what) remember(what);
	for (const name of names) dirty.add(name);
	const bars = dirty.has("next") ? draw("next") : null;
	clearTimeout(soon);
	const wait = bars ? Math.min(120, took) : 0;
	soon = setTimeout(async () => {
		await bars;
		drawVisible();
	}, wait);
}
export const redraw = () => changed(null, ...Object.keys(known));
export async function drawVisible() {
	let slowest = 0;
	for (const name of Object.keys(known)) {
		const hasText = $("#problem").hidden || !OF_TEXT.includes(name);
		if (!visible.has(name) || !dirty.has(name) || !hasText) continue;
		const start = performance.now();
		await draw(name);
		slowest = Math.max(slowest, performance.now() - start);
	}
	took = slowest || took;
}
// One request of a panel at a time: the answer to the one before is drawn, and then the newest is asked.
function draw(name) {
	dirty.delete(name);
	again.add(name);
	drawing[name] ??= (async () => {
		while (again.delete(name)) await drawOnce(name);
		delete drawing[name];
	})();
	return drawing[name];
}
async function drawOnce(name) {
	const problem = name === "next" ? $("#problem") : $(".warn", document.getElementById(name));
	try {
		const query = known[name].query();
		if (query) await known[name].show(await answer(name === "cost" ? "params" : name, query));
		problem.hidden = true;
	} catch (error) {
		if (error instanceof Gone) return dirty.add(name);
		fail(error, problem);
		if (name === "parts") S.removed = []; // a part that this model does not have
		if (name === "next") for (const box of $$("#bars, #written, #flow")) box.classList.add("stale");
	}
}
let saying;
export function say(text) {
	clearTimeout(saying);
	saying = setTimeout(() => {
		$("#live").textContent = text;
	}, 700);
}
export function fail(error, box = $("#problem")) {
	put(box, error.message);
	box.hidden = false;
	say(error.message);
}
export function tooLong(text) {
	if (text.length <= 16000 && new Blob([text]).size <= 60000) return false;
	const most = `The models read up to ${facts.models[0].context} tokens: shorten it.`;
	fail(Error(`The prompt has ${whole(text.length)} characters. ${most}`));
	return true;
}
