// What the laboratory and the article share: elements, and numbers as texts. Text is never read as HTML.
export const $ = (selector, box = document) => box.querySelector(selector)
export const $$ = (selector, box = document) => [...box.querySelectorAll(selector)]

// el("td.wide", {title: "x"}, "text") is <td class="wide" title="x">text</td>. Attributes can be left out.
export function el(kind, ...children) {
	const [tag, ...classes] = kind.split(".")
	const node = document.createElement(tag)
	node.classList.add(...classes.filter(Boolean))
	if (children[0]?.constructor === Object) setProperties(node, children.shift())
	return append(node, children)
}
// key, label and pressed are data-key, aria-label and aria-pressed; vars are properties of the style.
const ATTRIBUTES = {key: "data-key", label: "aria-label", pressed: "aria-pressed"}
function setProperties(node, properties) {
	for (const [name, value] of Object.entries(properties)) {
		if (value == null) continue
		if (name.startsWith("on")) node.addEventListener(name.slice(2), value)
		else if (name === "vars") setStyle(node, value)
		else if (name in node) node[name] = value
		else node.setAttribute(ATTRIBUTES[name] ?? name, value)
	}
}
function setStyle(node, properties) {
	for (const [name, value] of Object.entries(properties)) node.style.setProperty(name, value)
}
// An element of SVG. Its properties cannot be set, its attributes can.
export function shape(tag, attributes, ...children) {
	const {namespaceURI} = $("svg") // each page has a drawing from the start
	const node = document.createElementNS(namespaceURI, tag)
	setAttributes(node, attributes)
	return append(node, children)
}
export function setAttributes(node, attributes) {
	for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value)
}
// Children are elements and texts, lists of them, and null for none.
export function append(node, children) {
	node.append(...children.flat(Infinity).filter(child => child != null))
	return node
}

// A tap on a box selects its text, so that typing replaces it. Another tap places the cursor.
export function selectAtTap(input) {
	let hadFocus = false
	input.onpointerdown = () => {
		hadFocus = document.activeElement === input
	}
	input.onclick = () => {
		if (!hadFocus) input.select()
	}
}

// A share in percent: below `tenthsBelow`, and only there, with a digit for tenths.
export function percent(p, tenthsBelow = 0.1) {
	if (p >= tenthsBelow - 0.0005) return `${(100 * p).toFixed(0)} %`
	if (p >= 0.0005) return `${(100 * p).toFixed(1)} %`
	return p > 0 ? "<0.1 %" : "0 %"
}
// A rounded number with a real minus sign, and without a negative zero.
export function fixed(x, digits = 2) {
	const isZero = Math.abs(x) < 0.5 * 10 ** -digits
	return (isZero ? 0 : x).toFixed(digits).replace("-", "−")
}
export const whole = n => n.toLocaleString("en")
// From 1 on: 999 is "999", 204800000 is "204.8M".
export function short(n) {
	const thousands = Math.min(4, Math.floor(Math.log10(n) / 3))
	const unit = ["", "K", "M", "B", "T"][thousands]
	const digits = unit === "" ? 0 : 1
	return (n / 1000 ** thousands).toFixed(digits) + unit
}
