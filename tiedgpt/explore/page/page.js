// The page begins: its menu, its source code, its history.

import {costSliders} from "./cost.js"
import {$, $$, button, el, mark, on, put, short} from "./draw.js"
import {
	answer,
	begin,
	drawVisible,
	facts,
	fail,
	moveTo,
	readAddress,
	redraw,
	S,
	visible,
	writeAddress
} from "./state.js"
import "./flow.js"
import "./next.js"
import "./path.js"
import "./toy.js"
import "./lens.js"
import "./parts.js"
import "./attention.js"
import "./gradient.js"

const sections = $$("main section")

// --- going to a panel, and staying there while those above it fill

let pinned = null
const goTo = () => pinned && $(`#${pinned}`).scrollIntoView()
function open() {
	pinned = S.panel
	goTo()
	markMenu()
	$(`#${pinned} h2`).focus({preventScroll: true})
}
function follow() {
	const header = $("header")
	const size = getComputedStyle(header).position === "sticky" ? header.offsetHeight : 0
	document.documentElement.style.scrollPaddingTop = `${size + 8}px`
	goTo()
}
function markMenu() {
	for (const link of $$("nav a")) link.ariaCurrent = link.hash === `#${S.panel}` ? "true" : null
}
function drawMenu() {
	const link = ({id, dataset}) => {
		const href = `#${id}`
		const onclick = e => {
			e.preventDefault()
			moveTo(id, href)
			open()
		}
		return el("li", el("a", {href, onclick}, dataset.menu))
	}
	put("nav ol", sections.map(link))
}
function watchPanels() {
	const resized = new ResizeObserver(follow)
	for (const box of $$("header, main")) resized.observe(box)
	const release = () => {
		pinned = null
	}
	for (const event of ["wheel", "touchmove", "pointerdown", "keydown"])
		addEventListener(event, release, {passive: true})
	const seen = entries => {
		for (const {target, isIntersecting} of entries) visible[isIntersecting ? "add" : "delete"](target.id)
		drawVisible()
		if (pinned) return
		const above = sections.filter(s => s.getBoundingClientRect().top < innerHeight / 2)
		const {id} = above.at(-1) ?? sections[0]
		if (id !== S.panel) moveTo(id, "scroll")
		markMenu()
	}
	const observer = new IntersectionObserver(seen, {rootMargin: "150px", threshold: [0, 0.2, 0.5]})
	for (const section of sections) observer.observe(section)
	addEventListener("popstate", () => {
		readAddress()
		costSliders()
		redraw()
		open()
	})
}

// --- controls of the whole page

function exampleButtons() {
	const one = text =>
		button(text.replace(/\n/g, " "), () => {
			$("#prompt").value = text
			$("#prompt").dispatchEvent(new Event("input"))
		})
	put("#examples", "Try: ", facts.prompts.map(one))
}
on("#copy", "click", async () => {
	writeAddress()
	const copied = navigator.clipboard.writeText(location.href)
	const said = await copied.then(
		() => "Copied",
		() => "Copy it from the address bar"
	)
	put("#copy", said)
	setTimeout(() => put("#copy", "Copy link"), 1500)
})
on("#quit", "click", () => answer("quit").then(() => document.body.classList.add("gone"), fail))
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw)

// --- source code

const COLOURS = new RegExp(
	[
		/(?<comment>#.*)/,
		/(?<string>""".*|"(?:[^"\\]|\\.)*")/,
		/(?<tied>\S+)(?= if tied else)/,
		/(?<=if tied else )(?<untied>.+)/,
		/\b(?<keyword>and|def|else|for|from|if|in|is|lambda|None|not|or|raise|return|True|while|with)\b/
	]
		.map(one => one.source)
		.join("|"),
	"g"
)
function coloured(text) {
	const pieces = []
	let end = 0
	for (const found of text.matchAll(COLOURS)) {
		const kind = Object.keys(found.groups).find(name => found.groups[name])
		pieces.push(text.slice(end, found.index), el(`span.${kind}`, found[0]))
		end = found.index + found[0].length
	}
	return [pieces, text.slice(end), "\n"]
}
// The heading, the place of an error and the source code of a panel.
function complete(section) {
	$("h2", section).tabIndex = -1
	$(".figure", section).prepend(el("p.note.warn", {hidden: true}))
	const isWide = matchMedia("(min-width:1081px)").matches || section.id === "switch"
	const one = (name, n) => {
		const {file, line, text} = facts.sources[name]
		const title = el("summary", el("b", name), ` ${file}:${line}`)
		const pre = el(
			"pre",
			{tabIndex: 0, label: `source code of ${name}`},
			text.split("\n").map((said, at) => el("span.line", {"data-n": line + at}, coloured(said)))
		)
		return el("details", {open: n === 0 && isWide}, title, pre)
	}
	section.append(el("div.code", section.dataset.sources.split(" ").map(one)))
}

// --- start

try {
	await begin()
	if (location.hash) pinned = S.panel
	const name = m => el("span", {class: m.heads[0]}, mark(), ` ${m.name}, ${short(m.parameters)} parameters`)
	put("#models", facts.models.map(name))
	sections.forEach(complete)
	drawMenu()
	exampleButtons()
	costSliders()
	watchPanels()
	await redraw()
	if (pinned) open()
	$("#loading").hidden = true
	document.body.dataset.ready = "1"
} catch (error) {
	fail(error, $("#loading"))
}
