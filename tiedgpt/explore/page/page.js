// The page begins: its controls, its menu, its source code.
import {$, $$, button, el, forgetColours, on, put, short} from "./draw.js";
import {changeDimensions, drawFlow, resetToy, solve, solveEmbedding, write} from "./panels.js";
import {
	answer,
	begin,
	changed,
	drawVisible,
	facts,
	fail,
	INPUTS,
	OF_TEXT,
	readAddress,
	redraw,
	remember,
	S,
	tooLong,
	visible,
	writeAddress
} from "./state.js";

// --- going to a panel, and staying there while the panels above it fill

let pinned = null;
const goTo = () => pinned && document.getElementById(pinned).scrollIntoView();
function open(panel) {
	pinned = panel;
	goTo();
	$("h2", document.getElementById(panel)).focus({preventScroll: true});
}
function follow() {
	const header = $("header");
	const size = getComputedStyle(header).position === "sticky" ? header.offsetHeight : 0;
	document.documentElement.style.scrollPaddingTop = `${size + 8}px`;
	goTo();
}
function markMenu() {
	for (const link of $$("nav a")) link.ariaCurrent = link.hash === `#${S.panel}` ? "true" : null;
}
function watchPanels() {
	const resized = new ResizeObserver(follow);
	for (const box of $$("header, main")) resized.observe(box);
	for (const event of ["wheel", "touchmove", "pointerdown", "keydown"])
		addEventListener(
			event,
			() => {
				pinned = null;
			},
			{passive: true}
		);
	const seen = entries => {
		for (const {target, isIntersecting} of entries) visible[isIntersecting ? "add" : "delete"](target.id);
		drawVisible();
		const middle = innerHeight / 2;
		const at =
			pinned ??
			$$("main section")
				.filter(s => s.getBoundingClientRect().top < middle)
				.at(-1)?.id;
		if (at && at !== S.panel && !pinned) remember("scroll");
		S.panel = at ?? S.panel;
		markMenu();
	};
	const observer = new IntersectionObserver(seen, {rootMargin: "150px", threshold: [0, 0.2, 0.5]});
	for (const section of $$("main section")) observer.observe(section);
	on("nav", "click", e => {
		const link = e.target.closest("a");
		if (!link) return;
		e.preventDefault();
		S.panel = link.hash.slice(1);
		remember(`menu ${S.panel}`);
		writeAddress();
		open(S.panel);
		markMenu();
	});
	addEventListener("popstate", () => {
		readAddress();
		costSliders();
		redraw();
		open(S.panel);
	});
}

// --- controls

function exampleButtons() {
	const one = text =>
		button(text.replace(/\n/g, " "), () => {
			$("#prompt").value = text;
			$("#prompt").dispatchEvent(new Event("input"));
		});
	put($("#examples"), "Try: ", facts.prompts.map(one));
}
function costSliders() {
	const slider = (name, label, least, most, digits) =>
		el(
			"label",
			label,
			el("output", {id: `o${name}`}),
			el("input", {
				...{type: "range", id: `c${name}`, label, step: 0.005},
				...{min: Math.log10(least), max: Math.log10(most), value: Math.log10(S[name])},
				oninput: e => {
					S[name] = +(10 ** e.target.value).toPrecision(digits);
					changed(name, "cost");
				}
			})
		);
	const sizes = [slider("vocab", "vocabulary", 1000, 300000, 3), slider("dim", "width", 64, 16384, 3)];
	put($("#costsliders"), sizes, slider("total", "whole model", 1e8, 1e12, 2));
}
async function copyLink() {
	writeAddress();
	const said = await navigator.clipboard.writeText(location.href).then(
		() => "Copied",
		() => "Copy it from the address bar"
	);
	put($("#copy"), said);
	setTimeout(() => put($("#copy"), "Copy link"), 1500);
}
function watchControls() {
	on("#prompt", "input", e => {
		Object.assign(S, {text: e.target.value, ids: null, place: null, token: null});
		if (!tooLong(S.text)) changed("text", ...OF_TEXT);
	});
	on("#sliders", "input", e => {
		S[INPUTS[`#${e.target.id}`]] = Math.max(0, +e.target.value);
		S.seed = Math.floor(S.seed);
		changed(e.target.id, "next");
	});
	for (const form of $$("form")) form.addEventListener("submit", e => e.preventDefault());
	on("#write", "click", write);
	on("#solve", "click", solve);
	on("#dims", "click", changeDimensions);
	on("#solveW", "click", solveEmbedding);
	on("#toyreset", "click", resetToy);
	on("#copy", "click", copyLink);
	on("#token", "change", e => {
		S.token = +e.target.value;
		changed("token", "parts");
	});
	on("#putback", "click", () => {
		S.removed = [];
		changed("removed", "parts");
	});
	on("#quit", "click", () => answer("quit").then(() => document.body.classList.add("gone"), fail));
	matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
		forgetColours();
		redraw();
	});
	matchMedia("(max-width:700px)").addEventListener("change", drawFlow);
}

// --- source code

const COLOURS = new RegExp(
	[
		/(?<comment>#.*)/,
		/(?<string>""".*|"(?:[^"\\]|\\.)*")/,
		/(?<tied>\S+)(?= if tied else)/,
		/(?<=if tied else )(?<untied>.+)/,
		/\b(?<keyword>and|def|else|for|from|if|in|is|lambda|None|not|or|raise|return|True|while|with)\b/,
		/\b(?<number>\d[\d.]*)/
	]
		.map(one => one.source)
		.join("|"),
	"g"
);
function coloured(text) {
	const pieces = [];
	let end = 0;
	for (const found of text.matchAll(COLOURS)) {
		const kind = Object.keys(found.groups).find(name => found.groups[name]);
		pieces.push(text.slice(end, found.index), el(`span.${kind}`, found[0]));
		end = found.index + found[0].length;
	}
	return [pieces, text.slice(end), "\n"];
}
async function drawCode() {
	const sources = await answer("source");
	const rows = ({text, line}) => {
		let inside = false; // a docstring, of which the first line is shown
		return text.split("\n").map((said, n) => {
			const quotes = said.split('"""').length - 1;
			const hidden = inside;
			inside = inside !== (quotes === 1);
			return hidden ? null : el("span.line", {"data-n": line + n}, coloured(said));
		});
	};
	for (const box of $$(".code")) {
		const isWide = matchMedia("(min-width:1081px)").matches;
		put(
			box,
			box.dataset.sources.split(" ").map((name, n) => {
				const found = sources[name];
				const title = el("summary", el("b", name), ` ${found.file}:${found.line}`);
				const pre = el("pre", {tabIndex: 0, label: `source code of ${name}`}, rows(found));
				return el("details", {open: n === 0 && (isWide || box.closest("#switch"))}, title, pre);
			})
		);
	}
}

// --- start

try {
	await begin();
	if (location.hash) pinned = S.panel;
	const name = m =>
		el("span", {class: m.heads[0]}, el("span.mark"), ` ${m.name}, ${short(m.parameters)} parameters`);
	put($("#models"), facts.models.map(name));
	document.body.classList.toggle("one", facts.models.length === 1);
	exampleButtons();
	costSliders();
	watchControls();
	watchPanels();
	redraw();
	await drawCode();
	if (pinned) open(pinned);
	$("#loading").hidden = true;
	document.body.dataset.ready = "1";
} catch (error) {
	fail(error, $("#loading"));
}
