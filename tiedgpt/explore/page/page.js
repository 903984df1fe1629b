// The page begins: its panels, its menu, its source code, its history.
import {button, mark, on, put} from "./draw.js"
import {$, $$, el, short} from "./elements.js"
import {
	answer,
	begin,
	drawVisible,
	facts,
	fail,
	moveTo,
	place,
	readAddress,
	redraw,
	state,
	visible,
	writeAddress
} from "./state.js"

const sections = $$("main section")
const narrowScreen = matchMedia("(max-width:700px)")
const modules = await Promise.all(sections.map(({id}) => import(`./${id}.js`)))
// Draw the controls whose values are in the address.
const drawControls = () => modules.forEach(module => module.drawControls?.())

// --- going to a panel, and staying there while those above it fill

let pinned = null // the panel at which the page stays until the reader scrolls
let pinnedTop = null // how far it is from the top of the window; null for just below the header
history.scrollRestoration = "manual" // a browser does not know that the panels above will grow
function scrollToPinned() {
	if (!pinned) return
	const section = $(`#${pinned}`)
	if (pinnedTop === null) section.scrollIntoView()
	else scrollBy(0, section.getBoundingClientRect().top - pinnedTop)
}
// Go to the panel that the address names. top: how far below the window's top it was; null: below the header.
function openPanel(top = null) {
	pinned = state.panel
	pinnedTop = top
	scrollToPinned()
	markMenu()
	$(`#${pinned} h2`).focus({preventScroll: true})
}
// The header stays in sight; on a phone, its last line does, which is the menu.
function stayAtPinned() {
	const header = $("header")
	const hidden = narrowScreen.matches ? $("nav").offsetTop : 0
	header.style.top = `${-hidden}px`
	document.documentElement.style.scrollPaddingTop = `${header.offsetHeight - hidden + 8}px`
	scrollToPinned()
}
// The reader scrolls: the page no longer stays at a panel.
function unpin() {
	pinned = null
}
function markMenu() {
	for (const link of $$("nav a")) {
		const isCurrent = link.hash === `#${state.panel}`
		link.ariaCurrent = isCurrent ? "true" : null
		if (isCurrent) $("nav ol").scrollLeft = link.offsetLeft - $("nav").offsetWidth / 2
	}
}
function drawMenu() {
	put("nav ol", sections.map(menuItem))
}
function menuItem({id, dataset}) {
	const href = `#${id}`
	const onclick = e => {
		e.preventDefault()
		moveTo(id, href)
		openPanel()
	}
	return el("li", el("a", {href, onclick}, dataset.menu))
}
function watchPanels() {
	const resized = new ResizeObserver(stayAtPinned)
	for (const box of $$("header, main")) resized.observe(box)
	for (const event of ["wheel", "touchmove", "pointerdown", "keydown"])
		addEventListener(event, unpin, {passive: true})
	// rootMargin: a panel is drawn 150 px before it is seen. threshold: panelsMoved is called when these
	// shares of a panel are in view, and finds where the reader is.
	const options = {rootMargin: "150px", threshold: [0, 0.2, 0.5]}
	const observer = new IntersectionObserver(panelsMoved, options)
	for (const section of sections) observer.observe(section)
	addEventListener("scrollend", () => history.replaceState(place(), ""))
	addEventListener("popstate", e => {
		readAddress()
		drawControls()
		redraw()
		openPanel(e.state?.top)
	})
}
// Draw the panels that are in view now. The one that the reader has scrolled to is in the address.
function panelsMoved(entries) {
	for (const {target, isIntersecting} of entries) {
		if (isIntersecting) visible.add(target.id)
		else visible.delete(target.id)
	}
	drawVisible()
	if (pinned) return
	// The reader is at the last panel that begins in the upper half of the window, or above it.
	const above = sections.filter(section => section.getBoundingClientRect().top < innerHeight / 2)
	const {id} = above.at(-1) ?? sections[0]
	if (id !== state.panel) moveTo(id, "scroll")
	markMenu()
}

// --- controls of the whole page

function exampleButtons() {
	const exampleButton = text =>
		button(text.replace(/\n/g, " "), () => {
			$("#prompt").value = text
			$("#prompt").dispatchEvent(new Event("input")) // as if the reader had typed it
		})
	put("#examples", "Try: ", facts.prompts.map(exampleButton))
}
on("#copy", "click", async () => {
	writeAddress()
	try {
		await navigator.clipboard.writeText(location.href)
		put("#copy", "Copied")
	} catch {
		put("#copy", "Copy it from the address bar")
	}
	setTimeout(() => put("#copy", "Copy link"), 1500) // ms
})
on("#quit", "click", async () => {
	try {
		await answer("quit")
		document.body.classList.add("gone")
	} catch (error) {
		fail(error)
	}
})
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw)

// --- source code

// The name of a group is the class of what it matches. tied and untied are the lines of the switch.
const COLOURS = [
	/(?<comment>#.*)/,
	/(?<tied>parameters\["wte\.weight"\]\.T)/,
	/(?<untied>parameters\["lm_head\.weight"\]\.T)/,
	/(?<string>""".*|"(?:[^"\\]|\\.)*")/,
	/\b(?<keyword>and|def|else|for|from|if|in|is|lambda|None|not|or|raise|return|True|while|with)\b/
]
const COLOURED = new RegExp(COLOURS.map(pattern => pattern.source).join("|"), "g")
function coloured(text) {
	const pieces = []
	let end = 0
	for (const match of text.matchAll(COLOURED)) {
		const kind = Object.keys(match.groups).find(name => match.groups[name])
		pieces.push(text.slice(end, match.index), el(`span.${kind}`, match[0]))
		end = match.index + match[0].length
	}
	return [pieces, text.slice(end), "\n"]
}
// Add to a panel what page.html does not have: the place of an error, and the source code.
function complete(section) {
	$("h2", section).tabIndex = -1 // so that openPanel can give it the focus
	$(".figure", section).prepend(el("p.note.warn", {hidden: true}))
	// Beside a figure there is room for one open source. The switch is what the page is about.
	const isWide = matchMedia("(min-width:1081px)").matches || section.id === "switch"
	const functions = facts.sources[section.id].map((source, n) => sourceCode(source, n === 0 && isWide))
	section.append(el("div.code", functions))
}
function sourceCode({name, file, line, text}, isOpen) {
	const lines = text.split("\n").map((source, n) => el("span.line", {"data-n": line + n}, coloured(source)))
	return el(
		"details",
		{open: isOpen},
		el("summary", el("b", name), ` ${file}:${line}`),
		el("pre", {tabIndex: 0, label: `source code of ${name}`}, lines)
	)
}

// --- start

function drawModels() {
	const modelName = m =>
		el("span", {class: m.heads[0]}, mark(), ` ${m.name}, ${short(m.parameters)} parameters`)
	put("#models", facts.models.map(modelName))
}
try {
	await begin()
	readAddress()
	// A link to a panel, or a page that is loaded again: go where the reader was.
	if (location.hash || history.state) pinned = state.panel
	pinnedTop = history.state?.top ?? null
	drawModels()
	sections.forEach(complete)
	drawMenu()
	exampleButtons()
	drawControls()
	watchPanels()
	await redraw()
	if (pinned) openPanel(pinnedTop)
	$("#loading").hidden = true
	document.body.dataset.ready = "1"
} catch (error) {
	fail(error, $("#loading"))
}
