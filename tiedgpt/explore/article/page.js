// Elements and texts. Text is never read as HTML.

export const find = selector => document.querySelector(selector)
export const findAll = selector => [...document.querySelectorAll(selector)]

export function make(tag, className, ...children) {
	const node = document.createElement(tag)
	node.className = className
	node.append(...children)
	return node
}

export function shape(tag, attributes, ...children) {
	// an element of SVG
	const node = document.createElementNS("http://www.w3.org/2000/svg", tag)
	setAttributes(node, attributes)
	node.append(...children)
	return node
}

export function setAttributes(node, attributes) {
	for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value)
}

export function fixed(x) {
	// two digits, with a real minus sign and without a negative zero
	const text = x.toFixed(2)
	return text === "-0.00" ? "0.00" : text.replace("-", "−")
}

export function percent(p) {
	// with one digit below 1 %. From 0.95 % on, a share is rounded to 1 %.
	if (p < 0.0005) return "<0.1 %"
	return `${(100 * p).toFixed(p >= 0.0095 ? 0 : 1)} %`
}

export function bar(share) {
	// The style sheet stretches it over its place.
	const box = {viewBox: "0 0 100 1", preserveAspectRatio: "none", class: "bar", "aria-hidden": "true"}
	return shape("svg", box, shape("rect", {width: (100 * share).toFixed(1), height: 1}))
}
