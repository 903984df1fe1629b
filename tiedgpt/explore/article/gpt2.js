// GPT-2 in JavaScript, with one switch: is the output matrix the token embedding?
//
//	const {params, config} = readModel(buffer, config)  // an ArrayBuffer of safetensors, and config.json
//	const logits = gpt2(ids, params, {config, tied: true})  // [T, V]; the last row scores the next token
//	const logits = PATHS.mlp0(id, params, {config, tied: true})  // [V]; also raw, normed, model
//
// The functions have the names and the order of scripts/tied.py, so the two can be read side by side.
// `run` has what a pass needs besides the parameters:
//
//	config  the settings, as in config.json
//	tied    whether wte is the output matrix
//	cache   if given: newCache(), to which the keys and values of these ids are added. The next call then
//	        needs only the ids that follow
//	tape    if given: an object, which gets each activation under its name in scripts/ports.md
//	edits   if given: {name of an activation: function from the activation to what replaces it};
//	        {"mlp.0.out": zeros} removes the first MLP
//
// Shapes: T tokens of this pass, S tokens with those in the cache, V tokens of vocabulary, D numbers for
// each token, H heads of K = D / H numbers, F numbers inside the MLP. A vector [n] is a typed array, a matrix
// [n, m] an array of n vectors, its rows. Activations are float64, parameters float32.

// ---- Vectors and matrices ----

// [n], [n] -> number
export function dot(a, b) {
	let sum = 0
	for (let i = 0; i < a.length; i++) sum += a[i] * b[i]
	return sum
}

// [n], [n, m] -> [m]: the sum of the matrix's rows, each times a number of x
function rowTimesMatrix(x, matrix) {
	const n = matrix.length
	const m = matrix[0].length
	const out = new Float64Array(m)
	const rest = n % 4
	for (let i = 0; i < rest; i++) {
		for (let j = 0; j < m; j++) out[j] += x[i] * matrix[i][j]
	}
	// With four rows at a time, `out` is read and written a quarter as often: that takes half of the time.
	for (let i = rest; i < n; i += 4) {
		const [row0, row1, row2, row3] = [matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]]
		const [x0, x1, x2, x3] = [x[i], x[i + 1], x[i + 2], x[i + 3]]
		for (let j = 0; j < m; j++) out[j] += x0 * row0[j] + x1 * row1[j] + x2 * row2[j] + x3 * row3[j]
	}
	return out
}

// [n, m], [m] -> [n]: the dot product of x with each row of the matrix
function matrixTimesColumn(matrix, x) {
	const n = matrix.length
	const out = new Float64Array(n)
	const rest = n % 4
	for (let i = 0; i < rest; i++) out[i] = dot(matrix[i], x)
	// Four rows at a time: a sum waits for its last addition, and meanwhile three others are added to.
	for (let i = rest; i < n; i += 4) {
		const [row0, row1, row2, row3] = [matrix[i], matrix[i + 1], matrix[i + 2], matrix[i + 3]]
		let [sum0, sum1, sum2, sum3] = [0, 0, 0, 0]
		for (let j = 0; j < x.length; j++) {
			sum0 += x[j] * row0[j]
			sum1 += x[j] * row1[j]
			sum2 += x[j] * row2[j]
			sum3 += x[j] * row3[j]
		}
		out.set([sum0, sum1, sum2, sum3], i)
	}
	return out
}

// [n], [n] -> [n]. (Float64Array.from(a, function) would take ten times as long.)
function addVectors(a, b) {
	const sum = Float64Array.from(a)
	for (let i = 0; i < b.length; i++) sum[i] += b[i]
	return sum
}

const add = (x, y) => x.map((row, t) => addVectors(row, y[t])) // [T, n], [T, n] -> [T, n]
export const zeros = x => x.map(row => row.map(() => 0)) // [T, n] -> [T, n]

// ---- The model ----

const geluNew = x => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x)))

// the error function, by a series whose terms have the same sign
function erf(x) {
	if (Math.abs(x) > 6) return Math.sign(x) // to 16 digits
	let term = x
	let sum = x
	for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) {
		term *= (2 * x * x) / (2 * n + 1)
		sum += term
	}
	return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum
}

const exactGelu = x => 0.5 * x * (1 + erf(x / Math.SQRT2))
const ACTIVATIONS = {gelu_new: geluNew, gelu: exactGelu}

// [n] -> [n]: positive numbers, which add up to 1
export function softmax(x) {
	// x minus its maximum has the same softmax, and exp cannot overflow. (With reduce and map it would take twice
	// as long.)
	let max = x[0]
	for (let i = 1; i < x.length; i++) max = Math.max(max, x[i])
	const out = new Float64Array(x.length)
	let sum = 0
	for (let i = 0; i < x.length; i++) {
		out[i] = Math.exp(x[i] - max)
		sum += out[i]
	}
	for (let i = 0; i < x.length; i++) out[i] /= sum
	return out
}

// [T, D] -> [T, D]
function layerNorm(x, {weight, bias}, {config}) {
	return x.map(row => {
		const mean = row.reduce((a, b) => a + b) / row.length
		const centered = row.map(value => value - mean)
		const scale = 1 / Math.sqrt(dot(centered, centered) / row.length + config.layer_norm_epsilon)
		return centered.map((value, i) => value * scale * weight[i] + bias[i])
	})
}

// [T, n], weight [n, m] -> [T, m]
function linear(x, {weight, bias}) {
	return x.map(row => addVectors(rowTimesMatrix(row, weight), bias))
}

// [T, D] -> [H, T, K]
function splitHeads(x, H) {
	const K = x[0].length / H
	return Array.from({length: H}, (_, h) => x.map(row => row.subarray(h * K, (h + 1) * K)))
}

// [H, T, K] -> [T, D]: the heads of a token side by side
function mergeHeads(heads) {
	return heads[0].map((_, t) => Float64Array.from(heads.flatMap(head => [...head[t]])))
}

// q [H, T, K], k and v [H, S, K] -> [H, T, K]
function attend(q, k, v, layer, run) {
	const before = k[0].length - q[0].length // tokens in the cache
	// A query is compared with the keys up to its own token: row t has before + t + 1 scores, not S. (tied.py
	// computes the scores of later keys too, and its mask makes them -inf.)
	const compare = (query, keys) => Float64Array.from(keys, key => dot(query, key) / Math.sqrt(query.length))
	let scores = q.map((queries, h) => queries.map((query, t) => compare(query, k[h].slice(0, before + t + 1))))
	scores = tap(`attn.${layer}.scores`, scores, run)
	const pattern = tap(
		`attn.${layer}.pattern`,
		scores.map(rows => rows.map(softmax)),
		run
	)
	return pattern.map((rows, h) => rows.map(row => rowTimesMatrix(row, v[h].slice(0, row.length))))
}

// [T, D] -> [T, D]
function attention(x, {c_attn, c_proj}, layer, run) {
	const D = x[0].length
	const qkv = tap(`attn.${layer}.qkv`, linear(x, c_attn), run) // [T, 3 D]
	const [q, k, v] = ["q", "k", "v"].map((name, i) => {
		const part = qkv.map(row => row.subarray(i * D, (i + 1) * D))
		return tap(`attn.${layer}.${name}`, splitHeads(part, run.config.n_head), run) // [H, T, K]
	})
	const [allK, allV] = run.cache ? extend(run.cache, layer, k, v) : [k, v] // [H, S, K]
	const heads = tap(`attn.${layer}.heads`, attend(q, allK, allV, layer, run), run)
	return linear(mergeHeads(heads), c_proj)
}

// [T, D] -> [T, D]
function mlp(x, {c_fc, c_proj}, layer, run) {
	const activation = ACTIVATIONS[run.config.activation_function]
	const pre = tap(`mlp.${layer}.pre`, linear(x, c_fc), run) // [T, F]
	const post = tap(
		`mlp.${layer}.post`,
		pre.map(row => row.map(activation)),
		run
	)
	return linear(post, c_proj)
}

// [T, D] -> [T, D]
function block(x, weights, layer, run) {
	x = tap(`resid_pre.${layer}`, x, run)
	let normed = tap(`attn.${layer}.in`, layerNorm(x, weights.ln_1, run), run)
	x = add(x, tap(`attn.${layer}.out`, attention(normed, weights.attn, layer, run), run))
	x = tap(`resid_mid.${layer}`, x, run)
	normed = tap(`mlp.${layer}.in`, layerNorm(x, weights.ln_2, run), run)
	x = add(x, tap(`mlp.${layer}.out`, mlp(normed, weights.mlp, layer, run), run))
	return tap(`resid_post.${layer}`, x, run)
}

// [T, D] -> [T, V]
function unembed(x, params, run) {
	const W_UT = run.tied ? params.wte.weight : params.lm_head.weight // the switch; [V, D], W_U transposed
	return x.map(row => matrixTimesColumn(W_UT, row))
}

// T ids -> [T, D]: the residual stream after the last layer
function residualStream(ids, params, run) {
	const start = run.cache ? run.cache.length : 0 // the position of the first id
	const {wte, wpe} = params
	if (start + ids.length > wpe.weight.length)
		throw new RangeError(`${start + ids.length} tokens; the model reads at most ${wpe.weight.length}`)
	let x = ids.map((id, t) => addVectors(wte.weight[id], wpe.weight[start + t])) // [T, D]
	x = tap("embed", x, run)
	params.h.forEach((weights, layer) => {
		x = block(x, weights, layer, run)
	})
	if (run.cache) run.cache.length += ids.length
	return x
}

// T ids -> [T, V]: row i scores each token as the next after i
export function gpt2(ids, params, run) {
	let x = residualStream(ids, params, run)
	x = tap("final", layerNorm(x, params.ln_f, run), run)
	return tap("logits", unembed(x, params, run), run)
}

// ---- The cache, the tape, and edits ----

export const newCache = () => ({length: 0, layers: []})

// k and v [H, T, K] -> [[H, S, K], [H, S, K]]: the keys and values of all tokens so far
function extend(cache, layer, k, v) {
	const [oldK, oldV] = cache.layers[layer] ?? [k.map(() => []), v.map(() => [])]
	cache.layers[layer] = [k.map((rows, h) => [...oldK[h], ...rows]), v.map((rows, h) => [...oldV[h], ...rows])]
	return cache.layers[layer]
}

// -> x, or what the edit makes of x; the tape gets what is returned
function tap(name, x, {tape, edits}) {
	if (edits?.[name]) x = edits[name](x)
	if (tape) tape[name] = x
	return x
}

// ---- From one token to logits: four paths, as in tiedgpt/study/paths.py ----

const embedding = (id, params) => [Float64Array.from(params.wte.weight[id])] // [1, D]

// W_E W_U alone; ln_f is missing, so only the order of the logits has a meaning
function raw(id, params, run) {
	return unembed(embedding(id, params), params, run)[0]
}

// a GPT-2 without layers
function normed(id, params, run) {
	return unembed(layerNorm(embedding(id, params), params.ln_f, run), params, run)[0]
}

// the first MLP between the two tables
function mlp0(id, params, run) {
	let x = embedding(id, params)
	x = add(x, mlp(layerNorm(x, params.h[0].ln_2, run), params.h[0].mlp, 0, run))
	return unembed(layerNorm(x, params.ln_f, run), params, run)[0]
}

export const PATHS = {raw, normed, mlp0, model: (id, params, run) => gpt2([id], params, run)[0]} // each -> [V]

// T ids -> [layers + 1, V]: the scores after the last token, if the model ended before the first layer, after
// it, after the second, ... The last row is the model's.
export function lens(ids, params, run) {
	const tape = {}
	residualStream(ids, params, {...run, tape}) // the scores after the other tokens are not needed
	const names = ["embed", ...params.h.map((_, layer) => `resid_post.${layer}`)]
	const streams = names.map(name => tape[name].at(-1)) // [layers + 1, D]
	return unembed(layerNorm(streams, params.ln_f, run), params, run)
}

// [V] -> the ids of the k highest scores, the highest first
export function topK(scores, k) {
	const highest = []
	for (let id = 0; id < scores.length; id++) {
		if (highest.length === k && scores[id] <= scores[highest.at(-1)]) continue
		const lower = highest.findIndex(other => scores[other] < scores[id])
		highest.splice(lower < 0 ? highest.length : lower, 0, id)
		if (highest.length > k) highest.pop()
	}
	return highest
}

// ---- The weights ----

// the 16 bits of a finite number -> the number
function float16(bits) {
	const sign = bits >> 15 ? -1 : 1
	const exponent = (bits >> 10) & 31
	const fraction = (bits & 1023) / 1024
	return exponent === 0 ? sign * fraction * 2 ** -14 : sign * (1 + fraction) * 2 ** (exponent - 15)
}

const DTYPES = {
	F32: bytes => new Float32Array(bytes),
	F16: bytes => Float32Array.from(new Uint16Array(bytes), float16),
	I8: bytes => new Int8Array(bytes)
}

// -> {"h.0.ln_1.weight": array, ...}
function readSafetensors(buffer) {
	const length = Number(new DataView(buffer).getBigUint64(0, true)) // true: the lowest byte first
	const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)))
	delete header.__metadata__
	const arrays = {}
	for (const [name, {dtype, shape, data_offsets}] of Object.entries(header)) {
		if (!(dtype in DTYPES)) throw new TypeError(`${name} is ${dtype}; only F32, F16 and I8 are read`)
		const [begin, end] = data_offsets // counted from the end of the header
		const values = DTYPES[dtype](buffer.slice(8 + length + begin, 8 + length + end))
		arrays[name.replace(/^transformer\./, "")] = shape.length === 2 ? rowsOf(values, shape) : values
	}
	return arrays
}

// [n m] -> [n, m]
function rowsOf(values, [n, m]) {
	return Array.from({length: n}, (_, i) => values.subarray(i * m, (i + 1) * m))
}

// In the page, a matrix [n, m] is whole numbers, and NAME.scale [n] has what 1 stands for in each row.
function scaleRows(arrays) {
	for (const name of Object.keys(arrays)) {
		const scales = arrays[`${name}.scale`]
		if (!scales) continue
		arrays[name] = arrays[name].map((row, i) => new Float32Array(row).map(value => value * scales[i]))
		delete arrays[`${name}.scale`]
	}
	return arrays
}

// {"h.0.ln_1.weight": array, ...} -> {h: [{ln_1: {weight: array}, ...}, ...], ...}
function nest(arrays, n_layer) {
	const params = {}
	for (const [name, array] of Object.entries(arrays)) {
		const parts = name.split(".")
		const last = parts.pop()
		// Go down from params by the parts of the name. An object that is missing is made.
		let branch = params
		for (const part of parts) branch = branch[part] ??= {}
		branch[last] = array
	}
	// The layers were an object with the keys "0", "1", ...; now they are an array.
	params.h = Array.from({length: n_layer}, (_, layer) => params.h[layer])
	return params
}

// config is what config.json has.
export function readModel(buffer, config) {
	const name = config.activation_function
	if (!(name in ACTIVATIONS))
		throw new TypeError(`activation_function is ${name}; only gelu_new and gelu are read`)
	return {params: nest(scaleRows(readSafetensors(buffer)), config.n_layer), config}
}
