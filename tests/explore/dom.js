// As much of a browser's document as the modules of page/ use, for node: no layout, no events of its own.
const PROPERTIES = [
	...["title", "tabIndex", "hidden", "colSpan", "scope", "id", "value", "selected", "width", "height", "open"],
	...["type", "checked", "min", "max", "step", "placeholder", "href", "disabled"]
]
const isShown = value => value !== undefined && value !== false && value !== ""

let byId = {} // the elements of page.html

// A selector as lists of tests: for each part after a comma, of the names after each other.
const selectors = new Map()
function parsed(selector) {
	if (!selectors.has(selector)) selectors.set(selector, selector.split(",").map(each => each.trim().split(" ").map(testsOf)))
	return selectors.get(selector)
}
function testsOf(simple) {
	return simple.match(/[#.]?[\w-]+|\[[\w-]+\]/g).map(name => {
		if (name[0] === "#") return node => node.id === name.slice(1)
		if (name[0] === ".") return node => node.classes.has(name.slice(1))
		if (name[0] !== "[") return node => node.tag === name
		const attribute = name.slice(1, -1)
		return attribute === "tabindex" ? node => node.tabIndex !== undefined : node => attribute in node.attributes
	})
}

class Text {
	constructor(text) {
		this.text = String(text)
	}
	get textContent() {
		return this.text
	}
	outline(depth) {
		return "  ".repeat(depth) + JSON.stringify(this.text)
	}
}

class Element {
	constructor(tag) {
		Object.assign(this, {tag, children: [], parent: null, attributes: {}, classes: new Set(), styles: {}})
		this.listeners = {}
		this.hidden = false
	}
	get classList() {
		const {classes} = this
		return {
			add: (...names) => names.forEach(name => classes.add(name)),
			remove: (...names) => names.forEach(name => classes.delete(name)),
			toggle: (name, isOn) => (isOn ? classes.add(name) : classes.delete(name))
		}
	}
	get style() {
		return {setProperty: (name, value) => (this.styles[name] = value)}
	}
	get dataset() {
		const {attributes} = this
		return new Proxy({}, {
			get: (_, name) => attributes[`data-${name}`],
			set: (_, name, value) => ((attributes[`data-${name}`] = String(value)), true)
		})
	}
	get textContent() {
		return this.children.map(child => child.textContent).join("")
	}
	set textContent(text) {
		this.replaceChildren(text)
	}
	get firstElementChild() {
		return this.children.find(child => child instanceof Element)
	}
	append(...added) {
		for (const child of added) {
			const node = typeof child === "object" ? child : new Text(child)
			node.parent = this
			this.children.push(node)
		}
	}
	replaceChildren(...children) {
		this.children = []
		this.append(...children)
	}
	setAttribute(name, value) {
		if (name === "class") `${value}`.split(" ").filter(Boolean).forEach(each => this.classes.add(each))
		else this.attributes[name] = String(value)
	}
	removeAttribute(name) {
		delete this.attributes[name]
		if (name === "tabindex") this.tabIndex = undefined
	}
	addEventListener(name, listener) {
		this.listeners[name] = listener
	}
	closest(selector) {
		return this.matches(selector) ? this : (this.parent?.closest(selector) ?? null)
	}
	contains(node) {
		return node === this || (node?.parent ? this.contains(node.parent) : false)
	}
	focus() {
		document.activeElement = this
	}
	blur() {
		document.activeElement = document.body
	}
	getBoundingClientRect() {
		return {top: 0}
	}
	getContext() {
		return {
			createImageData: (width, height) => ({data: new Uint8ClampedArray(4 * width * height)}),
			putImageData: image => this.setAttribute("data-points", [...image.data].join(" "))
		}
	}
	matches(selector) {
		return parsed(selector).some(names => this.matchesNames(names))
	}
	matchesNames(names) {
		if (!names.at(-1).every(isTrue => isTrue(this))) return false
		if (names.length === 1) return true
		const above = names.slice(0, -1)
		for (let node = this.parent; node; node = node.parent) if (node.matchesNames(above)) return true
		return false
	}
	querySelectorAll(selector) {
		const found = []
		const read = node => {
			for (const child of node.children) {
				if (child instanceof Text) continue
				if (child.matches(selector)) found.push(child)
				read(child)
			}
		}
		// An id at the beginning says where the others are.
		const [, id, rest] = selector.match(/^#([\w-]+) ([^,]*)$/) ?? []
		if (id in byId) return byId[id].querySelectorAll(rest)
		read(this)
		return found
	}
	querySelector(selector) {
		return byId[selector.slice(1)] ?? this.querySelectorAll(selector)[0] ?? null
	}
	// What a reader sees, and what a screen reader says: a line for each element.
	outline(depth = 0) {
		const shown = [...this.classes].map(name => `.${name}`)
		for (const name of PROPERTIES) if (isShown(this[name])) shown.push(` ${name}=${this[name]}`)
		for (const each of [this.attributes, this.styles]) {
			for (const [name, value] of Object.entries(each)) shown.push(` ${name}=${value}`)
		}
		const line = `${"  ".repeat(depth)}${this.tag}${shown.join("")}`.replaceAll("\n", "⏎")
		const children = this.children.map(child => child.outline(depth + 1))
		const isText = this.children.every(child => child instanceof Text)
		return isText ? [line, ...children.map(text => text.trimStart())].join(" | ") : [line, ...children].join("\n")
	}
}

// The properties that a node of a browser has; others are attributes.
for (const name of [...PROPERTIES, "namespaceURI"]) Element.prototype[name] = undefined

// A response that comes in pieces of 500 characters, without waiting.
function response(text) {
	let start = 0
	const read = async () => ({done: start >= text.length, value: text.slice(start, (start += 500))})
	return {ok: true, body: {pipeThrough: () => ({getReader: () => ({read})})}}
}

// A document with an element for each id of the page, in its section. answers: a question -> its lines.
export function open(html, answers) {
	const body = new Element("body")
	const page = {asked: []}
	byId = {}
	let section = body
	for (const [, tag, attributes] of html.matchAll(/<([a-z]\w*)([^<>]*\s(?:id="|class="[^"]*\bwhich\b)[^<>]*)>/gi)) {
		const node = new Element(tag)
		node.id = attributes.match(/\bid="([^"]*)"/)?.[1]
		if (node.id) byId[node.id] = node
		node.setAttribute("class", attributes.match(/\bclass="([^"]*)"/)?.[1] ?? "")
		node.hidden = / hidden\b/.test(attributes)
		if (tag === "section") {
			section = node
			const warning = new Element("p")
			warning.classList.add("warn")
			warning.hidden = true
			node.append(warning)
			body.append(node)
		} else section.append(node)
	}
	const code = new Element("div")
	code.classList.add("code")
	body.querySelector("#switch").append(code)
	const colours = "1,2,3"
	Object.assign(globalThis, {
		document: {
			body,
			activeElement: body,
			documentElement: body,
			createElement: tag => new Element(tag),
			createElementNS: (_, tag) => new Element(tag),
			querySelector: selector => (selector === "body" ? body : body.querySelector(selector)),
			querySelectorAll: selector => body.querySelectorAll(selector)
		},
		Element,
		getComputedStyle: () => ({getPropertyValue: () => colours}),
		matchMedia: () => ({matches: false, addEventListener() {}}),
		addEventListener() {},
		getSelection: () => "",
		location: {hash: ""},
		history: {
			pushState: (_, __, address) => (location.hash = address),
			replaceState: (_, __, address) => (location.hash = address)
		},
		fetch: async (question, {body}) => {
			page.asked.push([question, JSON.parse(body)])
			const lines = answers[question].map(line => JSON.stringify(line))
			const end = lines.length > 1 ? "\n" : "" // one object has no line end
			return response(lines.join("\n") + end)
		}
	})
	page.outline = selector => document.querySelector(selector).outline()
	return page
}
