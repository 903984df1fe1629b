// What a reader does in the laboratory, with the answers of test_explore_drawing.py. It is the body of a
// function of `input` and `print`. Each step draws, and prints what stands in some boxes and what was asked.
const load = name => import(`${input.folder}/${name}.js`)
const page = (await load("dom")).open(input.html, input.answers)
const {answers, boxes} = input
const {state, ...all} = await load("state")
const {ask, begin, drawVisible, readAddress, redraw, visible, writeAddress} = all
await begin()
for (const name of input.panels) await load(name)
const {drawControls} = await load("next")
drawControls()
for (const name of input.panels) visible.add(name)
const find = selector => document.querySelector(selector)
const every = selector => document.querySelectorAll(selector)
const pause = () => new Promise(resolve => setTimeout(resolve)) // then all that was asked is drawn
const draw = async () => {
	await redraw()
	await drawVisible()
	await pause()
}
const steps = {}
const asked = () => page.asked.splice(0).map(each => JSON.stringify(each))
const look = (name, boxes) => {
	steps[name] = [...boxes.map(page.outline), ...asked()]
}

await draw()
look("the start", boxes)

answers.parts = [input.without]
answers.symmetry = [input.asymmetric]
Object.assign(state, {
	side: 1, path: "mlp0", temperature: 0.5, heads: ["tied", "tied"],
	removed: ["attn.0.head.1", "mlp.1"], layer: 7, head: 0
})
await draw()
const OF_HEAD = ["#bars", "#flow", "#flowsays", "#mirror", "#product", "#near", "#repair"]
const OF_SIDE = ["#partsbox", "#partsout", "#partsbars", "#attnbox", "#gradbox", "#token", "#putback"]
look("the second model, tied, without two parts", [...OF_HEAD, ...OF_SIDE, "#otherpath", "#barsnote"])

answers.path = [{...answers.path[0], text: null, A: [[1, 4], [-4, -2]]}]
Object.assign(state, {heads: ["tied", "untied"], path: "raw", place: 0})
await draw()
look("the second model, untied, without a text", [...OF_HEAD, "#drawing", "#matrices"])
Object.assign(state, {side: 0, copy: 1})
answers.path = [{...answers.path[0], A: [[0, 0], [0, 0]]}]
await draw()
look("a copy of the first model", ["#matrices", "#drawing", "#turn", "#flow", "#flowsays"])

find("#write").listeners.click()
await pause()
look("written texts", ["#written", "#writtennote", "#write"])
find("#solve").listeners.click()
await pause()
look("a better matrix", ["#solved", "#solvednote", "#solve"])

// what a click or an input changes: the address, and what is asked
const after = async (name, change) => {
	await change()
	await pause()
	await drawVisible()
	await pause()
	writeAddress()
	const [first, ...others] = page.asked.splice(0)
	const questions = others.map(([question]) => question).join(" ")
	steps.changes.push(`${name}: ${location.hash} ${JSON.stringify(first)} ${questions}`)
}
steps.changes = []
visible.clear()
visible.add("parts") // the others are asked when they are in view
const click = node => node.listeners.click()
const give = (id, fields) => find("#controls").listeners.input({target: {id, type: "number", ...fields}})
await after("a bar", () => click(every("#bars .row")[1]))
await after("a token", () => click(every("#strip button")[0]))
await after("the last token", () => click(every("#strip button")[1]))
await after("a temperature of 0", () => give("temperature", {value: "0"}))
await after("no temperature", () => give("temperature", {value: ""}))
await after("greedy", () => give("greedy", {type: "checkbox", checked: true}))
await after("not greedy", () => give("greedy", {type: "checkbox", checked: false}))
await after("a seed", () => give("seed", {value: "7"}))
await after("no seed", () => give("seed", {value: ""}))
await after("a part back", () => click(every("#partsbox button")[1]))
await after("a part removed", () => click(every("#partsbox button")[0]))
await after("all parts back", () => click(find("#putback")))
await after("another token's logit", () => find("#token").listeners.change({target: {value: "1"}}))
await after("a head", () => click(every("#heads button")[2]))
visible.add("path")
await after("a path", () => click(every("#paths button")[3]))
visible.delete("path")
await after("the other model", () => click(every(".which button")[1]))
await after("its embedding as head", () => click(every("#bars .switch button")[0]))
await after("its own head", () => click(every("#bars .switch button")[1]))
await after("one token drawn", () => click(every("#bars p button")[0]))
await after("a word", () => click(every("#written .w")[1]))
await after("a typed text", () => find("#prompt").listeners.input({target: {value: "To_be?"}}))

// the arrow keys move from head to head, and no further than the last one
const press = key => {
	let isKept = true
	find("#heads").onkeydown({key, target: document.activeElement, preventDefault: () => (isKept = false)})
	return `${key}: ${document.activeElement.title}, tab stop ${document.activeElement.tabIndex}, ${isKept}`
}
every("#heads button")[0].focus()
const keys = ["ArrowRight", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowUp", "ArrowUp", "Enter"]
steps.keys = keys.map(press)
every("#partsbox button")[1].focus()
visible.add("parts")
await draw()
steps.keys.push(`drawn anew: ${every("#partsbox button").indexOf(document.activeElement)}`)

steps["what an address says"] = []
for (const hash of input.addresses) {
	location.hash = hash
	readAddress()
	steps["what an address says"].push(`${hash}: ${JSON.stringify(state)}`)
}

const firstLine = box => page.outline(box).split("\n")[0]
answers.parts = [{error: "no such part"}]
state.removed = ["mlp.9"]
await draw()
steps.errors = [page.outline("#parts .warn"), firstLine("#bars"), String(state.removed.length)]
const {next} = answers
answers.next = [{error: "the reason"}]
await redraw()
steps.errors.push(page.outline("#problem"), firstLine("#bars"))
answers.next = next
await redraw()
steps.errors.push(page.outline("#problem"), firstLine("#bars"))
globalThis.fetch = async () => { throw new TypeError("no answer") }
try { await ask("next").next() } catch (error) { steps.errors.push(error.message) }
steps.errors.push(document.body.outline().split("\n")[0])
print(steps)
